"""Backups of stopped nodes of several processes: what they had decided is finished first."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
import trio
from confluent_kafka import Consumer, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic, OffsetSpec

from datalog import layout
from datalog.environment import LmdbDataLogs
from datalog.snapshot import mapped_lmdb
from datalog.stored import StoredLogs
from fairlog import directory
from fairlog.backup import making, settling
from fairlog.backup.making import BackupFailed, make_backup
from fairlog.backup.manifest import Manifest
from fairlog.backup.settling import settle
from fairlog.backup.source import BackupRefused
from fairlog.cluster.growing import add_shard
from fairlog.data_directory import CLUSTER, last_run_notes
from fairlog.directory import hold_shard, locked_directory
from fairlog.groups.persisted_group import PersistedGroup, decode_group
from fairlog.last_run import move_note
from fairlog.verify.verification import Verification
from fairlog_types import LogKind, ShardNumber
from scripts.node_process import ROOT, NodeProcess, has_ended
from shard.cutting import Cutting
from shard.directory import shard_directories
from shard.partitions import Partitions
from tests.backup.conftest import now_ms
from tests.backup.test_three_processes import PARTITIONS, TOPIC, WAIT_S, assert_whole, commit_one, ends_of, writer
from tests.clients.modes import BOTH_MODES, MODE_CONFIG, Mode
from tests.clients.raw_client import NONE
from tests.crash import armed
from tests.crash.harness import SMALL
from tests.history.batches import batches_of
from tests.history.layout import OUT
from tests.history.raw_producer import RawProducer, Refused, Unanswered
from tests.history.routes import Routes
from tests.shards import MAP_BYTES
from tests.three_processes import PROCESSES

pytestmark = pytest.mark.slow

COMMIT_S = 3.0
"""For a commit: one that is under way when the node stops is not answered."""
COORDINATOR, PARTICIPANT = 0, 1
OPEN_MS = 600_000


def back_up(data_dir: Path, target: Path) -> Manifest:
    return make_backup(data_dir, target, now_ms=now_ms)


def fairlog(*arguments: object) -> subprocess.CompletedProcess[str]:
    """The command in a process of its own: what a start logs goes to its stderr."""
    command = [sys.executable, "-m", "fairlog.cli", *map(str, arguments)]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)


# --- under load -----------------------------------------------------------------------------------------


class Load:
    """Writers that commit transactions over all shards until the node is gone."""

    def __init__(self, address: str) -> None:
        self._address = address
        self._answered = [0, 0]
        self._threads = [threading.Thread(target=self._write, args=(number,), daemon=True) for number in range(2)]

    def start(self) -> None:
        for thread in self._threads:
            thread.start()
        until_s = time.monotonic() + WAIT_S
        while min(self._answered) < 10:
            assert time.monotonic() < until_s, "transactions are committed"
            time.sleep(0.01)

    def join(self) -> int:
        """So many commits were answered."""
        for thread in self._threads:
            thread.join(60)
            assert not thread.is_alive()
        return sum(self._answered)

    def _write(self, number: int) -> None:
        producer = writer(self._address, f"load {number}")
        try:
            while True:
                commit_one(producer, COMMIT_S)
                self._answered[number] += 1
        except KafkaException:
            pass  # the node is gone


@contextmanager
def started(data_dir: Path) -> Iterator[NodeProcess]:
    """A node of three processes with a topic that is spread over them."""
    node = NodeProcess(data_dir, processes=PROCESSES)
    node.start()
    try:
        admin = AdminClient({"bootstrap.servers": node.address, "log_level": 0})
        admin.create_topics([NewTopic(TOPIC, PARTITIONS, 1)])[TOPIC].result(WAIT_S)
        yield node
    finally:
        node.kill()


@pytest.fixture
def node(tmp_path: Path) -> Iterator[NodeProcess]:
    with started(tmp_path / "node" / "data") as node:
        yield node


def stop(node: NodeProcess) -> None:
    assert node.stop() == 0


@pytest.mark.parametrize("end", [stop, NodeProcess.kill])
def test_backup_of_a_node_that_ended_under_load_has_all_that_was_answered(
    node: NodeProcess, tmp_path: Path, end: Callable[[NodeProcess], None]
) -> None:
    """Each transaction in all shards or in none; so has the node itself, which goes on afterwards."""
    load = Load(node.address)
    load.start()
    end(node)
    answered = load.join()
    target = tmp_path / "backup"
    command = fairlog("backup", target, "--data-dir", node.data_dir)
    assert command.returncode == 0, command.stderr
    assert command.stderr.startswith(f"the node in {node.data_dir} is stopped: finishing what its shards had decided\n")
    assert command.stdout.startswith("backed up ")
    assert fairlog("verify", target).returncode == 0
    assert list(Verification(node.data_dir, has_journals=True).violations()) == []
    again = back_up(node.data_dir, tmp_path / "again")
    count = assert_whole(tmp_path / "again", again, answered=answered)

    restored = NodeProcess(target, processes=PROCESSES)
    for each in (restored, node):
        each.start()
        try:
            assert ends_of(each) == {count}
            commit_one(writer(each.address, "load 0"))
            assert ends_of(each) == {count + 1}
            assert each.stop() == 0
        finally:
            each.kill()


# --- half of a transaction -------------------------------------------------------------------------------


class HalfCopied:
    """A node whose shards stopped when one had copied a transaction, and another one had not.

    Beside it a transaction is open, with a record in each partition.
    """

    def __init__(self, directory: Path, mode: Mode) -> None:
        self._order = directory / "order"
        more = {"FAIRLOG_JOURNAL_GROUP_JOURNALS": str(PROCESSES), "FAIRLOG_STOP_GRACE_MS": "2000"}
        self.node = NodeProcess(
            directory / "node" / "data",
            SMALL | more | armed.environment(self._order),
            program=armed.PROGRAM,
            processes=PROCESSES,
        )
        self._mode = mode
        self._names = iter(range(100))

    def start(self) -> None:
        self.node.start()
        admin = AdminClient({"bootstrap.servers": self.node.address, "log_level": 0})
        new = NewTopic(OUT, PARTITIONS, 1, config={MODE_CONFIG: self._mode.value})
        admin.create_topics([new])[OUT].result(WAIT_S)

    def producer(self) -> RawProducer:
        """A new one, whose coordinator is that of all these transactions."""
        routes = Routes(self.node.address, timeout_s=WAIT_S)
        ids = (str(number) for number in self._names)
        name = next(each for each in ids if routes.coordinator_number(each) == COORDINATOR)
        routes.close()
        producer = RawProducer(self.node.address, name, 1, OPEN_MS)
        producer.init()
        return producer

    def write(self, producer: RawProducer, value: str) -> None:
        for partition in range(PARTITIONS):
            producer.add(partition)
        for partition in range(PARTITIONS):
            producer.produce(partition, value)

    def commit_in_half(self, producer: RawProducer, point: str, number: signal.Signals) -> None:
        """Commit, while the participant is killed at the point; then the others get this signal."""
        self.wait_for_copies()
        pids = self.node.pids
        os.kill(self.node.pid, signal.SIGSTOP)  # nobody starts it again
        armed.arm(pids[PARTICIPANT], f"{point}:kill:1", self._order)
        commit = threading.Thread(target=_commit, args=(producer,), daemon=True)
        commit.start()
        wait_for(lambda: has_ended(pids[PARTICIPANT]))
        partition = self.partition_of(COORDINATOR)
        wait_for(lambda: values_of(self.node, partition) != [])
        for pid in pids:
            if not has_ended(pid):
                os.kill(pid, number)
        wait_for(lambda: all(map(has_ended, pids)))
        self.node.kill()
        commit.join(60)
        assert not commit.is_alive()

    def wait_for_copies(self) -> None:
        """Of all that was written: in a log of marker mode it is copied before the commit, and the point may lie there.
        Whoever asks for an end waits until it can be read.
        """
        admin = AdminClient({"bootstrap.servers": self.node.address, "log_level": 0})
        ends = {TopicPartition(OUT, number): OffsetSpec.latest() for number in range(PARTITIONS)}
        for future in admin.list_offsets(ends).values():
            future.result(WAIT_S)

    def partition_of(self, shard: int) -> int:
        """One that the shard leads."""
        routes = Routes(self.node.address, timeout_s=WAIT_S)
        try:
            return next(each for each in range(PARTITIONS) if routes.leader_number(OUT, each) == shard)
        finally:
            routes.close()


def _commit(producer: RawProducer) -> None:
    """It may be answered: it is decided, and whoever reads waits for the rest."""
    with suppress(Unanswered, Refused):
        producer.end(commit=True)


def wait_for(condition: Callable[[], bool]) -> None:
    until_s = time.monotonic() + WAIT_S
    while not condition():
        assert time.monotonic() < until_s
        time.sleep(0.01)


def values_of(node: NodeProcess, partition: int) -> list[str]:
    """What a reader of committed records finds."""
    values: list[str] = []
    routes = Routes(node.address, timeout_s=WAIT_S)
    offset, aborted = 0, set[int]()
    while True:
        row = routes.leader(OUT, partition).fetch(OUT, partition, offset, isolation=1, wait_ms=0)
        assert row.error_code == NONE
        batches = list(batches_of(bytes(row.records or b"")))
        if not batches:
            routes.close()
            return values
        aborted |= {each.producer_id for each in row.aborted_transactions or ()}
        for header, _data, records in batches:
            offset = header.last_offset + 1
            if header.producer_id not in aborted:
                values += [value for _offset, value in records]


def all_values(node: NodeProcess) -> list[list[str]]:
    return [values_of(node, partition) for partition in range(PARTITIONS)]


def decided_ends(data_dir: Path, scratch: Path) -> set[int]:
    """Up to where the partitions' data logs are decided."""
    found: set[int] = set()
    for shard in shard_directories(data_dir):
        copy = Path(shutil.copytree(shard.data_logs, scratch / str(shard.number)))
        logs = LmdbDataLogs.open(copy, map_bytes=MAP_BYTES)
        found |= {logs.bounds(log).last_stable_offset for log in logs.logs() if log.kind == LogKind.TOPIC.value}
        logs.close()
    return found


@pytest.fixture
def new_half(tmp_path: Path) -> Iterator[Callable[[Mode], HalfCopied]]:
    """A factory of such nodes; none outlives its test."""
    made: list[HalfCopied] = []

    def make(mode: Mode) -> HalfCopied:
        made.append(HalfCopied(tmp_path, mode))
        made[-1].start()
        return made[-1]

    yield make
    for each in made:
        each.node.kill()


@BOTH_MODES
@pytest.mark.parametrize(
    ("point", "number"),
    [("copier.copy.before", signal.SIGKILL), ("coordinator.place.between_logs", signal.SIGTERM)],
)
def test_half_of_a_transaction_is_made_whole_and_what_is_open_stays_open(
    new_half: Callable[[Mode], HalfCopied],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    mode: Mode,
    point: str,
    number: signal.Signals,
) -> None:
    """In the backup, and in the node, which then ends the open transaction as if nothing had been."""
    run = Partitions.run

    async def run_late(partitions: Partitions) -> None:
        await trio.sleep(0.3)
        await run(partitions)

    monkeypatch.setattr(Partitions, "run", run_late)  # the copy is waited for
    half = new_half(mode)
    decided, left_open = half.producer(), half.producer()
    half.write(decided, "decided")
    half.write(left_open, "open")
    half.commit_in_half(decided, point, number)
    node = half.node
    assert decided_ends(node.data_dir, tmp_path / "before") == {0, 1}, "a half"

    back_up(node.data_dir, tmp_path / "backup")
    assert decided_ends(tmp_path / "backup", tmp_path / "copied") == {1}
    assert decided_ends(node.data_dir, tmp_path / "after") == {1}
    assert [note.read_text().split()[1] for note in last_run_notes(node.data_dir)] == ["closed"] * PROCESSES
    for place, has_journals in ((tmp_path / "backup", False), (node.data_dir, True)):
        assert list(Verification(place, has_journals=has_journals).violations()) == []

    restored = NodeProcess(tmp_path / "backup", SMALL, processes=PROCESSES)
    try:
        restored.start()
        assert all_values(restored) == [["decided"]] * PARTITIONS
        assert restored.stop() == 0
        node.start()
        assert all_values(node) == [["decided"]] * PARTITIONS
        left_open.end(commit=True)
        wait_for(lambda: all_values(node) == [["decided", "open"]] * PARTITIONS)
        assert node.stop() == 0
    finally:
        restored.kill()
        decided.close()
        left_open.close()


# --- what is kept, and what is refused --------------------------------------------------------------------


@pytest.fixture(scope="session")
def stopped_with_a_group(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory of a node that was stopped in good order, and has a group with a member."""
    with started(tmp_path_factory.mktemp("stopped") / "data") as node:
        commit_one(writer(node.address, "one"))
        consumer = Consumer({"bootstrap.servers": node.address, "group.id": "readers", "log_level": 0})
        consumer.subscribe([TOPIC])
        wait_for(lambda: consumer.poll(0.1) is None and bool(consumer.assignment()))
        assert node.stop() == 0
        return node.data_dir


@pytest.fixture
def stopped(stopped_with_a_group: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(stopped_with_a_group, tmp_path / "node" / "data"))


def members(data_dir: Path) -> dict[str, PersistedGroup]:
    """Who is in groups, in the data logs of all shards."""
    found: dict[str, PersistedGroup] = {}
    for shard in shard_directories(data_dir):
        file = mapped_lmdb(shard.data_logs_file)
        assert file is not None
        items = StoredLogs(file).table(layout.GROUPS)
        found |= dict(decode_group(layout.decode_group_key(item.key), bytes(item.value)) for item in items)
    return found


def test_members_of_groups_are_kept_for_the_next_start_and_not_restored(stopped: Path, tmp_path: Path) -> None:
    """Those of the node go on as if there had been no backup. Those of a restored one are long gone."""
    before = members(stopped)
    assert before.keys() == {"readers"}
    back_up(stopped, tmp_path / "backup")
    assert members(stopped) == before
    assert members(tmp_path / "backup").keys() == {"readers"}
    node = NodeProcess(tmp_path / "backup", processes=PROCESSES)
    try:
        node.start()
        assert node.stop() == 0
    finally:
        node.kill()
    assert members(tmp_path / "backup") == {}


def test_backup_that_dies_while_it_finishes_what_was_decided_may_be_repeated(
    new_half: Callable[[Mode], HalfCopied], tmp_path: Path
) -> None:
    """It is a start that was killed."""
    half = new_half(Mode.JOURNAL)
    decided = half.producer()
    half.write(decided, "decided")
    half.commit_in_half(decided, "copier.copy.before", signal.SIGKILL)
    decided.close()
    program = (
        "import os, pathlib; from journal import failpoints; from fairlog.backup.settling import settle; "
        "failpoints.arm(os.environ); settle(pathlib.Path(os.environ['DATA']))"
    )
    for point in ("copier.copy.before", "coordinator.place.between_logs", "copier.copy.after_commit"):
        environment = {**os.environ, "DATA": str(half.node.data_dir), "FAIRLOG_FAILPOINT": f"{point}:kill:1"}
        died = subprocess.run([sys.executable, "-c", program], cwd=ROOT, env=environment, check=False)
        assert died.returncode in (-signal.SIGKILL, 0), point
    back_up(half.node.data_dir, tmp_path / "backup")
    assert decided_ends(tmp_path / "backup", tmp_path / "copied") == {1}
    assert list(Verification(half.node.data_dir, has_journals=True).violations()) == []


def missing_group_journal(source: Path) -> None:
    shutil.rmtree(next(shard_directories(source)[1].group_journals.iterdir()))


def missing_data_logs(source: Path) -> None:
    shutil.rmtree(shard_directories(source)[2].data_logs)


def damaged_data_logs(source: Path) -> None:
    shard_directories(source)[2].data_logs_file.write_bytes(bytes(8192))


def added_shard(source: Path) -> None:
    add_shard(source / CLUSTER, node_id=1, move_note=lambda: move_note(source))


REFUSED = [
    (missing_group_journal, r"cannot be finished: the group journal .* is missing\. Put back an intact copy"),
    (missing_data_logs, r"it does not contain shards/2/datalog/data\.mdb"),
    (damaged_data_logs, r"cannot be finished: .*shards/2/datalog"),
    (added_shard, r"shard 3 was added in .* and has not been served yet: start the node"),
]


@pytest.mark.parametrize(("prepare", "words"), REFUSED, ids=[prepare.__name__ for prepare, _ in REFUSED])
def test_stopped_node_that_lacks_something_is_not_backed_up(
    stopped: Path, tmp_path: Path, prepare: Callable[[Path], None], words: str
) -> None:
    """In a sentence that says what, and what to do; nothing is left of the backup."""
    prepare(stopped)
    with pytest.raises(BackupRefused, match=words):
        back_up(stopped, tmp_path / "target")
    assert not (tmp_path / "target").exists() or list((tmp_path / "target").iterdir()) == []


def test_commit_that_does_not_end_is_told(stopped: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """There is no backup beside it."""

    async def under_way(*_: object) -> bool:
        await trio.lowlevel.checkpoint()
        return False

    monkeypatch.setattr(Cutting, "while_all_hold", under_way)
    monkeypatch.setattr(settling, "_AT_REST_S", 0.1)
    with pytest.raises(BackupRefused, match=r"cannot be finished: a transaction does not end\. Start the node"):
        back_up(stopped, tmp_path / "target")


def test_node_is_kept_away_while_it_is_finished(stopped: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else two would write one journal. A node that starts behind that makes the copy worthless: it is taken away."""
    seen: list[str] = []
    until_at_rest = settling._until_at_rest

    async def looking(shards: object) -> None:
        node = NodeProcess(stopped, processes=PROCESSES)
        node.spawn()
        assert node.wait_end(WAIT_S) == 1
        seen.append(node.log_tail(1))
        await until_at_rest(shards)  # type: ignore[arg-type]

    monkeypatch.setattr(settling, "_until_at_rest", looking)
    back_up(stopped, tmp_path / "backup")
    assert f"data directory {stopped} is in use by process {os.getpid()}" in seen[0]

    copy = making._copy

    def copy_beside_a_start(*arguments: object) -> None:
        with locked_directory(stopped):
            copy(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(settling, "_until_at_rest", until_at_rest)
    monkeypatch.setattr(making, "_copy", copy_beside_a_start)
    with pytest.raises(BackupFailed, match=r"a node was started in .* meanwhile"):
        back_up(stopped, tmp_path / "worthless")
    assert list((tmp_path / "worthless").iterdir()) == []


def test_shard_that_another_process_has_is_not_touched(stopped: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It outlives its supervisor, because a write does not end."""
    monkeypatch.setattr(directory, "_DYING_S", 0.1)
    lock = hold_shard(stopped, ShardNumber(1))
    try:
        with pytest.raises(BackupRefused, match=r"cannot be finished: .* is in use by process"):
            settle(stopped)
    finally:
        os.close(lock)


def test_user_whose_files_the_node_could_not_open_is_refused(
    stopped: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Such as root, beside a node that is not."""
    user = os.geteuid()
    monkeypatch.setattr(os, "geteuid", lambda: user + 1)
    with pytest.raises(BackupRefused, match=f"run the command as user {user}"):
        back_up(stopped, tmp_path / "target")
