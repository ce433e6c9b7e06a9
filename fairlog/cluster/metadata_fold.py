"""Which entries of the metadata stream count, and what its proposers may conclude. Pure.

                       ┌──────── state: last accepted entry, next position, newest snapshots ◀──┐
    entries, in order ─┴▶ `fold` ──▶ Batch: changes of records, accepted entries, snapshots ────┴─▶ local copy, memory

A CHANGE names its *base*: the last accepted entry that its proposer had folded, by position and CRC. It is accepted if
this is the last accepted entry, and void otherwise. A change is decided on the content as of its base. So it is
accepted only if nobody has changed anything since it was decided.

**For each base at most one entry is accepted**, because accepting it moves the last accepted entry on, to a later
position, and it never comes back. Hence:

* An entry that is in the stream twice changes nothing twice.
* An entry of unknown outcome can be proposed again as it is, and only as it is.
* *When a caller may be told that its change was refused:* once an accepted entry with the same base was read. A copy of
  the proposal may still land, a second or a day later, but then its base is no longer the last accepted entry, for any
  reader. Until then the proposal may still be accepted, so its caller waits, or is told that the outcome is not known.
  (`Proposal` keeps to this rule: it has an outcome only then.)
* A process has one change decided at a time, but need not wait for a proposal whose caller is gone. The next one may
  have the same base, and one of them is void.

A snapshot is the content as of its base. This is true whether or not something else is accepted before it lands, so
snapshots take no part in acceptance: they make no change void, and no change makes them void. A reader that begins at
a snapshot could not know whether it was accepted anyway, since that depends on entries before it. What it has to know
is that nothing accepted is missing after the base: the stream must begin at the entry after the base at the latest. So
the stream is trimmed up to there, and not up to the snapshot itself (`trim_to`).

A reader stops (CorruptStorage) at what cannot be: see docs/formats/metadata-stream.md.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import NamedTuple
from uuid import UUID

from crc32c import crc32c

from fairlog.cluster import cluster_records
from fairlog.cluster.common_memory import Changes
from fairlog.cluster.metadata_entry import (
    Base,
    Change,
    Entry,
    NotAnEntry,
    Origin,
    Piece,
    Snapshot,
    decode_entry_untrusted,
    decode_records_untrusted,
    encode_change,
)
from fairlog_types import CorruptStorage
from stream.engine import StoredEntry, StreamPosition, Unknown

SNAPSHOTS_KEPT = 2
"""The newest, and a spare one: a node that begins at it is not overtaken by a trim."""


_BEGIN = StreamPosition(0)


@dataclass(frozen=True, slots=True)
class FoldState:
    """How far the stream was read, and what its next entries are judged by."""

    cluster: UUID | None = None
    """None before the foundation was read."""
    accepted: Base | None = None
    """The last accepted entry."""
    next: StreamPosition = _BEGIN
    """The position of the first entry that was not read."""
    snapshots: tuple[StreamPosition, ...] = ()
    """The bases of the newest snapshots that were read, in their order; at most SNAPSHOTS_KEPT."""
    since_entries: int = 0
    """How many entries were read since the last snapshot."""
    since_bytes: int = 0

    @property
    def trim_to(self) -> StreamPosition | None:
        """The first entry that must stay, by what was read; None if this is not known."""
        if len(self.snapshots) < SNAPSHOTS_KEPT:
            return None
        return StreamPosition(self.snapshots[-SNAPSHOTS_KEPT] + 1)


class AcceptedEntry(NamedTuple):
    """An entry that counts."""

    position: StreamPosition
    base: Base | None
    origin: Origin


class Strange(NamedTuple):
    """A void entry that no process of this cluster has written."""

    position: StreamPosition
    why: str


@dataclass(frozen=True, slots=True)
class Batch:
    """What some entries make of a state."""

    state: FoldState
    changes: Changes
    """Of all accepted entries together."""
    accepted: Sequence[AcceptedEntry] = ()
    strange: Sequence[Strange] = ()


def fold(state: FoldState, entries: Iterable[StoredEntry], stream: str) -> Batch:
    """Read on. Entries before `state.next` must not be among them. Raises CorruptStorage naming the stream."""
    changes: dict[bytes, bytes | None] = {}
    accepted: list[AcceptedEntry] = []
    strange: list[Strange] = []
    for position, data in entries:
        assert position >= state.next, (position, state)
        since_entries, since_bytes = state.since_entries + 1, state.since_bytes + len(data)
        state = replace(state, next=StreamPosition(position + 1), since_entries=since_entries, since_bytes=since_bytes)
        if not data:
            continue  # the engine's own
        entry = _decoded(position, data, stream)
        if entry is None:
            strange.append(Strange(position, "it is no entry of Fairlog's metadata"))
            continue
        if entry.cluster != state.cluster and not (state.accepted is None and entry.base is None):
            if entry.base is not None:  # else another node was faster to found this one
                strange.append(Strange(position, f"it is of another cluster, {entry.cluster}"))
            continue
        _require_same_past(state, position, entry, stream)
        match entry.body:
            case Change(made):
                if not _counts(state, entry):
                    continue
                if state.accepted is None:
                    state = replace(state, cluster=_founded(position, entry, made, stream))
                state = replace(state, accepted=Base(position, entry.crc))
                changes |= made
                accepted.append(AcceptedEntry(position, entry.base, entry.origin))
            case Piece():
                pass
            case Snapshot():
                if entry.base is not None and entry.base.position > max(state.snapshots, default=-1):
                    newest = (*state.snapshots, entry.base.position)[-SNAPSHOTS_KEPT:]
                    state = replace(state, snapshots=newest, since_entries=0, since_bytes=0)
    return Batch(state, changes, accepted, strange)


def _counts(state: FoldState, entry: Entry) -> bool:
    """Whether a CHANGE is accepted."""
    return entry.base == state.accepted


def _decoded(position: StreamPosition, data: bytes, stream: str) -> Entry | None:
    """None for what is foreign. Raises CorruptStorage."""
    entry = decode_entry_untrusted(data)
    if entry is NotAnEntry.FOREIGN:
        return None
    if isinstance(entry, NotAnEntry):
        raise _corrupt(stream, position, entry.value)
    return entry


def _require_same_past(state: FoldState, position: StreamPosition, entry: Entry, stream: str) -> None:
    """Raises CorruptStorage if the proposer has folded something else than what was read here."""
    base, known = entry.base, state.accepted
    if base is None or known is None or base.position < known.position:
        return
    if base != known:
        raise _corrupt(
            stream,
            position,
            f"its proposer has accepted entry {base.position} with the CRC {base.crc:08x} last, and here this is"
            f" entry {known.position} with {known.crc:08x}: the stream is not what it was",
        )


def _founded(position: StreamPosition, entry: Entry, changes: Changes, stream: str) -> UUID:
    value = changes.get(cluster_records.CLUSTER_KEY)
    if value is None:
        raise _corrupt(stream, position, "it is the first one, and lacks the record 'cluster'")
    try:
        founded = cluster_records.decode_cluster(value).uuid
    except CorruptStorage as error:
        raise _corrupt(stream, position, str(error)) from error
    if founded != entry.cluster:
        raise _corrupt(stream, position, f"it founds the cluster {founded}, and is of {entry.cluster}")
    return founded


def _corrupt(stream: str, position: StreamPosition, what: str) -> CorruptStorage:
    return CorruptStorage(f"the metadata stream {stream} is corrupt at entry {position}: {what}")


class Outcome(Enum):
    """What came of a proposal."""

    ACCEPTED = 1
    VOID = 2
    """And it can never be accepted."""
    LOST = 3
    """It will not be known: the stream was trimmed before it was read."""


@dataclass(slots=True)
class Proposal:
    """A CHANGE from its decision until its outcome is known. See the module's head for the rule."""

    base: Base | None
    origin: Origin
    data: bytes
    outcome: Outcome | None = None
    """None: it may still be accepted."""
    is_under_way: bool = False
    """It need not be appended (again): an append has not been answered yet, or has put it into the stream."""
    appends: int = field(default=0)

    def hear_begun(self) -> None:
        """It is being appended."""
        assert self.outcome is None
        self.is_under_way = True
        self.appends += 1

    def hear_appended(self, result: StreamPosition | Unknown) -> None:
        """What an append came to: if this is not known, the same bytes are to be appended again."""
        if isinstance(result, Unknown):
            self.is_under_way = False

    def hear(self, batch: Batch) -> None:
        """What was read."""
        for entry in batch.accepted:
            if self.outcome is None and entry.base == self.base:
                self.outcome = Outcome.ACCEPTED if entry.origin == self.origin else Outcome.VOID

    def hear_skipped(self, state: FoldState) -> None:
        """Reading goes on with this state, and what was in between is not known."""
        if self.outcome is None and state.accepted != self.base:
            self.outcome = Outcome.LOST


class Proposer:
    """Makes a process' proposals, each with an origin of its own."""

    def __init__(self, identity: bytes) -> None:
        """`identity` is random."""
        self._identity = identity
        self._last = 0

    def next_origin(self) -> Origin:
        """For a proposal, or a snapshot."""
        self._last += 1
        return Origin(self._identity, self._last)

    def is_own(self, origin: Origin) -> bool:
        """Whether this process has proposed it."""
        return origin.proposer == self._identity

    def propose(self, state: FoldState, changes: Changes) -> Proposal:
        """These changes, which were decided on the content as of this state. The first ones found a cluster."""
        cluster = state.cluster
        if cluster is None:
            value = changes[cluster_records.CLUSTER_KEY]
            assert value is not None
            cluster = cluster_records.decode_cluster(value).uuid
        origin = self.next_origin()
        return Proposal(state.accepted, origin, encode_change(state.accepted, cluster, origin, changes))


class FoundSnapshot(NamedTuple):
    """Where a node without content begins."""

    state: FoldState
    content: Mapping[bytes, bytes]


class SnapshotSearch:
    """Reads a stream that begins at `start` for a snapshot from which nothing accepted is missing."""

    def __init__(self, start: StreamPosition, stream: str) -> None:
        self._start = start
        self._stream = stream
        self._pieces: dict[Origin, dict[int, bytes]] = {}
        self._cluster: UUID | None = None

    def read(self, entries: Iterable[StoredEntry]) -> FoundSnapshot | None:
        """The first one that ends among these entries, which follow those before. Raises CorruptStorage."""
        for position, data in entries:
            entry = _decoded(position, data, self._stream) if data else None
            if entry is None or entry.base is None or entry.base.position + 1 < self._start:
                continue
            if self._cluster not in (None, entry.cluster):
                raise _corrupt(self._stream, position, f"it is of {entry.cluster}, and others are of {self._cluster}")
            self._cluster = entry.cluster
            match entry.body:
                case Piece(index, piece):
                    self._pieces.setdefault(entry.origin, {})[index] = piece
                case Snapshot(pieces):
                    got = self._pieces.pop(entry.origin, {})
                    if got.keys() == set(range(pieces)):
                        return self._found(position, entry, entry.base, got)
                case _:
                    pass
        return None

    def _found(self, position: StreamPosition, entry: Entry, base: Base, pieces: Mapping[int, bytes]) -> FoundSnapshot:
        assert isinstance(entry.body, Snapshot)
        content = b"".join([*(pieces[index] for index in range(len(pieces))), entry.body.data])
        if crc32c(content) != entry.body.crc:
            raise _corrupt(self._stream, position, "the CRC of the whole snapshot is wrong")
        records = decode_records_untrusted(content)
        if isinstance(records, NotAnEntry):
            raise _corrupt(self._stream, position, f"the snapshot cannot be read: {records.value}")
        return FoundSnapshot(FoldState(entry.cluster, base, StreamPosition(base.position + 1)), records)
