"""How long a broker is away after it was killed under load: until its first answer, and until everything is visible.

    finished transactions │ plain records beside an open transaction │ load ─────╳ SIGKILL
                                                                                 └ start … first answer … all visible

The data that a restart has to process are made beforehand: finished transactions, which coordinators remember, once for
all runs (finished.py); and, in each round, gigabytes that recovery has to read. Fairlog deletes journals as they are
copied, so only a transaction that stays open keeps them (in journal mode; in marker mode nothing does), which is the
worst case. After an unclean end, Kafka reads what it had not flushed: up to a segment of each partition.

The load's clients survive the broker, as clients do, and continue when it is back. *Everything* means every transaction
that was answered as committed before the kill: the round fails if one of them is not seen.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence

from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition
from peers import topics
from peers.interface import Peer, Tuning

from benchmarks.client import ClientProcess
from benchmarks.finished import begin_with
from benchmarks.rows import Measurements, counted
from benchmarks.scenario import Bench, Case, Lifetime, NotMeasured

RECORDS, RECORD_BYTES, PARTITIONS = 10, 1024, 2
PRODUCERS = 4
BULK_PARTITIONS = 4
LOAD_S = 2.0
BACK_S_MAX, VISIBLE_S_MAX, WAIT_S = 600.0, 300.0, 120.0
POLL_S = 0.005
PINNING = "pinning"
RECONNECT = {"reconnect.backoff.ms": 10, "reconnect.backoff.max.ms": 100}
"""The clients' waits between two attempts to connect: short, because the broker's time is measured."""


class Load:
    """Transactional producers in one process, each in a thread, that commit until they are told to stop, despite all
    errors.
    """

    def __init__(self, address: str) -> None:
        self._address = address
        self._committed: list[list[int]] = [[] for _ in range(PRODUCERS)]
        self._stopping = threading.Event()
        self._threads: list[threading.Thread] = []

    def begin(self, topic: str) -> None:
        """Start the load; return when each producer has committed once."""
        for index in range(PRODUCERS):
            thread = threading.Thread(target=self._load, args=[index, topic], daemon=True)
            thread.start()
            self._threads.append(thread)
        deadline = time.monotonic() + WAIT_S
        while not all(self._committed):
            if time.monotonic() > deadline:
                raise TimeoutError("not every producer has committed once")
            time.sleep(POLL_S)

    def committed(self) -> list[list[int]]:
        """The numbers of the transactions whose commit has been answered, by producer."""
        return [list(numbers) for numbers in self._committed]

    def stop(self) -> None:
        self._stopping.set()
        for thread in self._threads:
            thread.join(WAIT_S)

    def _producer(self, index: int) -> Producer:
        producer = Producer(
            {
                "bootstrap.servers": self._address,
                "transactional.id": f"load-{index}",
                "transaction.timeout.ms": int(BACK_S_MAX * 1e3),
                "linger.ms": 0,
                "log_level": 0,
                **RECONNECT,
            }
        )
        producer.init_transactions(WAIT_S)
        return producer

    def _load(self, index: int, topic: str) -> None:
        producer = self._producer(index)
        number = 0
        while not self._stopping.is_set():
            value = f"{index} {number}".encode().ljust(RECORD_BYTES)
            try:
                producer.begin_transaction()
                for record in range(RECORDS):
                    producer.produce(topic, value, partition=record % PARTITIONS)
                producer.commit_transaction(WAIT_S)
            except KafkaException as exception:
                error: KafkaError = exception.args[0]
                if error.txn_requires_abort():
                    producer.abort_transaction(WAIT_S)
                else:
                    producer = self._producer(index)
            else:
                self._committed[index].append(number)
            number += 1


class Watch:
    """A consumer in a process of its own that waits until it has seen the given transactions."""

    def __init__(self, address: str, isolation: str) -> None:
        self._settings = {
            "bootstrap.servers": address,
            "group.id": "watch",
            "enable.auto.commit": False,
            "isolation.level": isolation,
            "fetch.wait.max.ms": 20,
            "fetch.error.backoff.ms": 10,
            "log_level": 0,
            **RECONNECT,
        }

    def until_seen(self, topic: str, committed: Sequence[Sequence[int]]) -> int:
        """When all records of these transactions (numbers by producer) were seen: ns of the monotonic clock."""
        missing = {(index, number): RECORDS for index, numbers in enumerate(committed) for number in numbers}
        consumer = Consumer(self._settings)
        consumer.assign([TopicPartition(topic, partition, 0) for partition in range(PARTITIONS)])
        deadline = time.monotonic() + VISIBLE_S_MAX
        while missing:
            for message in consumer.consume(500, 0.1):
                value = message.value()
                if message.error() is not None or value is None:
                    continue
                index, number = value.split()
                key = (int(index), int(number))
                if key in missing:
                    missing[key] -= 1
                    if not missing[key]:
                        del missing[key]
            if missing and time.monotonic() > deadline:
                raise TimeoutError(
                    f"{len(missing)} transactions were answered as committed before the kill, and are not seen"
                    f" {VISIBLE_S_MAX:.0f} s after the restart"
                )
        seen_at = time.monotonic_ns()
        consumer.close()
        return seen_at


def case_of(finished: int, bulk_bytes: int) -> Case:
    size = f"{bulk_bytes / 1e9:g} GB"
    return Case(f"{finished:,} finished, {size}", {"finished": finished, "bulk_bytes": bulk_bytes})


class Recovery:
    """Cases of finished transactions and bytes; for each number of transactions a peer begins on a copy, once."""

    question = (
        f"SIGKILL while {PRODUCERS} producers commit transactions of {RECORDS} × 1 KB to {PARTITIONS} partitions, after"
        f" {LOAD_S:.0f} s of it. Beforehand: as many finished transactions of one small record as the case says. They"
        " were made by the same broker at another time (python3 scripts/bench.py make-finished), which was then stopped"
        " in order, and the peer is started on a copy of its data before the first case with that many. And in each"
        f" round, as many bytes of plain records to {BULK_PARTITIONS} partitions of a new topic, each of which has an"
        " open transaction from the beginning. *first answer* is a Metadata response after the restart, and contains"
        " the start of the process (Python's, the JVM's); *all visible* is when a consumer that sees committed records"
        " only has seen every transaction that was answered before the kill. Both count from the start of the process."
        " Kafka's controller lets a broker register again when the session of the one that was killed has expired"
        " (broker.session.timeout.ms, 9 s): a node alone waits for it."
    )
    lifetime = Lifetime.SCENARIO
    tuning = Tuning()

    def __init__(self, name: str, cases: Sequence[Case], quick: Sequence[Case]) -> None:
        self.name = name
        self._cases = cases
        self._quick = quick

    def cases(self, quick: bool) -> Sequence[Case]:
        return self._quick if quick else self._cases

    def measure(self, bench: Bench, peer: Peer, case: Case, round_number: int) -> Measurements:
        if not peer.durable:
            raise NotMeasured("it stores nothing that could come back")
        finished, bulk_bytes = int(case.parameters["finished"]), int(case.parameters["bulk_bytes"])
        if bench.first_time(peer, f"{finished} finished"):
            begin_with(peer, finished)
        which = f"{finished}-{bulk_bytes}-{round_number}"
        bulk, load_topic = f"bulk-{which}", f"load-{which}"
        peer.create_topics([bulk], BULK_PARTITIONS)
        peer.create_topics([load_topic], PARTITIONS)
        _pinning(bench, peer, bulk).call("open", first=0, count=BULK_PARTITIONS)
        filler = bench.client(peer, "benchmarks.soak:Filler")
        filler.call("fill", topic=bulk, partitions=BULK_PARTITIONS, total_bytes=bulk_bytes, large_share=1.0)
        watch = bench.client(peer, "benchmarks.recovery:Watch", isolation=peer.transactional_isolation)
        load = bench.client(peer, "benchmarks.recovery:Load")
        load.call("begin", topic=load_topic)
        time.sleep(LOAD_S)
        peer.kill()
        committed: list[list[int]] = load.call("committed")
        disk, journals = peer.disk_bytes(), _journal_bytes(peer)
        started_at = time.monotonic_ns()
        peer.spawn()
        _wait_for_answer(peer)
        answered_at = time.monotonic_ns()
        seen_at: int = watch.call("until_seen", topic=load_topic, committed=committed)
        load.call("stop")
        bench.close_clients(peer)
        _pinning(bench, peer, bulk).call("fence", first=0, count=BULK_PARTITIONS)
        bench.close_clients(peer)
        topics.delete(peer.address, [bulk, load_topic])
        return {
            "first answer": counted("s", (answered_at - started_at) / 1e9),
            "all visible": counted("s", (seen_at - started_at) / 1e9),
            "transactions before the kill": counted("transactions", sum(map(len, committed))),
            "on the disk": counted("GB", disk / 1e9),
            **({"journals": counted("GB", journals / 1e9)} if journals else {}),
        }


def _pinning(bench: Bench, peer: Peer, topic: str) -> ClientProcess:
    """The crowd that holds a transaction open in each partition of the topic."""
    return bench.client(
        peer, "benchmarks.crowd:Crowd", PINNING, prefix=PINNING, topic=topic, partitions=BULK_PARTITIONS
    )


def _wait_for_answer(peer: Peer) -> None:
    deadline = time.monotonic() + BACK_S_MAX
    while not topics.answers(peer.address):
        if not peer.running:
            raise RuntimeError(f"{peer.name} ended while it was to come back; see what it wrote in {peer.directory}")
        if time.monotonic() > deadline:
            raise TimeoutError(f"{peer.name} has not answered {BACK_S_MAX:.0f} s after the restart")
        time.sleep(POLL_S)


def _journal_bytes(peer: Peer) -> int:
    """The size of Fairlog's journals; 0 for a broker that has none."""
    return sum(path.stat().st_blocks * 512 for path in peer.directory.rglob("*.journal"))


GB = 1_000_000_000
QUICK = [case_of(1000, GB // 10)]
SCENARIO = Recovery("recovery", [case_of(10_000, GB), case_of(100_000, GB)], QUICK)
