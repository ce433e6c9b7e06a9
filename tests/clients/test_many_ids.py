"""Transactional ids that come and go: what they leave behind is bounded in time, and nothing is lost with them."""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest

from scripts.node_process import NodeProcess
from tests.clients.conftest import make_topic
from tests.clients.modes import BOTH_MODES, Mode
from tests.clients.raw_client import INVALID_PRODUCER_ID_MAPPING, NONE, RawClient, batch
from tests.clients.reading import Reader, assert_ascending, assert_dense

pytestmark = pytest.mark.slow

IDS, THREADS = 1_000, 8
IDLE_MS = 5_000
"""Of a client or of the whole machine it may be as long without being forgotten in the middle of a transaction."""
FORGOTTEN_S = 60.0
"""Patience: it takes little more than `IDLE_MS`."""


@BOTH_MODES
def test_id_per_checkpoint_leaves_nothing_behind(
    fresh_node: Callable[..., NodeProcess], mode: Mode, processes: int
) -> None:
    """redpanda#12424: Flink takes a new transactional id for each checkpoint, and all of them were kept in memory.

    Thousands of ids, each with one transaction: they are forgotten when they have been idle for so long, by the
    coordinator, its journals and the partition; all that they committed is there; an id that is open is kept.
    """
    node = fresh_node(
        FAIRLOG_TRANSACTIONS_MAX_TIMEOUT_MS=str(IDLE_MS),
        FAIRLOG_TRANSACTIONS_TRANSACTIONAL_ID_EXPIRATION_MS=str(IDLE_MS + 1),
        FAIRLOG_TRANSACTIONS_PRODUCER_ID_EXPIRATION_MS=str(IDLE_MS),
        FAIRLOG_JOURNAL_GROUP_JOURNALS=str(2 * processes),
        FAIRLOG_LOG_LEVEL="warning",
    )
    topic = make_topic(node.address)

    def checkpoints(first: int) -> None:
        with RawClient(node.address) as client:
            for number in range(first, IDS, THREADS):
                write(client, topic, f"checkpoint-{number}")

    with ThreadPoolExecutor(THREADS) as pool:
        list(pool.map(checkpoints, range(THREADS)))
    with RawClient(node.address) as client:
        last = client.init_producer_id("open", timeout_ms=IDLE_MS)
        deadline = time.monotonic() + FORGOTTEN_S
        while client.list_transactional_ids() != ["open"]:
            # Heard of again and again, as an id that is in use is.
            mine = "open", last.producer_id, last.producer_epoch
            assert client.add_partitions(*mine, topic, [0]) == {0: NONE}
            assert client.end(*mine, commit=True) == NONE
            assert time.monotonic() < deadline, f"{len(client.list_transactional_ids())} ids are left"
            time.sleep(0.1)
        while client.active_producers(topic, 0):
            assert time.monotonic() < deadline, f"{len(client.active_producers(topic, 0))} producers are left"
            time.sleep(0.1)
        gone = client.end("checkpoint-0", 0, 0, commit=True)
        assert gone == INVALID_PRODUCER_ID_MAPPING
        write(client, topic, "checkpoint-0")  # it may come back, and begins anew
    with Reader(node.address, topic, 1, isolation="read_committed") as reader:
        records = reader.wait_for(IDS + 1)
    (assert_dense if mode is Mode.JOURNAL else assert_ascending)(records)
    assert sorted(each.value or b"" for each in records[:-1]) == sorted(b"checkpoint-%d" % n for n in range(IDS))


def write(client: RawClient, topic: str, transactional_id: str) -> None:
    """A transaction of one record, which says whose it is."""
    granted = client.init_producer_id(transactional_id, timeout_ms=IDLE_MS)
    mine = transactional_id, granted.producer_id, granted.producer_epoch
    assert client.add_partitions(*mine, topic, [0]) == {0: NONE}
    record = batch([transactional_id.encode()], producer_id=mine[1], epoch=mine[2], sequence=0, transactional=True)
    assert client.produce(topic, 0, record, transactional_id=transactional_id)[0] == NONE
    assert client.end(*mine, commit=True) == NONE
