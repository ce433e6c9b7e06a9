"""Batches of a sink over a real node: confluent-kafka writes in the lanes, a plain consumer reads what is committed.

Each test ends with exactly the records of the winners, once each, for a consumer that knows nothing of transactions.
The coordinator's rules are tried where they are kept (tests/coordinator); here, that they hold over the wire.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from pyspark_fairlog.native import Native, NativeError, Offsets, SinkDescription, TopicPattern, Topics
from scripts.node_process import ROOT, NodeProcess

TOPIC, SOURCE = "totals", "orders"
PARTITIONS = 3
WAIT_S = 15.0

pytestmark = pytest.mark.slow


@dataclass(slots=True)
class Job:
    """A run of a query that writes to one sink, as Spark's driver and tasks do it."""

    node: NodeProcess
    sink: str
    run: str = "run-1"
    query: str = "query-1"
    topic: str = TOPIC
    timeout_ms: int = 60_000
    """Of a lane's transaction."""
    producers: list[Producer] = field(default_factory=list[Producer])

    def of(self, batch: int) -> dict[str, str | int]:
        return {"sink": self.sink, "query": self.query, "run": self.run, "batch": batch}

    def connect(self) -> Native:
        return Native.connect(self.node.address)

    def write(self, batch: int, partition: int, *values: str, attempt: int = 0) -> Producer | None:
        """A task attempt: join, write `values` to the topic's partitions in turn, flush. None: committed already."""
        with self.connect() as native:
            name = native.join(**self.of(batch), partition=partition, attempt=attempt)
        if name is None:
            return None
        producer = producer_of(self.node, name, self.timeout_ms)
        self.producers.append(producer)
        producer.init_transactions(WAIT_S)
        producer.begin_transaction()
        for number, value in enumerate(values):
            producer.produce(self.topic, value.encode(), partition=number % PARTITIONS)
        assert producer.flush(WAIT_S) == 0
        return producer

    def commit(self, batch: int, *winners: tuple[int, int, int], offsets: Offsets | None = None):
        with self.connect() as native:
            return native.commit(**self.of(batch), winners=winners, offsets=offsets)


def producer_of(node: NodeProcess, name: str, timeout_ms: int = 60_000) -> Producer:
    named = {"transactional.id": name, "transaction.timeout.ms": timeout_ms}
    return Producer({"bootstrap.servers": node.address, "linger.ms": 0, "log_level": 0} | named)


@pytest.fixture(scope="module")
def shared_node(tmp_path_factory: pytest.TempPathFactory, processes: int) -> Iterator[NodeProcess]:
    """One node for all tests that do not end it."""
    yield from running(tmp_path_factory.mktemp("native") / "data", processes)


@pytest.fixture
def fresh_node(tmp_path: Path, processes: int) -> Iterator[NodeProcess]:
    yield from running(tmp_path / "data", processes)


def running(directory: Path, processes: int) -> Iterator[NodeProcess]:
    node = NodeProcess(directory, {"FAIRLOG_TRANSACTIONS_CHECK_INTERVAL_MS": "100"}, processes=processes)
    node.start()
    try:
        admin = AdminClient({"bootstrap.servers": node.address})
        for future in admin.create_topics([NewTopic(TOPIC, PARTITIONS, 1), NewTopic(SOURCE, 2, 1)]).values():
            future.result(WAIT_S)
        yield node
    finally:
        assert node.stop() == 0, node.log_tail()


_sinks = itertools.count()


@pytest.fixture
def new_job(shared_node: NodeProcess) -> Callable[..., Job]:
    """A run of its own on a sink of its own, unless it says otherwise."""

    def make(sink: str | None = None, run: str = "run-1", query: str = "query-1") -> Job:
        return Job(shared_node, sink or f"sink-{next(_sinks)}", run, query)

    return make


def read(node: NodeProcess, mine: str, count: int) -> list[str]:
    """All values that begin with `mine`, sorted, as a plain consumer reads them once there are `count`."""
    deadline = time.monotonic() + WAIT_S
    while True:
        found = sorted(value for value in read_all(node) if value.startswith(mine))
        if len(found) >= count or time.monotonic() > deadline:
            return found


def read_all(node: NodeProcess, topic: str = TOPIC, isolation: str = "read_uncommitted") -> list[str]:
    consumer = Consumer(
        {
            "bootstrap.servers": node.address,
            "group.id": "plain",
            "isolation.level": isolation,
            "enable.partition.eof": True,
            "fetch.wait.max.ms": 10,
        }
    )
    consumer.assign([TopicPartition(topic, partition, 0) for partition in range(PARTITIONS)])
    values: list[str] = []
    at_end: set[int] = set()
    try:
        while len(at_end) < PARTITIONS:
            message = consumer.poll(WAIT_S)
            assert message is not None, "the consumer hangs"
            error = message.error()
            if error is None:
                values.append(message.value().decode())
            else:
                assert error.code() == KafkaError._PARTITION_EOF, error
                at_end.add(message.partition())
    finally:
        consumer.close()
    return values


def sink_of(job: Job) -> SinkDescription:
    """As the one broker says that has it."""
    found: list[SinkDescription] = []
    for address in job.node.addresses:
        with Native.connect(address) as native:
            found += [sink for sink in native.sinks() if sink.sink == job.sink]
    (sink,) = found
    return sink


# --- the good way ---------------------------------------------------------------------------------------------


def test_winners_are_read_and_nothing_else(new_job):
    """Of two attempts of a partition the named one counts; a task without records needs no producer."""
    job = new_job()
    job.write(0, 0, f"{job.sink} a", f"{job.sink} b")
    job.write(0, 1, f"{job.sink} lost", attempt=0)
    job.write(0, 1, f"{job.sink} c", attempt=1)
    committed = job.commit(0, (0, 0, 2), (1, 1, 1), (2, 0, 0))
    assert not committed.already
    assert sum(it.records for it in committed.placements) == 3
    assert read(job.node, job.sink, 3) == [f"{job.sink} a", f"{job.sink} b", f"{job.sink} c"]


def test_batch_can_be_read_when_its_commit_is_answered(new_job):
    """Where it was said to be, by whoever looks at once."""
    job = new_job()
    with job.connect() as native:
        for batch in range(20):
            job.write(batch, 0, *[f"{job.sink} {batch}"] * PARTITIONS)
            committed = native.commit(**job.of(batch), winners=[(0, 0, PARTITIONS)])
            highs = {it.partition: it.high for it in native.cut(Topics((TOPIC,)))}
            ends = {it.partition: it.base_offset + it.records for it in committed.placements}
            assert len(ends) == PARTITIONS
            assert all(end <= highs[partition] for partition, end in ends.items())


def test_batches_follow_each_other_and_slots_are_used_again(new_job):
    """A batch's lanes are free for the next one's: as many ids as tasks, and not as many as batches."""
    job = new_job()
    for batch in range(3):
        for partition in range(2):
            job.write(batch, partition, f"{job.sink} {batch}.{partition}")
        assert not job.commit(batch, (0, 0, 1), (1, 0, 1)).already
    assert read(job.node, job.sink, 6) == [
        f"{job.sink} {batch}.{partition}" for batch in range(3) for partition in (0, 1)
    ]
    listed = subprocess.run(
        [sys.executable, "-m", "fairlog.cli", "txn", "list", "--json", "--bootstrap", job.node.addresses[-1]],
        cwd=ROOT, check=True, capture_output=True,
    )  # fmt: skip
    names = [each["transactional_id"] for each in json.loads(listed.stdout)]
    assert len([name for name in names if name.endswith("." + job.sink)]) == 2


def test_replay_is_answered_with_the_same_places(new_job):
    """The driver that did not hear the answer asks again; tasks that are run again have nothing to write."""
    job = new_job()
    job.write(0, 0, f"{job.sink} once")
    first = job.commit(0, (0, 0, 1))
    again = job.commit(0, (0, 0, 1))
    assert (again.already, again.placements) == (True, first.placements)
    assert job.write(0, 0, f"{job.sink} twice", attempt=1) is None
    assert read(job.node, job.sink, 1) == [f"{job.sink} once"]


def test_batch_that_was_planned_anew_is_refused_also_by_a_restarted_node(fresh_node: NodeProcess):
    """It has other records under a number that the sink has had: its checkpoint is an older copy."""
    job = Job(fresh_node, "planned")
    job.write(0, 0, "once")
    with job.connect() as native:
        first = native.commit(**job.of(0), winners=[(0, 0, 1)], planned_ms=1_000)
    fresh_node.kill()
    fresh_node.start()
    again = Job(fresh_node, "planned", "run-2")
    with again.connect() as native:
        with pytest.raises(NativeError, match=r"planned at 1000, .* planned at 2000 ") as refused:
            native.commit(**again.of(0), winners=[], planned_ms=2_000)
        assert refused.value.kind == "set-back"
        repeated = native.commit(**again.of(0), winners=[], planned_ms=1_000)
    assert (repeated.already, repeated.placements) == (True, first.placements)
    again.write(1, 0, "then")
    again.commit(1, (0, 0, 1))
    with pytest.raises(NativeError, match="sink 'planned' has batch 1, and this is batch 0"):
        Job(fresh_node, "planned", "run-3").write(0, 0, "again")


def test_batch_in_a_topic_of_marker_mode_is_read_by_who_reads_what_is_committed(new_job):
    """As any transaction there: others see it while it is written; an attempt that has lost stays, and counts not."""
    job = new_job()
    job.topic = "marked"
    made = NewTopic(job.topic, PARTITIONS, 1, config={"fairlog.transactions": "markers"})
    admin = AdminClient({"bootstrap.servers": job.node.address})
    admin.create_topics([made])[job.topic].result(WAIT_S)
    job.write(0, 0, "a", "b", "c")
    job.write(0, 1, "lost", attempt=0)
    job.write(0, 1, "d", attempt=1)
    assert sorted(read_all(job.node, job.topic)) == ["a", "b", "c", "d", "lost"]
    assert read_all(job.node, job.topic, "read_committed") == []
    committed = job.commit(0, (0, 0, 3), (1, 1, 1))
    assert sum(it.records for it in committed.placements) == 4
    deadline = time.monotonic() + WAIT_S
    while len(found := sorted(read_all(job.node, job.topic, "read_committed"))) < 4 and time.monotonic() < deadline:
        pass
    assert found == ["a", "b", "c", "d"]
    assert job.commit(0, (0, 0, 3), (1, 1, 1)).already


def test_cut_splits_no_batch(new_job):
    """While batches that write one record to each partition are committed, every cut has them all or none of them."""
    job = new_job()
    with job.connect() as native:
        before = {it.partition: it.high for it in native.cut(Topics((TOPIC,)))}
        stop = threading.Event()
        lengths: list[list[int]] = []

        def look() -> None:
            while not stop.is_set():
                lengths.append([it.end - before[it.partition] for it in native.cut(Topics((TOPIC,)))])

        looking = threading.Thread(target=look)
        looking.start()
        for batch in range(5):
            job.write(batch, 0, *[f"{job.sink} {batch}.{number}" for number in range(PARTITIONS)])
            job.commit(batch, (0, 0, PARTITIONS))
        assert len(read(job.node, job.sink, 5 * PARTITIONS)) == 5 * PARTITIONS
        stop.set()
        looking.join()
        seen = {tuple(each) for each in lengths}
        assert all(len(set(each)) == 1 for each in seen), seen
        limited = native.cut(TopicPattern("tot.*"), starts=[(TOPIC, it, at) for it, at in before.items()], limit=4)
        assert len({it.end - before[it.partition] for it in limited}) == 1
        assert {it.high - before[it.partition] for it in limited} == {5}


# --- what goes wrong ------------------------------------------------------------------------------------------


def test_wrong_count_is_refused_and_the_batch_written_again(new_job):
    """A producer that lost a record is found out; nothing of the try is ever seen."""
    job = new_job()
    job.write(0, 0, f"{job.sink} a", f"{job.sink} b")
    with pytest.raises(NativeError) as refused:
        job.commit(0, (0, 0, 3))
    assert refused.value.kind == "wrong-count"
    job.write(0, 0, f"{job.sink} again", attempt=1)
    assert not job.commit(0, (0, 1, 1)).already
    assert read(job.node, job.sink, 1) == [f"{job.sink} again"]


def test_run_that_was_replaced_is_fenced(new_job):
    """The zombie's producers and its driver are refused; the new run's records are seen once."""
    old = new_job()
    zombie = old.write(0, 0, f"{old.sink} old")
    assert zombie is not None
    new = Job(old.node, old.sink, "run-2")
    new.write(0, 0, f"{old.sink} new")
    with pytest.raises(NativeError, match="run-2") as refused:
        old.commit(0, (0, 0, 1))
    assert refused.value.kind == "old-run"
    zombie.produce(TOPIC, f"{old.sink} late".encode(), partition=0)
    with pytest.raises(KafkaException, match="fenced"):
        zombie.flush(WAIT_S)
    assert not new.commit(0, (0, 0, 1)).already
    assert read(old.node, old.sink, 1) == [f"{old.sink} new"]


def test_lanes_of_a_run_that_has_died_are_reclaimed_by_their_time_out(new_job, processes):
    """Nobody says that it is dead. Its writer is fenced, its driver refused; the next run's records are seen once.

    A shard that does not coordinate the lane has not heard of the new epoch. There the writer is told to abort.
    """
    dead = new_job()
    dead.write(0, 0, f"{dead.sink} committed")
    dead.commit(0, (0, 0, 1))
    dead.timeout_ms = 1000
    writer = dead.write(1, 0, f"{dead.sink} dead")
    deadline = time.monotonic() + WAIT_S
    while sink_of(dead).open_lanes:
        assert time.monotonic() < deadline, f"{sink_of(dead)} after {WAIT_S:.0f} s"
        time.sleep(0.02)
    with pytest.raises(NativeError) as refused:
        dead.commit(1, (0, 0, 1))
    assert (refused.value.kind, "it has timed out" in refused.value.sentence) == ("unknown-lane", True)
    writer.produce(TOPIC, f"{dead.sink} late".encode(), partition=0)
    fenced = pytest.raises(KafkaException, match="fenced")
    with fenced if processes == 1 else contextlib.suppress(KafkaException):
        writer.flush(WAIT_S)
    new = Job(dead.node, dead.sink, "run-2")
    new.write(1, 0, f"{dead.sink} new")
    assert not new.commit(1, (0, 0, 1)).already
    assert read(dead.node, dead.sink, 2) == [f"{dead.sink} committed", f"{dead.sink} new"]


def test_lane_cannot_commit_by_itself(new_job):
    """EndTxn is refused: what a lane wrote is seen with its group or not at all."""
    job = new_job()
    producer = job.write(0, 0, f"{job.sink} alone")
    assert producer is not None
    with pytest.raises(KafkaException):
        producer.commit_transaction(WAIT_S)
    assert read(job.node, job.sink, 0) == []


def test_reserved_id_without_a_join_is_refused(new_job):
    """Nobody becomes a lane by guessing its name."""
    job = new_job()
    producer = producer_of(job.node, f"fairlog.lane.0.{job.sink}")
    with pytest.raises(KafkaException) as refused:
        producer.init_transactions(WAIT_S)
    assert refused.value.args[0].fatal() or not refused.value.args[0].retriable()


def test_deleted_checkpoint_is_refused_until_the_sink_is_forgotten(new_job):
    """Another query would begin at batch 0 again, which the sink has: it is told, and nothing is skipped silently."""
    job = new_job()
    job.write(0, 0, f"{job.sink} first")
    job.commit(0, (0, 0, 1))
    assert len(read(job.node, job.sink, 1)) == 1
    other = Job(job.node, job.sink, "run-9", "query-2")
    with pytest.raises(NativeError) as refused:
        other.write(0, 0, f"{job.sink} second")
    assert refused.value.kind == "another-query"
    assert all(name in refused.value.sentence for name in (job.sink, "query-1", "query-2", "fairlog sink forget"))
    with other.connect() as native:
        native.forget(job.sink)
    other.write(0, 0, f"{job.sink} second")
    assert not other.commit(0, (0, 0, 1)).already
    assert len(read(job.node, job.sink, 2)) == 2


def test_batch_that_is_aborted_can_be_written_again(new_job):
    """And one that is committed cannot be aborted."""
    job = new_job()
    job.write(0, 0, f"{job.sink} first")
    with job.connect() as native:
        native.abort(**job.of(0))
        with pytest.raises(NativeError, match="attempt 0"):
            job.commit(0, (0, 0, 1))
        job.write(0, 0, f"{job.sink} second", attempt=1)
        job.commit(0, (0, 1, 1))
        with pytest.raises(NativeError) as refused:
            native.abort(**job.of(0))
    assert refused.value.kind == "committed"
    assert read(job.node, job.sink, 1) == [f"{job.sink} second"]


# --- source offsets -------------------------------------------------------------------------------------------


def described(node: NodeProcess, group: str) -> dict[int, int]:
    """The group's offsets in the source, as `fairlog group describe` shows them."""
    shown = subprocess.run(
        [sys.executable, "-m", "fairlog.cli", "group", "describe", group, "--json", "--bootstrap", node.addresses[-1]],
        cwd=ROOT, check=True, capture_output=True,
    )  # fmt: skip
    return {each["partition"]: each["committed"] for each in json.loads(shown.stdout)["partitions"]}


def test_source_offsets_are_committed_with_the_batch(new_job):
    """Kafka's tools see how far the query is; a batch that is refused moves nothing, a replay neither."""
    job = new_job()
    group = f"group-{job.sink}"
    job.write(0, 0, f"{job.sink} a")
    job.commit(0, (0, 0, 1), offsets=Offsets(group, ((SOURCE, 0, 10), (SOURCE, 1, 20))))
    assert described(job.node, group) == {0: 10, 1: 20}
    with pytest.raises(NativeError):
        job.commit(1, (0, 0, 1), offsets=Offsets(group, ((SOURCE, 0, 99),)))
    job.commit(0, (0, 0, 1), offsets=Offsets(group, ((SOURCE, 0, 99),)))
    assert described(job.node, group) == {0: 10, 1: 20}
    job.commit(1, offsets=Offsets(group, ((SOURCE, 0, 30),)))
    assert described(job.node, group) == {0: 30, 1: 20}
    assert read(job.node, job.sink, 1) == [f"{job.sink} a"]


def test_source_offsets_are_taken_from_whichever_connection(new_job):
    """A slot that is used again has a new epoch, and no past: also for an older connection than its last lane's."""
    job = new_job()
    group = f"group-{job.sink}"
    with job.connect() as older, job.connect() as newer:
        for batch, native in enumerate((newer, older, newer, older)):
            native.commit(**job.of(batch), winners=(), offsets=Offsets(group, ((SOURCE, 0, batch),)))
    assert described(job.node, group) == {0: 3}


def test_source_offsets_of_a_group_with_members_are_refused(new_job):
    """The batch is not committed without them."""
    job = new_job()
    group = f"group-{job.sink}"
    consumer = Consumer({"bootstrap.servers": job.node.address, "group.id": group})
    consumer.subscribe([SOURCE])
    try:
        deadline = time.monotonic() + WAIT_S
        while not consumer.assignment():
            consumer.poll(0.1)
            assert time.monotonic() < deadline
        job.write(0, 0, f"{job.sink} a")
        with pytest.raises(NativeError, match=f"{group} has members") as refused:
            job.commit(0, (0, 0, 1), offsets=Offsets(group, ((SOURCE, 0, 1),)))
        assert refused.value.kind == "group-in-use"
        assert not job.commit(0, (0, 0, 1)).already
    finally:
        consumer.close()
    assert read(job.node, job.sink, 1) == [f"{job.sink} a"]


# --- the node is killed ---------------------------------------------------------------------------------------


def test_node_killed_before_the_commit_has_forgotten_the_lanes(fresh_node):
    """The driver is told, writes the batch again, and it is there once."""
    job = Job(fresh_node, "sink")
    job.write(0, 0, "sink first")
    fresh_node.kill()
    fresh_node.start()
    with pytest.raises(NativeError) as refused:
        job.commit(0, (0, 0, 1))
    assert refused.value.kind == "unknown-lane"
    job.write(0, 0, "sink second", attempt=1)
    assert not job.commit(0, (0, 1, 1)).already
    assert read(fresh_node, "sink", 1) == ["sink second"]


def test_node_killed_after_the_commit_remembers_the_batch(fresh_node):
    """The fence is durable, with its placements and the group's offsets; another query is still refused."""
    job = Job(fresh_node, "sink")
    job.write(0, 0, "sink a", "sink b")
    first = job.commit(0, (0, 0, 2), offsets=Offsets("group", ((SOURCE, 1, 5),)))
    fresh_node.kill()
    fresh_node.start()
    assert job.write(0, 0, "sink again") is None
    again = job.commit(0, (0, 0, 2), offsets=Offsets("group", ((SOURCE, 1, 5),)))
    assert (again.already, again.placements) == (True, first.placements)
    with pytest.raises(NativeError, match="query-1"):
        Job(fresh_node, "sink", "run-2", "query-2").write(0, 0, "sink other")
    assert read(fresh_node, "sink", 2) == ["sink a", "sink b"]
    assert described(fresh_node, "group") == {1: 5}


def test_run_that_was_replaced_and_comes_back_after_a_restart_of_the_node_publishes_nothing_twice(fresh_node):
    """The node has forgotten which of two runs was replaced: whichever writes last stays, and no batch comes twice."""
    old, new = Job(fresh_node, "sink"), Job(fresh_node, "sink", "run-2")
    old.write(0, 0, "sink 0 old")
    new.write(0, 0, "sink 0 new")
    new.commit(0, (0, 0, 1))
    fresh_node.kill()
    fresh_node.start()
    with pytest.raises(NativeError, match="unknown-lane"):
        old.commit(1, (0, 0, 1))  # of a batch that it has not written since
    new.write(1, 0, "sink 1 new")
    assert old.write(0, 0, "sink 0 zombie") is None
    assert old.commit(0, (0, 0, 1)).already
    old.write(1, 0, "sink 1 zombie")
    with pytest.raises(NativeError) as refused:
        new.commit(1, (0, 0, 1))
    assert refused.value.kind == "old-run"
    assert not old.commit(1, (0, 0, 1)).already
    with pytest.raises(NativeError) as refused:
        new.write(2, 0, "sink 2 new")
    assert refused.value.kind == "old-run"
    assert read(fresh_node, "sink", 2) == ["sink 0 new", "sink 1 zombie"]


def test_node_killed_while_batches_are_committed_loses_and_doubles_none(fresh_node):
    """A driver that asks until it is answered, over three kills at moments as they come: each batch is there once."""
    job = Job(fresh_node, "sink")
    batches, kills = 6, 3
    begun = threading.Semaphore(0)

    def kill_now_and_then() -> None:
        for _ in range(kills):
            begun.acquire()
            fresh_node.kill()
            fresh_node.start()

    killer = threading.Thread(target=kill_now_and_then)
    killer.start()
    try:
        for batch in range(batches):
            attempt = 0
            deadline = time.monotonic() + 4 * WAIT_S
            while True:
                assert time.monotonic() < deadline, f"batch {batch}"
                with contextlib.suppress(NativeError, ConnectionError, KafkaException, AssertionError):
                    if batch % 2 and not attempt:
                        begun.release()
                    attempt += 1
                    producer = job.write(batch, 0, *[f"sink {batch:02}.{each}" for each in range(4)], attempt=attempt)
                    winners = [] if producer is None else [(0, attempt, 4)]
                    job.commit(batch, *winners)
                    break
    finally:
        killer.join()
    expected = [f"sink {batch:02}.{each}" for batch in range(batches) for each in range(4)]
    assert read(fresh_node, "sink", len(expected)) == expected
    assert sink_of(job).batch == batches - 1
