"""An owner's entries in its shard's stream, made by hand: for tests of what a replica makes of them."""

from __future__ import annotations

from collections.abc import Sequence

from coordinator.group_records import GroupRecord, encode_group
from fairlog_types import ApplyNumber, LeaderEpoch, LogId, Offset, ProducerEpoch, ProducerId, TxId
from journal.frame import ENVELOPE_BYTES, encode_replicated, padded
from partition.record_codec import encode_local
from partition.records import Apply, LocalRecord, PlainBatch, TransactionalBatch
from stream.entry import EntryKind, JournalFrame, Owner, encode_entry, encode_fence, encode_frames, join_chains
from tests.clients.raw_client import batch

TXID = TxId(ProducerId(7), ProducerEpoch(0), 0)


class OwnerInTest:
    """Makes the entries of an owner by hand."""

    def __init__(self) -> None:
        data, chain = encode_entry(EntryKind.FENCE, LeaderEpoch(1), 0, 0, encode_fence(Owner("o", bytes(16)), None))
        self.entries = [data]
        self._chain = join_chains(0, chain)
        self._ends: dict[str, int] = {}

    def append(self, *frames: JournalFrame) -> None:
        body = b"".join(encode_frames(frames))
        data, self._chain = encode_entry(EntryKind.FRAMES, LeaderEpoch(1), len(self.entries), self._chain, body)
        self.entries.append(data)

    def frame(self, journal: str, kind: int, header: Sequence[object], payload: bytes = b"") -> JournalFrame:
        position = self._ends.get(journal, 0)
        parts = encode_replicated(
            position=position,  # type: ignore[arg-type]
            leader_epoch=LeaderEpoch(1),
            timestamp_ms=5,
            kind=kind,
            header=header,
            payload=(payload,) if payload else (),
        )
        data = b"".join(parts)
        self._ends[journal] = position + padded(ENVELOPE_BYTES + len(data))
        return JournalFrame(journal, data)

    def record(self, log: LogId, record: LocalRecord, payload: bytes = b"") -> JournalFrame:
        kind, header = encode_local(record)
        return self.frame(f"local/{log}", kind, header, payload)

    def plain(self, log: LogId, offset: int, value: bytes) -> JournalFrame:
        record = PlainBatch(Offset(offset), 1, 1, ProducerId(-1), ProducerEpoch(-1), -1)
        return self.record(log, record, bytes(batch([value])))

    def in_transaction(self, log: LogId, value: bytes, txid: TxId = TXID, sequence: int = 0) -> JournalFrame:
        data = batch([value], producer_id=txid.producer_id, epoch=txid.epoch, sequence=sequence, transactional=True)
        return self.record(log, TransactionalBatch(txid, 1, 1, sequence), bytes(data))

    def applied(self, log: LogId, offset: int, txid: TxId = TXID, number: int = 1) -> JournalFrame:
        return self.record(log, Apply(txid, ApplyNumber(number), Offset(offset), 1, 1))

    def of_group(self, journal: int, record: GroupRecord) -> JournalFrame:
        kind, header, payload = encode_group(record)
        return self.frame(f"group/{journal}", kind, header, payload)
