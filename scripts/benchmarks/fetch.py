"""`fetch`: catch-up reads of plain records, in the shapes in which `produce` writes them.

Everything is read from the page cache: the disk is not measured. With small records the client limits the rate, so its
own CPU time is shown beside the broker's.
"""

from __future__ import annotations

from collections.abc import Sequence

from peers.interface import Peer, Tuning

from benchmarks.plain_load import LARGE_REQUEST_BYTES, PARTITIONS, cases, records_of, shape_of, write
from benchmarks.rows import Measurements, counted
from benchmarks.scenario import Bench, Case, Lifetime, NotMeasured, Scenario

SMALL_FETCH_BYTES, LARGE_FETCH_BYTES = 131_072, 1_048_576
READING_S = 1.5


class Fetch:
    """One case per shape of plain_load.py. The logs are written once per peer and read again in each round."""

    name = "fetch"
    question = (
        "What does it take to read a log from its beginning? What `produce` writes in one measurement is read by one "
        f"consumer of {PARTITIONS} partitions that checks nothing and keeps nothing: logs of 16 KB requests with at "
        f"most {SMALL_FETCH_BYTES // 1024} KB for each partition in a fetch, logs of 1 MB requests with at most "
        f"{LARGE_FETCH_BYTES // 1024} KB (the client library's default). Whole passes until {READING_S} s have gone, "
        "by a new consumer in each round; before the first round, as much to warm up. The logs are in the page cache. "
        "MB are millions of bytes of values; *received* are all bytes of all answers, per byte of values: a broker "
        "that sends the beginning of a batch that does not fit sends it again."
    )
    lifetime = Lifetime.SCENARIO
    tuning = Tuning()

    def cases(self, quick: bool) -> Sequence[Case]:  # noqa: ARG002
        return cases()

    def measure(self, bench: Bench, peer: Peer, case: Case, round_number: int) -> Measurements:  # noqa: ARG002
        if not peer.durable:
            raise NotMeasured("the mock keeps only the last 5 MB of a partition")
        shape = shape_of(case, bench.quick)
        topic = f"fetch-{shape.record_bytes}-{shape.request_bytes}"
        first = bench.first_time(peer, case.name)
        if first:
            peer.create_topics([topic], PARTITIONS)
            write(bench, peer, topic, shape)
        what = {"topic": topic, "partitions": PARTITIONS, "records": records_of(shape)}
        large = shape.request_bytes == LARGE_REQUEST_BYTES
        reader = bench.client(peer, "benchmarks.catch_up:CatchUpReader")
        reader.call("open", isolation="read_uncommitted", fetch_bytes=LARGE_FETCH_BYTES if large else SMALL_FETCH_BYTES)
        seconds = READING_S / 10 if bench.quick else READING_S
        if first:
            reader.call("read", **what, seconds_min=seconds)
            reader.call("fetched")
        cpu_before = peer.cpu_s()
        read = reader.call("read", **what, seconds_min=seconds)
        cpu_s = peer.cpu_s() - cpu_before
        fetched = reader.call("fetched")
        reader.call("close")
        return {
            "rate": counted("MB/s", read["bytes"] / 1e6 / read["seconds"]),
            "requests": counted("requests/s", fetched["requests"] / read["seconds"]),
            "broker CPU": counted("CPU-s/GB", cpu_s / (read["bytes"] / 1e9)),
            "client CPU": counted("CPU-s/GB", read["client_cpu_s"] / (read["bytes"] / 1e9)),
            "received": counted("bytes/byte", fetched["bytes"] / read["bytes"]),
        }


SCENARIO: Scenario = Fetch()
