"""The background task over real leaders: what it does to whole topics, when it fails, and when it is told to stop."""

from __future__ import annotations

import errno
import os
import signal
import types
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any
from uuid import UUID

import lmdb
import pytest
import structlog.testing
import trio
import trio.testing

from datalog.batch import parse_batch_header_untrusted
from datalog.environment import LmdbDataLogs
from datalog.interface import NoRoom, OffsetOutOfRange, ReadRequest, ReadResult
from fairlog.cluster.interface import ConfigsChange, Topic
from fairlog.config import RetentionSettings, Settings
from fairlog.live_settings import LiveSettings
from fairlog.retention import cleaner, task
from fairlog.retention.judge_process import ANSWER_S, JudgeProcess
from fairlog.retention.judging import JudgeFailed, KeyJudge
from fairlog.retention.task import JUDGE_FAILURES_MAX, Retention
from fairlog_types import LogId, Offset, StorageFailure
from partition import partition as partition_module
from partition.modes import JOURNAL, MARKERS, TransactionMode
from partition.partition import Partition
from partition.store import PartitionStore
from tests.datalog.batches import keyed_batch
from tests.retention.cleaning_model import Pairs, map_of, values_of
from tests.shard.runs import MAP_BYTES, A, B, Run, open_run, transaction

_ZSTD = 4
"""The attribute of a batch that says so."""

EAGER = {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0.01"}


class OneTopic:
    """As much of a cluster store as retention asks for: one topic, of the logs A and B."""

    def __init__(self, configs: Mapping[str, str]) -> None:
        self.topic = Topic("t", UUID(int=1), 2, configs, 0)

    def topics(self) -> list[Topic]:
        return [self.topic]

    def topic_by_id(self, topic_id: UUID) -> Topic | None:
        return self.topic if self.topic.topic_id == topic_id else None

    node_id = 1
    of_broker: Mapping[str, str] = types.MappingProxyType({})

    def broker_configs(self, resource: str) -> Mapping[str, str]:
        return self.of_broker if resource else {}

    async def alter_broker_configs(self, resource: str, change: ConfigsChange) -> bool:
        self.of_broker = change(self.broker_configs(resource))
        return True

    def configure(self, **configs: str) -> None:
        self.topic = replace(self.topic, configs={name.replace("_", "."): value for name, value in configs.items()})


class NotingProcess(JudgeProcess):
    """Notes which processes it has started."""

    def __init__(self) -> None:
        super().__init__()
        self.pids: list[int] = []

    @staticmethod
    def on_keys() -> None:
        """Between noting and sweeping."""

    def begin(self, salt: bytes, keys_max: int) -> None:
        super().begin(salt, keys_max)
        assert self._process is not None
        if self._process.pid not in self.pids:
            self.pids.append(self._process.pid)

    def keys(self) -> int:
        self.on_keys()
        return super().keys()


@asynccontextmanager
async def retention_over(
    directory: Path,
    configs: Mapping[str, str] = EAGER,
    *,
    timeout_s: float = 20,
    mode: TransactionMode = JOURNAL,
    **retention: int,
) -> AsyncIterator[tuple[Run, Retention]]:
    """Leaders of A and B, and the task over them, not running."""
    settings = replace(Settings(), retention=RetentionSettings(**retention))
    async with open_run(directory, leader_epoch=1, timeout_s=timeout_s) as run:
        await run.start(A, B, mode=mode)
        cluster: Any = OneTopic(configs)
        yield run, Retention(cluster, run.partitions, LiveSettings(settings, cluster), run.clock)


class JudgeHere(KeyJudge):
    """In this process, for tests whose clock jumps while another one works."""

    runs = False

    def cut(self) -> None:
        """Nobody waits for it."""


@pytest.fixture
def judge_here(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(task, "JudgeProcess", JudgeHere)


@pytest.fixture
def patient_clock(mock_clock: trio.testing.MockClock) -> trio.testing.MockClock:
    """A clock that jumps when nothing has happened for a while: worker threads have ended by then.

    It is answered, since pytest-trio looks for the clock among a test's own arguments.
    """
    mock_clock.autojump_threshold = 0.1
    return mock_clock


async def write(run: Run, log: LogId, *batches: Pairs, timestamp_ms: int | None = None) -> None:
    """Plain batches, visible when this returns."""
    at_ms = run.clock.ms if timestamp_ms is None else timestamp_ms
    for pairs in batches:
        marked = [(key, None if value is None else b"=" + value) for key, value in pairs]
        data = keyed_batch(0, marked, timestamp_ms=at_ms)
        await run[log].append(data, parse_batch_header_untrusted(data), None)
    await run.partitions.drain()


async def stored(run: Run, log: LogId, start: int = 0) -> list[Any]:
    def read() -> list[Any]:
        (answer,) = run.data_logs.read([ReadRequest(log, Offset(start), 1 << 30)], bytes_max=1 << 30)
        assert isinstance(answer, ReadResult), answer
        return [row for batch in answer.batches for row in values_of(batch) if row[0] >= start]

    return await trio.to_thread.run_sync(read)


async def test_records_that_are_too_old_go(tmp_path: Path) -> None:
    """The log's start moves for all who ask: the leader, ListOffsets, and readers, who are told by "out of range"."""
    async with retention_over(tmp_path, {"retention.ms": "1000"}) as (run, retention):
        await write(run, A, [(b"a", b"1"), (b"b", b"2")], [(b"a", b"3")])
        run.clock.ms += 700
        await write(run, A, [(b"a", b"4")])
        await write(run, B, [(b"a", b"1")])
        await retention.delete_expired()
        assert run[A].visibility.log_start == 0
        run.clock.ms += 301
        await retention.delete_expired()
        assert (run[A].visibility.log_start, run[B].visibility.log_start) == (3, 0)
        assert [row[0] for row in await stored(run, A, 3)] == [3]
        request = [ReadRequest(A, Offset(2), 100)]
        (answer,) = run.data_logs.read(request, bytes_max=100)
        assert answer == OffsetOutOfRange(A, Offset(4), Offset(3))
        run.clock.ms += 10_000
        await retention.delete_expired()
        assert (run[A].visibility.log_start, run[B].visibility.log_start) == (4, 1)
        await write(run, A, [(b"a", b"5")])
        assert [row[0] for row in await stored(run, A, 4)] == [4]


async def test_logs_that_another_shard_leads_are_not_looked_at(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a topic with partitions here and there only those here are deleted from, and cleaned."""
    looked_at: list[LogId] = []

    class Noting(cleaner.LogCleaner):
        def __init__(self, data_logs: Any, log: LogId, *arguments: Any, **more: Any) -> None:
            looked_at.append(log)
            super().__init__(data_logs, log, *arguments, **more)

    monkeypatch.setattr(task, "LogCleaner", Noting)
    both = {"cleanup.policy": "compact,delete", "retention.ms": "1000"}
    async with retention_over(tmp_path, both) as (run, retention):
        retention._cluster.topic = replace(retention._cluster.topic, partitions=6)  # type: ignore[attr-defined]
        await write(run, A, [(b"a", b"1")])
        run.clock.ms += 2_000
        await retention.delete_expired()
        await retention.clean()
        assert (looked_at, run[A].visibility.log_start) == ([A, B], 1)


async def test_records_that_are_not_decided_do_not_go_however_old_they_are(tmp_path: Path) -> None:
    """In a log with markers the start stops at the last stable offset, and goes on when the transaction has ended."""
    async with retention_over(tmp_path, {"retention.ms": "1000"}, mode=MARKERS) as (run, retention):
        hanging = transaction(7)
        await write(run, A, [(b"a", b"1")])
        await run.begin(hanging, A)
        await run.write(hanging, A, b"open")
        await write(run, A, [(b"a", b"2")])
        run.clock.ms += 1 << 50  # the test's transactional batches have a time of their own
        await retention.delete_expired()
        assert run[A].visibility.log_start == run[A].visibility.last_stable_offset == 1
        run.discard(hanging, A)
        await run.partitions.drain()
        run.clock.ms += 1001
        await retention.delete_expired()
        assert run[A].visibility.log_start == run[A].visibility.last_stable_offset == 4


async def test_records_that_are_too_many_go_in_portions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A log that holds much more than it should is cut down, whatever the portions."""
    monkeypatch.setattr(task, "BATCHES_PER_LOOK", 7)
    monkeypatch.setattr(partition_module, "DELETE_BATCHES_MAX", 3)
    async with retention_over(tmp_path, {"retention.bytes": "500"}) as (run, retention):
        await write(run, A, *[[(b"k", b"v" * 20)]] * 40)
        size = run.data_logs.bounds(A).size_bytes // 40
        await retention.delete_expired()
        bounds = run.data_logs.bounds(A)
        assert 500 <= bounds.size_bytes < 500 + size
        assert bounds.log_start == run[A].visibility.log_start == 40 - bounds.size_bytes // size
        assert retention.statistics.deleted_bytes == 40 * size - bounds.size_bytes


async def test_round_goes_by_what_holds_now(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Who has been told that more is kept from now on loses nothing to a round that was under way."""
    monkeypatch.setattr(task, "BATCHES_PER_LOOK", 2)
    async with retention_over(tmp_path, {"retention.ms": "1000"}) as (run, retention):
        for log in (A, B):
            await write(run, log, *[[(b"k", b"v")]] * 6)
        run.clock.ms += 2_000
        delete = Partition.delete_before

        async def configured_after(partition: Partition, offset: Offset) -> Offset | None:
            start = await delete(partition, offset)
            retention._cluster.configure(retention_ms="-1")  # type: ignore[attr-defined]
            return start

        monkeypatch.setattr(Partition, "delete_before", configured_after)
        await retention.delete_expired()
        assert (run[A].visibility.log_start, run[B].visibility.log_start) == (2, 0)


async def test_cleaning_round_goes_by_what_holds_now(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A topic whose policy was changed meanwhile keeps all records of each key."""
    async with retention_over(tmp_path) as (run, retention):
        for log in (A, B):
            await write(run, log, *[[(b"k", b"v")]] * 6)
        go_through = retention._go_through

        async def configured_after(*arguments: Any) -> None:
            await go_through(*arguments)
            retention._cluster.configure(cleanup_policy="delete")  # type: ignore[attr-defined]

        monkeypatch.setattr(retention, "_go_through", configured_after)
        await retention.clean()
        assert [len(await stored(run, log)) for log in (A, B)] == [1, 6]


async def test_policy_compact_alone_keeps_what_is_old(tmp_path: Path) -> None:
    """Limits of age and size are for the policy `delete`; both policies may be given."""
    async with retention_over(tmp_path, {"retention.ms": "1", **EAGER}) as (run, retention):
        await write(run, A, [(b"a", b"1")], [(b"a", b"2")], [(b"end", b"")])
        run.clock.ms += 1_000
        await retention.delete_expired()
        await retention.clean()
        assert [row[0] for row in await stored(run, A)] == [1, 2]
        retention._cluster.configure(cleanup_policy="compact,delete", retention_ms="1")  # type: ignore[attr-defined]
        await retention.delete_expired()
        assert run[A].visibility.log_start == 3


async def test_transaction_is_not_halved_by_age_nor_by_size(tmp_path: Path) -> None:
    """Its batches go together, when the youngest of them may go."""
    async with retention_over(tmp_path, {"retention.bytes": "90"}) as (run, retention):
        with run.data_logs.write() as writer:
            for offset in range(4):
                data = keyed_batch(
                    offset, [(b"k", b"v" * 30)], timestamp_ms=1, attributes=0x10, producer=(1, 0, offset)
                )
                writer.append(A, Offset(offset), 1, 1, data)
            writer.bind(A, Offset(0), Offset(2))
        run[A].state.next_offset = Offset(4)  # the journal of a log never ends before its data log
        await retention.delete_expired()
        assert run.data_logs.bounds(A).log_start == 3


@pytest.mark.parametrize("nth", [1, 2, 3])
async def test_deletion_that_was_cut_short_is_finished_by_the_next_run(
    tmp_path: Path, arm: Callable[[str], None], monkeypatch: pytest.MonkeyPatch, nth: int
) -> None:
    """The log starts where it was told to, and what is left before its start goes when the node is up again."""
    monkeypatch.setattr(partition_module, "DELETE_BATCHES_MAX", 3)
    async with retention_over(tmp_path, {"retention.ms": "10"}) as (run, retention):
        await write(run, A, *[[(b"k", b"v")]] * 20)
        run.clock.ms += 1_000
        await write(run, A, [(b"k", b"v")])
        arm(f"retention.delete.after_commit:fail:{nth}")
        with pytest.raises(OSError, match="failpoint"):
            await retention.delete_expired()
        assert run.data_logs.bounds(A).size_bytes > 10 * 70
    async with retention_over(tmp_path, {}) as (run, retention):
        assert run[A].visibility.log_start == 20
        assert [row[0] for row in await stored(run, A, 20)] == [20]
        await retention.delete_expired()
        assert run.data_logs.bounds(A).size_bytes < 100


@pytest.mark.parametrize("full", [False, True], ids=["its client's time was over", "the disk was full"])
async def test_deletion_that_was_cut_short_is_finished_by_the_next_round(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, full: bool
) -> None:
    """DeleteRecords that is timed out leaves the rest to the background; a full disk needs the room most of all."""
    monkeypatch.setattr(partition_module, "DELETE_BATCHES_MAX", 3)
    async with retention_over(tmp_path, {"retention.ms": "-1"}) as (run, retention):
        await write(run, A, *[[(b"k", b"v")]] * 21)
        await run[A].delete_before(Offset(1))
        await retention.delete_expired()
        delete = Partition._delete_some
        with monkeypatch.context() as patch, trio.CancelScope() as scope, suppress(NoRoom):

            def interrupted(partition: Partition, offset: Offset) -> bool:
                if full and run.data_logs.bounds(A).log_start == 20:
                    raise NoRoom("full")
                if not full:
                    trio.from_thread.run_sync(scope.cancel)
                return delete(partition, offset)

            patch.setattr(Partition, "_delete_some", interrupted)
            await run[A].delete_before(Offset(20))
        assert run[A].visibility.log_start == 20
        assert run.data_logs.bounds(A).size_bytes > 10 * 70
        await retention.delete_expired()
        assert run.data_logs.bounds(A).size_bytes < 100


async def test_log_of_a_deleted_topic_that_cannot_be_removed_yet_does_not_hold_up_the_round(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is no longer led, so its start stays where it is; it is left for whoever removes it."""

    async def no_files(store: PartitionStore, logs: object) -> None:
        raise StorageFailure("no file can be opened")

    async with retention_over(tmp_path, {"retention.ms": "10"}) as (run, retention):
        for log in (A, B):
            await write(run, log, [(b"k", b"v")])
        await retention.delete_expired()
        run.clock.ms += 1_000
        monkeypatch.setattr(PartitionStore, "remove", no_files)
        with pytest.raises(StorageFailure):
            await run.partitions.drop([A])
        with trio.fail_after(5):
            await retention.delete_expired()
        assert (run.data_logs.bounds(A).log_start, run[B].visibility.log_start) == (0, 1)


async def test_compacted_topic_is_cleaned_log_by_log(tmp_path: Path) -> None:
    """Readers find each key's latest; what is done is counted and said in a line for each log."""
    async with retention_over(tmp_path) as (run, retention):
        for log in (A, B):
            await write(run, log, *[[(b"%d" % (number % 3), b"%d" % number)] for number in range(30)])
        with structlog.testing.capture_logs() as lines:
            await retention.clean()
            await retention.clean()
        for log in (A, B):
            assert map_of(await stored(run, log)) == {b"0": b"27", b"1": b"28", b"2": b"29"}
        assert [(line["event"], line["partition"], line["removed_records"]) for line in lines] == [
            ("log compacted", 0, 27),
            ("log compacted", 1, 27),
        ]
        assert retention.statistics.cleanings == 2
        assert retention.statistics.cleaned_removed_records == 54


async def test_rounds_are_made_at_their_intervals(tmp_path: Path, patient_clock: trio.testing.MockClock) -> None:
    """`run` makes them until it is cancelled, each kind by its own clock."""
    async with retention_over(tmp_path, timeout_s=1e6, check_interval_ms=1_000, clean_interval_ms=100) as (
        _,
        retention,
    ):
        made: dict[str, list[float]] = {"clean": [], "delete": []}
        began = trio.current_time()

        async def note(kind: str) -> None:
            made[kind].append(trio.current_time() - began)
            await trio.lowlevel.checkpoint()

        retention.clean = lambda: note("clean")  # type: ignore[method-assign]
        retention.delete_expired = lambda: note("delete")  # type: ignore[method-assign]
        with trio.move_on_after(2.45):
            await retention.run()
        assert made["delete"] == pytest.approx([1, 2])
        assert made["clean"] == pytest.approx([number / 10 for number in range(1, 25)])


@pytest.mark.usefixtures("judge_here")
async def test_copy_that_another_node_owns_is_compacted_and_nothing_else(
    tmp_path: Path, patient_clock: trio.testing.MockClock
) -> None:
    """What is too old goes when the owner says so."""
    both = EAGER | {"cleanup.policy": "compact,delete"}
    async with retention_over(tmp_path, both, timeout_s=1e6, check_interval_ms=100, clean_interval_ms=100) as (
        run,
        retention,
    ):
        await write(run, A, *[[(b"key", b"%d" % number)] for number in range(30)], timestamp_ms=1)
        with trio.move_on_after(1):
            await retention.run_on_copy()
        assert map_of(await stored(run, A)) == {b"key": b"29"}
        assert len(await stored(run, A)) == 1


async def test_interval_that_is_changed_counts_from_the_round_before(
    tmp_path: Path, patient_clock: trio.testing.MockClock
) -> None:
    """Whoever shortens an interval does not wait for the end of the long one; who lengthens it is heard, too."""
    async with retention_over(tmp_path, timeout_s=1e6, clean_interval_ms=100_000) as (_, retention):
        made, began = list[float](), trio.current_time()

        async def note() -> None:
            made.append(trio.current_time() - began)
            await trio.lowlevel.checkpoint()

        async def set_interval(at: float, ms: str) -> None:
            await trio.sleep_until(began + at)
            await retention._live.alter("1", lambda _own: {"log.cleaner.backoff.ms": ms}, validate_only=False)

        retention.clean = note  # type: ignore[method-assign]
        with trio.move_on_after(40):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(retention.run)
                nursery.start_soon(set_interval, 5, "10000")  # the first round comes after ten seconds
                nursery.start_soon(set_interval, 12, "2000")  # two have passed already since the last one
                nursery.start_soon(set_interval, 15, "20000")
        assert made == pytest.approx([10, 12, 14, 34])


@pytest.mark.usefixtures("judge_here")
async def test_full_disk_postpones_the_round_and_refuses_no_writes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, patient_clock: trio.testing.MockClock
) -> None:
    """A line says so; the node takes batches, and with room again the next round does what is left."""

    def full(descriptor: int, offset: int, length: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    async with retention_over(tmp_path, clean_interval_ms=100, timeout_s=1e6) as (run, retention):
        await write(run, A, [(b"a", b"1")], [(b"a", b"2")], [(b"end", b"")])
        with monkeypatch.context() as patch, structlog.testing.capture_logs() as lines:
            patch.setattr(os, "posix_fallocate", full)
            with trio.move_on_after(0.25):
                await retention.run()
        assert [line["event"] for line in lines] == ["retention postponed"] * 2
        assert all("No space left" in line["reason"] for line in lines)
        assert run.partitions.failure is None
        assert retention.statistics.postponed_rounds == 2
        await write(run, A, [(b"b", b"3")])
        await retention.clean()
        assert [row[0] for row in await stored(run, A)] == [1, 2, 3]


@pytest.mark.usefixtures("judge_here")
async def test_disk_that_fails_under_a_cleaning_stops_writes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, patient_clock: trio.testing.MockClock
) -> None:
    """What a failed commit left is not known (invariant 12): the node says so, and is read from until a restart."""

    def failing(_: LmdbDataLogs, *, room_bytes: int = 0) -> None:
        raise StorageFailure("Input/output error")

    async with retention_over(tmp_path, clean_interval_ms=100, timeout_s=1e6) as (run, retention):
        await write(run, A, [(b"a", b"1")], [(b"a", b"2")], [(b"end", b"")])
        with monkeypatch.context() as patch:
            patch.setattr(LmdbDataLogs, "write", failing)
            with trio.move_on_after(0.25):
                await retention.run()
        assert "Input/output" in str(run.partitions.failure)
        assert len(await stored(run, A)) == 3


async def test_searches_are_made_short_again_after_a_deletion(tmp_path: Path) -> None:
    """Whoever has deleted the record with the largest timestamp, retention or a client."""
    async with retention_over(tmp_path, {"retention.bytes": "1000000"}) as (run, retention):
        for timestamp_ms in (9_000_000, 10, 20):
            await write(run, A, [(b"k", b"v")], timestamp_ms=timestamp_ms)
        await run[A].delete_before(Offset(1))
        assert run.data_logs.time_index_is_behind(A)
        await retention.delete_expired()
        assert not run.data_logs.time_index_is_behind(A)


async def test_node_whose_disk_has_failed_makes_no_rounds(
    tmp_path: Path, patient_clock: trio.testing.MockClock
) -> None:
    """It refuses writes, retention's as well, and has said why already."""
    async with retention_over(tmp_path, clean_interval_ms=100, timeout_s=1e6) as (run, retention):
        await write(run, A, [(b"a", b"1")], [(b"a", b"2")], [(b"end", b"")])
        run.partitions.refuse_writes("a test says so")
        with structlog.testing.capture_logs() as lines, trio.move_on_after(1):
            await retention.run()
        assert lines == []
        assert len(await stored(run, A)) == 3
        with pytest.raises(StorageFailure):
            await run[A].delete_before(Offset(1))


def _let_the_first_batch_rot(directory: Path, log: LogId) -> None:
    with lmdb.open(str(directory), map_size=MAP_BYTES, max_dbs=20) as env, env.begin(write=True) as txn:
        database = env.open_db(str(log).encode(), txn=txn)
        key, value = next(iter(txn.cursor(db=database)))
        txn.put(key, value[:-3] + b"rot", db=database)


async def test_damaged_log_is_left_alone_and_the_others_are_cleaned(tmp_path: Path) -> None:
    """One line names it; its readers will find the same."""
    async with retention_over(tmp_path) as (run, _):
        for log in (A, B):
            await write(run, log, [(b"a", b"1")], [(b"a", b"2")], [(b"end", b"")])
    _let_the_first_batch_rot(tmp_path / "datalog", A)
    async with retention_over(tmp_path) as (run, retention):
        with structlog.testing.capture_logs() as lines:
            await retention.clean()
            await retention.clean()
        assert [(line["event"], line.get("log")) for line in lines] == [
            ("log left as it is", str(A)),
            ("log compacted", None),
        ]
        assert len(await stored(run, B)) == 2


def _let_the_first_key_grow(directory: Path, log: LogId) -> None:
    with lmdb.open(str(directory), map_size=MAP_BYTES, max_dbs=20) as env, env.begin(write=True) as txn:
        database = env.open_db(str(log).encode(), txn=txn)
        key, value = next(iter(txn.cursor(db=database)))
        txn.delete(key, db=database)
        txn.put(key + b"!", value, db=database)


async def test_log_with_a_damaged_key_is_left_alone_and_others_lose_what_is_too_old(tmp_path: Path) -> None:
    """Regression: a key of another length was taken for a fault of the node, which ended, at each of its starts."""
    old = {"retention.ms": "1000"}
    async with retention_over(tmp_path, old) as (run, _):
        for log in (A, B):
            await write(run, log, [(b"a", b"1")])
    _let_the_first_key_grow(tmp_path / "datalog", A)
    async with retention_over(tmp_path, old) as (run, retention):
        run.clock.ms += 1001
        with structlog.testing.capture_logs() as lines:
            await retention.delete_expired()
            await retention.delete_expired()
        assert [(line["event"], line.get("log")) for line in lines if line["log_level"] == "warning"] == [
            ("log left as it is", str(A))
        ]
        assert "an offset has 8 bytes, this one 9" in str(lines)
        assert (run[A].visibility.log_start, run[B].visibility.log_start) == (0, 1)


async def test_transaction_too_large_for_the_buffer_is_reported_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the setting that would help; the log is not tried again in this run."""
    monkeypatch.setattr(task, "KEY_MEMORY_BYTES", 128 * 2**20 // 2)
    async with retention_over(tmp_path) as (run, retention):
        await write(run, A, [(b"a", b"1"), (b"b", b"1"), (b"c", b"1")], [(b"end", b"")])
        with structlog.testing.capture_logs() as lines:
            await retention.clean()
            await retention.clean()
        (line,) = [line for line in lines if line["log_level"] == "error"]
        assert "retention.dedupe_buffer_bytes" in line["event"]
        assert line["offset"] == 0


async def test_batches_that_cannot_be_read_are_said_once(tmp_path: Path) -> None:
    """Which, and why; not again with every cleaning."""
    async with retention_over(tmp_path) as (run, retention):
        with structlog.testing.capture_logs() as lines:
            for _ in range(3):
                for value in (b"1", b"2"):
                    data = keyed_batch(0, [(b"a", value)], attributes=_ZSTD)  # which it is not
                    await run[A].append(data, parse_batch_header_untrusted(data), None)
                await run.partitions.drain()
                await retention.clean()
        (warning,) = [line for line in lines if line["log_level"] == "warning"]
        assert warning["first"].startswith("offset 0: "), warning
        assert len(run.data_logs.units(A, Offset(0), batches_max=10)) == 6


async def test_round_ends_with_its_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is there as soon as something is to be judged, and goes with the round: at its end, and if it is cancelled."""
    made: list[NotingProcess] = []
    monkeypatch.setattr(task, "JudgeProcess", lambda: made.append(NotingProcess()) or made[-1])
    async with retention_over(tmp_path) as (run, retention):
        await retention.clean()
        assert [judge.pids for judge in made] == [[]]
        for log in (A, B):
            await write(run, log, [(b"a", b"1")], [(b"a", b"2")], [(b"end", b"")])
        await retention.clean()
        assert [len(judge.pids) for judge in made] == [0, 1], "one process for both logs"
        await write(run, A, [(b"a", b"3")], [(b"a", b"4")], [(b"end", b"")])
        with trio.CancelScope() as scope:
            monkeypatch.setattr(NotingProcess, "on_keys", staticmethod(lambda: trio.from_thread.run_sync(scope.cancel)))
            await retention.clean()
        assert scope.cancelled_caught
        assert len(made[2].pids) == 1
        for pid in (*made[1].pids, *made[2].pids):
            with pytest.raises(ProcessLookupError):
                os.kill(pid, 0)


async def test_process_that_is_killed_postpones_its_log_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As by a want of memory: a line says so, nothing is lost, and another process goes on, with the log as well."""
    made: list[NotingProcess] = []
    deaths = 0

    def made_anew() -> NotingProcess:
        made.append(NotingProcess())
        return made[-1]

    def kill_the_first() -> None:
        if deaths < 1:
            die()

    def die() -> None:
        nonlocal deaths
        deaths += 1
        os.kill(made[-1].pids[-1], signal.SIGKILL)

    monkeypatch.setattr(task, "JudgeProcess", made_anew)
    monkeypatch.setattr(NotingProcess, "on_keys", staticmethod(kill_the_first))
    async with retention_over(tmp_path) as (run, retention):
        for log in (A, B):
            await write(run, log, [(b"a", b"1")], [(b"a", b"2")], [(b"end", b"")])
        with structlog.testing.capture_logs() as lines:
            await retention.clean()
        assert [(line["event"], line["partition"]) for line in lines] == [
            ("compaction postponed", A.partition),
            ("log compacted", B.partition),
        ]
        assert "has ended (code -9)" in lines[0]["reason"]
        assert retention.statistics.postponed_rounds == 1
        assert len(made[0].pids) == 2
        await retention.clean()
        for log in (A, B):
            assert [row[0] for row in await stored(run, log)] == [1, 2]


async def test_log_with_which_the_process_always_fails_is_given_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So that it does not cost each round a process; records that are too old still go."""

    def fails(self: KeyJudge, batches: object, **_: object) -> None:
        raise JudgeFailed("it has met a fault")

    monkeypatch.setattr(JudgeHere, "judge", fails)
    monkeypatch.setattr(task, "JudgeProcess", JudgeHere)
    both = EAGER | {"cleanup.policy": "compact,delete", "retention.ms": "1000"}
    async with retention_over(tmp_path, both) as (run, retention):
        await write(run, A, [(b"a", b"1")], [(b"a", b"2")], [(b"end", b"")])
        with structlog.testing.capture_logs() as lines:
            for _ in range(JUDGE_FAILURES_MAX + 2):
                await retention.clean()
        assert [line["event"] for line in lines[:-1]] == ["compaction postponed"] * JUDGE_FAILURES_MAX
        assert lines[-1]["log_level"] == "error"
        assert "again and again" in lines[-1]["event"]
        run.clock.ms += 1_500
        await write(run, A, [(b"b", b"3")])
        await retention.delete_expired()
        assert [row[0] for row in await stored(run, A, start=3)] == [3]


async def test_stop_does_not_wait_for_the_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Though it is stopped, and its answer is waited for: the step ends at once, and then the round."""
    made: list[NotingProcess] = []

    def stop_it() -> None:
        os.kill(made[0].pids[0], signal.SIGSTOP)
        trio.from_thread.run_sync(asked.set)

    monkeypatch.setattr(task, "JudgeProcess", lambda: made.append(NotingProcess()) or made[-1])
    monkeypatch.setattr(NotingProcess, "on_keys", staticmethod(stop_it))
    asked = trio.Event()
    async with retention_over(tmp_path) as (run, retention):
        await write(run, A, [(b"a", b"1")], [(b"a", b"2")], [(b"end", b"")])
        with structlog.testing.capture_logs() as lines:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(retention.clean)
                await asked.wait()
                await trio.sleep(0.1)
                nursery.cancel_scope.cancel()
                began = trio.current_time()
        assert trio.current_time() - began < ANSWER_S / 2
        assert lines == []
        assert not made[0].runs


async def test_topic_deleted_in_the_middle_ends_its_cleaning(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The rest of the round goes on."""
    async with retention_over(tmp_path) as (run, retention):
        for log in (A, B):
            await write(run, log, *[[(b"a", b"1")]] * 20)
        monkeypatch.setattr(cleaner, "BATCHES_PER_LOOK", 4)
        look, looks = LmdbDataLogs.units, 0

        def drop_at_third(logs: LmdbDataLogs, log: LogId, offset: Offset, *, batches_max: int) -> Any:
            nonlocal looks
            looks += log == A
            if looks == 3 and log == A:
                with logs.write() as writer:
                    writer.drop(A)
            return look(logs, log, offset, batches_max=batches_max)

        monkeypatch.setattr(LmdbDataLogs, "units", drop_at_third)
        await retention.clean()
        assert len(await stored(run, B)) == 1
