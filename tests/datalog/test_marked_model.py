"""Any run of marked transactions: a reader of committed records, as clients are, finds those of committed ones alone.

The model is what each transaction came to. The reader is KIP-98's: batches up to the last stable offset, and a list of
aborted transactions, by which it leaves out a producer's batches from where one begins to its abort marker.
"""

from __future__ import annotations

import shutil
import tempfile
from dataclasses import dataclass, replace
from pathlib import Path
from uuid import UUID

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from datalog.batch import parse_stored_header
from datalog.control_batch import decode_control_batch, encode_control_batch
from datalog.environment import LmdbDataLogs
from datalog.interface import AbortedTransaction, OpenInLog, ReadRequest, ReadResult
from fairlog_types import LeaderEpoch, LogId, Offset, ProducerEpoch, ProducerId, TxId
from tests.datalog.batches import keyed_batch

LOG = LogId.of_topic(UUID(int=1), 0)
TRANSACTIONAL = 0x10
producers = st.integers(1, 3).map(ProducerId)


@dataclass
class Written:
    """A batch, and what became of it."""

    offsets: range
    transaction: int | None
    """None: plain."""


class MarkedLogMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.directory = Path(tempfile.mkdtemp())
        self.logs = LmdbDataLogs.open(self.directory, map_bytes=1 << 24, sync=False)
        with self.logs.write() as writer:
            writer.create(LOG)
        self.end = 0
        self.start = 0
        self.written: list[Written] = []
        self.open: dict[ProducerId, OpenInLog] = {}
        self.number = 0
        self.committed: set[int] = set()

    def teardown(self) -> None:
        self.logs.close()
        shutil.rmtree(self.directory)

    @rule(count=st.integers(1, 3))
    def write_plain(self, count: int) -> None:
        with self.logs.write() as writer:
            data = keyed_batch(self.end, [(b"k", b"v")] * count)
            writer.append(LOG, Offset(self.end), count, 0, data)
        self.note(count, None)

    @rule(producer_id=producers, count=st.integers(1, 3))
    def write(self, producer_id: ProducerId, count: int) -> None:
        opened = self.open.get(producer_id)
        if opened is None:
            self.number += 1
            txid = TxId(producer_id, ProducerEpoch(0), self.number)
            opened = OpenInLog(txid, LeaderEpoch(0), Offset(self.end), 0)
        opened = self.open[producer_id] = replace(opened, records=opened.records + count)
        with self.logs.write() as writer:
            producer = (producer_id, 0, self.end)
            data = keyed_batch(self.end, [(b"k", b"v")] * count, attributes=TRANSACTIONAL, producer=producer)
            writer.append(LOG, Offset(self.end), count, 0, data)
            writer.put_open(LOG, opened)
        self.note(count, opened.txid.number)

    @precondition(lambda self: self.open)
    @rule(data=st.data(), committed=st.booleans())
    def end_transaction(self, data: st.DataObject, committed: bool) -> None:
        producer_id = data.draw(st.sampled_from(sorted(self.open)))
        opened = self.open.pop(producer_id)
        marker = encode_control_batch(
            Offset(self.end),
            LeaderEpoch(0),
            producer_id,
            ProducerEpoch(0),
            committed=committed,
            coordinator_epoch=0,
            timestamp_ms=0,
        )
        with self.logs.write() as writer:
            assert writer.find_open(LOG, producer_id) == opened
            writer.delete_open(LOG, producer_id)
            writer.append(LOG, Offset(self.end), 1, 0, marker)
            if committed:
                self.committed.add(opened.txid.number)
            else:
                stable = writer.last_stable_offset(LOG)
                aborted = AbortedTransaction(producer_id, opened.first_offset, Offset(self.end), stable)
                writer.put_aborted(LOG, aborted)
        self.end += 1

    @rule(part=st.floats(0, 1))
    def delete_before(self, part: float) -> None:
        self.start += round(part * part * (self.end - self.start))
        with self.logs.write() as writer:
            writer.delete_before(LOG, Offset(self.start), batches_max=2)

    @rule()
    def open_again(self) -> None:
        self.logs.close()
        self.logs = LmdbDataLogs.open(self.directory, map_bytes=1 << 24, sync=False)

    def note(self, count: int, transaction: int | None) -> None:
        self.written.append(Written(range(self.end, self.end + count), transaction))
        self.end += count

    @invariant()
    def last_stable_offset_is_where_the_oldest_open_one_begins(self) -> None:
        first = min((opened.first_offset for opened in self.open.values()), default=self.end)
        assert self.logs.bounds(LOG).last_stable_offset == max(first, self.start)
        assert self.logs.open_transactions(LOG) == [self.open[producer_id] for producer_id in sorted(self.open)]

    @invariant()
    def client_finds_what_was_committed(self) -> None:
        stable = self.logs.bounds(LOG).last_stable_offset
        for bytes_max in (1, 200, 1 << 20):
            for start in {self.start, (self.start + self.end) // 2}:
                expected = [
                    offset
                    for batch in self.written
                    if batch.transaction is None or batch.transaction in self.committed
                    for offset in batch.offsets
                    if start <= offset < stable
                ]
                found, at = self.read_as_a_client(start, bytes_max)
                assert found == expected
                assert at == max(start, stable), "a reader is stuck before the last stable offset"

    def read_as_a_client(self, start: int, bytes_max: int) -> tuple[list[int], int]:
        """As librdkafka and the others do it; the offsets found, and the one to fetch next."""
        found: list[int] = []
        at = start
        while True:
            request = ReadRequest(LOG, Offset(at), bytes_max, committed_only=True)
            (answer,) = self.logs.read([request], bytes_max=bytes_max)
            assert isinstance(answer, ReadResult)
            if not answer.batches:
                return found, at
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
                    offsets = range(header.base_offset, header.last_offset + 1)
                    found += [offset for offset in offsets if offset >= at]
                at = header.last_offset + 1


MarkedLogMachine.TestCase.settings = settings(max_examples=40, stateful_step_count=25, deadline=None)
TestMarkedLog = pytest.mark.slow(MarkedLogMachine.TestCase)
