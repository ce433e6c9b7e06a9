"""`aborts`: what aborted transactions cost a consumer.

If transactional records go into the log before their transaction is decided, aborted ones stay there: the broker sends
them, and the consumer drops them. The same number of records is delivered in every case, so everything else that is
fetched is aborted records.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from confluent_kafka import Producer
from peers.interface import Peer, Tuning

from benchmarks.rows import Measurements, counted
from benchmarks.scenario import Bench, Case, Lifetime, NotMeasured, Scenario

PERCENT = (0, 10, 50, 90)
COMMITTED, RECORDS, RECORD_BYTES = 90, 500, 1024
FETCH_BYTES = 1_048_576
READING_S = 1.0
ANSWER_WAIT_S = 60.0


class Aborts:
    """One case per share of aborted transactions. The logs are written once per peer and read again in each round."""

    name = "aborts"
    question = (
        f"What does a consumer fetch when transactions abort? {COMMITTED} transactions of {RECORDS} records of "
        f"{RECORD_BYTES // 1024} KB commit, in one partition, from one producer; between them, evenly, as many abort "
        "as make 0, 10, 50 or 90 percent of all (all their records have reached the broker by then). A consumer that "
        "sees committed records only reads the log from its beginning to its last record, whole passes until "
        f"{READING_S:.0f} s have gone; before the first round, as much to warm up. Fetched are all bytes of all "
        "answers that its client library received (rxbytes of librdkafka's statistics). The logs are in the page "
        "cache."
    )
    lifetime = Lifetime.SCENARIO
    tuning = Tuning()

    def cases(self, quick: bool) -> Sequence[Case]:  # noqa: ARG002
        return [Case(f"{percent} % aborted", {"percent_aborted": percent}) for percent in PERCENT]

    def measure(self, bench: Bench, peer: Peer, case: Case, round_number: int) -> Measurements:  # noqa: ARG002
        if not peer.durable:
            raise NotMeasured("the mock keeps only the last 5 MB of a partition, and knows no aborted records")
        percent, committed = int(case.parameters["percent_aborted"]), bench.amount(COMMITTED)
        topic = f"aborts-{percent}"
        first = bench.first_time(peer, case.name)
        if first:
            peer.create_topics([topic], 1)
            writer = bench.client(peer, "benchmarks.aborts:AbortingProducer")
            writer.call("write", topic=topic, committed=committed, percent=percent)
        reader = bench.client(peer, "benchmarks.catch_up:CatchUpReader")
        reader.call("open", isolation=peer.transactional_isolation, fetch_bytes=FETCH_BYTES)
        what = {"topic": topic, "partitions": 1, "records": committed * RECORDS}
        seconds = READING_S / 10 if bench.quick else READING_S
        if first:
            reader.call("read", **what, seconds_min=seconds)
            reader.call("fetched")
        read = reader.call("read", **what, seconds_min=seconds)
        fetched = reader.call("fetched")
        reader.call("close")
        if read["bytes"] != read["records"] * RECORD_BYTES:
            raise RuntimeError(f"{peer.name} delivered other records than those that were committed")
        return {
            "fetched per record": counted("bytes", fetched["bytes"] / read["records"]),
            "delivered": counted("records/s", read["records"] / read["seconds"]),
        }


def outcomes(committed: int, percent: int) -> Iterator[bool]:
    """For each transaction in turn, whether it commits: `committed` do, and `percent` of all do not, evenly
    distributed.

    Ends with a commit, so that the last record of the log is delivered.
    """
    aborted_so_far = 0
    for number in range(1, committed + 1):
        aborted = number * percent // (100 - percent)
        yield from [False] * (aborted - aborted_so_far)
        aborted_so_far = aborted
        yield True


class AbortingProducer:
    """A client process's class (client.py): one transactional producer."""

    def __init__(self, address: str) -> None:
        self._producer = Producer(
            {"bootstrap.servers": address, "transactional.id": "aborts", "linger.ms": 5, "log_level": 0}
        )
        self._producer.init_transactions(ANSWER_WAIT_S)

    def write(self, topic: str, committed: int, percent: int) -> None:
        """Write to partition 0 of `topic`. The values of aborted records are a byte longer, so a delivered one is
        noticed.
        """
        for commits in outcomes(committed, percent):
            self._producer.begin_transaction()
            value = bytes(RECORD_BYTES if commits else RECORD_BYTES + 1)
            for _ in range(RECORDS):
                self._producer.produce(topic, value, partition=0)
            if commits:
                self._producer.commit_transaction(ANSWER_WAIT_S)
            else:
                # An abort throws away what the client has not sent yet.
                self._producer.flush(ANSWER_WAIT_S)
                self._producer.abort_transaction(ANSWER_WAIT_S)


SCENARIO: Scenario = Aborts()
