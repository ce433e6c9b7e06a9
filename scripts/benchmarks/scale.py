"""The cost of more transactional ids, partitions, concurrent producers and open transactions.

One thing is varied at a time, from a base of 10 ids, 10 partitions, one producer and nothing open, and at the end all
of them together. Ids are never freed, so the cases with many are last. Bulk data are made by a crowd (crowd.py); the
timed transactions go through confluent-kafka.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence

from confluent_kafka import Producer
from peers.interface import Peer, Tuning

from benchmarks.client import ClientProcess
from benchmarks.rows import Measurements, counted, sampled
from benchmarks.scenario import Bench, Case, Lifetime, NotMeasured

RECORDS, RECORD_BYTES, TOUCHED = 10, 1024, 2
BASE_IDS, BASE_PARTITIONS = 10, 10
PRODUCERS = 4, 16, 64
PIECE = 10_000  # ids made by one call, which has some minutes of time
ROUND_S, WARM_UP_S, CASE_WARM_UP_S, SETTLE_S = 2.0, 5.0, 0.3, 2.0
WAIT_S = 120.0
TOPIC = "scale"


class Committers:
    """Transactional producers in one process, each with a thread of its own that commits one after the other."""

    def __init__(self, address: str) -> None:
        self._address = address
        self._producers: list[Producer] = []

    def run(self, topic: str, partitions: int, producers: int, seconds: float) -> list[float]:
        """The ms of every transaction of all producers, from begin to the commit's answer."""
        self._have(producers)
        totals: list[list[float]] = [[] for _ in range(producers)]
        failures: list[BaseException] = []

        def commit(index: int) -> None:
            try:
                self._commit(index, topic, partitions, seconds, totals[index])
            except BaseException as error:  # noqa: BLE001  raised below, where the call was made
                failures.append(error)

        threads = [threading.Thread(target=commit, args=[index]) for index in range(producers)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if failures:
            raise failures[0]
        return [total for one in totals for total in one]

    def _have(self, producers: int) -> None:
        """This many producers, all with their producer ids."""
        while len(self._producers) < producers:
            transactional_id = f"committer-{len(self._producers)}"
            producer = Producer(
                {
                    "bootstrap.servers": self._address,
                    "transactional.id": transactional_id,
                    "linger.ms": 0,
                    "log_level": 0,
                }
            )
            producer.init_transactions(WAIT_S)
            self._producers.append(producer)

    def _commit(self, index: int, topic: str, partitions: int, seconds: float, totals: list[float]) -> None:
        producer = self._producers[index]
        value = bytes(RECORD_BYTES)
        # Producers begin at partitions apart, and each goes on to the next ones: all partitions are in use.
        first = index * partitions // len(self._producers)
        deadline = time.perf_counter() + seconds
        while not totals or time.perf_counter() < deadline:
            begun = time.perf_counter()
            producer.begin_transaction()
            for number in range(RECORDS):
                producer.produce(topic, value, partition=(first + number % TOUCHED) % partitions)
            producer.commit_transaction(WAIT_S)
            totals.append((time.perf_counter() - begun) * 1e3)
            first += TOUCHED


def _case(
    name: str, *, ids: int = BASE_IDS, partitions: int = BASE_PARTITIONS, producers: int = 1, unfinished: int = 0
) -> Case:
    return Case(name, {"ids": ids, "partitions": partitions, "producers": producers, "open": unfinished})


class Scale:
    """The cases described in the module head."""

    name = "scale"
    question = (
        f"Transactions of {RECORDS} × 1 KB to {TOUCHED} partitions by confluent-kafka, each to the next ones, linger.ms"
        f" 0, for {ROUND_S:.0f} s per round. The base is {BASE_IDS} transactional ids, {BASE_PARTITIONS} partitions,"
        " one producer and no open transaction; each case changes what it names. *ids* have each committed a"
        " transaction of one small record and stay known; *open* transactions hold one small record each, in the"
        " partitions that are measured; producers are threads of one process. *memory* is the resident memory of the"
        " broker's process: of a JVM that is mostly garbage that was not collected yet, up to the stated heap. *memory"
        " per id* compares it with the memory before the ids were made, when they were half made, and after."
        f" {WARM_UP_S:.0f} s of the base for each peer before the first round, {CASE_WARM_UP_S} s at the beginning of"
        " every round."
    )
    lifetime = Lifetime.SCENARIO
    tuning = Tuning()

    def __init__(self) -> None:
        self._ids: dict[str, int] = {}
        self._per_id: dict[tuple[str, str], Measurements] = {}

    def cases(self, quick: bool) -> Sequence[Case]:
        ids, many, partitions, unfinished = (100, 1000, 100, 100) if quick else (1000, 100_000, 1000, 1000)
        return [
            _case("base"),
            *(_case(f"{number} producers", producers=number) for number in PRODUCERS),
            _case(f"{partitions:,} partitions", partitions=partitions),
            _case(f"{unfinished:,} open transactions", unfinished=unfinished),
            _case(f"{ids:,} ids", ids=ids),
            _case(f"{many:,} ids", ids=many),
            _case("all of them", ids=many, partitions=partitions, producers=PRODUCERS[-1], unfinished=unfinished),
        ]

    def measure(self, bench: Bench, peer: Peer, case: Case, round_number: int) -> Measurements:  # noqa: ARG002
        ids, partitions, producers, unfinished = (
            int(case.parameters[name]) for name in ("ids", "partitions", "producers", "open")
        )
        if not peer.durable and (ids > BASE_IDS or unfinished):
            raise NotMeasured("it does not keep transactional ids, so many of them are nothing to it")
        topic = f"{TOPIC}-{partitions}"
        committers = bench.client(peer, "benchmarks.scale:Committers")
        shorter = 0.1 if bench.quick else 1.0
        if bench.first_time(peer):
            peer.create_topics([f"{TOPIC}-{BASE_PARTITIONS}"], BASE_PARTITIONS)
            base = {"topic": f"{TOPIC}-{BASE_PARTITIONS}", "partitions": BASE_PARTITIONS, "producers": 1}
            committers.call("run", **base, seconds=WARM_UP_S * shorter)
            if peer.durable:
                _crowd(bench, peer).call("commit_once", first=0, count=BASE_IDS)
                self._ids[peer.name] = BASE_IDS
        if partitions != BASE_PARTITIONS and bench.first_time(peer, topic):
            peer.create_topics([topic], partitions)
        if ids > self._ids.get(peer.name, BASE_IDS):
            self._per_id[peer.name, case.name] = self._make_ids(bench, peer, ids)
        load = {"topic": topic, "partitions": partitions, "producers": producers}
        if unfinished:
            _crowd(bench, peer).call("open", first=0, count=unfinished)
        try:
            committers.call("run", **load, seconds=CASE_WARM_UP_S * shorter)
            cpu_before = peer.cpu_s()
            started = time.perf_counter()
            totals = committers.call("run", **load, seconds=ROUND_S * shorter)
            taken = time.perf_counter() - started
            cpu_ms = (peer.cpu_s() - cpu_before) * 1e3
        finally:
            if unfinished:
                _crowd(bench, peer).call("abort_open")
        return {
            "transaction": sampled("ms", totals),
            "rate": counted("transactions/s", len(totals) / taken),
            "broker CPU": counted("CPU-ms/transaction", cpu_ms / len(totals)),
            "memory": counted("MB", peer.memory_bytes() / 1e6),
            **self._per_id.get((peer.name, case.name), {}),
        }

    def _make_ids(self, bench: Bench, peer: Peer, ids: int) -> Measurements:
        """Create ids up to this number; returns the memory of the first and the second half of the new ones."""
        had = self._ids[peer.name]
        half = had + (ids - had) // 2
        memory = [_settled_bytes(peer)]
        for first, last in ((had, half), (half, ids)):
            for piece in range(first, last, PIECE):
                _crowd(bench, peer).call("commit_once", first=piece, count=min(PIECE, last - piece))
            memory.append(_settled_bytes(peer))
        self._ids[peer.name] = ids
        return {
            "memory per id, first half": counted("bytes/id", (memory[1] - memory[0]) / (half - had)),
            "memory per id, second half": counted("bytes/id", (memory[2] - memory[1]) / (ids - half)),
        }


def _crowd(bench: Bench, peer: Peer) -> ClientProcess:
    topic = f"{TOPIC}-{BASE_PARTITIONS}"
    return bench.client(peer, "benchmarks.crowd:Crowd", prefix="crowd", topic=topic, partitions=BASE_PARTITIONS)


def _settled_bytes(peer: Peer) -> int:
    time.sleep(SETTLE_S)
    return peer.memory_bytes()


SCENARIO = Scale()
