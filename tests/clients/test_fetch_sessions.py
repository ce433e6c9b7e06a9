"""Fetch sessions on a real node: a client that is told only news knows what a full fetch would say."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import pytest
from kafka.protocol.admin import DeleteRecordsRequest, DeleteRecordsResponse
from kafka.protocol.consumer import FetchRequest, FetchResponse

from scripts.node_process import NodeProcess
from tests.clients import raw_client as raw
from tests.clients.modes import BOTH_MODES, Mode
from tests.clients.raw_client import RawClient, batch, leader_of
from tests.clients.raw_transaction import RawTransaction
from tests.seeds import seed_of_the_code

pytestmark = pytest.mark.slow

PARTITIONS = 4
TOGETHER = {"fairlog.placement": "together"}
"""Of the topic's partitions one broker leads all: a session is with one broker."""
VERSION = 12

Partition = FetchRequest.FetchTopic.FetchPartition
Forgotten = FetchRequest.ForgottenTopic


class Row(NamedTuple):
    """What an answer says of a partition, besides records."""

    error: int
    high_watermark: int
    last_stable: int
    log_start: int


class Answer(NamedTuple):
    error: int
    session: int
    rows: Mapping[int, Row]
    records: Mapping[int, bytes]


class Fetcher:
    """Asks for partitions of one topic."""

    def __init__(self, client: RawClient, topic: str, *, isolation: int = 0) -> None:
        self._client, self._topic, self._isolation = client, topic, isolation

    def __call__(
        self,
        offsets: Mapping[int, int],
        *,
        session: int = 0,
        epoch: int = -1,
        forget: list[int] | None = None,
        wait_ms: int = 0,
        bytes_max: int = 1 << 20,
    ) -> Answer:
        rows = [
            Partition(
                partition=index,
                current_leader_epoch=-1,
                fetch_offset=offset,
                last_fetched_epoch=-1,
                log_start_offset=-1,
                partition_max_bytes=1 << 20,
            )
            for index, offset in offsets.items()
        ]
        forgotten = [Forgotten(topic=self._topic, partitions=forget)] if forget else []
        answer: Any = self._client.call(
            FetchRequest[VERSION](
                replica_id=-1,
                max_wait_ms=wait_ms,
                min_bytes=1,
                max_bytes=bytes_max,
                isolation_level=self._isolation,
                session_id=session,
                session_epoch=epoch,
                topics=[FetchRequest.FetchTopic(topic=self._topic, partitions=rows)] if rows else [],
                forgotten_topics_data=forgotten,
                rack_id="",
            ),
            FetchResponse,
        )
        found = [row for topic in answer.responses for row in topic.partitions]
        return Answer(
            answer.error_code,
            answer.session_id,
            {
                row.partition_index: Row(
                    row.error_code, row.high_watermark, row.last_stable_offset, row.log_start_offset
                )
                for row in found
            },
            {row.partition_index: bytes(row.records) for row in found if row.records},
        )


class SessionClient:
    """Reads in one session, and puts together what it is told."""

    def __init__(self, fetch: Fetcher) -> None:
        self._fetch = fetch
        self._session = self._epoch = 0
        self.offsets: dict[int, int] = {}
        self.knows: dict[int, Row] = {}

    def __call__(self, changed: Mapping[int, int], forget: list[int], **limits: int) -> Answer:
        self.offsets.update(changed)
        for index in forget:
            del self.offsets[index]
            del self.knows[index]
        answer = self._fetch(changed, session=self._session, epoch=self._epoch, forget=forget, **limits)
        assert answer.error == raw.NONE
        if self.offsets:
            assert answer.session == self._session or not self._session
            self._session, self._epoch = answer.session, self._epoch + 1
        else:
            assert answer.session == 0, "a session of no partition goes on"
            self._session = self._epoch = 0
        self.knows.update(answer.rows)
        return answer


@BOTH_MODES
@pytest.mark.parametrize("isolation", [0, 1], ids=["uncommitted", "committed"])
def test_session_knows_what_full_fetches_say(
    node: NodeProcess, mode: Mode, isolation: int, new_topic: Callable[..., str], new_id: Callable[[], str]
) -> None:
    """A random life of four partitions: records, transactions, deletions; a client that reads, adds and forgets."""
    seed = seed_of_the_code()
    rng = random.Random(seed)
    topic = new_topic(partitions=PARTITIONS, **TOGETHER)
    leader = leader_of(node.address, topic)
    with RawClient(node.address) as writer, RawClient(leader) as reader, RawClient(leader) as other:
        full = Fetcher(other, topic, isolation=isolation)
        session = SessionClient(Fetcher(reader, topic, isolation=isolation))
        transaction = RawTransaction(writer, new_id(), topic)
        is_open = False
        for step in range(150):
            partition = rng.randrange(PARTITIONS)
            match rng.randrange(8):
                case 0 | 1 | 2:
                    assert writer.produce(topic, partition, batch([b"plain"]))[0] == raw.NONE
                case 3 | 4:
                    transaction.write(b"in transaction")
                    is_open = True
                case 5 if is_open:
                    assert transaction.end(commit=rng.random() < 0.5) == raw.NONE
                    is_open = False
                case 6 if rng.random() < 0.3:
                    _, end = writer.list_offset(topic, partition, -1, isolation=1)
                    delete_records(writer, topic, partition, end)
                case _:
                    pass
            known = session.offsets
            wanted = [index for index in range(PARTITIONS) if rng.random() < (0.3 if known else 1.0)]
            forget = [index for index in known if index not in wanted and rng.random() < 0.05]
            changed = {index: _offset(rng, session.knows.get(index)) for index in wanted}
            told = session(changed, forget, bytes_max=rng.choice([1, 1 << 20]))
            if not known:
                continue
            where = f"seed {seed}, step {step}"
            deadline = time.monotonic() + 10
            while True:  # what was answered becomes readable a moment later, and is news then
                news, whole = session({}, []), full(known)
                if session.knows == whole.rows and news.records == whole.records:
                    break
                if time.monotonic() > deadline:
                    assert (session.knows, news.records) == (whole.rows, whole.records), where
            assert told.rows.keys() <= known.keys(), where


def delete_records(client: RawClient, topic: str, partition: int, before: int) -> None:
    each = DeleteRecordsRequest.DeleteRecordsTopic
    row = each.DeleteRecordsPartition(partition_index=partition, offset=before)
    request = DeleteRecordsRequest[1](topics=[each(name=topic, partitions=[row])], timeout_ms=10_000)
    assert client.call(request, DeleteRecordsResponse).topics[0].partitions[0].error_code == raw.NONE


def _offset(rng: random.Random, row: Row | None) -> int:
    """Where a client may read next: from the start, somewhere, to the end, or out of range."""
    if row is None or row.high_watermark < 0:
        return 0
    return rng.choice([row.log_start, row.high_watermark, row.high_watermark, row.last_stable, row.high_watermark + 9])


def test_session_with_nothing_new_waits_and_is_woken_by_any_of_its_partitions(
    node: NodeProcess, new_topic: Callable[..., str]
) -> None:
    """Though its requests name none of them."""
    topic = new_topic(partitions=PARTITIONS, **TOGETHER)
    with RawClient(node.address) as writer, RawClient(leader_of(node.address, topic)) as reader:
        session = SessionClient(Fetcher(reader, topic))
        session(dict.fromkeys(range(PARTITIONS), 0), [])
        assert session({}, [], wait_ms=50).rows == {}
        for partition in range(PARTITIONS):
            assert writer.produce(topic, partition, batch([b"v"]))[0] == raw.NONE
            assert session({}, [], wait_ms=30_000).rows.keys() == {partition}
            assert session({partition: 1}, []).rows == {}


@pytest.mark.parametrize("epoch", [-1, 0])
def test_full_fetch_of_any_session_is_served(node: NodeProcess, new_topic: Callable[..., str], epoch: int) -> None:
    """As in Kafka: kafka-go names one that never was. Epoch 0 opens one."""
    topic = new_topic()
    with RawClient(leader_of(node.address, topic)) as client:
        assert client.produce(topic, 0, batch([b"v"]))[0] == raw.NONE
        answer = Fetcher(client, topic)({0: 0}, session=12345, epoch=epoch)
    assert (answer.error, list(answer.records)) == (raw.NONE, [0])
    assert bool(answer.session) == (epoch == 0)
