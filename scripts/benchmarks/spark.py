"""`spark`: the same jobs with `format("fairlog")` and with Spark's own Kafka connector.

    source        a topic of 1 KB records, read as a batch into nothing
    sink          rows of 1 KB, written as a batch: exactly once, and by the connector at least once
    micro-batch   the time of a stream's batch that writes few rows; and a group commit alone, without Spark
    hung          a stream that reads committed records while a transaction is left open: do its batches continue?

The peer is the broker. In journal mode both formats are measured, one after the other, in each round another one first;
the other brokers are measured only with the connector. Each broker has a Spark session of its own, in which nothing
else runs.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from statistics import median

import pyspark
from peers import kafka_artifacts
from peers.interface import Peer, Tuning

from benchmarks.client import ClientProcess
from benchmarks.rows import Measured, Measurements, counted, sampled
from benchmarks.scenario import Bench, Case, Lifetime, NotMeasured, Scenario
from benchmarks.spark_jobs import CONNECTOR, LARGE_BATCHES, OURS, RECORD_BYTES, UNCOMMITTED
from benchmarks.spark_sinks import NOTHING, TIMED

SOURCE_RECORDS, SINK_ROWS = 400_000, 200_000
SOURCE_READS = 5
PARTITIONS = 2
MICRO_BATCHES, LEFT_OUT, MICRO_BATCH_ROWS = 40, 5, 1_000
COMMITS, LANES, LANE_RECORDS = 100, 2, 100
HUNG_S, QUICK_HUNG_S, SETTLED_S = 15, 5, 2.0
BLOCK = 20
SOURCE, SINK, MICRO_BATCH, HUNG = "source, 1 KB", "sink, 1 KB", "micro-batch", "one transaction left open"


def formats(peer: Peer, round_number: int) -> list[str]:
    """The formats that are measured on this broker, in this round's order."""
    if peer.name != "journal":
        return [CONNECTOR]
    return [OURS, CONNECTOR] if round_number % 2 == 0 else [CONNECTOR, OURS]


def shown(kind: str) -> str:
    """The name in metrics."""
    return f'format("{kind}")'


def rows_read_share(written: int, read: int) -> float:
    """The share in percent of the rows written meanwhile. Raises ValueError if there were none."""
    if written <= 0:
        raise ValueError("nothing was written while the transaction was left open")
    return 100.0 * min(read, written) / written


def _all_read(answer: tuple[float, int], kind: str, records: int) -> float:
    """The seconds of `Jobs.read`. Raises AssertionError if rows are missing."""
    seconds, count = answer
    if count != records:
        raise AssertionError(f"{shown(kind)} has read {count:,} rows of {records:,}")
    return seconds


def _all_written(answer: tuple[float, int], kind: str, rows: int) -> float:
    """The seconds of `Jobs.write`. Raises AssertionError if rows are missing, or written twice by our format."""
    seconds, records = answer
    if records < rows or (kind == OURS and records > rows):
        raise AssertionError(f"{shown(kind)} has made {records:,} records of {rows:,} rows")
    return seconds


class Spark:
    """Four cases; Spark's sessions are kept from case to case."""

    name = "spark"
    question = (
        'The same Spark job by `format("fairlog")` and by Spark\'s Kafka connector, in sessions of `local[2]` '
        f"(Spark {pyspark.__version__}, connector {kafka_artifacts.connector_version()}). "
        f"*Source*: {SOURCE_RECORDS:,} records of {RECORD_BYTES} B in {PARTITIONS} partitions, read as a batch into "
        f"nothing, {SOURCE_READS} times in turns (the median): rows of seven columns with either, what Spark takes to "
        "have them from Python included. "
        f"*Sink*: {SINK_ROWS:,} rows of {RECORD_BYTES} B, made on the way, written as a batch by two tasks: "
        "ours exactly once; the connector's at least once, with its defaults (batches of 16 KB at once) and with those "
        f"of our client (1 MB, 5 ms). *Micro-batch*: {MICRO_BATCHES} batches of "
        f"{MICRO_BATCH_ROWS:,} small rows, of which the first {LEFT_OUT} are left out, as Spark reports `addBatch`, "
        "with either sink and with one in Python that writes nothing; what each commit takes of it, from the call of "
        f"our `commit` in the driver's Python to its end; and, without Spark, {COMMITS} group commits of {LANES} lanes "
        f"with {LANE_RECORDS} records each over a connection that is there. *Hung*: a stream of "
        f"committed records runs in batches of 100 ms; a transaction is left open for {HUNG_S} s (in a quick run "
        f"{QUICK_HUNG_S} s), and plain records are written meanwhile; which share of these was read {SETTLED_S:.0f} s "
        "after the last, before the transaction ends? The connector reads `read_committed` where nothing else is said. "
        "Batch jobs run once before they are measured."
    )
    lifetime = Lifetime.SCENARIO
    tuning = Tuning()

    def cases(self, quick: bool) -> Sequence[Case]:
        return [
            Case(SOURCE, {"records": SOURCE_RECORDS // 10 if quick else SOURCE_RECORDS}),
            Case(SINK, {"rows": SINK_ROWS // 10 if quick else SINK_ROWS}),
            Case(MICRO_BATCH, {"batches": MICRO_BATCHES // 4 if quick else MICRO_BATCHES}),
            Case(HUNG, {"hung_s": QUICK_HUNG_S if quick else HUNG_S}),
        ]

    def measure(self, bench: Bench, peer: Peer, case: Case, round_number: int) -> Measurements:
        if not peer.durable:
            raise NotMeasured("there is nothing in it to read")
        if peer.name == "kafka-fsync" or (peer.name == "markers" and case.name != HUNG):
            raise NotMeasured("another broker of the same kind is measured")
        try:
            connector = kafka_artifacts.obtain_connector()
        except kafka_artifacts.Unavailable as unavailable:
            raise NotMeasured(f"without the connector there is nothing to compare with: {unavailable}") from None
        jobs = bench.client(peer, "benchmarks.spark_jobs:Jobs", jars=str(connector.jars))
        kinds = formats(peer, round_number)
        match case.name:
            case "source, 1 KB":
                return self._source(bench, peer, jobs, kinds, int(case.parameters["records"]))
            case "sink, 1 KB":
                return self._sink(bench, peer, jobs, kinds, int(case.parameters["rows"]))
            case "micro-batch":
                return self._micro_batch(bench, peer, jobs, kinds, int(case.parameters["batches"]))
            case _:
                return self._hung(bench, peer, jobs, kinds, float(case.parameters["hung_s"]))

    def _source(
        self, bench: Bench, peer: Peer, jobs: ClientProcess, kinds: Sequence[str], records: int
    ) -> dict[str, Measured]:
        if first := bench.first_time(peer, SOURCE):
            peer.create_topics(["spark-source"], PARTITIONS)
            filler = bench.client(peer, "benchmarks.spark_jobs:Filler", topic="spark-source", partitions=PARTITIONS)
            filler.call("fill", records=records)
        if first:
            for kind in kinds:
                jobs.call("read", kind=kind, topic="spark-source")
        seconds_of: dict[str, list[float]] = {kind: [] for kind in kinds}
        used_s = dict.fromkeys(kinds, 0.0)
        for _ in range(SOURCE_READS):
            for kind in kinds:
                before_s = peer.cpu_s()
                seconds_of[kind].append(_all_read(jobs.call("read", kind=kind, topic="spark-source"), kind, records))
                used_s[kind] += peer.cpu_s() - before_s
        measured: dict[str, Measured] = {}
        for kind in kinds:
            measured[f"rate, {shown(kind)}"] = counted("rows/s", records / median(seconds_of[kind]))
            measured[f"broker CPU, {shown(kind)}"] = counted("CPU-s", used_s[kind] / SOURCE_READS)
        answer = jobs.call("read", kind=CONNECTOR, topic="spark-source", isolation=UNCOMMITTED)
        seconds = _all_read(answer, CONNECTOR, records)
        measured[f"rate, {shown(CONNECTOR)}, {UNCOMMITTED}"] = counted("rows/s", records / seconds)
        return measured

    def _sink(
        self, bench: Bench, peer: Peer, jobs: ClientProcess, kinds: Sequence[str], rows: int
    ) -> dict[str, Measured]:
        if first := bench.first_time(peer, SINK):
            peer.create_topics([f"spark-sink-{kind}" for kind in kinds], PARTITIONS)
        measured: dict[str, Measured] = {}
        for kind in kinds:
            if first:
                jobs.call("write", kind=kind, topic=f"spark-sink-{kind}", rows=rows)
            before_s = peer.cpu_s()
            seconds = _all_written(jobs.call("write", kind=kind, topic=f"spark-sink-{kind}", rows=rows), kind, rows)
            measured[f"rate, {shown(kind)}"] = counted("rows/s", rows / seconds)
            measured[f"broker CPU, {shown(kind)}"] = counted("CPU-s", peer.cpu_s() - before_s)
        answer = jobs.call("write", kind=CONNECTOR, topic=f"spark-sink-{CONNECTOR}", rows=rows, options=LARGE_BATCHES)
        seconds = _all_written(answer, CONNECTOR, rows)
        measured[f"rate, {shown(CONNECTOR)}, batches of 1 MB"] = counted("rows/s", rows / seconds)
        return measured

    def _micro_batch(
        self, bench: Bench, peer: Peer, jobs: ClientProcess, kinds: Sequence[str], batches: int
    ) -> dict[str, Measured]:
        if bench.first_time(peer, MICRO_BATCH):
            peer.create_topics(["spark-commits", *(f"spark-batches-{kind}" for kind in kinds)], PARTITIONS)
        measured: dict[str, Measured] = {}
        for kind in kinds:
            added, committed = jobs.call(
                "micro_batches",
                kind=TIMED if kind == OURS else kind,
                topic=f"spark-batches-{kind}",
                count=batches,
                rows=MICRO_BATCH_ROWS,
            )
            measured[f"addBatch, {shown(kind)}"] = sampled("ms", added[LEFT_OUT:])
            if kind == OURS:
                measured["commit in the driver"] = sampled("ms", committed[LEFT_OUT:])
        if OURS in kinds:
            added, _ = jobs.call("micro_batches", kind=NOTHING, topic="none", count=batches, rows=MICRO_BATCH_ROWS)
            measured["addBatch, a sink in Python that writes nothing"] = sampled("ms", added[LEFT_OUT:])
            committer = bench.client(
                peer, "benchmarks.spark_jobs:Committer", topic="spark-commits", partitions=PARTITIONS
            )
            commits = bench.amount(COMMITS)
            before_s = peer.cpu_s()
            each = committer.call("commits", count=commits, lanes=LANES, records=LANE_RECORDS)
            used_s = peer.cpu_s() - before_s
            measured["joins of a batch"] = sampled("ms", [joined for joined, _ in each])
            measured["group commit"] = sampled("ms", [committed for _, committed in each])
            measured["broker CPU for a batch, its lanes included"] = counted("ms", used_s * 1e3 / commits)
        return measured

    def _hung(
        self, bench: Bench, peer: Peer, jobs: ClientProcess, kinds: Sequence[str], hung_s: float
    ) -> dict[str, Measured]:
        # The hanger writes to as many partitions as its scenario has.
        topic = "spark-hung"
        if bench.first_time(peer, HUNG):
            peer.create_topics([topic], PARTITIONS)
        hanger = bench.client(peer, "benchmarks.hung:Hanger", topic=topic)
        sender = bench.client(peer, "benchmarks.visible:Sender", topic=topic)
        measured: dict[str, Measured] = {}
        for kind in kinds:
            jobs.call("follow", kind=kind, topic=topic)
            hanger.call("hang")
            read_before = jobs.call("followed")
            written, deadline = 0, time.monotonic() + hung_s
            while time.monotonic() < deadline:
                written += len(sender.call("records", first=written, count=BLOCK))
            time.sleep(SETTLED_S)
            read = jobs.call("followed") - read_before
            hanger.call("end")
            jobs.call("follow_until", rows=read_before + written)
            measured[f"read meanwhile, {shown(kind)}"] = counted("%", rows_read_share(written, read))
        return measured


SCENARIO: Scenario = Spark()
