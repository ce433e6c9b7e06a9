"""Clients of a node of several processes that go on writing whatever happens to it, and what must be there in the end.

A writer commits one transaction after the other, each with the same value in some partitions, and notes what it was
answered. `assert_whole` reads all partitions: what was answered is there once in each of them, what was aborted
nowhere, and what had no answer in all or in none. A cut that was taken meanwhile has no part of a transaction, either.
"""

from __future__ import annotations

import itertools
import threading
import time
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import closing, suppress

from pyspark_fairlog.native import Native, NativeError, Topics
from scripts.node_process import NodeProcess
from tests.clients.raw_client import NONE, RawClient, records_of
from tests.history.layout import OUT
from tests.history.raw_producer import ABORTED_BY_THE_BROKER, RawProducer, Refused, Unanswered
from tests.history.routes import Routes

PARTITIONS = 6
WAIT_S = 60.0
ROUTES_S = 15.0
IDS = 60
"""Some of each shard."""
PAUSE_S = 0.2
"""Between two transactions, so that writers leave something of two processors to others."""
CUT_S = 25.0
"""The node itself gives up after some twenty seconds, and says why."""


def await_that(what: Callable[[], object], said: str, node: NodeProcess, within_s: float = WAIT_S) -> None:
    """Wait until it is true."""
    deadline = time.monotonic() + within_s
    while not what():
        assert time.monotonic() < deadline, f"not in {within_s:.0f} s: {said}\n{node.log_tail()}"
        time.sleep(0.02)


class Where:
    """Which of the processes is whose, by its number. Known from the start: nothing is asked of one that is stopped."""

    def __init__(self, node: NodeProcess) -> None:
        self.node = node
        with closing(Routes(node.address, timeout_s=ROUTES_S)) as routes:
            self._leaders = [routes.leader_number(OUT, partition) for partition in range(PARTITIONS)]
            self._coordinators = {name: routes.coordinator_number(name) for name in map(str, range(IDS))}

    def led_by(self, shards: Collection[int]) -> Sequence[int]:
        """The partitions that these shards lead."""
        return [partition for partition, leader in enumerate(self._leaders) if leader in shards]

    def new_id(self, shard: int) -> str:
        """A transactional id whose coordinator is in that shard, another one each time."""
        found = next(name for name, there in self._coordinators.items() if there == shard)
        del self._coordinators[found]
        return found

    def read(self, partition: int) -> Sequence[str]:
        """The values of all records that can be read now, by offset."""
        values: list[str] = []
        with RawClient(self.node.addresses[self._leaders[partition]]) as client:
            while True:
                row = client.fetch(OUT, partition, len(values), wait_ms=0)
                assert row.error_code == NONE, row.error_code
                found = records_of(bytes(row.records or b""))
                if not found:
                    return values
                assert [offset for offset, _ in found] == list(range(len(values), len(values) + len(found)))
                values += [(value or b"").decode() for _, value in found]


class Writer:
    """Commits until it is stopped."""

    def __init__(self, node: NodeProcess, transactional_id: str, partitions: Sequence[int], timeout_ms: int) -> None:
        """`partitions` may be changed; the next transaction has it."""
        self.partitions = partitions
        self.committed: dict[str, Sequence[int]] = {}
        """Values whose commit was answered, with their partitions."""
        self.unsure: dict[str, Sequence[int]] = {}
        self.aborted: dict[str, Sequence[int]] = {}
        self.codes: Counter[tuple[str, int | None]] = Counter()
        """What was refused, or not answered (None), and how often."""
        self._producer = RawProducer(node.address, transactional_id, 1, timeout_ms)
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name=transactional_id)
        self._thread.start()

    def stop(self) -> None:
        self._stopped.set()
        self._thread.join(WAIT_S)
        assert not self._thread.is_alive()

    def _run(self) -> None:
        is_fresh = False
        for number in itertools.count():
            if self._stopped.is_set():
                break
            is_fresh = self._transaction(f"{self._producer.transactional_id} {number}", is_fresh=is_fresh)
            time.sleep(PAUSE_S)
        self._producer.close()

    def _transaction(self, value: str, *, is_fresh: bool) -> bool:
        """One transaction; whether the next one can do without a new epoch."""
        partitions, is_asked = self.partitions, False
        try:
            if not is_fresh:
                self._producer.init()
            for partition in partitions:
                self._producer.add(partition)
            for partition in partitions:
                self._producer.produce(partition, value)
            is_asked = True
            self._producer.end(commit=True)
        except Unanswered as error:
            self.codes[str(error), None] += 1
            (self.unsure if is_asked else self.aborted)[value] = partitions
        except Refused as error:
            self.codes[str(error).partition(":")[0], error.code] += 1
            if error.fenced:  # its program would end, and be started again
                self._producer.producer_id = self._producer.epoch = -1
            is_unsure = is_asked and error.unsure and error.code not in ABORTED_BY_THE_BROKER
            (self.unsure if is_unsure else self.aborted)[value] = partitions
        else:
            self.committed[value] = partitions
            return True
        return False


class Cutter:
    """Asks one broker after the other for cuts."""

    def __init__(self, node: NodeProcess) -> None:
        self.cuts: list[Mapping[int, int]] = []
        """The ends of the partitions."""
        self._addresses = node.addresses
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def stop(self) -> None:
        self._stopped.set()
        self._thread.join(WAIT_S)
        assert not self._thread.is_alive()

    def _run(self) -> None:
        for address in itertools.cycle(self._addresses):
            if self._stopped.is_set():
                return
            with suppress(OSError, NativeError), Native.connect(address, timeout_s=CUT_S) as native:
                self.cuts.append({part.partition: part.end for part in native.cut(Topics((OUT,)))})
            time.sleep(PAUSE_S)


def assert_whole(
    where: Where, writers: Sequence[Writer], plain: Mapping[str, int], cuts: Sequence[Mapping[int, int]] = ()
) -> None:
    """All that was answered is there once; no transaction is there by halves, nor below a cut.

    `plain`: the partitions of plain records, which were answered.
    """
    last = {partition: value for it in writers for value, of in it.committed.items() for partition in of}
    found: dict[int, Sequence[str]] = {}

    def is_all_read() -> bool:
        found.update({partition: where.read(partition) for partition in range(PARTITIONS)})
        return all(value in found[partition] for partition, value in last.items())

    await_that(is_all_read, "the last commits can be read", where.node)
    counts = {partition: Counter(values) for partition, values in found.items()}
    places = {partition: {value: at for at, value in enumerate(values)} for partition, values in found.items()}
    for value, partition in plain.items():
        assert counts[partition][value] == 1, value
    for writer in writers:
        told = ((writer.committed, {1}), (writer.aborted, {0}), (writer.unsure, {0, 1}))
        for values, allowed in told:
            for value, partitions in values.items():
                there = {counts[each][value] for each in partitions}
                assert len(there) == 1, f"{value} is there by halves: {there}"
                assert there <= allowed, f"{value} is there {there} times"
                for cut in cuts if there == {1} else ():
                    below = {places[each][value] < cut[each] for each in partitions}
                    assert len(below) == 1, f"{value} is below a part of a cut: {cut}"
