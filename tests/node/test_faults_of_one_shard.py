"""A fault of one of three processes: its disk is full, or fails; or it does not run for a minute, and wakes.

The others go on meanwhile. Afterwards everything is there that was answered, and no transaction by halves.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from subprocess import run

import pytest
from confluent_kafka import KafkaException, Producer
from confluent_kafka.admin import AdminClient, NewTopic

from copier.copier import OUTRUN_BYTES
from scripts.node_process import ROOT, NodeProcess
from tests import lacking
from tests.clients.raw_client import NONE, RawClient, batch
from tests.crash import armed
from tests.history.layout import OUT
from tests.node.nodes import KAFKA_STORAGE_ERROR, REQUEST_TIMED_OUT
from tests.node.over_shards import PARTITIONS, WAIT_S, Cutter, Where, Writer, assert_whole, await_that
from tests.three_processes import PROCESSES

pytestmark = pytest.mark.slow

SICK = 1
OTHERS = [shard for shard in range(PROCESSES) if shard != SICK]
TIMEOUT_MS = 60_000
STOPPED_S = 60.0
SHORT_TIMEOUT_MS = 10_000
"""Transactions that are open when a process is stopped have timed out when it wakes."""
LAST_S = 20.0
"""So long before it wakes the others still commit."""
COMMITS = 3
"""So many of each writer show that it goes on."""
DISK, BALLAST_BYTES = "24m", 8 * 2**20
VALUE_BYTES = 200_000
FILLS_MAX = 400


def verify(data_dir: Path) -> int:
    """The exit code of `fairlog verify`, which is 0 if the stopped directory is sound."""
    return run([sys.executable, "-m", "fairlog.cli", "verify", str(data_dir)], check=False, cwd=ROOT).returncode


@contextmanager
def running(data_dir: Path, **more: str) -> Iterator[NodeProcess]:
    """A node of three processes, with a topic over all of them."""
    environment = {"FAIRLOG_LOG_FORMAT": "console", "FAIRLOG_JOURNAL_GROUP_JOURNALS": str(PROCESSES)}
    order = data_dir.with_name("order")
    node = NodeProcess(
        data_dir,
        environment | armed.environment(order) | more,
        program=armed.PROGRAM,
        processes=PROCESSES,
    )
    node.start()
    try:
        admin = AdminClient({"bootstrap.servers": node.address})
        admin.create_topics([NewTopic(OUT, PARTITIONS, 1)])[OUT].result(WAIT_S)
        yield node
    finally:
        node.kill()


def fill(node: NodeProcess, partition: int, answered: dict[str, int]) -> int:
    """Write plain records until one is refused: with which code. What was answered goes to `answered`."""
    with RawClient(node.address, timeout_s=WAIT_S) as client:
        for number in range(FILLS_MAX):
            value = f"plain {partition} {number} " + VALUE_BYTES * "x"
            code, _ = client.produce(OUT, partition, batch([value.encode()]))
            if code != NONE:
                return code
            answered[value] = partition
    raise AssertionError(f"{FILLS_MAX} records, and none was refused")


def assert_goes_on(node: NodeProcess, writers: Sequence[Writer]) -> None:
    """Each commits several times more."""
    before = [len(writer.committed) for writer in writers]
    for writer, had in zip(writers, before, strict=True):
        await_that(
            lambda writer=writer, had=had: len(writer.committed) >= had + COMMITS, f"commits {writer.codes}", node
        )


def assert_all_but_the_last(where: Where, answered: Mapping[str, int]) -> None:
    """They can be read, but for those that waited for their copy when the disk was full: a restart copies them."""
    missing_bytes = 0
    for partition in range(PARTITIONS):
        values = where.read(partition)
        told = [value for value, of in answered.items() if of == partition]
        found = [value for value in told if value in values]
        assert found == told[: len(found)]
        missing_bytes += sum(len(value) for value in told[len(found) :])
    assert missing_bytes <= OUTRUN_BYTES + VALUE_BYTES


def stock_client_aborts_and_goes_on(node: NodeProcess, transactional_id: str, elsewhere: Sequence[int]) -> None:
    """It is told to abort, not that all is over; and the next transaction, with partitions elsewhere, is committed."""
    producer = Producer(
        {
            "bootstrap.servers": node.address,
            "transactional.id": transactional_id,
            "linger.ms": 0,
            "message.timeout.ms": 4_000,
            "transaction.timeout.ms": 60_000,
            "log_level": 0,
        }
    )
    producer.init_transactions(WAIT_S)
    producer.begin_transaction()
    for partition in range(PARTITIONS):
        producer.produce(OUT, b"stock, aborted", partition=partition)
    with pytest.raises(KafkaException) as refused:
        producer.commit_transaction(WAIT_S)
    error = refused.value.args[0]
    assert error.txn_requires_abort(), error
    producer.abort_transaction(WAIT_S)
    producer.begin_transaction()
    for partition in elsewhere:
        producer.produce(OUT, b"stock, committed", partition=partition)
    producer.commit_transaction(WAIT_S)


@pytest.fixture(params=["full", "failing"])
def sick(
    request: pytest.FixtureRequest, tmp_path: Path
) -> Iterator[tuple[NodeProcess, Callable[[], None], Callable[[], None]]]:
    """A node, what makes one shard's disk full or has it fail, and what mends it."""
    data = tmp_path / "data"
    with ExitStack() as stack:
        if request.param == "full":
            mount = data / "shards" / str(SICK)
            mount.parent.mkdir(parents=True)
            stack.enter_context(lacking.small_disk(mount, DISK))
            ballast = mount / "ballast"
            ballast.write_bytes(bytes(BALLAST_BYTES))
            node = stack.enter_context(running(data))
            yield node, lambda: None, ballast.unlink
        else:
            node = stack.enter_context(running(data))

            def fail() -> None:
                armed.arm(node.pids[SICK], "journal.flush.before:fail:5", tmp_path / "order")

            yield node, fail, lambda: None


def test_disk_of_one_shard_is_full_or_fails(
    sick: tuple[NodeProcess, Callable[[], None], Callable[[], None]],
) -> None:
    """Its part of transactions is refused with an error on which clients abort, and they go on elsewhere.

    The others take writes and commit; all can be read. Nothing that was answered is lost, no transaction is by halves,
    nor below a cut.
    """
    node, fail, mend = sick
    where = Where(node)
    elsewhere, everywhere = where.led_by(OTHERS), range(PARTITIONS)
    apart = [Writer(node, where.new_id(shard), elsewhere, TIMEOUT_MS) for shard in OTHERS]
    over = [Writer(node, where.new_id(shard), everywhere, TIMEOUT_MS) for shard in OTHERS]
    of_sick = [Writer(node, where.new_id(SICK), elsewhere, TIMEOUT_MS)]
    writers = [*apart, *over, *of_sick]
    cutter = Cutter(node)
    try:
        assert_goes_on(node, writers)
        answered: dict[str, int] = {}
        fail()
        codes = {fill(node, partition, answered) for partition in where.led_by([SICK])}
        assert codes <= {KAFKA_STORAGE_ERROR, REQUEST_TIMED_OUT}
        assert_goes_on(node, apart)
        for writer in (*over, *of_sick):
            await_that(lambda writer=writer: writer.codes, "a transaction with the sick shard is refused", node)
        late = [Writer(node, where.new_id(shard), everywhere, TIMEOUT_MS) for shard in OTHERS]
        writers += late
        for writer in late:
            await_that(lambda writer=writer: writer.codes, "a transaction with the sick shard is refused", node)
            writer.partitions = elsewhere
        stock_client_aborts_and_goes_on(node, where.new_id(OTHERS[0]), elsewhere)
        assert_goes_on(node, [*apart, *late])
        for writer in late:
            assert {code for _, code in writer.codes} == {KAFKA_STORAGE_ERROR}, writer.codes
        assert_all_but_the_last(where, answered)
        mend()
        node.restart()
        for writer in late:
            writer.partitions = everywhere
        assert_goes_on(node, writers)
        had = len(cutter.cuts)
        await_that(lambda: len(cutter.cuts) > had, "a cut is taken", node)
    finally:
        for each in (*writers, cutter):
            each.stop()
    assert_whole(where, writers, answered, cutter.cuts)
    assert node.stop() == 0, node.log_tail()
    assert verify(node.data_dir) == 0


def test_process_that_is_stopped_for_a_minute_wakes_and_goes_on(tmp_path: Path) -> None:
    """As a zombie: the coordinator of some, and who takes the cuts; in another node a participant of all others.

    Transactions that need it not go on meanwhile, and all can be read that others lead. Afterwards they are whole, also
    below each cut, and the directory is sound.
    """
    with ExitStack() as stack:
        trials = [
            Stopped(stack.enter_context(running(tmp_path / f"node{number}" / "data")), number, stack)
            for number in (0, SICK)
        ]
        for each in trials:
            assert_goes_on(each.node, each.writers)
        for each in trials:
            each.stop()
        until_s = time.monotonic() + STOPPED_S
        for each in trials:
            each.assert_others_go_on()
        time.sleep(max(0.0, until_s - LAST_S - time.monotonic()))
        for each in trials:
            each.assert_others_go_on()
        time.sleep(max(0.0, until_s - time.monotonic()))
        for each in trials:
            each.wake()
        for each in trials:
            assert_goes_on(each.node, each.writers)
        for each in trials:
            each.end()


class Stopped:
    """A node, and its process `number`, which is stopped for a while."""

    def __init__(self, node: NodeProcess, number: int, stack: ExitStack) -> None:
        self.node = node
        self._pid = node.pids[number]
        where = self._where = Where(node)
        others = [shard for shard in range(PROCESSES) if shard != number]
        self._elsewhere = where.led_by(others)
        self._apart = [Writer(node, where.new_id(shard), self._elsewhere, SHORT_TIMEOUT_MS) for shard in others]
        over = [Writer(node, where.new_id(shard), range(PARTITIONS), SHORT_TIMEOUT_MS) for shard in range(PROCESSES)]
        self.writers = [*self._apart, *over]
        self.cutter = Cutter(node)
        for each in (*self.writers, self.cutter):
            stack.callback(each.stop)

    def stop(self) -> None:
        os.kill(self._pid, signal.SIGSTOP)

    def assert_others_go_on(self) -> None:
        assert_goes_on(self.node, self._apart)
        for partition in self._elsewhere:
            assert any(value in self._apart[0].committed for value in self._where.read(partition))

    def wake(self) -> None:
        os.kill(self._pid, signal.SIGCONT)

    def end(self) -> None:
        for writer in self.writers:
            writer.stop()
        had = len(self.cutter.cuts)
        await_that(lambda: len(self.cutter.cuts) > had, "a cut is taken", self.node)
        self.cutter.stop()
        assert self.node.pids.count(self._pid) == 1, "it is the process that was stopped, and none in its place"
        assert_whole(self._where, self.writers, {}, self.cutter.cuts)
        assert self.node.stop() == 0, self.node.log_tail()
        assert verify(self.node.data_dir) == 0
