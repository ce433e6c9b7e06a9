"""Owners of an epoch, for tests of the fold: what they write, and what an independent reader makes of it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from fairlog_types import LeaderEpoch
from stream.engine import StreamPosition
from stream.entry import (
    Buffer,
    EntryKind,
    JournalFrame,
    Owner,
    Seen,
    encode_entry,
    encode_fence,
    encode_frames,
    join_chains,
)
from stream.fold import Fenced, Fold, Folded, FoldState, Frames

NAME = "the-stream"


def owner(node: str, run: int = 0) -> Owner:
    return Owner(node, run.to_bytes(16, "big"))


def fence(of: Owner, epoch: int, seen: Seen | None = None) -> bytes:
    """A FENCE by which `of` becomes the owner of `epoch`."""
    return encode_entry(EntryKind.FENCE, LeaderEpoch(epoch), 0, 0, encode_fence(of, seen))[0]


def chain_of(entry: bytes) -> int:
    return int.from_bytes(entry[20:24], "little")


def frames(*payloads: bytes, journal: str = "local/a") -> bytes:
    """The body of FRAMES."""
    return b"".join(encode_frames(JournalFrame(journal, payload) for payload in payloads))


class Writer:
    """Writes the entries of one epoch, one after the other, as its owner does."""

    def __init__(self, fence_entry: bytes, epoch: int, before: int = 0) -> None:
        """`before` is the last accepted chain before the FENCE."""
        self.epoch = LeaderEpoch(epoch)
        self.sequence = 0
        self.chain = join_chains(before, chain_of(fence_entry))

    def write(self, kind: EntryKind, body: Buffer = b"", *, continued: bool = False) -> bytes:
        self.sequence += 1
        data, self.chain = encode_entry(kind, self.epoch, self.sequence, self.chain, body, continued=continued)
        return data

    def frames(self, *payloads: bytes) -> bytes:
        return self.write(EntryKind.FRAMES, frames(*payloads))


def run_fold(entries: Iterable[bytes], state: FoldState = FoldState()) -> tuple[Fold, list[Folded]]:  # noqa: B008
    """Fold the entries behind `state`."""
    fold = Fold(NAME, state)
    return fold, [fold.step(fold.next_position, data) for data in entries]


def owned_fold(of: Owner, epoch: int = 1, before: Sequence[bytes] = ()) -> tuple[Fold, list[bytes]]:
    """A fold that has just gone over the FENCE of `of`; and the stream so far."""
    entries = [*before, fence(of, epoch)]
    fold, folded = run_fold(entries)
    assert folded[-1] == Fenced(LeaderEpoch(epoch), of)
    return fold, entries


def payloads(folded: Iterable[Folded]) -> list[bytes]:
    """The frames that were accepted, in their order."""
    return [bytes(frame.data) for each in folded if isinstance(each, Frames) for frame in each.frames]


def position(number: int) -> StreamPosition:
    return StreamPosition(number)
