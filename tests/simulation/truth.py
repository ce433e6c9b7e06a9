"""What a shard's stream says, seen at once and by nobody in the run; and what nodes do, held against it.

    stream ─▶ the rules of docs/formats/stream-entry.md, once more ─▶ accepted frames ─▶ owners, decisions, grants, logs
                                                                                             │ held against
    a copy's fold, an owner's epoch, what anybody reads anywhere, what is trimmed  ◀─────────┘

The rules are written here anew, and do without `stream.fold`: a bug in that must not hide itself. What is placed where
follows from the accepted frames by the partitions' own fold, in memory, without restarts.

    M1  where a copy's fold is, the stream has been there (`check_fold`); frames of a journal follow one another
    M2  a node owns the epoch whose first FENCE its attempt has written, and no other node ever does (`check_owner`)
    M3  what is read, at whatever node, is accepted, and is placed there (`check_read`)
    M4  a new owner has all that was placed before its FENCE (`check_recovered`)
    M7  the bytes of a journal are accepted once; a writer is silent once it knows no outcome (`check_append`)
    M8  chains are whole
    M9  what is trimmed is on so many disks (`check_trim`)
    5   one decision for each transaction, in all logs of all shards; what is PREPARED is not discarded while its
        coordinator's PREPARE_COMMIT stands
    6   the numbers of a group journal's commits have no gaps; and each log applies those of a group in their order
    9   what was granted to a client is accepted (`check_grants`)

The names are those of docs/invariants.md. M5 is judged by every reader (7), and M6 by nodes that try to own the shard
far too early (`Plan.hasty`) and whose wall clocks are wrong.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from coordinator.group_history import PART, SNAPSHOT_BEGIN, SNAPSHOT_END
from coordinator.group_records import (
    PrepareAbortRecord,
    PrepareCommitRecord,
    ProducerRecord,
    decode_group,
)
from datalog.batch import parse_stored_header
from fairlog_types import JournalPosition, LeaderEpoch, LogId, Offset, ProducerEpoch, ProducerId, TxId
from journal.frame import Frame, decode_replicated_untrusted
from journal.reading import frame_at
from partition.placed import BatchRef, PlacedBatch, PlacedStart, PlacedTransaction
from partition.record_codec import decode_local
from partition.records import Apply, Discard, Marker
from partition.state import PartitionState
from stream.engine import StreamPosition
from stream.entry import (
    Buffer,
    Entry,
    EntryKind,
    NotAnEntry,
    Owner,
    decode_entry_untrusted,
    decode_fence_untrusted,
    decode_frames_untrusted,
    join_chains,
)
from stream.fold import FoldState
from tests.simulation.found import Found
from tests.simulation.history import log_name
from tests.simulation.world import World

CHANGES = "changes of owner"
"""What is counted of the run: each owner but the first one."""
_BODY_FROM = 17
"""As in `history`."""


@dataclass(slots=True)
class _Log:
    """What is accepted of one log."""

    state: PartitionState
    held: dict[JournalPosition, bytes] = field(default_factory=dict[JournalPosition, bytes])
    """The batches, by the position of their frame in the journal."""
    bodies: set[bytes] = field(default_factory=set[bytes])
    """Of all batches that are accepted, placed or not."""
    placed: dict[Offset, bytes] = field(default_factory=dict[Offset, bytes])
    """In their order, from the CRC on."""
    applied: dict[str, int] = field(default_factory=dict[str, int])
    """The last commit number of each group that was applied here."""


class _Prepared(NamedTuple):
    """A PREPARE_COMMIT."""

    journal: str
    group: str
    number: int
    """Among the commits of the journal."""


@dataclass(slots=True)
class Decisions:
    """What all shards of a run have decided."""

    by_txid: dict[TxId, tuple[bool, str]] = field(default_factory=dict[TxId, tuple[bool, str]])
    """Whether it has committed, and where that was read first."""
    prepared: dict[TxId, _Prepared] = field(default_factory=dict[TxId, _Prepared])
    """The PREPARE_COMMITs that stand."""
    granted: dict[int, int] = field(default_factory=dict[int, int])
    """The newest epoch of each producer."""


class Truth:
    """One shard's stream."""

    def __init__(
        self, world: World, stream: str, *, markers: Collection[LogId] = (), decisions: Decisions | None = None
    ) -> None:
        """Of its logs, those in `markers` are of marker mode."""
        self._world = world
        self.stream = stream
        self._markers = markers
        self.owner: Owner | None = None
        self.epoch = 0
        self._sequence = self._chain = 0
        self._handed_over = False
        self._pieces: list[bytes | memoryview] = []
        self._states: list[tuple[int, int]] = []
        """The epoch and the sequence behind each position."""
        self._owners: dict[int, tuple[Owner, int]] = {}
        """Of each epoch, with the position of its FENCE."""
        self._served: dict[int, tuple[str, int]] = {}
        """The node, and its start, that has owned each epoch."""
        self._logs: dict[LogId, _Log] = {}
        self._ends: dict[str, JournalPosition] = {}
        """Behind the last accepted frame of each journal."""
        self._decisions = decisions or Decisions()
        self._commit_numbers: dict[str, int] = {}
        self._groups: dict[str, str] = {}
        """Of the transactional ids."""
        self._placed_before: dict[int, dict[LogId, int]] = {}
        """How much of each log was placed before the FENCE of each epoch."""

    # --- the fold ---

    def look(self, entries: Sequence[bytes]) -> None:
        """Fold what has landed since the last look."""
        while len(self._states) < len(entries):
            position = StreamPosition(len(self._states))
            why = self._take(position, entries[position])
            if why:
                self._world.count(f"void entries: {why}")
            self._states.append((self.epoch, self._sequence))

    def _take(self, position: StreamPosition, data: bytes) -> str:
        """Why the entry is void; nothing if it is accepted."""
        entry = decode_entry_untrusted(data)
        if isinstance(entry, NotAnEntry):
            return "it is not an entry"
        if entry.kind is EntryKind.FENCE and entry.epoch == self.epoch + 1:
            self._fence(position, entry)
            return ""
        if entry.kind is EntryKind.FENCE or entry.epoch != self.epoch or self.owner is None:
            return "another epoch is under way"
        if entry.sequence != self._sequence + 1:
            return "it is not the next one of its epoch"
        if self._handed_over:
            return "its owner has handed the shard over"
        if not entry.follows(self._chain):
            self._world.violate("M8", f"{self.stream} is broken at {position}")
        self._sequence, self._chain = entry.sequence, entry.chain
        self._world.count("accepted entries")
        if entry.kind is EntryKind.HAND_OVER:
            self._handed_over = True
            self._world.count("hand-overs")
        elif entry.kind is EntryKind.FRAMES:
            self._pieces.append(entry.body)
            if not entry.continued:
                body, self._pieces = b"".join(self._pieces), []
                frames = decode_frames_untrusted(body)
                assert not isinstance(frames, NotAnEntry)
                for journal, replicated in frames:
                    self._take_frame(position, journal, replicated)
        return ""

    def _fence(self, position: StreamPosition, entry: Entry) -> None:
        body = decode_fence_untrusted(entry.body)
        assert not isinstance(body, NotAnEntry)
        self.owner, self.epoch = body[0], entry.epoch
        self._sequence, self._chain, self._handed_over = 0, join_chains(self._chain, entry.chain), False
        self._pieces = []
        self._owners[self.epoch] = self.owner, position
        self._placed_before[self.epoch] = {log: len(known.placed) for log, known in self._logs.items()}
        self._world.count("owners")
        if self.epoch > 1:
            self._world.count(CHANGES)
        self._world.note("truth", f"{self.owner.node} owns epoch {self.epoch}, at {position}")

    def _take_frame(self, position: StreamPosition, journal: str, replicated: Buffer) -> None:
        frame = decode_replicated_untrusted(replicated)
        assert isinstance(frame, Frame)
        end = self._ends.get(journal, JournalPosition(0))
        if frame.position < end:
            self._world.violate(
                "M7", f"{self.stream}, {position}: {journal} has {frame.position} again, and is at {end}"
            )
            return
        self._ends[journal] = frame.end
        kind, _, name = journal.partition("/")
        if kind == "group":
            self._take_group(journal, frame)
        else:
            self._take_local(LogId.parse(name), frame)

    def _take_group(self, journal: str, frame: Frame) -> None:
        if frame.kind in (SNAPSHOT_BEGIN, SNAPSHOT_END) or frame.kind & PART:
            return  # it says again what was said
        record = decode_group(frame.kind, frame.header(), bytes(frame.payload))
        if isinstance(record, ProducerRecord):
            self._groups[record.transactional_id] = record.group
            granted = self._decisions.granted
            granted[record.producer_id] = max(record.epoch, granted.get(record.producer_id, 0))
        elif isinstance(record, PrepareAbortRecord):
            self._decisions.prepared.pop(record.txid, None)
        elif isinstance(record, PrepareCommitRecord):
            before, last = self._decisions.prepared.get(record.txid), self._commit_numbers.get(journal, 0)
            group = self._groups.get(record.transactional_id, record.transactional_id)
            prepared = _Prepared(journal, group, record.commit_number)
            if before != prepared and record.commit_number != last + 1:
                what = f"commit {record.commit_number} comes behind {last}"
                self._world.violate(6, f"{self.stream}: in {journal}, {what}")
            self._commit_numbers[journal] = max(last, record.commit_number)
            self._decisions.prepared[record.txid] = prepared

    # --- what is accepted of a log ---

    def _take_local(self, log: LogId, frame: Frame) -> None:
        known = self._logs.get(log)
        if known is None:
            known = self._logs[log] = _Log(PartitionState(log, LeaderEpoch(0)))
        at, record = frame_at(frame), decode_local(frame.kind, frame.header())
        if isinstance(record, Apply | Discard | Marker):
            self._decide(log, known, record)
        if frame.payload:
            known.held[frame.position] = body = bytes(frame.payload[_BODY_FROM:])
            known.bodies.add(body)
        placed = known.state.fold(
            record, at.position, at.end, leader_epoch=at.leader_epoch, timestamp_ms=at.timestamp_ms
        )
        if isinstance(placed, PlacedBatch):
            self._place(known, placed.base_offset, [placed.batch])
        elif isinstance(placed, PlacedTransaction):
            self._place(known, placed.base_offset, placed.batches)
        elif isinstance(placed, PlacedStart):
            self._world.count("starts of logs that are accepted")

    @staticmethod
    def _place(known: _Log, base_offset: Offset, batches: Sequence[BatchRef]) -> None:
        offset = base_offset
        for batch in batches:
            known.placed[offset] = known.held[batch.position]
            offset = Offset(offset + batch.record_count)

    def _decide(self, log: LogId, known: _Log, record: Apply | Discard | Marker) -> None:
        decisions, txid, where = self._decisions, record.txid, f"{self.stream}: {log_name(log)}"
        committed = isinstance(record, Apply) or (isinstance(record, Marker) and record.committed)
        held = known.state.held(txid)
        if not committed and (held is None or not held.records):
            return  # a commit closes so what has nothing in this log
        before, there = decisions.by_txid.setdefault(txid, (committed, where))
        if before != committed:
            ends = ("aborts", "commits")
            self._world.violate(5, f"{where} {ends[committed]} {txid}, which {there} {ends[before]}")
        prepared = decisions.prepared.get(txid)
        if prepared is None:
            return
        if not committed:
            if held is not None and held.prepared_for is not None:
                self._world.violate(5, f"{where} discards {txid}, which is PREPARED there, and its commit stands")
            return
        if prepared.number < known.applied.get(prepared.group, 0):
            self._world.violate(6, f"{where} applies commit {prepared.number} of {prepared.group} behind a later one")
        known.applied[prepared.group] = prepared.number

    # --- what is held against it ---

    def check_fold(self, who: str, state: FoldState) -> None:
        """M1: the fold of a copy is where the stream has been."""
        if state.position < 0:
            return
        if state.position >= len(self._states):
            self._world.violate("M1", f"{who} has read {state.position} of {self.stream}, where nothing is yet")
        elif self._states[state.position] != (state.epoch, state.sequence):
            epoch, sequence = self._states[state.position]
            there = f"entry {sequence} of epoch {epoch} is the last one that counts"
            found = f"{state.sequence} of epoch {state.epoch}"
            self._world.violate("M1", f"{who} has accepted {found} by {state.position} of {self.stream}, where {there}")

    def check_owner(self, node: str, start: int, state: FoldState) -> None:
        """M2: a node owns an epoch; `state` is where its fold was behind its FENCE."""
        owner = self._owners.get(state.epoch)
        who = f"{node} owns epoch {state.epoch} of {self.stream}"
        if owner is None or owner != (state.owner, state.position) or owner[0].node != node:
            self._world.violate("M2", f"{who}, of which the owner is {owner}")
        others = self._served.setdefault(state.epoch, (node, start))
        if others != (node, start):
            self._world.violate(
                "M2", f"{who} in its start {start}, and {others[0]} has owned it in its start {others[1]}"
            )

    def check_read(self, who: str, found: Mapping[LogId, Found]) -> None:
        """M3: what is read is accepted, and it is placed there, and nowhere else."""
        for log, part in found.items():
            known = self._logs.get(log)
            for data in part.batches:
                offset, body = parse_stored_header(data).base_offset, data[_BODY_FROM:]
                if known is None or body not in known.bodies:
                    self._world.violate("M3", f"{who} reads in {log_name(log)} at {offset} what is not accepted")
                elif known.placed.get(offset) != body:
                    self._world.violate("M3", f"{who} reads in {log_name(log)} at {offset} what is not placed there")

    def check_recovered(self, who: str, epoch: int, found: Mapping[LogId, Found]) -> None:
        """M4: who has recovered as the owner of an epoch has all that was placed before its FENCE."""
        for log, count in self._placed_before.get(epoch, {}).items():
            if log not in found or log in self._markers:
                continue  # in marker mode, not all that is placed is committed
            part = found[log]
            here = {parse_stored_header(data).base_offset for data in part.batches}
            for offset in list(self._logs[log].placed)[:count]:
                if offset >= part.log_start and offset not in here:
                    self._world.violate("M4", f"{who} has recovered, and lacks {log_name(log)} at {offset}")
                    return

    def check_grants(
        self, who: str, granted: Mapping[ProducerId, ProducerEpoch], begun: Mapping[tuple[LogId, int], int]
    ) -> None:
        """Invariant 9: what clients were told of is accepted: epochs, and in which of them they have begun in a log."""
        for producer_id, epoch in granted.items():
            if self._decisions.granted.get(producer_id, -1) < epoch:
                self._world.violate(
                    9, f"{who}: epoch {epoch} of producer {producer_id} was granted, and is not accepted"
                )
        for (log, producer_id), epoch in begun.items():
            known = self._logs.get(log)
            window = None if known is None else known.state.windows.get(ProducerId(producer_id))
            if known is not None and (window is None or window.epoch < epoch):
                what = f"producer {producer_id} has begun in {log_name(log)} in epoch {epoch}"
                self._world.violate(9, f"{who}: {what}, and no fence is accepted there")
