"""Which entries of a shard's stream count: the fold that every reader runs, and that the owner lives by.

    position   40       41       42        43       44        45
    entry      FRAMES   FRAMES   FENCE     FRAMES   FRAMES    HEARTBEAT
    epoch, seq 3, 17    3, 18    4, 0      3, 19    4, 1      4, 2
               ──────── accepted ───────   void     ──── accepted ────

The first FENCE of an epoch wins, and its writer owns the shard: nobody else's entries are accepted until the next one.
So a deposed owner may append as long as it likes, an entry that is there twice counts once, and one that was lost makes
all behind it void (their sequences do not follow), which their writer finds out (`own_entries`). No clock is asked.

What cannot be, unless an entry was lost or changed after it had been read, raises CorruptStorage: the shard stops,
and does not guess. So does what only a newer version can read, for readers of both would not accept the same.
docs/formats/stream-entry.md has the rules. Pure: no I/O.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import Enum

from fairlog_types import CorruptStorage, LeaderEpoch
from stream.engine import StreamPosition
from stream.entry import (
    Buffer,
    Entry,
    EntryKind,
    JournalFrame,
    NotAnEntry,
    Owner,
    Seen,
    decode_entry_untrusted,
    decode_fence_untrusted,
    decode_frames_untrusted,
    decode_hand_over_untrusted,
    join_chains,
)

NOTHING_READ = StreamPosition(-1)
NO_EPOCH = LeaderEpoch(0)
"""Before the first FENCE."""


@dataclass(frozen=True, slots=True)
class FoldState:
    """Where a fold is, between two groups of frames: all that it needs to go on."""

    position: StreamPosition = NOTHING_READ
    """Of the last entry that was folded."""
    epoch: LeaderEpoch = NO_EPOCH
    owner: Owner | None = None
    """Of the epoch; None in epoch 0 only."""
    sequence: int = 0
    """Of the last entry that was accepted."""
    chain: int = 0
    handed_over: bool = False
    """The owner has appended its last entry."""

    @property
    def seen(self) -> Seen | None:
        """The last entry that was accepted, for a FENCE; None if there is none."""
        return None if self.owner is None else Seen(self.epoch, self.sequence, self.chain)


@dataclass(frozen=True, slots=True)
class Fenced:
    """A new epoch has begun."""

    epoch: LeaderEpoch
    owner: Owner


@dataclass(frozen=True, slots=True)
class Frames:
    """Frames that count, in their order; they become visible together."""

    frames: Sequence[JournalFrame]


@dataclass(frozen=True, slots=True)
class HandedOver:
    """The owner has ended its epoch."""

    successor: str | None
    """The node that is to be the next owner; None: any."""


class Plain(Enum):
    """What else an accepted entry can be."""

    HEARTBEAT = "a heartbeat"
    CONTINUED = "the beginning of frames"


class Void(Enum):
    """Why an entry does not count."""

    FOREIGN = "it is not an entry"
    EPOCH = "another epoch is under way"
    SEQUENCE = "it is not the next one of its epoch"
    HANDED_OVER = "its owner has handed the shard over"


Folded = Fenced | Frames | HandedOver | Plain | Void


class Fold:
    """The fold over one stream. Used by one reader, or by the owner."""

    def __init__(self, stream: str, state: FoldState = FoldState()) -> None:
        """`stream` is the stream's name, for messages; `state` is where an earlier fold has been."""
        self._stream = stream
        self._state = state
        self._between = state
        self._pieces: list[Buffer] = []
        """Of frames that are continued; an owner that knows what it has appended keeps none."""
        self._continued = False

    @property
    def state(self) -> FoldState:
        """With the last entry that was stepped over."""
        return self._state

    @property
    def between(self) -> FoldState:
        """The last state that was not in the middle of continued frames: from here a fold can go on."""
        return self._between

    @property
    def next_position(self) -> StreamPosition:
        """Of the entry that is to be stepped over next."""
        return StreamPosition(self._state.position + 1)

    def step(self, position: StreamPosition, data: Buffer) -> Folded:
        """Go over the entry at `position`, which must be the next one. Raises CorruptStorage."""
        assert position == self.next_position, (position, self._state)
        entry = decode_entry_untrusted(data)
        if isinstance(entry, Entry):
            folded = self._accept(position, entry)
        elif entry.is_of_a_newer_version:
            raise CorruptStorage(
                f"the stream {self._stream} has an entry at position {position} that this version of Fairlog cannot "
                f"read: {entry.value}. The shard stops here. Run the version that wrote it on this machine, too"
            )
        else:
            folded = Void.FOREIGN
        if isinstance(folded, Void):
            self._moved(replace(self._state, position=position))
        return folded

    def landed(self, position: StreamPosition, sequence: int, chain: int, kind: EntryKind, *, continued: bool) -> bool:
        """Go over an entry of the owner's own, which is known to lie at the next position; whether it is accepted.

        As `step`, without the bytes. The entry is of the present epoch.
        """
        state = self._state
        assert position == self.next_position, (position, state)
        accepted = sequence == state.sequence + 1 and not state.handed_over
        if accepted:
            self._continued = continued
            ended = kind is EntryKind.HAND_OVER
            self._moved(replace(state, position=position, sequence=sequence, chain=chain, handed_over=ended))
        else:
            self._moved(replace(state, position=position))
        return accepted

    def _accept(self, position: StreamPosition, entry: Entry) -> Folded:
        state = self._state
        read_by_writer = entry.epoch - 1 if entry.kind is EntryKind.FENCE else entry.epoch
        if read_by_writer > state.epoch:
            raise self._broken(
                position,
                f"its writer has read epoch {read_by_writer}, but the stream has come to epoch {state.epoch} only: the "
                "engine has lost entries, or somebody copies another stream into this one",
            )
        if entry.kind is EntryKind.FENCE:
            return self._fence(position, entry) if entry.epoch == state.epoch + 1 else Void.EPOCH
        if entry.epoch != state.epoch or state.owner is None:
            return Void.EPOCH
        if entry.sequence != state.sequence + 1:
            return Void.SEQUENCE
        if state.handed_over:
            return Void.HANDED_OVER
        if not entry.follows(state.chain):
            raise self._broken(
                position, f"its checksum does not follow that of entry {state.sequence} of epoch {state.epoch}"
            )
        if self._continued and entry.kind is not EntryKind.FRAMES:
            raise self._broken(position, "it comes in the middle of frames that are continued")
        return self._accepted(position, entry)

    def _accepted(self, position: StreamPosition, entry: Entry) -> Folded:
        after = replace(self._state, position=position, sequence=entry.sequence, chain=entry.chain)
        if entry.kind is EntryKind.FRAMES:
            self._pieces.append(entry.body)
            self._continued = entry.continued
            if entry.continued:
                self._moved(after)
                return Plain.CONTINUED
            frames = decode_frames_untrusted(self._pieces[0] if len(self._pieces) == 1 else b"".join(self._pieces))
            if isinstance(frames, NotAnEntry):
                raise self._broken(position, "its frames cannot be read")
            self._pieces.clear()
            self._moved(after)
            return Frames(frames)
        if entry.kind is EntryKind.HAND_OVER:
            successor = decode_hand_over_untrusted(entry.body)
            if isinstance(successor, NotAnEntry):
                raise self._broken(position, "its successor cannot be read")
            self._moved(replace(after, handed_over=True))
            return HandedOver(*successor)
        if entry.body:
            raise self._broken(position, "a heartbeat has nothing to say")
        self._moved(after)
        return Plain.HEARTBEAT

    def _fence(self, position: StreamPosition, entry: Entry) -> Fenced:
        state = self._state
        if not entry.follows(0):
            raise self._broken(position, "its checksum is wrong")
        body = decode_fence_untrusted(entry.body)
        if isinstance(body, NotAnEntry) or entry.sequence != 0:
            raise self._broken(position, "its new owner cannot be read")
        owner, seen = body
        if seen is not None and seen.epoch == state.epoch:
            if seen.sequence > state.sequence:
                raise self._broken(
                    position,
                    f"its writer {owner.node} has read entry {seen.sequence} of epoch {seen.epoch}, but the stream has "
                    f"only {state.sequence} of them: the engine has lost entries",
                )
            if seen.sequence == state.sequence and seen.chain != state.chain:
                raise self._broken(
                    position,
                    f"its writer {owner.node} has read another entry {seen.sequence} of epoch {seen.epoch} than the "
                    "stream has: the engine has changed entries",
                )
        self._pieces.clear()
        self._continued = False
        chain = join_chains(state.chain, entry.chain)  # readers with another past stop at the next entry
        self._moved(FoldState(position, entry.epoch, owner, 0, chain))
        return Fenced(entry.epoch, owner)

    def _moved(self, state: FoldState) -> None:
        self._state = state
        if not self._continued:
            self._between = state

    def _broken(self, position: StreamPosition, what: str) -> CorruptStorage:
        return CorruptStorage(
            f"the stream {self._stream} contradicts itself at position {position}: {what}. The shard stops. Leave the "
            "stream as it is, and look at what happened to the engine"
        )
