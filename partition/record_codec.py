"""The codec of a local journal's records, and the replay that folds them.

A record is a frame's kind and CBOR header; a batch's bytes are the frame's payload and never pass through
here. The arrays are described in docs/formats/local-journal.md; kinds are never given a second meaning.

The checksum of the frame has been checked when a record is decoded, so a header that does not read is not a
torn write: it was written by a newer version, or by a bug. It is CorruptStorage, and nothing is guessed.
Pure: no I/O.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Protocol, assert_never, cast

from fairlog_types import (
    ApplyNumber,
    CorruptStorage,
    JournalPosition,
    LeaderEpoch,
    Offset,
    ProducerEpoch,
    ProducerId,
    ShardNumber,
    TxId,
)
from partition.placed import Placed
from partition.records import (
    Apply,
    Discard,
    Fence,
    Forget,
    LocalRecord,
    Marker,
    OpenBatch,
    PlainBatch,
    Prepared,
    Start,
    TransactionalBatch,
)
from partition.state import PartitionState

FENCE = 1
PLAIN_BATCH = 2
TRANSACTIONAL_BATCH = 3
APPLY = 4
DISCARD = 5
FORGET = 6
OPEN_BATCH = 7
MARKER = 8
PREPARED = 9
START = 10

_FIELDS = {
    FENCE: 2,
    PLAIN_BATCH: 6,
    TRANSACTIONAL_BATCH: 6,
    APPLY: 7,
    DISCARD: 3,
    FORGET: 1,
    OPEN_BATCH: 7,
    MARKER: 8,
    PREPARED: 5,
    START: 1,
}


class LocalFrame(Protocol):
    """What a replay needs of `journal.journal.FrameAt`."""

    @property
    def position(self) -> JournalPosition: ...
    @property
    def end(self) -> JournalPosition: ...
    @property
    def kind(self) -> int: ...
    @property
    def leader_epoch(self) -> LeaderEpoch: ...
    @property
    def timestamp_ms(self) -> int: ...
    @property
    def header(self) -> Sequence[object]: ...


def encode_local(record: LocalRecord) -> tuple[int, tuple[int, ...]]:
    """The record as (frame kind, fields of the CBOR header)."""
    match record:
        case PlainBatch(base_offset, record_count, max_timestamp_ms, producer_id, producer_epoch, first_sequence):
            return PLAIN_BATCH, (
                base_offset,
                record_count,
                max_timestamp_ms,
                producer_id,
                producer_epoch,
                first_sequence,
            )
        case TransactionalBatch(txid, record_count, max_timestamp_ms, first_sequence):
            return TRANSACTIONAL_BATCH, (*_of_txid(txid), record_count, max_timestamp_ms, first_sequence)
        case OpenBatch(txid, base_offset, record_count, max_timestamp_ms, first_sequence):
            return OPEN_BATCH, (*_of_txid(txid), base_offset, record_count, max_timestamp_ms, first_sequence)
        case Prepared(txid, record_count, coordinator_shard):
            return PREPARED, (*_of_txid(txid), record_count, coordinator_shard)
        case Apply(txid, apply_number, base_offset, record_count, timestamp_ms):
            return APPLY, (*_of_txid(txid), apply_number, base_offset, record_count, timestamp_ms)
        case Discard(txid):
            return DISCARD, _of_txid(txid)
        case Marker(txid, apply_number, offset, committed, coordinator_epoch, timestamp_ms):
            return MARKER, (
                *_of_txid(txid),
                apply_number,
                offset,
                int(committed),
                coordinator_epoch,
                timestamp_ms,
            )
        case Fence(producer_id, epoch):
            return FENCE, (producer_id, epoch)
        case Forget(producer_id):
            return FORGET, (producer_id,)
        case Start(offset):
            return START, (offset,)
        case _:
            assert_never(record)


def decode_local(kind: int, header: Sequence[object]) -> LocalRecord:
    """Read what `encode_local` wrote. Raises CorruptStorage on anything else; the caller knows where it stands."""
    expected = _FIELDS.get(kind)
    if expected is None:
        raise CorruptStorage(f"a local journal has no frames of kind {kind}; a newer version may have written it")
    if len(header) != expected or not all(type(field) is int for field in header):
        kinds = ", ".join(type(field).__name__ for field in header[:20])
        raise CorruptStorage(
            f"the header of a frame of kind {kind} must be {expected} integers, not {kinds or 'empty'}"
        )
    fields = cast("Sequence[int]", header)
    if kind == PLAIN_BATCH:
        base_offset, record_count, max_timestamp_ms, producer_id, producer_epoch, first_sequence = fields
        return PlainBatch(
            Offset(base_offset),
            record_count,
            max_timestamp_ms,
            ProducerId(producer_id),
            ProducerEpoch(producer_epoch),
            first_sequence,
        )
    if kind == FENCE:
        return Fence(ProducerId(fields[0]), ProducerEpoch(fields[1]))
    if kind == FORGET:
        return Forget(ProducerId(fields[0]))
    if kind == START:
        return Start(Offset(fields[0]))
    txid = TxId(ProducerId(fields[0]), ProducerEpoch(fields[1]), fields[2])
    if kind == TRANSACTIONAL_BATCH:
        return TransactionalBatch(txid, fields[3], fields[4], fields[5])
    if kind == OPEN_BATCH:
        return OpenBatch(txid, Offset(fields[3]), fields[4], fields[5], fields[6])
    if kind == PREPARED:
        return Prepared(txid, fields[3], ShardNumber(fields[4]))
    if kind == MARKER:
        if fields[5] not in (0, 1):
            raise CorruptStorage("a marker's outcome must be 0 or 1")
        return Marker(txid, ApplyNumber(fields[3]), Offset(fields[4]), fields[5] == 1, fields[6], fields[7])
    if kind == APPLY:
        return Apply(txid, ApplyNumber(fields[3]), Offset(fields[4]), fields[5], fields[6])
    return Discard(txid)


def replay_local(frames: Iterable[LocalFrame], state: PartitionState) -> Iterator[Placed]:
    """Fold a journal's frames into a restored `state`; yield what is decided and not copied yet, in order.

    `frames` are the journal's from the state's replay_from. The state is complete when the iterator is
    exhausted. Raises CorruptStorage, naming log and position.
    """
    for frame in frames:
        try:
            record = decode_local(frame.kind, frame.header)
        except CorruptStorage as error:
            raise CorruptStorage(f"the journal of {state.log}, position {frame.position}: {error}") from error
        placed = state.fold(
            record, frame.position, frame.end, leader_epoch=frame.leader_epoch, timestamp_ms=frame.timestamp_ms
        )
        if placed is not None:
            yield placed


def _of_txid(txid: TxId) -> tuple[int, int, int]:
    return txid.producer_id, txid.epoch, txid.number
