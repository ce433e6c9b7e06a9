"""Consume-transform-produce, each client in its own way, while workers and the node are killed (invariants 5 and 7).

A node of several processes loses one of them at a time.
"""

from __future__ import annotations

import lzma
import random
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from scripts.node_process import ROOT, NodeProcess
from tests.clients.departure_counter import GROUP, INPUT, OUTPUT, transform
from tests.clients.modes import Mode
from tests.clients.reading import Reader
from tests.processes import ALSO_ON_THREE, kill_some

pytestmark = [pytest.mark.slow, ALSO_ON_THREE]

DEPARTURES = 25_000
PARTITIONS = 6
WORKERS = 3
KILLS_OF_WORKERS, KILLS_OF_THE_NODE = 6, 3
"""Of a node of several processes each is killed once."""
LIMIT_S = 240.0


@pytest.mark.parametrize(
    ("client", "mode"),
    [
        ("confluent-kafka", Mode.JOURNAL),
        ("kafka-python", Mode.JOURNAL),
        ("aiokafka", Mode.JOURNAL),
        ("confluent-kafka", Mode.MARKERS),  # one is enough: half a minute each
    ],
    ids=lambda value: value.value if isinstance(value, Mode) else value,
)
def test_loop_under_kills_gives_each_result_exactly_once(
    fresh_node: Callable[..., NodeProcess], mode: Mode, tmp_path: Path, client: str
) -> None:
    """25,000 departures through three workers, of which one is SIGKILLed again and again, and the node too."""
    # Members that are killed are missed after three seconds, so that rebalances, not waiting, is what happens mostly.
    node = fresh_node(FAIRLOG_GROUPS_MIN_SESSION_TIMEOUT_MS="1000")
    departures = _departures()
    _make_topics(node.address)

    workers = _Workers(client, node, tmp_path / "workers.log")
    try:
        _load_and_kill_until_done(node, workers, departures)
    finally:
        workers.kill_all()

    if mode is Mode.MARKERS:
        _end_what_hangs(node.address, client)
    isolation = "read_uncommitted" if mode is Mode.JOURNAL else "read_committed"
    with Reader(node.address, OUTPUT, PARTITIONS, isolation=isolation) as reader:
        seen = reader.read_to_end(timeout_s=60)
    results = sorted((int(record.key or b""), record.value) for record in seen)
    # Compared outside of the assertion, for pytest would look for the difference of two long lists for half an hour.
    same = results == [(number, transform(line)) for number, line in enumerate(departures)]
    assert same, _difference(results, len(departures))
    assert _lag(node.address) == 0


def _end_what_hangs(address: str, client: str) -> None:
    """What the last kill left open hides all that was committed behind it, until the next instance of its worker."""
    for slot in range(WORKERS):
        producer = Producer({"bootstrap.servers": address, "transactional.id": f"{client}-{slot}"})
        producer.init_transactions(20)


def _departures() -> list[bytes]:
    packed = ROOT / "examples" / "data" / "departures-nyc-2013-to-april.csv.xz"
    lines = lzma.decompress(packed.read_bytes()).splitlines()[1:]
    assert len(lines) >= DEPARTURES
    return lines[:DEPARTURES]


def _make_topics(address: str) -> None:
    admin = AdminClient({"bootstrap.servers": address})
    for future in admin.create_topics([NewTopic(name, PARTITIONS, 1) for name in (INPUT, OUTPUT)]).values():
        future.result(timeout=15)


def _load(address: str, departures: list[bytes], start: int, end: int) -> None:
    producer = Producer({"bootstrap.servers": address, "enable.idempotence": True, "linger.ms": 20})
    for number in range(start, end):
        while True:
            try:
                producer.produce(INPUT, departures[number], str(number), partition=number % PARTITIONS)
                break
            except BufferError:
                producer.poll(0.1)
    assert producer.flush(60) == 0


class _Workers:
    """The worker processes, one per slot; whoever has ended is started anew."""

    def __init__(self, client: str, node: NodeProcess, log: Path) -> None:
        self._client = client
        self._node = node
        self._log = log
        self._processes: list[subprocess.Popen[bytes]] = [self._start(slot) for slot in range(WORKERS)]

    def _start(self, slot: int) -> subprocess.Popen[bytes]:
        program = Path(__file__).with_name("departure_counter.py")
        with self._log.open("ab") as log:
            return subprocess.Popen(
                [sys.executable, str(program), self._client, self._node.address, str(slot)],
                cwd=ROOT,
                stdout=log,
                stderr=log,
            )

    def revive(self) -> None:
        for slot, process in enumerate(self._processes):
            if process.poll() is not None:
                self._processes[slot] = self._start(slot)

    def kill_one(self, chance: random.Random) -> None:
        process = chance.choice(self._processes)
        process.kill()
        process.wait()

    def kill_all(self) -> None:
        for process in self._processes:
            process.kill()
        for process in self._processes:
            process.wait()

    def words(self) -> str:
        return self._log.read_text(errors="replace")[-4000:]


def _load_and_kill_until_done(node: NodeProcess, workers: _Workers, departures: list[bytes]) -> None:
    """Kill and revive until nothing is left. How far the group has come says when, so that all clients get alike.

    What comes behind the next kill of the node is loaded after it: with several processes the others go on in the
    meantime, and would be done before the last kill.
    """
    chance = random.Random(7)
    total = len(departures)
    to_kill = {"worker": _marks(total, KILLS_OF_WORKERS), "node": _marks(total, KILLS_OF_THE_NODE)}
    parts = [total - (mark + following) // 2 for mark, following in pairwise((*to_kill["node"], 0))] + [total]
    _load(node.address, departures, 0, loaded := parts.pop(0))
    deadline = time.monotonic() + LIMIT_S
    while (left := total - loaded + _lag(node.address)) != 0:
        assert time.monotonic() < deadline, f"{left} of {total} are left after {LIMIT_S} s\n{workers.words()}"
        if to_kill["worker"] and left <= to_kill["worker"][0]:
            to_kill["worker"].pop(0)
            workers.kill_one(chance)
        if to_kill["node"] and left <= to_kill["node"][0]:
            to_kill["node"].pop(0)
            kill_some(node, len(to_kill["node"]))
            _load(node.address, departures, loaded, loaded := parts.pop(0))
        workers.revive()
        time.sleep(0.1)
    assert not to_kill["node"], "the loop was over before it was disturbed"
    assert len(to_kill["worker"]) <= KILLS_OF_WORKERS // 2, "the loop was over before it was disturbed"


def _marks(total: int, kills: int) -> list[int]:
    """At which lag to kill, evenly over the way."""
    return [total - total * number // (kills + 1) for number in range(1, kills + 1)]


def _lag(address: str) -> int:
    """How many records of the input the group has not committed, over all partitions."""
    # read_uncommitted does not ask for stable offsets: somebody's are always pending, and the look would wait for a
    # moment in which nobody's are, which may be the end.
    consumer = Consumer(
        {"bootstrap.servers": address, "group.id": GROUP, "isolation.level": "read_uncommitted", "log_level": 0}
    )
    try:
        partitions = [TopicPartition(INPUT, partition) for partition in range(PARTITIONS)]
        lag = 0
        for committed in consumer.committed(partitions, timeout=20):
            low, high = consumer.get_watermark_offsets(committed, timeout=20)
            lag += high - max(committed.offset, low)
        return lag
    finally:
        consumer.close()


def _difference(results: list[tuple[int, bytes | None]], total: int) -> str:
    counts = Counter(number for number, _value in results)
    twice = sorted(number for number, count in counts.items() if count > 1)
    missing = sorted(set(range(total)) - set(counts))
    return f"{len(results)} results; missing {missing[:10]} ({len(missing)}), twice {twice[:10]} ({len(twice)})"
