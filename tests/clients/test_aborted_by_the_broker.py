"""A transaction whose beginning the broker has aborted, and a client that goes on: nothing of its rest is committed.

franz-go goes on: an error in AddPartitionsToTxn fails a record, and nothing else. Where nothing was lost, there is no
abort, and the transaction goes on over the restart.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from scripts.node_process import NodeProcess
from tests.clients import raw_client as raw
from tests.clients.conftest import make_topic
from tests.clients.modes import BOTH_MODES, Mode
from tests.clients.raw_client import RawClient, batch
from tests.clients.reading import assert_topic_holds
from tests.clients.test_timeouts import wait_until_ended
from tests.node.nodes import pretend_reboot

pytestmark = pytest.mark.slow

TIMEOUT_MS = 2_000
GROUP, INPUT = "group", 1
ID = "txn"


class Half:
    """Requests of one epoch, each with its error code as the answer; sequences are in the open."""

    def __init__(self, topic: str, producer_id: int, epoch: int) -> None:
        self._topic = topic
        self._producer = producer_id, epoch

    def add(self, client: RawClient, partition: int) -> int:
        return client.add_partitions(ID, *self._producer, self._topic, [partition])[partition]

    def produce(self, client: RawClient, partition: int, value: bytes, *, sequence: int = 0) -> int:
        producer_id, epoch = self._producer
        records = batch([value], producer_id=producer_id, epoch=epoch, sequence=sequence, transactional=True)
        return client.produce(self._topic, partition, records, transactional_id=ID)[0]

    def add_offsets(self, client: RawClient) -> int:
        return client.add_offsets(ID, *self._producer, GROUP)

    def commit_offset(self, client: RawClient, offset: int) -> int:
        return client.commit_offset_in_transaction(ID, *self._producer, GROUP, self._topic, INPUT, offset)

    def end(self, client: RawClient, *, commit: bool) -> int:
        return client.end(ID, *self._producer, commit=commit)


def begun(node: NodeProcess, topic: str, timeout_ms: int) -> Half:
    """A transaction with a batch in partition 0, and an offset; the client's connection is closed then."""
    with RawClient(node.address) as client:
        granted = client.init_producer_id(ID, timeout_ms=timeout_ms)
        half = Half(topic, granted.producer_id, granted.producer_epoch)
        codes = [half.add(client, 0), half.produce(client, 0, b"first half"), half.add_offsets(client)]
        assert [*codes, half.commit_offset(client, 5)] == [raw.NONE] * 4
    return half


def lose_power(node: NodeProcess) -> None:
    node.kill()
    pretend_reboot(node)
    node.start()


def time_out(node: NodeProcess) -> None:
    wait_until_ended(node, ID)


def kill_and_time_out(node: NodeProcess) -> None:
    """The time-out goes on over the restart."""
    node.kill()
    node.start()
    wait_until_ended(node, ID)


def stop_and_time_out(node: NodeProcess) -> None:
    assert node.stop() == 0
    node.start()
    wait_until_ended(node, ID)


@BOTH_MODES
@pytest.mark.parametrize("abort", [lose_power, time_out, kill_and_time_out, stop_and_time_out])
def test_aborted_by_the_broker_stays_aborted_until_the_client_says_so(
    fresh_node: Callable[..., NodeProcess], mode: Mode, abort: Callable[[NodeProcess], None]
) -> None:
    """Every request of the epoch is refused, however often, on the connection that was told, and on another one.

    The codes are those for a client that gives no name (`fairlog.kafka.must_abort`).
    """
    node = fresh_node(FAIRLOG_TRANSACTIONS_FENCE_ON_TIMEOUT="false")
    topic = make_topic(node.address, 3)
    half = begun(node, topic, 60_000 if abort is lose_power else TIMEOUT_MS)
    abort(node)
    with RawClient(node.address) as first, RawClient(node.address) as second:
        for client in (first, second):
            for _ in range(2):
                codes = [half.add(client, 1), half.add_offsets(client), half.add(client, 2)]
                codes += [half.produce(client, 2, b"second half"), half.commit_offset(client, 6)]
                assert [*codes, half.end(client, commit=True)] == [
                    *[raw.UNKNOWN_PRODUCER_ID] * 3,
                    raw.INVALID_PRODUCER_EPOCH,
                    raw.TRANSACTION_ABORTABLE,
                    raw.UNKNOWN_PRODUCER_ID,
                ]
        assert half.end(second, commit=False) == raw.NONE
        assert second.settled_offset(GROUP, topic, INPUT) == (raw.NONE, -1)
        codes = [half.add(second, 2), half.produce(second, 2, b"next"), half.add_offsets(second)]
        codes += [half.commit_offset(second, 7), half.end(second, commit=True)]
        assert codes == [raw.NONE] * 5
        assert second.settled_offset(GROUP, topic, INPUT) == (raw.NONE, 7)
    committed = {0: [], 1: [], 2: [b"next"]}
    assert_topic_holds(node.address, topic, committed, mode=mode, aborted={0: [b"first half"]})


@BOTH_MODES
@pytest.mark.parametrize("how", ["stop", "kill"])
def test_restart_between_the_halves_of_a_transaction_commits_both(
    fresh_node: Callable[..., NodeProcess], mode: Mode, how: str
) -> None:
    """Partitions, records and offsets from before and after: all of them, and by other connections than before."""
    node = fresh_node()
    topic = make_topic(node.address, 3)
    half = begun(node, topic, 60_000)
    if how == "kill":
        node.kill()
    else:
        assert node.stop() == 0
    node.start()
    with RawClient(node.address) as client:
        assert client.committed_offset(GROUP, topic, INPUT)[0] == raw.UNSTABLE_OFFSET_COMMIT
        codes = [half.add(client, 1), half.add(client, 2), half.produce(client, 2, b"second half")]
        codes += [half.produce(client, 0, b"more", sequence=1), half.end(client, commit=True)]
        assert codes == [raw.NONE] * 5
        assert client.settled_offset(GROUP, topic, INPUT) == (raw.NONE, 5)
    committed = {0: [b"first half", b"more"], 1: [], 2: [b"second half"]}
    assert_topic_holds(node.address, topic, committed, mode=mode)
