"""Kills one process of several at a named point, in the middle of a transaction over all their shards.

One trial: arm the coordinator's process or a participant's; run a transaction with records in two partitions of each
shard, and commit or abort it; the process dies at the point, and its supervisor starts it again. The client repeats
what was not answered, as clients do. Then a successor commits a transaction to the same partitions, and when that can
be read, the first one is judged: committed as it was answered, in all partitions or in none, also below each cut that
was taken meanwhile.

A transaction passes some points of what shards do together only if there is something beside it: cuts are asked for,
one is kept, or its coordinator is killed first, so that it has to say again with what it goes on.

    python -m tests.crash.over_shards --mode journal

does so for each point, in either process, with a commit and with an abort: the first time that the transaction passes
it, then the second time, and so on until it is over. The test suite kills once at each point (test_over_shards.py).
"""

from __future__ import annotations

import argparse
import itertools
import os
import random
import signal
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path

from confluent_kafka.admin import AdminClient, NewTopic

from journal.failpoints import FAILPOINTS
from pyspark_fairlog.native import CutPartition, Native, NativeError, Topics
from scripts.node_process import NodeProcess
from tests.clients.modes import MODE_CONFIG, Mode
from tests.clients.raw_client import NONE, RawClient, batch
from tests.crash import armed
from tests.crash.harness import SMALL
from tests.history.batches import batches_of
from tests.history.layout import OUT
from tests.history.raw_producer import ABORTED_BY_THE_BROKER, RawProducer, Refused, Unanswered
from tests.history.routes import Routes

BALLAST, BALLAST_RECORDS = "ballast", 12_000
"""After so many records in one shard a cut is kept soon."""
PROCESSES = 3
PARTITIONS = 2 * PROCESSES
"""Two in each shard."""
COORDINATOR, PARTICIPANT = 0, 1
"""The numbers of the processes that are killed."""
PASSES_MAX = 12
"""How often one transaction passes a point at most, so that the search for its last pass ends."""
FIRST = (1, 2, 3)
"""One of these passes is chosen at points of a journal; others may be passed only once."""
KILLS_PER_LIFE = 3
"""Of one process, until the supervisor is killed, too: it lets a process wait that keeps dying."""
TIMEOUT_MS = 60_000
PATIENCE_S = 30.0
LATE_S = 120.0
"""For what may be passed late: a cut that is kept may be followed by the next one after a hundred times its length."""
CUT_S = 5.0
"""How long a cut is waited for, before another broker is asked."""
POLL_S = 0.005

ABORT_POINTS = ("group.prepare_abort.appended", "group.aborted.appended", "participant.discarded")
"""Those that a transaction only passes when it is aborted."""
_NOT_HERE = (
    "retention.",
    "groups.",
    "group.sink_",
    "group.snapshot",
    "copier.stage.",
    "journal.reclaim",
    "journal.roll",
    "shards.",
)
POINTS = tuple(name for name in FAILPOINTS if not name.startswith((*_NOT_HERE, "journal.close", "journal.make_room")))
"""Those that a transaction passes in its coordinator's process."""
PARTICIPANT_POINTS = tuple(
    name for name in POINTS if name.startswith(("journal.", "copier.", "coordinator.place.between_logs"))
)
"""And those in a participant's."""
TOGETHER: Mapping[str, Sequence[int]] = {
    "participant.begun": (PARTICIPANT,),
    "participant.prepare.appended": (PARTICIPANT,),
    "participant.prepare.flushed": (PARTICIPANT,),
    "participant.applied": (PARTICIPANT,),
    "participant.discarded": (PARTICIPANT,),
    "participant.said_all.resumed": (PARTICIPANT,),
    "participant.said_all.done": (PARTICIPANT,),
    "coordinator.log_added": (COORDINATOR,),
    "coordinator.prepared_elsewhere": (COORDINATOR,),
    "coordinator.visible_everywhere": (COORDINATOR,),
    "cuts.held": (COORDINATOR, PARTICIPANT),
    "cuts.taken": (COORDINATOR,),
    "cuts.keep.before_commit": (COORDINATOR, PARTICIPANT),
    "cuts.keep.after_commit": (COORDINATOR, PARTICIPANT),
}
"""The points of what shards do together, and in which processes: the coordinator's takes the cuts, too."""
OF_CUTS = "cuts."
OF_A_RESTARTED_COORDINATOR = "participant.said_all."
LATE = (OF_CUTS, OF_A_RESTARTED_COORDINATOR, "participant.discarded")
"""These may be passed a while after the transaction; or after its client gave up, if the coordinator starts slowly."""
AFTER_ALL_ARE_VISIBLE = ("coordinator.visible_everywhere", "group.committed.appended")
"""A transaction that is committed passes each once, in its coordinator, which hears a moment later what can be seen."""
OF_VERSION_2 = ("coordinator.log_added",)
"""Only in transactions of version 2 a partition's leader has it added."""


class Outcome(Enum):
    """What the client was told."""

    COMMITTED = "committed"
    ABORTED = "aborted"
    UNKNOWN = "unknown"


@dataclass(slots=True)
class KillsOverShards:
    """A node, and what was done to it."""

    directory: Path
    mode: Mode
    kills: Counter[str] = field(default_factory=Counter[str])
    """By point and process."""
    outcomes: Counter[Outcome] = field(default_factory=Counter[Outcome])
    _node: NodeProcess = field(init=False)
    _routes: Routes = field(init=False)
    cuts_judged: int = 0
    _why: str = ""
    """Why the last transaction was not committed as asked for."""
    _is_unanswered: bool = False
    """Because nobody answered in time."""
    _trials: Iterator[int] = field(default_factory=itertools.count)
    _lives: Counter[int] = field(default_factory=Counter[int])
    """How often each process was killed since the supervisor was started."""
    _cuts: list[Sequence[CutPartition]] = field(default_factory=list[Sequence[CutPartition]])
    """Those that were taken beside the last transaction."""

    def __post_init__(self) -> None:
        more = {"FAIRLOG_JOURNAL_GROUP_JOURNALS": str(PROCESSES)} | armed.environment(self._order)
        self._node = NodeProcess(self.directory / "data", SMALL | more, program=armed.PROGRAM, processes=PROCESSES)
        self._routes = Routes(self._node.listening, timeout_s=PATIENCE_S)

    @property
    def _order(self) -> Path:
        return self.directory / "order"

    @contextmanager
    def running(self) -> Iterator[None]:
        """A node with a topic whose partitions are spread over the shards."""
        self.directory.mkdir(parents=True, exist_ok=True)
        self._node.start()
        try:
            admin = AdminClient({"bootstrap.servers": self._node.listening, "log_level": 0})
            new = NewTopic(OUT, PARTITIONS, 1, config={MODE_CONFIG: self.mode.value})
            for created in admin.create_topics([new, NewTopic(BALLAST, PROCESSES, 1)]).values():
                created.result(timeout=PATIENCE_S)
            yield
            self._routes.close()
            status = self._node.stop()
            assert status == 0, f"the node did not stop well:\n{self._log_tail}"
            ends = [line for line in self._node.log_path.read_text().splitlines() if "a process ended" in line]
            assert all("SIGKILL" in end for end in ends), f"a process ended by itself:\n{self._log_tail}"
        finally:
            self._routes.close()
            self._node.kill()

    def kill_at_every_pass(self, point: str, number: int, *, commit: bool) -> int:
        """Kill the process whenever the transaction passes the point there; how often that is."""
        for nth in range(1, PASSES_MAX):
            if not self.trial(point, number, nth, commit=commit):
                return nth - 1
        raise AssertionError(f"{point} is passed more than {PASSES_MAX} times: {self._where(point, number, 0)}")

    def kill_once(self, point: str, number: int, rng: random.Random) -> None:
        """Kill the process at one of the first passes of the point there. AssertionError if there is none."""
        commit = point not in ABORT_POINTS
        is_repeated = point.startswith("journal.") or point == "participant.prepare.appended"
        nth = rng.choice(FIRST[: 2 if point == "participant.prepare.appended" else None]) if is_repeated else 1
        killed = self.trial(point, number, nth, commit=commit)
        assert killed, f"{self._where(point, number, nth)}: the transaction does not pass it"

    def trial(self, point: str, number: int, nth: int, *, commit: bool) -> bool:
        """Whether the process was killed by its point."""
        name = f"{next(self._trials)}"
        transactional_id = self._id_of_coordinator(name)
        process = self._process(number)
        armed.arm(process, f"{point}:kill:{nth}", self._order)
        with self._cuts_taken() if point.startswith(OF_CUTS) else nullcontext():
            outcome = self._transaction(
                transactional_id,
                name,
                commit=commit,
                version=2 if point in OF_VERSION_2 else 1,
                kill_before_end=point.startswith(OF_A_RESTARTED_COORDINATOR),
            )
            if outcome is Outcome.COMMITTED:
                self._wait_for_all(name)  # the last passes are after the answer
            passes_late = outcome is Outcome.COMMITTED and nth == 1 and point in AFTER_ALL_ARE_VISIBLE
            if passes_late or point.startswith(LATE):
                self._wait_until_gone(process)
        by_point = self._is_gone(process)
        if not by_point:
            os.kill(process, signal.SIGKILL)  # it is armed
        self._await_successor(number, process)
        self._lives[number] += 1
        self.kills[f"{point} {number}" if by_point else "after the transaction"] += 1
        self.outcomes[outcome] += 1
        self._judge(transactional_id, name, outcome, self._where(point, number, nth))
        if self._lives[number] >= KILLS_PER_LIFE:
            self._node.kill()
            self._node.start()
            self._lives.clear()
        return by_point

    def report(self) -> str:
        points = ", ".join(f"{name} {count}" for name, count in sorted(self.kills.items()))
        outcomes = ", ".join(f"{count} {outcome.value}" for outcome, count in self.outcomes.items())
        return f"{self.kills.total()} kills ({points}); outcomes: {outcomes}"

    def _id_of_coordinator(self, name: str) -> str:
        """A transactional id whose coordinator is in the process that stands for it."""
        self._routes.close()  # what is open may be to a process that was killed
        ids = (f"{name}.{number}" for number in itertools.count())
        return next(each for each in ids if self._routes.coordinator_number(each) == COORDINATOR)

    @contextmanager
    def _cuts_taken(self) -> Iterator[None]:
        """Cuts are asked for all the while; they are in `_cuts` then.

        So many records are written that one is kept soon.
        """
        over = threading.Event()
        asking = threading.Thread(target=self._take_cuts, args=(over,))
        for partition in range(PROCESSES):
            with suppress(OSError), RawClient(self._node.address) as client:  # a cut may be kept already
                code, _ = client.produce(BALLAST, partition, bytes(batch([b""] * BALLAST_RECORDS)))
                assert code == NONE, code
        asking.start()
        try:
            yield
        finally:
            over.set()
            asking.join()

    def _take_cuts(self, over: threading.Event) -> None:
        for address in itertools.cycle(self._node.listening.split(",")):
            if over.is_set():
                return
            try:
                with Native.connect(address, timeout_s=CUT_S) as native:
                    self._cuts.append(native.cut(Topics((OUT,))))
            except (OSError, NativeError):
                time.sleep(POLL_S)

    def _transaction(
        self, transactional_id: str, value: str, *, commit: bool, version: int = 1, kill_before_end: bool = False
    ) -> Outcome:
        """A record in each partition; what the client knows of its end.

        `kill_before_end`: before the client ends it, its coordinator is killed, and started again.
        """
        producer = RawProducer(self._node.listening, transactional_id, version, TIMEOUT_MS)
        asked, self._why, self._is_unanswered = False, "", False
        try:
            producer.init()
            for partition in range(PARTITIONS):
                producer.add(partition)
            for partition in range(PARTITIONS):
                producer.produce(partition, value)
            if kill_before_end:
                coordinator = self._process(COORDINATOR)
                os.kill(coordinator, signal.SIGKILL)
                self._await_successor(COORDINATOR, coordinator)
                self._lives[COORDINATOR] += 1
            asked = commit
            producer.end(commit=commit)
        except Unanswered as error:
            self._why, self._is_unanswered = f"unanswered: {error}", True
            return Outcome.UNKNOWN if asked else Outcome.ABORTED
        except Refused as error:
            self._why = str(error)
            unknown = asked and error.unsure and error.code not in ABORTED_BY_THE_BROKER
            return Outcome.UNKNOWN if unknown else Outcome.ABORTED
        else:
            return Outcome.COMMITTED if commit else Outcome.ABORTED
        finally:
            producer.close()

    def _judge(self, transactional_id: str, value: str, outcome: Outcome, where: str) -> None:
        """A successor ends what is open, and commits; then the transaction is there whole, or not at all."""
        deadline = time.monotonic() + PATIENCE_S
        while (after := self._transaction(transactional_id, f"{value}-after", commit=True)) is not Outcome.COMMITTED:
            told = f"{where}: the successor's is {after.value}: {self._why}\n{self._log_tail}"
            assert self._is_unanswered, told
            assert time.monotonic() < deadline, told  # a process starts slowly beside much else
        self._wait_for_all(f"{value}-after")
        places = [[at for at, each in self._records(partition) if each == value] for partition in range(PARTITIONS)]
        found = [len(each) for each in places]
        allowed = {Outcome.COMMITTED: (1,), Outcome.ABORTED: (0,), Outcome.UNKNOWN: (0, 1)}[outcome]
        assert len(set(found)) == 1, f"{where}: {outcome.value}, and there {found} times\n{self._log_tail}"
        assert found[0] in allowed, f"{where}: {outcome.value}, and there {found} times\n{self._log_tail}"
        self.cuts_judged += len(self._cuts)
        for cut in self._cuts:
            below = [sum(at < part.end for at in places[part.partition]) for part in cut]
            assert len(set(below)) == 1, f"{where}: below a cut there {below} times: {cut}\n{self._log_tail}"
        self._cuts.clear()

    def _wait_for_all(self, value: str) -> None:
        """Until the value can be read in each partition."""
        deadline = time.monotonic() + PATIENCE_S
        while any(value not in self._values(partition) for partition in range(PARTITIONS)):
            assert time.monotonic() < deadline, f"{value} cannot be read everywhere:\n{self._log_tail}"
            time.sleep(POLL_S)

    def _values(self, partition: int) -> list[str]:
        return [value for _offset, value in self._records(partition)]

    def _records(self, partition: int) -> list[tuple[int, str]]:
        """What a reader of committed records finds, and where; nothing while the partition's leader is away."""
        found: list[tuple[int, str]] = []
        offset = 0
        try:
            client = self._routes.leader(OUT, partition)
            while True:
                row = client.fetch(OUT, partition, offset, isolation=1, wait_ms=0)
                if row.error_code != NONE:
                    return []
                batches = list(batches_of(bytes(row.records or b"")))
                if not batches:
                    return found
                aborted = [(each.first_offset, each.producer_id) for each in row.aborted_transactions or ()]
                for header, _data, records in batches:
                    offset = header.last_offset + 1
                    of_it = [each for each in aborted if each[0] < offset and each[1] == header.producer_id]
                    if header.control and of_it:
                        aborted.remove(min(of_it))  # its marker ends it
                    elif not of_it:
                        found += records
        except OSError:
            self._routes.close()
            return []

    def _process(self, number: int) -> int:
        """The id of the process with this number, once it is there."""
        deadline = time.monotonic() + PATIENCE_S
        while True:
            for process in self._node.pids:
                if armed.number_of(process) == number:
                    return process
            assert time.monotonic() < deadline, f"process {number} is not there:\n{self._log_tail}"
            time.sleep(POLL_S)

    def _wait_until_gone(self, process: int) -> None:
        """Or until it can be said that it does not pass its point."""
        deadline = time.monotonic() + LATE_S
        while not self._is_gone(process) and time.monotonic() < deadline:
            time.sleep(POLL_S)

    def _is_gone(self, process: int) -> bool:
        return process not in self._node.pids

    def _await_successor(self, number: int, process: int) -> None:
        deadline = time.monotonic() + PATIENCE_S
        while self._process(number) == process:
            assert time.monotonic() < deadline, f"process {number} is not started again:\n{self._log_tail}"
            time.sleep(POLL_S)

    @property
    def _log_tail(self) -> str:
        return self._node.log_tail()

    def _where(self, point: str, number: int, nth: int) -> str:
        return f"{point}, pass {nth} in process {number}"


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--mode", type=Mode, choices=list(Mode), default=Mode.JOURNAL)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="fairlog-over-shards-") as directory:
        run = KillsOverShards(Path(directory), options.mode)
        with run.running():
            for point, number, commit in itertools.product(POINTS, (COORDINATOR, PARTICIPANT), (True, False)):
                passes = run.kill_at_every_pass(point, number, commit=commit)
                print(f"{point}, process {number}, {'commit' if commit else 'abort'}: {passes} kills", flush=True)  # noqa: T201
            for point, numbers in TOGETHER.items():
                for number, nth in itertools.product(numbers, FIRST):
                    killed = run.trial(point, number, nth, commit=point not in ABORT_POINTS)
                    print(f"{point}, process {number}, pass {nth}: {'killed' if killed else 'none'}", flush=True)  # noqa: T201
        print(run.report())  # noqa: T201


if __name__ == "__main__":
    main()
