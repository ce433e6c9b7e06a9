"""Hundreds of power cuts from a few recordings: every image is verified, started, used, read, and verified again.

    a node under load ──▶ trace ──▶ image at some moment ──▶ fairlog verify ──▶ start ──▶ a commit, all is read ──▶ stop
                                                                └── recorded as well ──▶ image of the recovery ──▶ …

A recording is made once and cut at many moments: at any event, or right behind one that a client was answered after
(`recording.Dated` says what had been answered by then). Each image is drawn from all that the fault model of
`tests/simulation/disk.py` allows at that moment. One in four is cut a second time, in the middle of its recovery.

What is asked of each:

- `fairlog verify` finds nothing, neither in the image nor in what the stopped node leaves;
- the node starts, and takes a transaction of an id that it knows;
- what was answered by that moment is there, whole; what nobody had asked to commit is not; offsets are dense; the
  committed offsets stand where the transactions do (`tests.crash.checker`); what a consumer had read is unchanged;
- a log with retention and one with compaction hold what they owe (`tests.crash.retention_load`);
- consumer groups have the members and generations that their members were told of (`tests.crash.group_load`).

    python -m tests.crash.images --images 300 --seed anything

Not here: a disk that lies about a sync, or damages what was synced (`tests/verify`, `tests/journal/test_reopen.py`).
"""

from __future__ import annotations

import argparse
import random
import shutil
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

from confluent_kafka import KafkaException

from fairlog.verify.verification import Verification
from scripts.node_process import NodeDidNotStart, NodeProcess
from tests.clients.modes import Mode
from tests.clients.raw_client import NONE, RawClient, batch
from tests.clients.reading import Reader
from tests.crash import recording, uneven_flushes
from tests.crash.checker import Found, Reading, Violation, check, check_growth, check_offsets
from tests.crash.group_load import GroupLoad
from tests.crash.harness import GROUPS, MIXED, SMALL, make_topics, visible_s
from tests.crash.history import History, Outcome, PlainRecord, Transaction
from tests.crash.layout import Layout
from tests.crash.load import Load
from tests.crash.rebuilding import Rebuilding
from tests.crash.retention_load import RetentionLoad
from tests.crash.sink_load import SINK, SinkWriter, check_batches
from tests.simulation import planted_node

IMAGES_PER_RECORDING = 30
LOAD_S = 2.5
TWICE_SHARE = 0.25
"""Of the images: those whose recovery is cut, too."""
COMMITTED_SHARE = 0.4
"""Of the moments: those right behind the answer to a commit, which stands on several journals."""
WRITTEN_SHARE = 0.1
"""And those right behind the answer to a plain record."""
MEMBERS_SHARE = 0.1
"""And those right behind the answer to a member of a consumer group."""
EARLY_SHARE = 0.1
"""And those of the very first start, while a directory becomes a node's."""
SUCCESSOR = "w0"
"""One of the load's transactional ids: after the power cut a new instance takes it over."""
LONG_FLUSH_S = 0.2
"""What half of a recording's flushes take: longer than a client needs, on a busy machine, to note an answer. A
flush that the node did not wait for is still to come then."""
ANSWERS_MIN = 10
ANSWERS_S = 60.0
"""The load goes on until so many commits were answered, for so long at most: LOAD_S may not do on a busy machine."""
START_S = 60.0
"""A start takes less than a second, on a machine that has nothing else to do."""
STOP_S = 60.0
"""And so does a stop."""
BEHIND_ALL = 10**6
"""The number of that instance's transaction."""

ENVIRONMENT = {
    **SMALL,
    "FAIRLOG_RETENTION_CHECK_INTERVAL_MS": "50",
    "FAIRLOG_RETENTION_CLEAN_INTERVAL_MS": "50",
    "FAIRLOG_GROUPS_INITIAL_REBALANCE_DELAY_MS": "0",
}


class ImageFailed(AssertionError):
    """An image on which a promise does not hold. The message says how to make it again, and where it is kept."""


@dataclass
class Recording:
    """One node's life under load, from its first start to a stop in good order."""

    directory: Path
    seed: str
    planted_bug: str | None = None
    history: History = field(init=False)
    topics: Layout = field(init=False)
    begun: int = 0
    """The trace's size when the topics had been made."""
    _seen: list[tuple[int, int]] = field(default_factory=list[tuple[int, int]])
    """The trace's size, and how many records the consumers had by then."""
    _read: list[tuple[int, Found]] = field(default_factory=list[tuple[int, Found]])
    """What they read: partition and record."""

    def __post_init__(self) -> None:
        self.directory.mkdir(parents=True)
        self.directory = self.directory.resolve()
        self.data.parent.mkdir()
        self.topics = Layout("power", MIXED)
        self.history = History(recording.Dated(self.trace), recording.Dated(self.trace))
        self.kept = RetentionLoad(recording.Dated(self.trace))
        self.groups = GroupLoad(recording.Dated(self.trace), recording.Dated(self.trace))

    @property
    def data(self) -> Path:
        return self.directory / "node" / "data"

    @property
    def trace(self) -> Path:
        return self.directory / "trace"

    def record(self, load_s: float) -> None:
        """Run the node, and check that what was recorded is what has happened.

        Raises ImageFailed if it does not start, TimeoutError if it answers nobody: there is nothing to cut then.
        """
        environment = ENVIRONMENT | recording.environment(self.data, self.trace)
        environment |= uneven_flushes.environment(self.seed, long_s=LONG_FLUSH_S)
        if self.planted_bug is not None:
            environment |= planted_node.environment(self.planted_bug)
        node = NodeProcess(self.data, environment, program=recording.PROGRAM)
        try:
            node.start(START_S)
            make_topics(node.address, self.topics)
            self.kept.make_topics(node.address)
            self.begun = self.trace.stat().st_size
            self._write(node.address, load_s)
            assert node.stop(STOP_S) == 0, node.log_tail()
        except NodeDidNotStart as error:
            raise ImageFailed(f"seed {self.seed}: a node does not start in an empty directory\n{error}") from error
        finally:
            node.kill()
        if not self._answers(self.history.transactions) or not self._answers(self.history.plain):
            raise TimeoutError(f"seed {self.seed}: no answers within {ANSWERS_S:.0f} s")
        rebuilt = Rebuilding(self.data, self.trace)
        rebuilt.go_to(self.trace.stat().st_size)
        missed = list(rebuilt.differences())
        assert not missed, f"the recorder has missed something: {missed}"

    def _write(self, address: str, load_s: float) -> None:
        """The load, with consumers and members of groups beside it, until enough was answered."""
        stopping = threading.Event()
        works = (self._consume, self.kept.write, self.groups.turn, self.groups.replace, self.groups.delete)
        with ThreadPoolExecutor(len(works)) as threads:
            beside = [threads.submit(work, address, stopping) for work in works]
            try:
                load = Load(
                    address, self.topics, seed=hash_of(self.seed), more={SINK: SinkWriter}, history=self.history
                )
                stopping.wait(load_s)
                deadline = time.monotonic() + ANSWERS_S
                while len(self._answers(self.history.transactions)) < ANSWERS_MIN and time.monotonic() < deadline:
                    stopping.wait(0.02)
                load.stop()
            finally:
                stopping.set()
        for each in beside:
            each.result()

    def _consume(self, address: str, stopping: threading.Event) -> None:
        readers = open_readers(address, self.topics)
        counts = dict.fromkeys(readers, 0)
        while not stopping.is_set():
            for topic, reader in readers.items():
                partitions = self.topics.partitions_of(topic)
                for seen in reader.idle(0.02)[counts[topic] :]:
                    counts[topic] += 1
                    self._read.append((partitions[seen.partition], Found(seen.offset, seen.value)))
            self._seen.append((self.trace.stat().st_size, len(self._read)))
        for reader in readers.values():
            reader.close()

    def seen_by(self, size: int) -> dict[int, list[Found]]:
        """What the consumers had read when the trace had this size."""
        count = max((count for at, count in self._seen if at <= size), default=0)
        found: dict[int, list[Found]] = {}
        for partition, record in self._read[:count]:
            found.setdefault(partition, []).append(record)
        return found

    def history_by(self, size: int) -> History:
        """What the writers knew when the trace had this size."""
        transactions, plain = self.history.transactions, self.history.plain
        assert isinstance(transactions, recording.Dated)
        assert isinstance(plain, recording.Dated)
        return History(transactions.as_of(size), plain.as_of(size))

    def _answers(
        self, asked: Mapping[tuple[str, int], Transaction] | Mapping[tuple[str, int], PlainRecord]
    ) -> list[int]:
        """The trace's sizes right behind each answer that these are committed, or written."""
        assert isinstance(asked, recording.Dated)
        return [at for at, _, value in asked.made if value.outcome is Outcome.DONE]

    def moments(self, count: int, rng: random.Random, *, after_commits: bool) -> list[int]:
        """Sizes of the trace at which to cut, in order; `after_commits`: all of them right behind such an answer."""
        if after_commits:
            return sorted(rng.choices(self._answers(self.history.transactions), k=count))
        ends = [event.end for event in recording.read_trace(self.trace)]
        early = [end for end in ends if end <= self.begun]
        drawn = rng.choices(self._answers(self.history.transactions), k=round(count * COMMITTED_SHARE))
        drawn += rng.choices(self._answers(self.history.plain), k=round(count * WRITTEN_SHARE))
        drawn += rng.choices(self.groups.answers(), k=round(count * MEMBERS_SHARE))
        drawn += rng.choices(early, k=round(count * EARLY_SHARE))
        return sorted(drawn + rng.choices(ends, k=count - len(drawn)))


def hash_of(seed: str) -> int:
    return random.Random(seed).getrandbits(32)


def open_readers(address: str, topics: Layout) -> dict[str, Reader]:
    """Plain consumers; of topics of marker mode such as read what is committed."""
    return {
        topic: Reader(
            address,
            topic,
            len(topics.partitions_of(topic)),
            isolation="read_uncommitted" if mode is Mode.JOURNAL else "read_committed",
        )
        for topic, mode in topics.topics().items()
    }


@dataclass
class Trial:
    """Images of one recording, judged one after the other."""

    recording: Recording
    scratch: Path
    keep_in: Path
    """For images that have failed."""
    rng: random.Random
    after_commits: bool
    counts: Counter[str] = field(default_factory=Counter[str])

    def run(self, count: int) -> None:
        """Raises ImageFailed."""
        rebuilding = Rebuilding(self.recording.data, self.recording.trace)
        for moment in self.recording.moments(count, self.rng, after_commits=self.after_commits):
            rebuilding.go_to(moment)
            place = self.scratch / "image"
            lost = rebuilding.write_image(place / "data", self.rng)
            self._judge(place, moment, f"cut at byte {moment} of the trace: {lost}", twice=True)
            shutil.rmtree(place)

    def _judge(self, place: Path, moment: int, what: str, *, twice: bool) -> None:
        """One image, `place`/data; what was owed is what was owed at `moment` of the recording."""
        self.counts["images"] += 1
        self.counts[what.partition(": ")[2].split(",")[0]] += 1
        again = twice and self.rng.random() < TWICE_SHARE
        before = place / "before"
        if again:
            shutil.copytree(place / "data", before)
        try:
            if moment > self.recording.begun:  # before, there may be no node yet
                self._verify(place / "data")
            ready = self._start_and_use(place, moment, record=again)
            self._verify(place / "data")
        except (AssertionError, NodeDidNotStart, KafkaException, OSError) as error:
            kept = Path(tempfile.mkdtemp(prefix="power-cut-", dir=self.keep_in))
            shutil.copytree(place, kept, dirs_exist_ok=True)
            raise ImageFailed(f"seed {self.recording.seed}, {what}\nkept in {kept}\n{error}") from error
        if again:
            trace = place / "trace"
            ends = [event.end for event in recording.read_trace(trace) if event.end <= ready]
            if ends:
                rebuilding = Rebuilding((place / "data").resolve(), trace, image=before)
                rebuilding.go_to(self.rng.choice(ends))
                second = self.scratch / "second"
                lost = rebuilding.write_image(second / "data", self.rng)
                self.counts["of these cut in a recovery"] += 1
                self._judge(second, moment, f"{what}; then cut in the recovery: {lost}", twice=False)
                shutil.rmtree(second)

    def _verify(self, data: Path) -> None:
        violations = list(Verification(data, has_journals=True).violations())
        assert not violations, "fairlog verify finds: " + "; ".join(map(str, violations[:10]))

    def _start_and_use(self, place: Path, moment: int, *, record: bool) -> int:
        """Start a node on the image, use it, and stop it; the size of its own trace when it was ready."""
        data, trace = (place / "data").resolve(), place / "trace"
        node = NodeProcess(data, dict(ENVIRONMENT))
        if record:
            node.environment |= recording.environment(data, trace)
            node.program = recording.PROGRAM
        try:
            node.start(START_S)
            ready = trace.stat().st_size if record else 0
            if moment > self.recording.begun:
                self._use(node.address, moment)
            assert node.stop(STOP_S) == 0, node.log_tail()
        except NodeDidNotStart:
            raise  # it tells the log's end itself
        except BaseException as error:
            error.add_note(node.log_tail())
            raise
        finally:
            node.kill()
        return ready

    def _use(self, address: str, moment: int) -> None:
        history = self.recording.history_by(moment)
        successor = commit_one(address, self.recording.topics)
        history.transactions[successor.writer, successor.number] = successor
        lost = list(self.recording.groups.violations(address, moment))
        assert not lost, "; ".join(map(str, lost))
        deadline = time.monotonic() + visible_s(self.recording.planted_bug)
        while violations := self._violations(address, history, moment):
            assert time.monotonic() < deadline, "; ".join(map(str, violations[:10]))
        self.counts["commits that had been answered"] += history.count(Outcome.DONE)

    def _violations(self, address: str, history: History, moment: int) -> Sequence[Violation]:
        topics = self.recording.topics
        logs: dict[int, list[Found]] = {partition: [] for partition in range(topics.partitions)}
        for topic, reader in open_readers(address, topics).items():
            with reader:
                for seen in reader.read_to_end():
                    logs[topics.partitions_of(topic)[seen.partition]].append(Found(seen.offset, seen.value))
        with RawClient(address) as client:
            offsets: dict[str, int | None] = {}
            for group in GROUPS:
                code, offset = client.committed_offset(group, *topics.place(0), stable=False)
                assert code == NONE, code
                offsets[group] = offset if offset >= 0 else None
        self.counts["records read"] += sum(map(len, logs.values()))
        return [
            *check(history, logs, Reading.AT_REST, marked=topics.marked),
            *check_growth(self.recording.seen_by(moment), logs),
            *check_offsets(logs, offsets),
            *check_batches(logs),
            *self.recording.kept.violations(address, moment),
        ]


def commit_one(address: str, topics: Layout) -> Transaction:
    """A new instance of an id that the load used commits a record into every partition."""
    counts = dict.fromkeys(range(topics.partitions), 1)
    transaction = Transaction(SUCCESSOR, BEHIND_ALL, counts, Outcome.DONE)
    with RawClient(address) as client:
        granted = client.init_producer_id(SUCCESSOR)
        assert granted.error_code == NONE, granted
        who = (SUCCESSOR, granted.producer_id, granted.producer_epoch)
        for topic in topics.topics():
            indexes = range(len(topics.partitions_of(topic)))
            assert set(client.add_partitions(*who, topic, indexes).values()) == {NONE}
        for partition in counts:
            topic, index = topics.place(partition)
            data = batch(
                transaction.values(partition), producer_id=who[1], epoch=who[2], sequence=0, transactional=True
            )
            assert client.produce(topic, index, data, transactional_id=SUCCESSOR)[0] == NONE
        assert client.end(*who, commit=True) == NONE
    return transaction


def run(
    images: int,
    seed: str,
    directory: Path,
    *,
    load_s: float = LOAD_S,
    planted_bug: str | None = None,
    after_commits: bool = False,
    keep_in: Path | None = None,
    say: Callable[[str], None],
) -> Counter[str]:
    """Make recordings and judge so many images in all; an image that fails is kept. Raises ImageFailed.

    `after_commits`: each image is of the moment right behind the answer to a commit.
    """
    totals: Counter[str] = Counter()
    number = 0
    while totals["images"] < images:
        made = Recording(directory / str(number), f"{seed}.{number}", planted_bug)
        made.record(load_s)
        totals["recordings"] += 1
        totals["bytes recorded"] += made.trace.stat().st_size
        totals["events recorded"] += sum(1 for _ in recording.read_trace(made.trace))
        trial = Trial(made, directory, keep_in or directory, random.Random(made.seed), after_commits)
        try:
            trial.run(min(IMAGES_PER_RECORDING, images - totals["images"]))
        finally:
            totals.update(trial.counts)
        shutil.rmtree(made.directory)
        say(f"{totals['images']} images of {totals['recordings']} recordings")
        number += 1
    return totals


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.crash.images", description=__doc__.split("\n")[0])
    parser.add_argument("--images", type=int, default=300)
    parser.add_argument("--seed", default="0", help="decides the load, the moments and the losses")
    parser.add_argument("--load-seconds", type=float, default=LOAD_S, help="how long each recorded node is under load")
    options = parser.parse_args(arguments)
    started = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="power-cuts-") as directory:
        try:
            keep_in = Path(tempfile.gettempdir())
            totals = run(
                options.images, options.seed, Path(directory), load_s=options.load_seconds, keep_in=keep_in, say=_say
            )
        except ImageFailed as failed:
            _say(str(failed))
            return 1
    _say(f"seed {options.seed!r}, {time.monotonic() - started:.0f} s: nothing found")
    _say(", ".join(f"{count:,} {name}" for name, count in sorted(totals.items())))
    return 0


def _say(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
