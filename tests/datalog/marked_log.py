"""A log with markers in LMDB, what became of each of its transactions, and a reader that does as clients do."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from uuid import UUID

from datalog.batch import parse_stored_header
from datalog.control_batch import decode_control_batch, encode_control_batch
from datalog.environment import LmdbDataLogs
from datalog.interface import AbortedTransaction, Mark, OpenInLog, ReadRequest, ReadResult
from fairlog_types import JournalPosition, LeaderEpoch, LogId, Offset, ProducerEpoch, ProducerId, TxId
from tests.datalog.batches import keyed_batch

LOG = LogId.of_topic(UUID(int=7), 0)
TRANSACTIONAL = 0x10
Pairs = Sequence[tuple[bytes | None, bytes | None]]
Row = tuple[int, bytes | None, bytes | None]
"""Offset, key, value."""


@dataclass
class MarkedLog:
    """Writes to the log as the copier does, and remembers."""

    logs: LmdbDataLogs
    end: int = 0
    rows: list[tuple[Row, int | None]] = field(default_factory=list)
    """Each record, with the number of its transaction; None: it is plain."""
    markers: list[int] = field(default_factory=list)
    open: dict[ProducerId, OpenInLog] = field(default_factory=dict)
    committed: set[int] = field(default_factory=set)

    def create(self) -> None:
        with self.logs.write() as writer:
            writer.create(LOG)

    def write(self, pairs: Pairs, producer_id: int | None = None, *, timestamp_ms: int = 0) -> None:
        """A batch: plain, or in the producer's open transaction, which is begun if there is none."""
        opened = None
        if producer_id is not None:
            opened = self.open.get(ProducerId(producer_id))
            if opened is None:
                txid = TxId(ProducerId(producer_id), ProducerEpoch(0), len(self.rows))
                opened = OpenInLog(txid, LeaderEpoch(0), Offset(self.end), 0)
            opened = self.open[opened.txid.producer_id] = replace(opened, records=opened.records + len(pairs))
        with self.logs.write() as writer:
            data = keyed_batch(
                self.end,
                [(key, None if value is None else b"=" + value) for key, value in pairs],
                timestamp_ms=timestamp_ms,
                attributes=0 if opened is None else TRANSACTIONAL,
                producer=(-1, -1, -1) if opened is None else (opened.txid.producer_id, 0, self.end),
            )
            writer.append(LOG, Offset(self.end), len(pairs), timestamp_ms, data)
            if opened is not None:
                writer.put_open(LOG, opened)
            self._mark(writer, self.end + len(pairs))
        number = None if opened is None else opened.txid.number
        self.rows += [((self.end + index, key, value), number) for index, (key, value) in enumerate(pairs)]
        self.end += len(pairs)

    def finish(self, producer_id: int, *, committed: bool, timestamp_ms: int = 0) -> None:
        """The marker that ends the producer's open transaction."""
        opened = self.open.pop(ProducerId(producer_id))
        marker = encode_control_batch(
            Offset(self.end),
            LeaderEpoch(0),
            opened.txid.producer_id,
            opened.txid.epoch,
            committed=committed,
            coordinator_epoch=0,
            timestamp_ms=timestamp_ms,
        )
        with self.logs.write() as writer:
            assert writer.delete_open(LOG, opened.txid.producer_id) == opened
            writer.append(LOG, Offset(self.end), 1, timestamp_ms, marker)
            if committed:
                self.committed.add(opened.txid.number)
            else:
                stable = writer.last_stable_offset(LOG)
                marked = Offset(self.end)
                writer.put_aborted(
                    LOG, AbortedTransaction(opened.txid.producer_id, opened.first_offset, marked, stable)
                )
            self._mark(writer, self.end + 1)
        self.markers.append(self.end)
        self.end += 1

    @staticmethod
    def _mark(writer: object, end: int) -> None:
        writer.put_mark(LOG, Mark(JournalPosition(end), JournalPosition(end), Offset(end)))  # type: ignore[attr-defined]

    @property
    def last_stable_offset(self) -> int:
        return min((opened.first_offset for opened in self.open.values()), default=self.end)

    def committed_rows(self, start: int) -> list[Row]:
        """What a reader of committed records is to find from `start` on, if nothing was compacted."""
        return [
            row
            for row, number in self.rows
            if start <= row[0] < self.last_stable_offset and (number is None or number in self.committed)
        ]

    def committed_batches(self, start: int, bytes_max: int) -> tuple[list[bytes], int]:
        """Read as librdkafka and others do: the batches with committed records, and the offset to fetch next."""
        found: list[bytes] = []
        at = start
        for answer in self._answers(start, bytes_max):
            coming = sorted(answer.aborted, key=lambda aborted: aborted.first_offset)
            aborting: set[int] = set()
            for batch in answer.batches:
                header = parse_stored_header(batch)
                while coming and coming[0].first_offset <= header.last_offset:
                    aborting.add(coming.pop(0).producer_id)
                if header.control:
                    if not decode_control_batch(batch).committed:
                        aborting.discard(header.producer_id)
                elif not (header.transactional and header.producer_id in aborting):
                    found.append(batch)
                at = header.last_offset + 1
        return found, at

    def _answers(self, start: int, bytes_max: int) -> Iterator[ReadResult]:
        at = Offset(start)
        while True:
            request = ReadRequest(LOG, at, bytes_max, committed_only=True)
            (answer,) = self.logs.read([request], bytes_max=bytes_max)
            assert isinstance(answer, ReadResult)
            if not answer.batches:
                return
            yield answer
            at = Offset(parse_stored_header(answer.batches[-1]).last_offset + 1)
