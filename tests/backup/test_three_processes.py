"""Backups of a real node of three processes, made while stock clients commit transactions that go over all of them."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, cast

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from fairlog.backup import moment, taking_over
from fairlog.backup.making import BackupFailed
from fairlog.backup.manifest import Manifest
from fairlog.backup.taking_over import take_over
from fairlog.data_directory import MANIFEST, RESTORED, RESTORING
from fairlog.directory import locked_directory
from fairlog.interbroker.asking_to_hold import HoldingNode
from fairlog.verify.verification import Verification
from journal.segment import Fsync
from pyspark_fairlog.native import Native, Topics
from scripts.node_process import NodeDidNotStart, NodeProcess
from tests.backup.conftest import back_up, now_ms
from tests.cli.in_process import FairlogCommand
from tests.shards import MAP_BYTES
from tests.three_processes import PROCESSES, ThreeProcesses

pytestmark = pytest.mark.slow

TOPIC = "spread"
PARTITIONS = 6
WAIT_S = 20.0
WRITERS = ("a", "b")


def commit_one(producer: Producer, wait_s: float = WAIT_S) -> None:
    """A transaction with a record in every partition."""
    producer.begin_transaction()
    for partition in range(PARTITIONS):
        producer.produce(TOPIC, b"x", partition=partition)
    producer.commit_transaction(wait_s)


def writer(address: str, name: str) -> Producer:
    producer = Producer({"bootstrap.servers": address, "transactional.id": name, "linger.ms": 0})
    producer.init_transactions(WAIT_S)
    return producer


class Committing:
    """Several writers that commit all the time."""

    def __init__(self, address: str) -> None:
        self._address = address
        self._stop = threading.Event()
        self._done = dict.fromkeys(WRITERS, 0)
        self._threads = [threading.Thread(target=self._commit, args=(name,), daemon=True) for name in WRITERS]

    @property
    def answered(self) -> int:
        """So many commits were answered before."""
        return sum(self._done.values())

    def wait_for_more(self, count: int) -> int:
        """So many commits more are answered; how many there are now."""
        least, until_s = self.answered + count, time.monotonic() + WAIT_S
        while self.answered < least:
            assert time.monotonic() < until_s, "commits go on"
            time.sleep(0.01)
        return self.answered

    def _commit(self, name: str) -> None:
        producer = writer(self._address, name)
        while not self._stop.is_set():
            commit_one(producer)
            self._done[name] += 1

    @contextmanager
    def going_on(self) -> Iterator[None]:
        for thread in self._threads:
            thread.start()
        try:
            yield
        finally:
            self._stop.set()
            for thread in self._threads:
                thread.join(60)


def ends_in(manifest: Manifest) -> Sequence[int]:
    return [log.high_watermark for log in manifest.logs.values() if log.topic == TOPIC]


def assert_whole(backup: Path, manifest: Manifest, *, answered: int) -> int:
    """Each transaction is there in all partitions or in none, and all that were answered are; how many there are."""
    ends = ends_in(manifest)
    assert len(ends) == PARTITIONS
    assert len(set(ends)) == 1, ends
    assert ends[0] >= answered
    assert list(Verification(backup, has_journals=False).violations()) == []
    return ends[0]


@pytest.fixture
def node(tmp_path: Path) -> Iterator[NodeProcess]:
    """A node of three processes with a topic that is spread over them."""
    node = NodeProcess(tmp_path / "node" / "data", processes=PROCESSES)
    node.start()
    try:
        admin = AdminClient({"bootstrap.servers": node.address})
        admin.create_topics([NewTopic(TOPIC, PARTITIONS, 1)])[TOPIC].result(WAIT_S)
        yield node
    finally:
        node.kill()


def ends_of(node: NodeProcess) -> set[int]:
    with Native.connect(node.addresses[0], timeout_s=30) as native:
        return {part.end for part in native.cut(Topics((TOPIC,)))}


def test_backups_under_load_hold_each_transaction_in_all_shards(
    node: NodeProcess, tmp_path: Path, fairlog: FairlogCommand
) -> None:
    """And all that were answered before; a node starts from the last one, and goes on where it ends."""
    committing = Committing(node.address)
    ends: list[int] = []
    with committing.going_on():
        for number in range(6):
            answered = committing.wait_for_more(5)
            backup = tmp_path / f"backup{number}"
            ends.append(assert_whole(backup, back_up(node, backup), answered=answered))
    assert fairlog("verify", backup)[0] == 0
    assert node.stop() == 0

    one = NodeProcess(backup)
    with pytest.raises(
        NodeDidNotStart,
        match=r"shard 1 in .* is served by process 1, but processes is 1: start the node with --processes 3",
    ):
        one.start()
    assert (backup / MANIFEST).exists()
    restored = NodeProcess(backup, processes=PROCESSES)
    restored.start()
    try:
        assert ends_of(restored) == {ends[-1]}
        again = writer(restored.address, WRITERS[0])
        commit_one(again)
        assert ends_of(restored) == {ends[-1] + 1}
        assert_whole(tmp_path / "next", back_up(restored, tmp_path / "next"), answered=ends[-1] + 1)
        assert restored.stop() == 0
    finally:
        restored.kill()
    assert (backup / RESTORED).exists()
    assert list(Verification(backup, has_journals=True).violations()) == []


def test_open_transaction_of_marker_mode_is_gone_from_all_shards_after_the_restore(tmp_path: Path) -> None:
    """Its records are in the data logs before it is decided. It does not stand in the way of later ones."""
    markers = {"FAIRLOG_TOPICS_TRANSACTIONS": "markers"}
    node = NodeProcess(tmp_path / "node" / "data", markers, processes=PROCESSES)
    restored = NodeProcess(tmp_path / "backup", markers, processes=PROCESSES)
    try:
        node.start()
        admin = AdminClient({"bootstrap.servers": node.address})
        admin.create_topics([NewTopic(TOPIC, PARTITIONS, 1)])[TOPIC].result(WAIT_S)
        committed = writer(node.address, "committed")
        commit_one(committed)
        left_open = writer(node.address, "open")
        left_open.begin_transaction()
        for partition in range(PARTITIONS):
            left_open.produce(TOPIC, b"x", partition=partition)
        assert left_open.flush(WAIT_S) == 0
        assert set(ends_in(back_up(node, restored.data_dir))) == {3}
        node.kill()
        restored.start()
        commit_one(writer(restored.address, "committed"))
        assert ends_of(restored) == {6}, "a record, its marker, an open one, its abort; a record and its marker"
        assert restored.stop() == 0
    finally:
        node.kill()
        restored.kill()
    assert list(Verification(restored.data_dir, has_journals=True).violations()) == []


def test_process_that_is_killed_in_a_hold_is_waited_for(
    node: NodeProcess, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The transactions that have begun beside it are dropped; those that count begin when it serves again."""
    of_one_instant, moments = moment._of_one_instant, [0]

    def with_a_kill(*arguments: object) -> object:
        moments[0] += 1
        if moments[0] == 1:
            os.kill(node.pids[1], signal.SIGKILL)
        return of_one_instant(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(moment, "_of_one_instant", with_a_kill)
    committing = Committing(node.address)
    with committing.going_on():
        answered = committing.wait_for_more(5)
        assert_whole(tmp_path / "backup", back_up(node, tmp_path / "backup"), answered=answered)
    assert moments[0] > 1


def test_backup_beside_a_process_that_does_not_answer_fails_and_leaves_nothing(
    three: ThreeProcesses, tmp_path: Path
) -> None:
    """It says which one."""
    target = tmp_path / "backup"
    with (
        three.frozen(2),
        pytest.raises(BackupFailed, match="no common moment of all shards was found: shard 2 has not answered in time"),
    ):
        back_up(three.node, target)
    assert list(target.iterdir()) == []


def test_transactions_are_dropped_if_a_shard_has_not_held_to_the_end(
    three: ThreeProcesses, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And begun anew within another hold."""
    releases: list[bool] = []
    release = HoldingNode.release

    def first_one_in_vain(node: HoldingNode) -> bool:
        releases.append(release(node))
        return len(releases) > 1 and releases[-1]

    monkeypatch.setattr(HoldingNode, "release", first_one_in_vain)
    back_up(three.node, tmp_path / "backup")
    assert releases == [True, True]


class Environment:
    """Data logs to which a copier may commit while the transactions begin."""

    def __init__(self) -> None:
        self.newest = 0
        self.beside: Callable[[], None] = lambda: None
        """Happens when a transaction begins."""
        self.open = 0

    def begin(self) -> Any:
        self.beside()
        self.open += 1
        return FakeTransaction(self, self.newest)

    def is_newest(self, transaction: FakeTransaction) -> bool:
        return transaction.number == self.newest


class FakeTransaction:
    """One of them."""

    def __init__(self, environment: Environment, number: int) -> None:
        self.number = number
        self._environment = environment

    def abort(self) -> None:
        self._environment.open -= 1


def test_transactions_are_of_one_instant(monkeypatch: pytest.MonkeyPatch) -> None:
    """If a copier has committed while they began, all begin again; if they cannot, there are none."""
    a, b = Environment(), Environment()
    left = [3]

    def commit_to_a() -> None:
        a.newest += left[0] > 0
        left[0] -= 1

    b.beside = commit_to_a
    with ExitStack() as stack:
        begun = moment._of_one_instant(stack, cast("Any", [a, b]))
        assert begun is not None
        assert (a.newest, a.open, b.open) == (3, 1, 1)
        left[0] = 10**9
        assert moment._of_one_instant(stack, cast("Any", [a, b])) is None
        assert (a.open, b.open) == (1, 1)
    assert (a.open, b.open) == (0, 0)


class Died(BaseException):
    pass


def after_shards(count: int) -> Callable[[pytest.MonkeyPatch], None]:
    def prepare(monkeypatch: pytest.MonkeyPatch) -> None:
        settle, left = taking_over._settle, [count]

        def dying(*arguments: object, **named: object) -> None:
            if not left[0]:
                raise Died
            left[0] -= 1
            settle(*arguments, **named)  # type: ignore[arg-type]

        monkeypatch.setattr(taking_over, "_settle", dying)

    return prepare


def start_and_stop(directory: Path) -> None:
    """A node of three processes, in good order."""
    node = NodeProcess(directory, processes=PROCESSES)
    node.start()
    try:
        assert node.stop() == 0
    finally:
        node.kill()


def test_restore_of_several_shards_that_dies_is_gone_on_with(
    three: ThreeProcesses, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before each shard; the next start finishes it."""
    backup = tmp_path / "backup"
    back_up(three.node, backup)

    def restore() -> Manifest | None:
        with locked_directory(backup):
            return take_over(
                backup, node_id=1, group_separator="", map_bytes=MAP_BYTES, fsync=Fsync.COMMIT, now_ms=now_ms()
            )

    for count in range(PROCESSES):
        with monkeypatch.context() as patch:
            after_shards(count)(patch)
            with pytest.raises(Died):
                restore()
        assert (backup / RESTORING).exists()
    assert restore() is not None
    start_and_stop(backup)
    assert list(Verification(backup, has_journals=True).violations()) == []


def test_restore_with_another_separator_of_groups_is_refused_before_anything_is_changed(
    three: ThreeProcesses, tmp_path: Path
) -> None:
    """Regression: the start refused it when the backup was a data directory already."""
    backup = tmp_path / "backup"
    back_up(three.node, backup)
    restored = NodeProcess(backup, {"FAIRLOG_TRANSACTIONS_GROUP_SEPARATOR": "::"}, processes=PROCESSES)
    with pytest.raises(NodeDidNotStart, match=r"have no group separator, .* instead of '::'"):
        restored.start()
    assert (backup / MANIFEST).exists()
    start_and_stop(backup)
