"""Transaction version 2 (KIP-890) over a real node: fewer requests, and nothing late slips into another transaction."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from scripts.node_process import NodeProcess
from tests.clients import raw_client as raw
from tests.clients.conftest import make_topic
from tests.clients.modes import BOTH_MODES, Mode
from tests.clients.raw_client import RawClient
from tests.clients.raw_epochs import EpochProducer
from tests.clients.raw_transaction import RawTransaction
from tests.clients.reading import assert_topic_holds
from tests.processes import ALSO_ON_THREE

pytestmark = [pytest.mark.slow, ALSO_ON_THREE]


@pytest.fixture
def wire(node: NodeProcess) -> Iterator[RawClient]:
    with RawClient(node.address) as client:
        yield client


@BOTH_MODES
def test_transaction_without_adding_partitions_is_committed_whole(
    node: NodeProcess, wire: RawClient, new_topic, new_id, mode: Mode
) -> None:
    """Produce and TxnOffsetCommit begin it; two requests are saved, and each end grants the next epoch."""
    topic = new_topic(2)
    producer = EpochProducer(wire, new_id())
    group = producer.transactional_id
    for number in range(3):
        value = b"%d" % number
        assert producer.write(topic, value) == raw.NONE
        assert producer.write(topic, value, partition=1) == raw.NONE
        assert producer.commit_offset(group, topic, number) == raw.NONE
        assert wire.committed_offset(group, topic, 0)[0] == raw.UNSTABLE_OFFSET_COMMIT
        granted = producer.end(commit=number != 1)
        assert granted == (raw.NONE, producer.producer_id, producer.epoch + 1)
        producer.take(granted)
    committed_offset = wire.committed_offset if node.processes == 1 else wire.settled_offset
    assert committed_offset(group, topic, 0) == (raw.NONE, 2)
    kept = [b"0", b"2"]
    assert_topic_holds(node.address, topic, {0: kept, 1: kept}, mode=mode, aborted={0: [b"1"], 1: [b"1"]})


@BOTH_MODES
def test_late_batch_does_not_slip_into_the_next_transaction(
    node: NodeProcess, wire: RawClient, new_topic, new_id, mode: Mode
) -> None:
    """The client gave it up and aborted; it comes when the next transaction has the same partition."""
    topic = new_topic()
    producer = EpochProducer(wire, new_id())
    assert producer.write(topic, b"first") == raw.NONE
    late = producer.epoch
    producer.take(producer.end(commit=False))
    assert producer.write(topic, b"second") == raw.NONE
    assert producer.write(topic, b"late", epoch=late, sequence=1) == raw.INVALID_PRODUCER_EPOCH
    assert producer.end(commit=True)[0] == raw.NONE
    assert_topic_holds(node.address, topic, {0: [b"second"]}, mode=mode, aborted={0: [b"first"]})


def test_late_end_ends_nothing_on_whatever_connection(node: NodeProcess, wire: RawClient, new_topic, new_id) -> None:
    """Repeated it gets the epoch that it got; in the next transaction it is of an epoch of before."""
    topic = new_topic()
    producer = EpochProducer(wire, new_id())
    producer.write(topic, b"first")
    first = producer.epoch
    granted = producer.end(commit=True)
    with RawClient(node.address) as later:
        assert producer.end(commit=True, by=later) == granted
    producer.take(granted)
    assert producer.write(topic, b"second") == raw.NONE
    for commit in (True, False):
        assert producer.end(commit=commit, epoch=first)[0] in raw.FENCED
    assert producer.end(commit=True)[0] == raw.NONE
    assert_topic_holds(node.address, topic, {0: [b"first", b"second"]})


@BOTH_MODES
@pytest.mark.parametrize("answered", [True, False], ids=["answered", "answer lost"])
def test_end_before_a_kill_is_answered_alike_after_it(
    fresh_node: Callable[..., NodeProcess], mode: Mode, answered: bool
) -> None:
    """And an open transaction goes on in its epoch: version 2 over a restart."""
    node = fresh_node()
    topic = make_topic(node.address)
    with RawClient(node.address) as client:
        producer = EpochProducer(client, "txn")
        producer.write(topic, b"first")
        granted = producer.end(commit=True)
        if answered:
            producer.take(granted)
            producer.write(topic, b"second")
    node.kill()
    node.start()
    with RawClient(node.address) as client:
        producer.client = client
        if not answered:
            assert producer.end(commit=True) == granted
            producer.take(granted)
            producer.write(topic, b"second")
        assert producer.write(topic, b"third") == raw.NONE
        assert producer.end(commit=True)[0] == raw.NONE
    assert_topic_holds(node.address, topic, {0: [b"first", b"second", b"third"]}, mode=mode)


def test_producer_may_go_on_with_the_older_requests(node: NodeProcess, wire: RawClient, new_topic, new_id) -> None:
    """Which version a transaction is of, its own requests say: a client may be downgraded between two."""
    topic, name = new_topic(), new_id()
    newer = EpochProducer(wire, name)
    newer.write(topic, b"newer")
    assert newer.end(commit=True)[0] == raw.NONE
    older = RawTransaction(wire, name, topic)
    older.write(b"older")
    assert older.end(commit=True) == raw.NONE
    again = EpochProducer(wire, name)
    again.write(topic, b"again")
    assert again.end(commit=True)[0] == raw.NONE
    assert_topic_holds(node.address, topic, {0: [b"newer", b"older", b"again"]})


def test_abort_of_nothing_succeeds_and_commit_of_nothing_does_not(
    node: NodeProcess, wire: RawClient, new_topic, new_id
) -> None:
    """A client whose first batch was lost aborts what may never have begun."""
    producer = EpochProducer(wire, new_id())
    assert producer.end(commit=True)[0] == raw.INVALID_TXN_STATE
    producer.take(producer.end(commit=False))
    topic = new_topic()
    producer.write(topic, b"v")
    assert producer.end(commit=True)[0] == raw.NONE
    assert_topic_holds(node.address, topic, {0: [b"v"]})
