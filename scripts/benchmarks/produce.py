"""`produce`: plain records at full speed, by the size of records and of requests.

The meaning of an answer depends on the peer's settings: with fsync, durable. The time is measured until the last
answer. The client shares the machine, and limits the rate with small records, so its own CPU time is shown beside the
broker's.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, replace

from peers.interface import Peer, Tuning

from benchmarks.plain_load import LINGER_MS, PARTITIONS, SHAPES, Shape, cases, sender_of, shape_of, write
from benchmarks.rows import Measurements, counted
from benchmarks.scenario import Bench, Case, Lifetime, Scenario

WARM_UP_SHARE = 10
_AMOUNTS = ", ".join(f"{shape.total_bytes // 1_000_000} MB of {shape.name}" for shape in SHAPES)


class Produce:
    """One case per shape of plain_load.py; each measurement writes to a topic of its own."""

    name = "produce"
    question = (
        f"What does it take to write plain records? One idempotent producer, acks=all, linger.ms={LINGER_MS}, sends "
        f"values of 100 B, 1 KB and 16 KB without compression to {PARTITIONS} partitions, in requests of 16 KB and of "
        f"1 MB (one batch each): {_AMOUNTS}. Before the first measurement each peer gets one {WARM_UP_SHARE}th of all "
        f"of these; before each measurement one {WARM_UP_SHARE}th as much goes to the same topic, from the same "
        "producer. MB are millions of bytes of values. *broker CPU* is that of the whole process, from the first "
        "record to the last answer; what it does later is not in it. *written* is what the broker's process gave to "
        "write calls, per byte of values (not the system's write_bytes: where the page cache keeps large folios, that "
        "counts 2 MB for a changed page); changes through mapped memory, as of Kafka's indexes, are not in it."
    )
    lifetime = Lifetime.SCENARIO
    tuning = Tuning()

    def cases(self, quick: bool) -> Sequence[Case]:  # noqa: ARG002
        return cases()

    def measure(self, bench: Bench, peer: Peer, case: Case, round_number: int) -> Measurements:
        shape = shape_of(case, bench.quick)
        topic = f"produce-{shape.record_bytes}-{shape.request_bytes}-{round_number}"
        peer.create_topics([topic], PARTITIONS)
        if bench.first_time(peer):
            peer.create_topics(["produce-warm-up"], PARTITIONS)
            for each in cases():
                write(bench, peer, "produce-warm-up", _warm_up(shape_of(each, bench.quick)))
        sender = sender_of(bench, peer)
        sender.call("open", shape=asdict(shape))
        sender.call("send", topic=topic, shape=asdict(_warm_up(shape)))
        sender.call("requests")
        cpu_before, written_before = peer.cpu_s(), peer.written_bytes()
        sent = sender.call("send", topic=topic, shape=asdict(shape))
        cpu_s, written = peer.cpu_s() - cpu_before, peer.written_bytes() - written_before
        requests = sender.call("requests")
        sender.call("close")
        total_bytes = sent["records"] * shape.record_bytes
        return {
            "rate": counted("MB/s", total_bytes / 1e6 / sent["seconds"]),
            "requests": counted("requests/s", requests / sent["seconds"]),
            "broker CPU": counted("CPU-s/GB", cpu_s / (total_bytes / 1e9)),
            "client CPU": counted("CPU-s/GB", sent["client_cpu_s"] / (total_bytes / 1e9)),
            "written": counted("bytes/byte", written / total_bytes),
        }


def _warm_up(shape: Shape) -> Shape:
    return replace(shape, total_bytes=shape.total_bytes // WARM_UP_SHARE)


SCENARIO: Scenario = Produce()
