"""What an owner has appended in its epoch, and how much of it is known to be accepted: the answer rule.

    appended      1   2   3   4   5                 what is answered to clients: what is in `accepted`, and nothing else
    landed at    41  42      45   ?
                 ────── accepted ─ 43 and 44 have to be read before anything is known of entry 4

The owner runs the fold as every reader does. An entry whose position is the next one is not read: what
lies there is known. Where positions are missing, somebody else has appended, or an outcome is not known yet: then what
lies there is read and folded. If it is a FENCE of the next epoch, the owner is deposed: nothing more is accepted.

An owner that is told an unknown outcome appends nothing more in its epoch. The entry may be there, and it may come
later; only a FENCE settles that. So no entry is repeated, and none is answered that might not count. The same goes for
an entry that lies where it does not count, as an entry before it is missing (`passed_over`): nothing after it is ever
accepted.

Pure: no I/O.
"""

from __future__ import annotations

from typing import NamedTuple

from fairlog_types import CorruptStorage
from stream.engine import StreamPosition
from stream.entry import Buffer, Entry, EntryKind, Owner, decode_entry_untrusted, encode_entry
from stream.fold import Fenced, Fold, FoldState


class _Encoded(NamedTuple):
    """What the fold has to know of an entry without its bytes."""

    chain: int
    kind: EntryKind
    continued: bool


class OwnEntries:
    """The entries of one owner in one epoch."""

    def __init__(self, fold: Fold) -> None:
        """`fold` has just gone over the FENCE that began the epoch, and is nobody else's from now on."""
        state = fold.state
        assert state.sequence == 0, state
        self._fold = fold
        self._encoded = [_Encoded(state.chain, EntryKind.FENCE, False)]
        """The entries from `_first` on: those that may not be accepted yet, and the one before them."""
        self._first = 0
        self._landed: dict[StreamPosition, int] = {}
        """Sequences, by the positions that the engine has named and the fold has not reached."""
        self.deposed_by: Owner | None = None
        """Whose FENCE has ended the epoch; None as long as none was read."""
        self.passed_over: int | None = None
        """The sequence of an entry that does not count where it lies, though no FENCE was read; None if none."""

    @property
    def appended(self) -> int:
        """The sequence of the last entry that was encoded."""
        return self._first + len(self._encoded) - 1

    @property
    def accepted(self) -> int:
        """All entries through this sequence are accepted, for ever."""
        return self._first

    def encode(self, kind: EntryKind, body: Buffer = b"", *, continued: bool = False) -> tuple[int, bytes]:
        """The next entry, with its sequence. It is to be appended once."""
        sequence = self.appended + 1
        data, chain = encode_entry(
            kind, self._fold.state.epoch, sequence, self._encoded[-1].chain, body, continued=continued
        )
        self._encoded.append(_Encoded(chain, kind, continued))
        return sequence, data

    def landed(self, sequence: int, position: StreamPosition) -> None:
        """The engine has said where an entry lies."""
        if self.deposed_by is not None:
            return
        if position >= self._fold.next_position:
            self._landed[position] = sequence
            self._go_on()
        elif sequence > self.accepted:  # it was read there, and was void
            self.passed_over = sequence

    @property
    def state(self) -> FoldState:
        """Where the fold is, between two groups of frames."""
        return self._fold.between

    @property
    def gap(self) -> StreamPosition | None:
        """From here on the stream has to be read to learn more, up to what has landed; None: nothing has to be read."""
        return self._fold.next_position if self._landed and self.deposed_by is None else None

    def read(self, position: StreamPosition, data: Buffer) -> None:
        """An entry of the gap. Raises CorruptStorage."""
        if self.deposed_by is not None or position < self._fold.next_position:
            return
        entry = decode_entry_untrusted(data)
        if isinstance(entry, Entry) and entry.epoch == self._fold.state.epoch and entry.kind is not EntryKind.FENCE:
            if not self._has_appended(entry):
                raise CorruptStorage(
                    f"position {position} of the stream has an entry {entry.sequence} of epoch {entry.epoch} that its "
                    "owner has not appended: somebody else writes there, or the engine has changed it"
                )
            self._go_over(entry.sequence)
        else:
            folded = self._fold.step(position, data)
            if isinstance(folded, Fenced):
                self.deposed_by = folded.owner
                self._landed.clear()
                return
        self._go_on()

    def _has_appended(self, entry: Entry) -> bool:
        """Whether it is one of ours, as we wrote it. Of those that are accepted that is not known any more."""
        index = entry.sequence - self._first
        if index <= 0:
            return True  # accepted before: it is there twice
        if index >= len(self._encoded):
            return False
        return entry.chain == self._encoded[index].chain and entry.follows(self._encoded[index - 1].chain)

    def _go_on(self) -> None:
        while (sequence := self._landed.pop(self._fold.next_position, None)) is not None:
            self._go_over(sequence)
            if sequence > self._first:
                self.passed_over = sequence

    def _go_over(self, sequence: int) -> None:
        """The entry `sequence` lies at the next position."""
        # One that is not newer is there twice.
        chain, kind, continued = self._encoded[max(0, sequence - self._first)]
        if self._fold.landed(self._fold.next_position, sequence, chain, kind, continued=continued):
            del self._encoded[0]
            self._first = sequence
