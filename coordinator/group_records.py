"""The records of a group journal, as values, and their codec.

One frame holds one record. The frame's CBOR header is an array of the fields in the order in which they stand
here (docs/formats/group-journal.md). The records that list a transaction's logs have that list as their last field;
a header holds 64 KiB, so a list of more than LISTED_IN_HEADER logs is the frame's payload instead. Every record
names its transactional id, or its sink: so each can be read alone, also when the id has got another producer id since.

What a replay makes of them is the coordinator's matter; a snapshot is a sequence of the same records. The frame's
checksum has been checked when a record is decoded: a header that does not read was written by a newer version, or
by a bug, and is CorruptStorage. Pure: no I/O.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple, assert_never, cast
from uuid import UUID

import cbor2

from fairlog_types import (
    CorruptStorage,
    EndedEpoch,
    LeaderEpoch,
    LogId,
    LogKind,
    Offset,
    Placement,
    ProducerEpoch,
    ProducerId,
    TxId,
)

PRODUCER = 1
EXPIRED = 2
BEGIN = 3
PREPARE_COMMIT = 4
COMMITTED = 5
PREPARE_ABORT = 6
ABORTED = 7
SINK = 8
SINK_FORGOTTEN = 9
SINK_PREPARE_COMMIT = 10
SINK_COMMITTED = 11
SINK_ABORTED = 12
SINK_KINDS = frozenset((SINK, SINK_FORGOTTEN, SINK_PREPARE_COMMIT, SINK_COMMITTED, SINK_ABORTED))
"""Those of `SinkRecords`."""

LISTED_IN_HEADER = 500
"""An entry takes at most 44 bytes and a transactional id 32 KiB, so such a header stays below 64 KiB."""

LISTED_BYTES_MAX = 44
"""Of one entry: array 1, kind 1, topic 17, partition 5, two numbers of 9, rounded up. A part of a group takes less than
that besides its own entries: four numbers, two arrays."""


class Expectation(NamedTuple):
    """What a participant must hold in order to prepare."""

    leader_epoch: LeaderEpoch
    records: int


@dataclass(frozen=True, slots=True)
class ProducerRecord:
    """The transactional id as it stands; replaces what was known of its producer."""

    transactional_id: str
    group: str
    producer_id: ProducerId
    epoch: ProducerEpoch
    last_epoch: ProducerEpoch
    """The one before `epoch`, -1 for none: a retry of the request that made `epoch` names it."""
    timeout_ms: int
    next_number: int
    """Of the next transaction in this epoch: numbers are not used again after a restart."""
    must_abort: bool
    """The coordinator aborted a transaction that the client may believe to be open."""
    timestamp_ms: int
    ended: EndedEpoch | None = None
    """What ended with the grant of `epoch`: whoever repeats that end is answered alike. None: no end granted it."""
    kept: TxId | None = None
    """The open transaction, of an epoch before, that this epoch was granted to end (KIP-939). Not with `ended`."""


@dataclass(frozen=True, slots=True)
class ExpiredRecord:
    """The transactional id is forgotten."""

    transactional_id: str


@dataclass(frozen=True, slots=True)
class BeginRecord:
    """The transaction writes to these logs. Written again, with the new logs only, when logs are added."""

    txid: TxId
    transactional_id: str
    logs: Mapping[LogId, LeaderEpoch]
    """The leader epoch in which each log began it."""
    timestamp_ms: int


@dataclass(frozen=True, slots=True)
class PrepareCommitRecord:
    """The transaction is committed if every participant holds what is expected of it."""

    txid: TxId
    transactional_id: str
    participants: Mapping[LogId, Expectation]
    timestamp_ms: int
    commit_number: int
    """The record's place among PREPARE_COMMIT and SINK_PREPARE_COMMIT of the journal: 1, 2, 3, … without gaps. Written
    again, it has the same."""


@dataclass(frozen=True, slots=True)
class CommittedRecord:
    """The transaction is copied in all its logs: its index. In a snapshot: one of the id's last."""

    txid: TxId
    transactional_id: str
    placements: tuple[Placement, ...]
    timestamp_ms: int


@dataclass(frozen=True, slots=True)
class PrepareAbortRecord:
    """The transaction is aborted; these logs are to discard it."""

    txid: TxId
    transactional_id: str
    logs: tuple[LogId, ...]
    timestamp_ms: int


@dataclass(frozen=True, slots=True)
class AbortedRecord:
    """The logs of the aborted transaction have been told."""

    txid: TxId
    transactional_id: str
    timestamp_ms: int


@dataclass(frozen=True, slots=True)
class SinkRecord:
    """A sink as it stands, but for the commits that are under way. It stands in snapshots only."""

    sink: str
    query: str
    """Which may commit batches of it."""
    batch: int
    """The last one that is committed and copied."""
    placements: tuple[Placement, ...]
    """Of that batch."""
    timestamp_ms: int
    planned_ms: int | None = None
    """When that batch was planned, as its driver has said; None: it has not."""


@dataclass(frozen=True, slots=True)
class SinkForgottenRecord:
    """The sink is forgotten, and with it which batches it has had."""

    sink: str


@dataclass(frozen=True, slots=True)
class PreparedPart:
    """A lane's transaction in a sink commit. The lane's slot and the sink make its transactional id."""

    slot: int
    txid: TxId
    participants: Mapping[LogId, Expectation]


@dataclass(frozen=True, slots=True)
class SinkPrepareCommitRecord:
    """The transactions of a batch: all are committed if every participant of each holds what is expected."""

    sink: str
    query: str
    batch: int
    commit_number: int
    """As in `PrepareCommitRecord`."""
    parts: tuple[PreparedPart, ...]
    timestamp_ms: int
    planned_ms: int | None = None
    """As in `SinkRecord`."""


@dataclass(frozen=True, slots=True)
class CommittedPart:
    """Where a lane's records are."""

    slot: int
    txid: TxId
    placements: tuple[Placement, ...]


@dataclass(frozen=True, slots=True)
class SinkCommittedRecord:
    """The batch is copied in all its logs. Those of a sink stand in the order of their batches."""

    sink: str
    batch: int
    parts: tuple[CommittedPart, ...]
    timestamp_ms: int


@dataclass(frozen=True, slots=True)
class SinkAbortedRecord:
    """The sink commit that was prepared is not to be carried out; the batch may be prepared again, by other lanes."""

    sink: str
    batch: int
    timestamp_ms: int


SinkRecords = SinkRecord | SinkForgottenRecord | SinkPrepareCommitRecord | SinkCommittedRecord | SinkAbortedRecord
"""The records of sinks. All others are those of transactional ids, of lanes, too."""

GroupRecord = (
    ProducerRecord
    | ExpiredRecord
    | BeginRecord
    | PrepareCommitRecord
    | CommittedRecord
    | PrepareAbortRecord
    | AbortedRecord
    | SinkRecords
)


def encode_group(record: GroupRecord) -> tuple[int, list[object], bytes]:
    """The record as (frame kind, fields of the CBOR header, payload)."""
    match record:
        case ProducerRecord():
            header: list[object] = [
                record.transactional_id,
                record.group,
                record.producer_id,
                record.epoch,
                record.last_epoch,
                record.timeout_ms,
                record.next_number,
                record.must_abort,
                record.timestamp_ms,
                *_of_the_epoch(record),
            ]
            return PRODUCER, header, b""
        case ExpiredRecord(transactional_id):
            return EXPIRED, [transactional_id], b""
        case AbortedRecord(txid, transactional_id, timestamp_ms):
            return ABORTED, _fields(txid, transactional_id, timestamp_ms), b""
        case BeginRecord(txid, transactional_id, logs, timestamp_ms):
            listed = [[*_of_log(log), epoch] for log, epoch in logs.items()]
            return _listing(BEGIN, _fields(txid, transactional_id, timestamp_ms), listed)
        case PrepareCommitRecord(txid, transactional_id, participants, timestamp_ms, commit_number):
            listed = [[*_of_log(log), *expectation] for log, expectation in participants.items()]
            return _listing(PREPARE_COMMIT, [*_fields(txid, transactional_id, timestamp_ms), commit_number], listed)
        case CommittedRecord(txid, transactional_id, placements, timestamp_ms):
            return _listing(COMMITTED, _fields(txid, transactional_id, timestamp_ms), _of_places(placements))
        case PrepareAbortRecord(txid, transactional_id, discarded, timestamp_ms):
            listed = [_of_log(log) for log in discarded]
            return _listing(PREPARE_ABORT, _fields(txid, transactional_id, timestamp_ms), listed)
        case _:
            return _encode_of_sink(record)


def _encode_of_sink(record: SinkRecords) -> tuple[int, list[object], bytes]:
    match record:
        case SinkRecord(sink, query, batch, placements, timestamp_ms, planned_ms):
            return _listing(SINK, [sink, query, batch, timestamp_ms, *_known(planned_ms)], _of_places(placements))
        case SinkForgottenRecord(sink):
            return SINK_FORGOTTEN, [sink], b""
        case SinkPrepareCommitRecord(sink, query, batch, commit_number, prepared, timestamp_ms, planned_ms):
            parts = [
                [it.slot, *it.txid, [[*_of_log(log), *expectation] for log, expectation in it.participants.items()]]
                for it in prepared
            ]
            fields: list[object] = [sink, query, batch, commit_number, timestamp_ms, *_known(planned_ms)]
            return _listing(SINK_PREPARE_COMMIT, fields, parts, _entries(record))
        case SinkCommittedRecord(sink, batch, committed, timestamp_ms):
            parts = [[it.slot, *it.txid, _of_places(it.placements)] for it in committed]
            return _listing(SINK_COMMITTED, [sink, batch, timestamp_ms], parts, _entries(record))
        case SinkAbortedRecord(sink, batch, timestamp_ms):
            return SINK_ABORTED, [sink, batch, timestamp_ms], b""
        case _:
            assert_never(record)


def _entries(record: SinkPrepareCommitRecord | SinkCommittedRecord) -> int:
    """Each part is one, and each of its logs."""
    match record:
        case SinkPrepareCommitRecord(parts=prepared):
            return sum(1 + len(part.participants) for part in prepared)
        case SinkCommittedRecord(parts=committed):
            return sum(1 + len(part.placements) for part in committed)


def decode_group(kind: int, header: Sequence[object], payload: bytes | bytearray) -> GroupRecord:
    """Read what `encode_group` wrote. Raises CorruptStorage on anything else; the caller knows where it stands."""
    try:
        record = _decode(kind, header, payload)
    except (cbor2.CBORDecodeError, ValueError, TypeError) as error:
        raise CorruptStorage(f"a frame of kind {kind} does not read: {error}") from error
    if record is None:
        raise CorruptStorage(f"a group journal has no records of kind {kind}; a newer version may have written it")
    return record


def record_bytes_max(record: GroupRecord) -> int:
    """How many bytes the record's header and payload can take together, reckoned without encoding it."""
    match record:
        case BeginRecord(logs=listed) | PrepareAbortRecord(logs=listed):
            count = len(listed)
        case PrepareCommitRecord(participants=participants):
            count = len(participants)
        case CommittedRecord(placements=placements):
            count = len(placements)
        case ProducerRecord() | ExpiredRecord() | AbortedRecord():
            count = 0
        case _:
            return _bytes_max_of_sink(record)
    texts = len(record.transactional_id) + (len(record.group) if isinstance(record, ProducerRecord) else 0)
    return _NUMBERS_BYTES_MAX + _UTF8_BYTES_MAX * texts + LISTED_BYTES_MAX * count


def _bytes_max_of_sink(record: SinkRecords) -> int:
    texts = len(record.sink)
    count = 0
    match record:
        case SinkRecord(query=query, placements=placements):
            texts, count = texts + len(query), len(placements)
        case SinkPrepareCommitRecord(query=query):
            texts, count = texts + len(query), _entries(record)
        case SinkCommittedRecord():
            count = _entries(record)
        case SinkForgottenRecord() | SinkAbortedRecord():
            pass
        case _:
            assert_never(record)
    return _NUMBERS_BYTES_MAX + _UTF8_BYTES_MAX * texts + LISTED_BYTES_MAX * count


_NUMBERS_BYTES_MAX = 100
"""Of all fields but the texts and the list: nine numbers of 9 bytes, two flags, and the heads of arrays and texts. A
Producer has eleven, of which three are epochs and one is a time-out, of at most 5 bytes."""
_UTF8_BYTES_MAX = 4


def _fields(txid: TxId, transactional_id: str, timestamp_ms: int) -> list[object]:
    return [txid.producer_id, txid.epoch, txid.number, transactional_id, timestamp_ms]


def _known(planned_ms: int | None) -> list[object]:
    """The field that is there only if it is known."""
    return [] if planned_ms is None else [planned_ms]


def _of_log(log: LogId) -> list[object]:
    if log.kind == LogKind.TOPIC.value:
        return [0, bytes.fromhex(log.topic), log.partition]
    return [1, b"", log.partition]


def _of_places(placements: Sequence[Placement]) -> list[list[object]]:
    return [[*_of_log(place.log), place.base_offset, place.count] for place in placements]


def _of_the_epoch(record: ProducerRecord) -> tuple[object, ...]:
    """The fields that tell what the epoch was granted for; none after an InitProducerId that has kept nothing."""
    if record.ended is None:
        return () if record.kept is None else (None, *record.kept)
    *ended, kept = record.ended
    return (*ended, *(kept or ()))


def _listing(
    kind: int, fields: list[object], listed: Sequence[Sequence[object]], entries: int | None = None
) -> tuple[int, list[object], bytes]:
    """`entries` counts those of lists within the list, too."""
    if (len(listed) if entries is None else entries) <= LISTED_IN_HEADER:
        return kind, [*fields, listed], b""
    return kind, [*fields, None], cbor2.dumps(listed)


def _decode(kind: int, header: Sequence[object], payload: bytes | bytearray) -> GroupRecord | None:
    """The record, or None if the kind is unknown; raises ValueError if a field is not what it must be."""
    reader = _Fields(header)
    if kind == PRODUCER:
        record = ProducerRecord(
            transactional_id=reader.text(),
            group=reader.text(),
            producer_id=ProducerId(reader.number()),
            epoch=ProducerEpoch(reader.number()),
            last_epoch=ProducerEpoch(reader.number()),
            timeout_ms=reader.number(),
            next_number=reader.number(),
            must_abort=reader.flag(),
            timestamp_ms=reader.number(),
        )
        if reader.left:
            ended = reader.ended()
            txid = reader.txid() if reader.left else None
            record = replace(record, kept=txid) if ended is None else replace(record, ended=ended._replace(kept=txid))
        reader.done()
        return record
    if kind == EXPIRED:
        expired = ExpiredRecord(reader.text())
        reader.done()
        return expired
    if kind not in (BEGIN, PREPARE_COMMIT, COMMITTED, PREPARE_ABORT, ABORTED):
        return _decode_of_sink(kind, reader, payload)
    txid = reader.txid()
    transactional_id, timestamp_ms = reader.text(), reader.number()
    if kind == ABORTED:
        reader.done()
        return AbortedRecord(txid, transactional_id, timestamp_ms)
    commit_number = reader.number() if kind == PREPARE_COMMIT else 0
    listed = reader.listed(payload)
    reader.done()
    if kind == BEGIN:
        epochs: dict[LogId, LeaderEpoch] = {}
        for entry in listed:
            log = entry.log()
            epochs[log] = LeaderEpoch(entry.number())
            entry.done()
        return BeginRecord(txid, transactional_id, epochs, timestamp_ms)
    if kind == PREPARE_COMMIT:
        return PrepareCommitRecord(txid, transactional_id, _participants(listed), timestamp_ms, commit_number)
    if kind == COMMITTED:
        return CommittedRecord(txid, transactional_id, _places(listed), timestamp_ms)
    logs: list[LogId] = []
    for entry in listed:
        logs.append(entry.log())
        entry.done()
    return PrepareAbortRecord(txid, transactional_id, tuple(logs), timestamp_ms)


def _decode_of_sink(kind: int, reader: _Fields, payload: bytes | bytearray) -> SinkRecords | None:
    if kind not in SINK_KINDS:
        return None
    sink = reader.text()
    if kind == SINK_FORGOTTEN:
        reader.done()
        return SinkForgottenRecord(sink)
    query = reader.text() if kind in (SINK, SINK_PREPARE_COMMIT) else ""
    batch = reader.number()
    commit_number = reader.number() if kind == SINK_PREPARE_COMMIT else 0
    timestamp_ms = reader.number()
    if kind == SINK_ABORTED:
        reader.done()
        return SinkAbortedRecord(sink, batch, timestamp_ms)
    planned_ms = reader.number() if kind in (SINK, SINK_PREPARE_COMMIT) and reader.left > 1 else None
    listed = reader.listed(payload)
    reader.done()
    if kind == SINK:
        return SinkRecord(sink, query, batch, _places(listed), timestamp_ms, planned_ms)
    if kind == SINK_PREPARE_COMMIT:
        prepared = tuple(PreparedPart(entry.number(), entry.txid(), _participants(entry.last())) for entry in listed)
        return SinkPrepareCommitRecord(sink, query, batch, commit_number, prepared, timestamp_ms, planned_ms)
    committed = tuple(CommittedPart(entry.number(), entry.txid(), _places(entry.last())) for entry in listed)
    return SinkCommittedRecord(sink, batch, committed, timestamp_ms)


def _participants(listed: Sequence[_Fields]) -> dict[LogId, Expectation]:
    participants: dict[LogId, Expectation] = {}
    for entry in listed:
        log = entry.log()
        participants[log] = Expectation(LeaderEpoch(entry.number()), entry.number())
        entry.done()
    return participants


def _places(listed: Sequence[_Fields]) -> tuple[Placement, ...]:
    placements: list[Placement] = []
    for entry in listed:
        placements.append(Placement(entry.log(), Offset(entry.number()), entry.number()))
        entry.done()
    return tuple(placements)


class _Fields:
    """Reads an array field by field. Raises ValueError where the type or the number of fields is another."""

    __slots__ = ("_fields", "_next")

    def __init__(self, fields: Sequence[object]) -> None:
        self._fields = fields
        self._next = 0

    @property
    def left(self) -> int:
        """So many fields have not been read."""
        return len(self._fields) - self._next

    def _take(self) -> object:
        if self._next == len(self._fields):
            raise ValueError(f"field {self._next} is missing")
        self._next += 1
        return self._fields[self._next - 1]

    def _unexpected(self, wanted: str) -> ValueError:
        return ValueError(f"field {self._next - 1} must be {wanted}")

    def number(self) -> int:
        value = self._take()
        if type(value) is not int:
            raise self._unexpected("an integer")
        return value

    def text(self) -> str:
        value = self._take()
        if type(value) is not str:
            raise self._unexpected("a text")
        return value

    def flag(self) -> bool:
        value = self._take()
        if type(value) is not bool:
            raise self._unexpected("true or false")
        return value

    def txid(self) -> TxId:
        return TxId(ProducerId(self.number()), ProducerEpoch(self.number()), self.number())

    def ended(self) -> EndedEpoch | None:
        """Three fields, or a null."""
        if self._fields[self._next] is None:
            self._next += 1
            return None
        return EndedEpoch(ProducerId(self.number()), ProducerEpoch(self.number()), self.flag())

    def log(self) -> LogId:
        kind, topic, partition = self._take(), self._take(), self.number()
        if kind == 0 and isinstance(topic, bytes):
            return LogId.of_topic(UUID(bytes=topic), partition)
        if kind == 1 and topic == b"":
            return LogId.of_offsets(partition)
        raise self._unexpected("the partition of a topic (0, its id) or of the offsets (1, nothing)")

    def listed(self, payload: bytes | bytearray) -> list[_Fields]:
        """The list of logs: this field, or the payload if this field is null."""
        value = self._take()
        return self._list(cbor2.loads(payload) if value is None else value)

    def last(self) -> list[_Fields]:
        """The list that is this field, and nothing behind it."""
        listed = self._list(self._take())
        self.done()
        return listed

    def _list(self, value: object) -> list[_Fields]:
        if not isinstance(value, list):
            raise self._unexpected("a list")
        entries: list[_Fields] = []
        for entry in cast("list[object]", value):
            if not isinstance(entry, list):
                raise self._unexpected("a list of lists")
            entries.append(_Fields(cast("list[object]", entry)))
        return entries

    def done(self) -> None:
        if self._next != len(self._fields):
            raise ValueError(f"{len(self._fields)} fields where {self._next} are known")
