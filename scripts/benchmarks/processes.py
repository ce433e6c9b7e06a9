"""`processes`: what several processes on one data directory give, and what a transaction over two of them costs.

The peers are the same node with 1, 2 and 4 processes (`journal`, `journal-2`, `journal-4`). The load comes from
processes of its own, one for each 16 producers, each producer in a thread. What they cost is reported beside what the
broker costs, because on a small machine both share the cores.

*within* and *over* compare transactions of one producer: all partitions led by the broker that coordinates it, or half
of them by another one. A node of one process has nothing to go over, and does the same for both. Many producers write
to all partitions, so most of their transactions go over shards; or each writes to those of its coordinator, as an
application can that keeps its topics together (`fairlog.placement=together`).
"""

from __future__ import annotations

import struct
import threading
import time
from collections.abc import Callable, Mapping, Sequence

from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient
from peers import processes
from peers.interface import Peer, Tuning

from benchmarks import plain_protocol as protocol
from benchmarks.client import ClientProcess
from benchmarks.rows import Measurements, counted, sampled
from benchmarks.scenario import Bench, Case, Lifetime

RECORDS, RECORD_BYTES, TOUCHED = 10, 1024, 2
PARTITIONS = 16
PRODUCERS = (1, 4, 16, 64)
PRODUCERS_PER_CLIENT = 16
ROUND_S, WARM_UP_S, CASE_WARM_UP_S = 3.0, 5.0, 0.5
WAIT_S = 120.0
SPREAD, PAIR = "spread", "pair"


class Writers:
    """Producers in one process, each with a thread of its own: transactional, one after the other, or plain."""

    def __init__(self, address: str, number: int) -> None:
        self._address = address
        self._number = number
        self._producers: dict[str, Producer] = {}

    def transactions(self, topic: str, partitions: Mapping[str, Sequence[int]], seconds: float) -> list[float]:
        """The ms of every transaction of all ids, in the partitions of each.

        An id goes on to the next two of them with each transaction, from one of its own on.
        """
        for transactional_id in partitions:
            if transactional_id not in self._producers:
                settings = {"bootstrap.servers": self._address, "linger.ms": 0, "log_level": 0}
                producer = Producer({**settings, "transactional.id": transactional_id})
                producer.init_transactions(WAIT_S)
                self._producers[transactional_id] = producer

        def commit(transactional_id: str, totals: list[float]) -> None:
            producer, value = self._producers[transactional_id], bytes(RECORD_BYTES)
            own = partitions[transactional_id]
            first = sum(transactional_id.encode()) * TOUCHED
            deadline = time.perf_counter() + seconds
            while not totals or time.perf_counter() < deadline:
                begun = time.perf_counter()
                producer.begin_transaction()
                for number in range(RECORDS):
                    producer.produce(topic, value, partition=own[(first + number % TOUCHED) % len(own)])
                producer.commit_transaction(WAIT_S)
                totals.append((time.perf_counter() - begun) * 1e3)
                first += TOUCHED

        totals: dict[str, list[float]] = {transactional_id: [] for transactional_id in partitions}
        _side_by_side([lambda each=each, of=of: commit(each, of) for each, of in totals.items()])
        return [total for one in totals.values() for total in one]

    def plain(self, topic: str, partitions: int, producers: int, seconds: float) -> tuple[int, float]:
        """The number of records that were answered, and the seconds that it took."""
        sent = [0] * producers

        def produce(index: int) -> None:
            producer = Producer(
                {"bootstrap.servers": self._address, "enable.idempotence": True, "linger.ms": 5, "log_level": 0}
            )
            value, deadline = bytes(RECORD_BYTES), time.perf_counter() + seconds
            while time.perf_counter() < deadline:
                for number in range(64):
                    try:
                        producer.produce(topic, value, partition=(index + number) % partitions)
                    except BufferError:
                        producer.poll(0.05)
                    else:
                        sent[index] += 1
                producer.poll(0)
            sent[index] -= producer.flush(WAIT_S)

        started = time.perf_counter()
        _side_by_side([lambda index=index: produce(index) for index in range(producers)])
        return sum(sent), time.perf_counter() - started


def _side_by_side(tasks: Sequence[Callable[[], None]]) -> None:
    """Run each in a thread. Raises what one of them raised."""
    failures: list[BaseException] = []

    def run(task: Callable[[], None]) -> None:
        try:
            task()
        except BaseException as error:  # noqa: BLE001  raised below, where the call was made
            failures.append(error)

    threads = [threading.Thread(target=run, args=[task]) for task in tasks]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failures:
        raise failures[0]


class Processes:
    """The cases described in the module head."""

    name = "processes"
    question = (
        f"Transactions of {RECORDS} × 1 KB to {TOUCHED} of {PARTITIONS} partitions by confluent-kafka, linger.ms 0, for"
        f" {ROUND_S:.0f} s per round, with so many producers at once, over all partitions or *within shards*:"
        " each in those of the broker that coordinates it; *within* and *over*: one producer, all of whose partitions"
        " are led by the broker that coordinates it, or half of them by another one; *plain*: 4 idempotent"
        " producers at full speed. The peers differ in the number of processes on one data directory. *client CPU* is"
        " what the load itself costs on the same cores."
    )
    lifetime = Lifetime.SCENARIO
    tuning = Tuning()

    def cases(self, quick: bool) -> Sequence[Case]:
        counts = (1, 4) if quick else PRODUCERS
        return [
            *(Case(f"{count} producers", {"producers": count}) for count in counts),
            *(Case(f"{count} producers within shards", {"producers": count, "apart": 1}) for count in counts[2:3]),
            Case("within one shard", {"over": 1}),
            Case("over two shards", {"over": 2}),
            Case("plain", {"plain": 4}),
        ]

    def measure(self, bench: Bench, peer: Peer, case: Case, round_number: int) -> Measurements:  # noqa: ARG002
        shorter = 0.1 if bench.quick else 1.0
        first, everywhere = bench.client(peer, "benchmarks.processes:Writers", "0", number=0), [*range(PARTITIONS)]
        if bench.first_time(peer):
            peer.create_topics([SPREAD, PAIR], PARTITIONS)
            first.call("transactions", topic=SPREAD, partitions={"warm-up": everywhere}, seconds=WARM_UP_S * shorter)
        if "plain" in case.parameters:
            return _plain(peer, first, int(case.parameters["plain"]), ROUND_S * shorter)
        if "over" in case.parameters:
            own, others = led(peer, PAIR, (transactional_id := f"over-{case.parameters['over']}"))
            pair = [own[0], own[1] if case.parameters["over"] == 1 or not others else others[0]]
            shares, topic = [(first, {transactional_id: pair})], PAIR
        else:
            producers = int(case.parameters["producers"])
            everyone = [f"{case.name}-{number}" for number in range(producers)]
            clients = [
                bench.client(peer, "benchmarks.processes:Writers", str(number), number=number)
                for number in range(-(-producers // PRODUCERS_PER_CLIENT))
            ]
            partitions = {
                each: led(peer, SPREAD, each)[0] if "apart" in case.parameters else everywhere for each in everyone
            }
            shares = [
                (client, {each: partitions[each] for each in everyone[number :: len(clients)]})
                for number, client in enumerate(clients)
            ]
            topic = SPREAD

        def run(seconds: float) -> tuple[list[float], float]:
            started = time.perf_counter()
            for client, partitions in shares:
                client.ask("transactions", topic=topic, partitions=partitions, seconds=seconds)
            totals = [total for client, _ in shares for total in client.answer()]
            return totals, time.perf_counter() - started

        run(CASE_WARM_UP_S * shorter)
        broker_s, clients_s = peer.cpu_s(), sum(processes.cpu_s(client.pid) for client, _ in shares)
        totals, taken = run(ROUND_S * shorter)
        broker_ms = (peer.cpu_s() - broker_s) * 1e3
        clients_ms = (sum(processes.cpu_s(client.pid) for client, _ in shares) - clients_s) * 1e3
        return {
            "transaction": sampled("ms", totals),
            "rate": counted("transactions/s", len(totals) / taken),
            "broker CPU": counted("CPU-ms/transaction", broker_ms / len(totals)),
            "client CPU": counted("CPU-ms/transaction", clients_ms / len(totals)),
        }


def _plain(peer: Peer, client: ClientProcess, producers: int, seconds: float) -> Measurements:
    broker_s, client_s = peer.cpu_s(), processes.cpu_s(client.pid)
    sent, taken = client.call("plain", topic=SPREAD, partitions=PARTITIONS, producers=producers, seconds=seconds)
    gigabytes = sent * RECORD_BYTES / 1e9
    return {
        "rate": counted("MB/s", gigabytes * 1e3 / taken),
        "broker CPU": counted("CPU-s/GB", (peer.cpu_s() - broker_s) / gigabytes),
        "client CPU": counted("CPU-s/GB", (processes.cpu_s(client.pid) - client_s) / gigabytes),
    }


def led(peer: Peer, topic: str, transactional_id: str) -> tuple[list[int], list[int]]:
    """The partitions of the topic that are led by the id's coordinator, and those that are not."""
    admin = AdminClient({"bootstrap.servers": peer.address, "log_level": 0})
    described = admin.list_topics(topic, WAIT_S).topics[topic]
    leaders = {number: partition.leader for number, partition in sorted(described.partitions.items())}
    connection = protocol.Connection(peer.address.split(",")[0])
    connection.send(protocol.find_coordinator(transactional_id))
    answer = connection.receive()
    connection.close()
    (message_bytes,) = struct.unpack_from(">h", answer, 6)
    (coordinator,) = struct.unpack_from(">i", answer, 8 + max(0, message_bytes))
    own = [number for number, leader in leaders.items() if leader == coordinator]
    return own, [number for number in leaders if number not in own]


SCENARIO = Processes()
