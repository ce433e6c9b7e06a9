"""Kills a node again and again under load, and has every crash judged.

One round: start the node with one failpoint armed; in every other round let the load come to rest, read all
partitions to the end with a plain consumer, and check them against the load's history (AT_REST); let the load
go on until the failpoint kills the node, or a random moment does; open the data logs of the dead node and check
them as well (AT_CRASH). The directory is kept over all rounds of a run, so recovery also meets what earlier recoveries
left. A node that dies while the load comes to rest is simply started again: recovery is crashed, too.

With `lossy_disk` the node runs over a disk that forgets what was not flushed (tests/crash/lossy_disk.py), and
each kill is a power cut.

A run is a function of its seed as far as threads and disks allow: the seed decides the points, the counts
and the load. It stands in every failure.
"""

from __future__ import annotations

import random
import shutil
import signal
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Generator, Iterable, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

from confluent_kafka import KafkaException, TopicCollection, Uuid
from confluent_kafka.admin import AdminClient, NewTopic

from datalog.batch import parse_stored_header
from datalog.control_batch import decode_control_batch
from datalog.environment import LmdbDataLogs
from datalog.interface import ReadRequest, ReadResult
from fairlog.verify.verification import Verification
from fairlog_types import LogKind, Offset
from journal.failpoints import FAILPOINTS
from scripts.node_process import NodeDidNotStart, NodeProcess
from tests.clients.modes import MODE_CONFIG, Mode
from tests.clients.raw_client import NONE, RawClient, batch, records_of
from tests.clients.reading import Reader, Seen
from tests.crash import lossy_disk, uneven_flushes
from tests.crash.checker import Found, Reading, Violation, check, check_growth, check_offsets
from tests.crash.history import History, Outcome
from tests.crash.layout import Layout
from tests.crash.load import OFFSETS_GROUP, Load
from tests.crash.sink_load import SINK, SinkWriter, check_batches
from tests.shards import shard_in
from tests.simulation import planted_node

PARTITIONS = 4
JOURNALS = (Mode.JOURNAL,) * PARTITIONS
MARKERS = (Mode.MARKERS,) * PARTITIONS
MIXED = (Mode.JOURNAL, Mode.MARKERS) * (PARTITIONS // 2)
LIFE_S = 1.0
"""A node whose failpoint is not reached within this is killed by hand: a random moment as good as any."""
RESTING_SHARE = 0.5
"""Of the rounds: those in which the load comes to rest and everything is read and checked before the next kill."""
PATIENT_SHARE = 0.2
"""Of the crashes: those after which clients reconnect by themselves, which takes them one to two seconds."""
STOP_S = 15.0
VISIBLE_S, PLANTED_VISIBLE_S = 30.0, 5.0
"""Patience: how long after its answer a commit may take to become visible; it takes milliseconds. A run that is to fail
need not have as much."""
GROUPS = (OFFSETS_GROUP, SINK)
"""The consumer groups whose offsets are committed in transactions."""
"""Where in the data directory the data logs are."""

# Small segments and a small snapshot interval, so that rolling, reclaiming and cutting happen while we watch.
SMALL = {
    "FAIRLOG_TOPICS_AUTO_CREATE": "false",
    "FAIRLOG_JOURNAL_SEGMENT_BYTES_MAX": str(1024 * 1024),
    "FAIRLOG_REQUESTS_MESSAGE_BYTES_MAX": str(256 * 1024),
    "FAIRLOG_JOURNAL_GROUP_JOURNALS": "2",
    "FAIRLOG_TRANSACTIONS_CHECK_INTERVAL_MS": "100",
    "FAIRLOG_DATALOG_MAP_BYTES": str(1024**3),
    "FAIRLOG_LOG_LEVEL": "warning",
    "FAIRLOG_LOG_FORMAT": "console",
}

# At most how often a point is passed before it kills, so that it does so within LIFE_S. What is not named here is
# passed by every transaction.
_PASSES_MAX = {
    "journal.make_room": 2,
    "journal.roll": 1,
    "journal.close": 1,
    "journal.reclaim": 1,
    "group.snapshot": 1,
    "group.producer_state": 4,
    "group.prepare_abort": 8,
    "group.aborted": 8,
    "group.sink_": 4,
}
_PASSES_MAX_USUALLY = 40

_NOT_HERE = ("retention.", "groups.", "group.sink_aborted", "copier.stage.", "shards.")
POINTS = tuple(name for name in FAILPOINTS if not name.startswith(_NOT_HERE))
"""All but those of deletion and compaction, which `tests/node/test_node_retention.py` has; here nothing may go; but
for those of consumers' groups, which `tests/node/test_node_groups.py` has; but
for SINK_ABORTED, which a node writes only if a log refuses to prepare a lane that had been written whole:
`tests/coordinator/test_sink_commit_crashes.py` stops a coordinator there; but for the stages of a large copy:
`tests/node/test_node_large.py` has these; and but for changes of the shards: `tests/cli/test_added_shards.py` has them.
"""
QUICK_POINTS = tuple(name for name in POINTS if not name.startswith(("journal.reclaim", "group.snapshot")))
"""All but those that only a node reaches which has lived for a while."""
LONG_LIFE_S = 12.0
"""For points that a load of seconds has not come to."""
GROWTH_S = 60.0
"""Patience, for a journal to grow and to be reclaimed; beside nothing that takes 4 to 10 s."""
LONG_TOPIC, LONG_BATCHES = "long", 40
"""Batches of 64 KiB: two whole segments and more, which no open transaction pins. The load may not fill one in time."""
WIDE_PARTITIONS = 200
"""A BEGIN and a PREPARE_ABORT name all partitions: with so many, a group journal soon has the 4 MiB for a snapshot."""
TRIES = 4


class CrashTestFailed(AssertionError):
    """At least one invariant did not hold. The message has the seed, the last kill, the violations, and the log."""


@dataclass(slots=True)
class CrashRun:
    """A node, its load, and what has been seen of both.

    directory:     everything is kept here
    seed:          decides failpoints, counts and load
    modes:         how transactions reach each of the load's partitions
    lossy_disk:    forget what was not flushed at each kill
    planted_bug:   a name of tests/simulation/mutations.py: then the run is expected to fail
    """

    directory: Path
    seed: int
    modes: tuple[Mode, ...] = JOURNALS
    lossy_disk: bool = False
    planted_bug: str | None = None
    kills: Counter[str] = field(default_factory=Counter[str])
    lost_bytes: int = 0
    _rng: random.Random = field(init=False)
    _node: NodeProcess = field(init=False)
    _load: Load | None = None
    _readers: dict[str, Reader] = field(default_factory=dict[str, Reader])
    """By topic."""
    _topics_by_id: dict[str, str] = field(default_factory=dict[str, str])
    _seen: dict[int, list[Found]] = field(default_factory=lambda: {p: [] for p in range(PARTITIONS)})
    _last: str = "nothing yet"

    def __post_init__(self) -> None:
        self._rng = random.Random(self.seed)
        environment = dict(SMALL)
        program: Sequence[str] = ("-m", "fairlog.cli")
        if self.planted_bug is not None:
            environment |= planted_node.environment(self.planted_bug)
            program = planted_node.PROGRAM
        if self.lossy_disk:
            environment[lossy_disk.LEDGER_VARIABLE] = str(self._ledger)
            environment |= uneven_flushes.environment(self.seed)
            program = lossy_disk.PROGRAM
        self._node = NodeProcess(self.directory / "data", environment, program=program)

    @property
    def _layout(self) -> Layout:
        return Layout(f"crash-{self.seed}", self.modes)

    @property
    def _ledger(self) -> Path:
        return self.directory / "ledger"

    def kill_times(self, count: int) -> None:
        """Start, load, kill and check, `count` times, and once more without a kill. Raises CrashTestFailed."""
        with self._running():
            points = self._points(count)
            while self.kills.total() < count:
                self._round(points[self.kills.total() % len(points)], LIFE_S)

    def kill_at_each(self, points: Sequence[str]) -> None:
        """The same, at each of these points at least once, with nodes that may live long. Raises CrashTestFailed."""
        with self._running():
            for _ in range(TRIES):
                for point in points:
                    if self.kills[point] == 0:
                        self._round(point, LONG_LIFE_S)

    @contextmanager
    def _running(self) -> Generator[None]:
        """A node, its topic, the consumer and the load around the rounds; a last check after them."""
        self.directory.mkdir(parents=True, exist_ok=True)
        try:
            self._prepare()
            yield
            self._node.kill()
            self._start()
            self._check_at_rest()
            self._check_read_again_from_the_start()
            self._stop_and_verify()
        finally:
            self._end()

    def report(self) -> str:
        points = ", ".join(f"{name} {count}" for name, count in sorted(self.kills.items()))
        history = self._load.history if self._load else History()
        outcomes = ", ".join(f"{history.count(outcome)} {outcome.value}" for outcome in Outcome)
        lost = f"; {self.lost_bytes} unflushed bytes lost" if self.lossy_disk else ""
        slowest = (
            f"; slowest rest {self._load.slowest_rest[0]:.1f} s ({self._load.slowest_rest[1]})" if self._load else ""
        )
        return f"seed {self.seed}: {self.kills.total()} kills ({points}); outcomes: {outcomes}{lost}{slowest}"

    # --- one round ---

    def _points(self, count: int) -> list[str | None]:
        """Every quick failpoint, shuffled, again and again, with a random-time kill (None) after each six."""
        points: list[str | None] = []
        while len(points) < count:
            shuffled: list[str | None] = list(QUICK_POINTS)
            self._rng.shuffle(shuffled)
            for index, point in enumerate(shuffled):
                points += [point, None] if index % 6 == 5 else [point]
        return points

    def _prepare(self) -> None:
        self._node.start()
        self._topics_by_id = make_topics(self._node.address, self._layout)
        self._readers = self._open_readers()
        self._load = Load(self._node.address, self._layout, seed=self.seed, more={SINK: SinkWriter})

    def _open_readers(self) -> dict[str, Reader]:
        """Plain consumers; of topics of marker mode such as read what is committed."""
        return {
            topic: Reader(
                self._node.address,
                topic,
                len(self._layout.partitions_of(topic)),
                isolation="read_uncommitted" if mode is Mode.JOURNAL else "read_committed",
            )
            for topic, mode in self._layout.topics().items()
        }

    def _round(self, point: str | None, life_s: float) -> None:
        armed = None if point is None else f"{point}:kill:{self._rng.randint(1, _passes_max(point))}"
        self._last = armed or "a random moment"
        if self._node.running:
            self._node.kill()
        self._start(armed)
        if point is not None and point.startswith("group.snapshot"):
            self._grow_a_group_journal()
            self._node.wait_end(STOP_S)  # the connection breaks a moment before the process has ended
        elif point is not None and point.startswith("journal.reclaim"):
            self._grow_a_local_journal()
            self._node.wait_end(GROWTH_S)  # space is given back every ten seconds
        elif self._rng.random() > RESTING_SHARE or self._check_at_rest():
            self._node.wait_end(self._rng.uniform(0.0, LIFE_S) if point is None else life_s)
            if point is not None and point.startswith("journal.close"):
                self._node.terminate()
                self._node.wait_end(STOP_S)
        self._after_death(point)

    def _grow_a_group_journal(self) -> None:
        """Begin and abort transactions without records in very many partitions, until the node dies."""
        topic, transactional_id = f"wide-{self.seed}", "wide"
        deadline = time.monotonic() + GROWTH_S
        with suppress(OSError, KafkaException):
            admin = AdminClient({"bootstrap.servers": self._node.address, "log_level": 0})
            if topic not in admin.list_topics(timeout=GROWTH_S).topics:
                admin.create_topics([NewTopic(topic, WIDE_PARTITIONS, 1)])[topic].result(timeout=GROWTH_S)
            with RawClient(self._node.address) as client:
                granted = client.init_producer_id(transactional_id)
                who = (transactional_id, granted.producer_id, granted.producer_epoch)
                while time.monotonic() < deadline:
                    client.add_partitions(*who, topic, range(WIDE_PARTITIONS))
                    client.end(*who, commit=False)

    def _grow_a_local_journal(self) -> None:
        """Write plain records to a topic of its own, whole segments of them."""
        with suppress(OSError, KafkaException):
            admin = AdminClient({"bootstrap.servers": self._node.address, "log_level": 0})
            if LONG_TOPIC not in admin.list_topics(timeout=GROWTH_S).topics:
                new = NewTopic(LONG_TOPIC, 1, 1, config={"retention.ms": "-1"})
                admin.create_topics([new])[LONG_TOPIC].result(timeout=GROWTH_S)
            with RawClient(self._node.address) as client:
                for _ in range(LONG_BATCHES):
                    client.produce(LONG_TOPIC, 0, batch([bytes(1 << 16)]))

    def _start(self, armed: str | None = None) -> None:
        """Start the node. Its failpoint may kill it before it is ready; that is a kill, and it starts without."""
        self._node.environment.pop("FAIRLOG_FAILPOINT", None)
        if armed is not None:
            self._node.environment["FAIRLOG_FAILPOINT"] = armed
        if self.lossy_disk:
            self._node.environment |= uneven_flushes.environment(self._rng.getrandbits(32))
        try:
            self._node.start()
        except NodeDidNotStart as error:
            if armed is None or self._node.wait_end(0) != -signal.SIGKILL:
                raise CrashTestFailed(f"{self._where()}\nthe node does not start again: {error}") from error
            self._after_death(armed.partition(":")[0])
            self._start()
        if self._load is not None:
            self._load.node_is_back()

    def _after_death(self, point: str | None) -> None:
        """Kill the node if its failpoint has not; count; cut the power; judge what the data logs hold."""
        assert self._load is not None
        by_itself = not self._node.running
        self._load.node_is_gone(patient=self._rng.random() < PATIENT_SHARE)
        self._node.kill()
        if by_itself and (point is None or self._node.wait_end(0) != -signal.SIGKILL):
            raise CrashTestFailed(f"{self._where()}\nthe node ended by itself:\n{self._node.log_tail()}")
        self.kills[point if by_itself and point else "random"] += 1
        if self.lossy_disk:
            self.lost_bytes += lossy_disk.lose_unsynced(self._node.data_dir, self._ledger, self._rng)
        self._check_at_crash()

    def _end(self) -> None:
        """Let the clients come to an end, with a node there to answer them; without one they are left behind."""
        try:
            if self._load is not None and not self._load.stopped:
                if not self._node.running:
                    self._start()
                self._load.stop()
        finally:
            for reader in self._readers.values():
                reader.close()
            self._node.kill()

    # --- judging ---

    def _check_at_rest(self) -> bool:
        """Hold the load, read on to the end, compare with all that was answered; False if the node dies meanwhile."""
        assert self._load is not None
        try:
            history = self._load.rest(lambda: self._node.running)
            if history is None:
                return False
            deadline = time.monotonic() + visible_s(self.planted_bug)
            while violations := [
                *check(history, self._read_on(), Reading.AT_REST, marked=self._layout.marked),
                *check_offsets(self._seen, self._fetch_offsets()),
                *check_batches(self._seen),
            ]:
                if time.monotonic() > deadline:
                    break  # what is answered is visible after the copy: it has had its time
                time.sleep(0.02)
        except (AssertionError, KafkaException, OSError) as error:
            if isinstance(error, OSError):
                self._node.wait_end(STOP_S)  # the connection breaks a moment before the process has ended
            if not self._node.running:
                return False
            raise CrashTestFailed(f"{self._where()}\n{error}\n{self._node.log_tail()}") from error
        self._judge(violations)
        self._load.go_on()
        return True

    def _check_at_crash(self) -> None:
        """Open the data logs of the dead node: a consistent cut, and nothing that was seen is gone."""
        assert self._load is not None
        logs, offsets = read_data_logs(self._node.data_dir, self._layout, self._topics_by_id)
        history = self._load.history.snapshot()
        self._judge(
            [
                *check(history, logs, Reading.AT_CRASH, marked=self._layout.marked),
                *check_growth(self._seen, logs),
                *check_offsets(logs, offsets),
                *check_batches(logs),
            ]
        )

    def _check_read_again_from_the_start(self) -> None:
        """Another consumer, from offset 0, reads what the first one read over all the crashes."""
        assert self._load is not None
        if self._load.rest(lambda: self._node.running) is None:
            raise CrashTestFailed(f"{self._where()}\nthe node ended by itself:\n{self._node.log_tail()}")
        before = self._read_on()
        again: dict[int, list[Found]] = {}
        for topic, reader in self._open_readers().items():
            with reader:
                again |= self._by_partition(topic, reader.read_to_end(timeout_s=30))
        self._judge([*check_growth(before, again), *check_growth(again, before)])
        self._load.go_on()

    def _stop_and_verify(self) -> None:
        """Stop the node in good order, and have `fairlog verify` look at what it leaves: after all the crashes."""
        assert self._load is not None
        self._load.stop()
        if self._node.stop() != 0:
            raise CrashTestFailed(f"{self._where()}\nthe node did not stop well:\n{self._node.log_tail()}")
        violations = list(Verification(self._node.data_dir, has_journals=True).violations())
        if violations:
            shown = "\n".join(map(str, violations[:20]))
            raise CrashTestFailed(f"{self._where()}\nfairlog verify finds {len(violations)} violations:\n{shown}")

    def _read_on(self) -> dict[int, list[Found]]:
        """What the consumer that lives through all crashes has seen, after reading on to the end."""
        for topic, reader in self._readers.items():
            known = sum(len(self._seen[partition]) for partition in self._layout.partitions_of(topic))
            for partition, found in self._by_partition(topic, reader.read_to_end()[known:]).items():
                self._seen[partition] += found
        return self._seen

    def _by_partition(self, topic: str, records: Sequence[Seen]) -> dict[int, list[Found]]:
        """A topic's records by the load's partitions."""
        partitions = self._layout.partitions_of(topic)
        logs: dict[int, list[Found]] = {partition: [] for partition in partitions}
        for record in records:
            logs[partitions[record.partition]].append(Found(record.offset, record.value))
        return logs

    def _fetch_offsets(self) -> dict[str, int | None]:
        """What the groups have committed, as who does not ask for stable offsets is told: one may be pending."""
        offsets: dict[str, int | None] = {}
        with RawClient(self._node.address) as client:
            for group in GROUPS:
                code, offset = client.committed_offset(group, *self._layout.place(0), stable=False)
                assert code == NONE, code
                offsets[group] = offset if offset >= 0 else None
        return offsets

    def _judge(self, violations: Sequence[Violation]) -> None:
        if violations:
            shown = "\n".join(map(str, violations[:20]))
            raise CrashTestFailed(f"{self._where()}\n{len(violations)} violations:\n{shown}\n{self._node.log_tail()}")

    def _where(self) -> str:
        return f"seed {self.seed}, kill {self.kills.total()}, last point: {self._last}"


def _passes_max(point: str) -> int:
    return next((most for prefix, most in _PASSES_MAX.items() if point.startswith(prefix)), _PASSES_MAX_USUALLY)


def visible_s(planted_bug: str | None) -> float:
    """The patience with a commit that was answered, and is not visible."""
    return VISIBLE_S if planted_bug is None else PLANTED_VISIBLE_S


def make_topics(address: str, layout: Layout) -> dict[str, str]:
    """Make the layout's topics; answers their names by their ids, as logs are named."""
    admin = AdminClient({"bootstrap.servers": address})
    for topic, mode in layout.topics().items():
        config = {MODE_CONFIG: mode.value, "retention.ms": "-1"}  # some records of the load are of 1970
        new = NewTopic(topic, len(layout.partitions_of(topic)), 1, config=config)
        admin.create_topics([new])[topic].result(timeout=20)
    described = admin.describe_topics(TopicCollection(list(layout.topics())))
    return {_hex(answer.result(timeout=20).topic_id): topic for topic, answer in described.items()}


def _hex(topic_id: Uuid) -> str:
    high, low = topic_id.get_most_significant_bits(), topic_id.get_least_significant_bits()
    return (high % (1 << 64) << 64 | low % (1 << 64)).to_bytes(16, "big").hex()


def read_data_logs(
    data_dir: Path, layout: Layout, topics_by_id: Mapping[str, str]
) -> tuple[dict[int, list[Found]], dict[str, int | None]]:
    """The committed records of the load's partitions, and the groups' offsets, in the data logs of a dead node.

    Reads a copy, so that the files which the next start meets are those that the crash left.
    """
    with tempfile.TemporaryDirectory(dir=data_dir.parent) as scratch:
        shutil.copytree(shard_in(data_dir).data_logs, scratch, dirs_exist_ok=True)
        logs = LmdbDataLogs.open(Path(scratch), map_bytes=1024**3, sync=False)
        try:
            topic_logs = [log for log in logs.logs() if log.topic in topics_by_id]
            requests = [ReadRequest(log, Offset(0), 1 << 40) for log in topic_logs]
            answers = logs.read(requests, bytes_max=1 << 40)
            entries = [entry for log in logs.logs() if log.kind == LogKind.OFFSETS.value for entry in logs.offsets(log)]
        finally:
            logs.close()
    found: dict[int, list[Found]] = {partition: [] for partition in range(PARTITIONS)}
    for answer in answers:
        assert isinstance(answer, ReadResult), f"reading from offset 0 was answered by {answer}"
        partition = layout.partitions_of(topics_by_id[answer.log.topic])[answer.log.partition]
        counted = sum(parse_stored_header(data).record_count for data in answer.batches)
        assert counted == answer.next_offset, f"{answer.log}: {counted} records, next {answer.next_offset}"
        found[partition] = committed(answer.batches) if partition in layout.marked else records_in(answer.batches)
    offsets: dict[str, int | None] = dict.fromkeys(GROUPS)
    return found, offsets | {key.group: value.offset for key, value in entries}


def records_in(batches: Iterable[bytes]) -> list[Found]:
    """All records of the batches."""
    return [Found(offset, value) for data in batches for offset, value in records_of(data)]


def committed(batches: Iterable[bytes]) -> list[Found]:
    """The records of a partition of marker mode that are committed, also behind what is open: more than may be read.

    In the order of their offsets. A transaction is committed where its marker says so; `read_committed` consumers, who
    have to stop at the last stable offset, are the harness' readers.
    """
    found: list[Found] = []
    undecided: dict[int, list[Found]] = defaultdict(list)
    for data in batches:
        header = parse_stored_header(data)
        if header.control:
            ended = undecided.pop(header.producer_id, [])
            found += ended if decode_control_batch(data).committed else []
        elif header.transactional:
            undecided[header.producer_id] += records_in([data])
        else:
            found += records_in([data])
    return sorted(found, key=lambda record: record.offset)
