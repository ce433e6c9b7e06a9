"""Whoever asks for the end of a partition gets the end of all that was answered before the question (invariant 13).

Without waiting for the copy each of these tests fails within a few of its tries: the question comes some hundred
microseconds after the answer, and the copy takes a millisecond.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from scripts.node_process import NodeProcess
from tests.clients import raw_client as raw
from tests.clients.modes import BOTH_MODES, Mode
from tests.clients.raw_client import RawClient, batch, produce_request, records_of
from tests.clients.raw_transaction import RawTransaction
from tests.processes import ALSO_ON_THREE, one_process_only

pytestmark = [pytest.mark.slow, ALSO_ON_THREE]

TRIES = 60
COMMITS = 20
LATEST, EARLIEST, MAX_TIMESTAMP = -1, -2, -3
READ_UNCOMMITTED, READ_COMMITTED = 0, 1
ACKS = pytest.mark.parametrize("acks", [0, 1, -1])


@pytest.fixture
def two(node: NodeProcess) -> Iterator[tuple[RawClient, RawClient]]:
    """Two connections: one that writes, and one that asks."""
    with RawClient(node.address) as writer, RawClient(node.address) as asker:
        yield writer, asker


def _produce(client: RawClient, topic: str, acks: int, timestamp_ms: int = 1) -> None:
    """Write one record, and wait for the answer where there is one."""
    request = produce_request(topic, 0, bytes(batch([b"v"], timestamp_ms=timestamp_ms)), acks=acks)
    if acks:
        client.send(request)
        assert client.receive_produce()[0] == raw.NONE
    else:
        client.send(request, raw.metadata_request(topic))
        client.receive_metadata()  # answered after the record was taken, by the same broker


# --- after each kind of answer --------------------------------------------------------------------


@BOTH_MODES
@ACKS
@pytest.mark.parametrize("isolation", [READ_UNCOMMITTED, READ_COMMITTED])
def test_latest_offset_asked_after_an_answer_is_behind_its_record(
    two: tuple[RawClient, RawClient], mode: Mode, acks: int, isolation: int, new_topic: Callable[..., str]
) -> None:
    """ListOffsets(latest) waits for the copy of what was answered."""
    writer, asker = two
    topic = new_topic()
    for count in range(1, TRIES + 1):
        _produce(writer, topic, acks)
        assert asker.list_offset(topic, 0, LATEST, isolation=isolation) == (raw.NONE, count)


@BOTH_MODES
@ACKS
def test_searches_after_an_answer_find_its_record(
    two: tuple[RawClient, RawClient], mode: Mode, acks: int, new_topic: Callable[..., str]
) -> None:
    """So do the search for the largest timestamp, and for the first record from a timestamp on."""
    writer, asker = two
    topic = new_topic()
    for count in range(TRIES // 2):
        _produce(writer, topic, acks, timestamp_ms=1000 + 2 * count)
        assert asker.list_offset(topic, 0, MAX_TIMESTAMP) == (raw.NONE, 2 * count)
        _produce(writer, topic, acks, timestamp_ms=1001 + 2 * count)
        assert asker.list_offset(topic, 0, 1001 + 2 * count) == (raw.NONE, 2 * count + 1)


@BOTH_MODES
@ACKS
@pytest.mark.parametrize("isolation", [READ_UNCOMMITTED, READ_COMMITTED])
def test_fetch_after_the_answered_record_is_empty_and_in_range(
    two: tuple[RawClient, RawClient], mode: Mode, acks: int, isolation: int, new_topic: Callable[..., str]
) -> None:
    """A client that goes on after its own record is not told OFFSET_OUT_OF_RANGE, which makes it reset; and it is told
    an end that is not before its position."""
    writer, asker = two
    topic = new_topic()
    for count in range(1, TRIES + 1):
        _produce(writer, topic, acks)
        row = asker.fetch(topic, 0, count, isolation=isolation, wait_ms=0)
        assert (row.error_code, bytes(row.records or b"")) == (raw.NONE, b"")
        assert (row.high_watermark, row.last_stable_offset) == (count, count)
    assert asker.fetch(topic, 0, TRIES + 1, wait_ms=0).error_code == raw.OFFSET_OUT_OF_RANGE


@BOTH_MODES
@ACKS
def test_fetch_at_the_answered_record_gets_it_or_is_told_of_it(
    two: tuple[RawClient, RawClient], mode: Mode, acks: int, new_topic: Callable[..., str]
) -> None:
    """A Fetch that waits gets the record; one that does not, and is empty, is told that there is more."""
    writer, asker = two
    topic = new_topic()
    for count in range(TRIES):
        _produce(writer, topic, acks)
        row = asker.fetch(topic, 0, count, wait_ms=0)
        assert (row.error_code, row.high_watermark) == (raw.NONE, count + 1)
        row = asker.fetch(topic, 0, count, wait_ms=5_000)
        assert [offset for offset, _ in records_of(bytes(row.records))] == [count]


@BOTH_MODES
@ACKS
def test_records_deleted_through_the_answered_one_are_gone(
    two: tuple[RawClient, RawClient], mode: Mode, acks: int, new_topic: Callable[..., str]
) -> None:
    """DeleteRecords up to the answered record, and of all records, waits for the copy of that one."""
    writer, asker = two
    topic = new_topic()
    for count in range(1, COMMITS + 1):
        _produce(writer, topic, acks)
        assert asker.delete_records(topic, 0, count if count % 2 else -1) == (raw.NONE, count)
    assert asker.delete_records(topic, 0, COMMITS + 1)[0] == raw.OFFSET_OUT_OF_RANGE


@ACKS
def test_end_of_the_leader_epoch_is_behind_the_answered_record(
    two: tuple[RawClient, RawClient], acks: int, new_topic: Callable[..., str]
) -> None:
    """A consumer whose position is behind its own record must not take that for a truncation."""
    writer, asker = two
    topic = new_topic()
    epoch = asker.metadata(topic).topics[0].partitions[0].leader_epoch
    for count in range(1, TRIES + 1):
        _produce(writer, topic, acks)
        assert asker.end_of_epoch(topic, 0, epoch) == (raw.NONE, count)


# --- transactions --------------------------------------------------------------------------------


@BOTH_MODES
@pytest.mark.parametrize("isolation", [READ_UNCOMMITTED, READ_COMMITTED])
@pytest.mark.parametrize(
    "commit",
    [
        pytest.param(True, id="commit"),
        pytest.param(
            False, id="abort", marks=one_process_only("the marker in another shard may follow the abort's answer")
        ),
    ],
)
def test_latest_offset_asked_after_the_end_of_a_transaction_is_behind_it(
    two: tuple[RawClient, RawClient],
    mode: Mode,
    commit: bool,
    isolation: int,
    new_topic: Callable[..., str],
    new_id: Callable[[], str],
) -> None:
    """Whoever commits and then reads to the end gets what was just committed; of an abort, its marker."""
    writer, asker = two
    topic = new_topic()
    transaction = RawTransaction(writer, new_id(), topic)
    for count in range(1, COMMITS + 1):
        transaction.write(b"v")
        assert transaction.end(commit=commit) == raw.NONE
        end = 2 * count if mode is Mode.MARKERS else count if commit else 0
        assert asker.list_offset(topic, 0, LATEST, isolation=isolation) == (raw.NONE, end)


@BOTH_MODES
def test_latest_offset_beside_an_open_transaction_does_not_wait_for_it(
    two: tuple[RawClient, RawClient], mode: Mode, new_topic: Callable[..., str], new_id: Callable[[], str]
) -> None:
    """What is open is not decided: the question is answered at once, and again after the commit."""
    writer, asker = two
    topic = new_topic()
    transaction = RawTransaction(writer, new_id(), topic)
    transaction.write(b"open")
    markers = mode is Mode.MARKERS
    assert asker.list_offset(topic, 0, LATEST, isolation=READ_COMMITTED) == (raw.NONE, 0)
    assert asker.list_offset(topic, 0, LATEST) == (raw.NONE, 1 if markers else 0)
    _produce(asker, topic, acks=1)
    assert asker.list_offset(topic, 0, LATEST, isolation=READ_COMMITTED) == (raw.NONE, 0 if markers else 1)
    assert transaction.end(commit=True) == raw.NONE
    assert asker.list_offset(topic, 0, LATEST, isolation=READ_COMMITTED) == (raw.NONE, 3 if markers else 2)


# --- requests of one connection ------------------------------------------------------------------


@BOTH_MODES
@pytest.mark.parametrize("acks", [-1, 1])
def test_end_pipelined_after_produce_is_behind_its_record(
    node: NodeProcess, mode: Mode, acks: int, new_topic: Callable[..., str]
) -> None:
    """The second request sees what the first has done, whoever waits for no answer in between."""
    topic = new_topic()
    with RawClient(node.address) as client:
        for count in range(1, COMMITS + 1):
            client.send(
                produce_request(topic, 0, bytes(batch([b"v"])), acks=acks), raw.list_offset_request(topic, 0, LATEST)
            )
            assert client.receive_produce() == (raw.NONE, count - 1)
            assert client.receive_list_offset() == (raw.NONE, count)


@BOTH_MODES
def test_start_pipelined_after_a_deletion_is_where_that_has_put_it(
    node: NodeProcess, mode: Mode, new_topic: Callable[..., str]
) -> None:
    """ListOffsets(earliest) does not overtake DeleteRecords."""
    topic = new_topic()
    with RawClient(node.address) as client:
        for count in range(1, COMMITS + 1):
            assert client.produce(topic, 0, bytes(batch([b"v"])))[0] == raw.NONE
            client.send(raw.delete_records_request(topic, 0, count), raw.list_offset_request(topic, 0, EARLIEST))
            assert client.receive_delete_records() == (raw.NONE, count)
            assert client.receive_list_offset() == (raw.NONE, count)


@one_process_only("coordinator and leader have a connection each")
@BOTH_MODES
@pytest.mark.parametrize("isolation", [READ_UNCOMMITTED, READ_COMMITTED])
def test_end_pipelined_after_a_whole_transaction_is_behind_it(
    node: NodeProcess, mode: Mode, isolation: int, new_topic: Callable[..., str], new_id: Callable[[], str]
) -> None:
    """AddPartitionsToTxn, Produce, EndTxn and ListOffsets, sent at once, are done one after the other."""
    topic = new_topic()
    with RawClient(node.address) as client:
        transaction = RawTransaction(client, new_id(), topic)
        transactional_id, producer_id, epoch = transaction.transactional_id, transaction.producer_id, transaction.epoch
        for count in range(COMMITS):
            records = batch([b"v"], producer_id=producer_id, epoch=epoch, sequence=count, transactional=True)
            client.send(
                raw.add_partitions_request(transactional_id, producer_id, epoch, topic, [0]),
                produce_request(topic, 0, bytes(records), transactional_id),
                raw.end_request(transactional_id, producer_id, epoch, commit=True),
                raw.list_offset_request(topic, 0, LATEST, isolation=isolation),
            )
            assert client.receive_add_partitions() == {0: raw.NONE}
            assert client.receive_produce()[0] == raw.NONE
            assert client.receive_end() == raw.NONE
            end = (count + 1) * (2 if mode is Mode.MARKERS else 1)
            assert client.receive_list_offset() == (raw.NONE, end)


# --- time-outs -----------------------------------------------------------------------------------


@BOTH_MODES
@pytest.mark.parametrize("timeout_ms", [0, 1, 2, 3])
def test_time_out_is_not_for_the_nodes_own_copy(
    node: NodeProcess, mode: Mode, timeout_ms: int, new_topic: Callable[..., str]
) -> None:
    """acks=-1 waits for replicas at most so long; with one there is nobody to wait for. So with DeleteRecords."""
    topic = new_topic()
    with RawClient(node.address) as client:
        for count in range(COMMITS):
            client.send(produce_request(topic, 0, bytes(batch([b"v"])), timeout_ms=timeout_ms))
            assert client.receive_produce() == (raw.NONE, count)
            assert client.delete_records(topic, 0, count + 1, timeout_ms=timeout_ms) == (raw.NONE, count + 1)
