"""The targets (marks): each is a value computed from a run's rows, and the bound that it should keep. Pure.

There may also be lines of the same kind without a bound: information for interpreting a mark.

A mark is computed from the medians of one run. Its spread is that of the same value for each single round, since the
peers were measured in turns. If rows are missing, the mark names them, and is neither reached nor missed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from benchmarks.results import Results
from benchmarks.rows import Row

AT_MOST, AT_LEAST = "at most", "at least"


@dataclass(frozen=True, slots=True)
class Figure:
    """The row that a mark uses."""

    peer: str
    case: str
    metric: str


@dataclass(frozen=True, slots=True)
class Mark:
    """One target. `value` gets the figures' medians, in their order, or one round's values.

    Without a `bound` it is only information. `note` says what a reader of the value must know.
    """

    scenario: str
    text: str
    figures: Sequence[Figure]
    value: Callable[[Sequence[float]], float]
    direction: str = ""
    bound: float | None = None
    unit: str = ""
    note: str = ""


@dataclass(frozen=True, slots=True)
class Verdict:
    """The result for a mark; `value` is None if it could not be computed, and `why` says why."""

    mark: Mark
    value: float | None
    low: float | None = None
    high: float | None = None
    why: str = ""

    @property
    def reached(self) -> bool | None:
        """None if there is no value, or no bound."""
        if self.value is None or self.mark.bound is None:
            return None
        return self.value <= self.mark.bound if self.mark.direction == AT_MOST else self.value >= self.mark.bound


def _ratio(values: Sequence[float]) -> float:
    return values[0] / values[1] if values[1] else float("inf")


def _difference(values: Sequence[float]) -> float:
    return values[0] - values[1]


def _itself(values: Sequence[float]) -> float:
    return values[0]


def verdict(mark: Mark, results: Results) -> Verdict:
    """The result from the mark's rows."""
    if mark.scenario not in results.scenarios:
        return Verdict(mark, None, why="the scenario was not run")
    rows: list[Row] = []
    for figure in mark.figures:
        row = results.find(mark.scenario, figure.peer, figure.case, figure.metric)
        if row is None:
            return Verdict(mark, None, why=f"no {figure.metric} of {figure.peer} for {figure.case}")
        rows.append(row)
    by_round = [mark.value(values) for values in zip(*(row.values for row in rows), strict=False)]
    return Verdict(mark, mark.value([row.median for row in rows]), min(by_round), max(by_round))


def _both(first: str, second: str, case: str, metric: str) -> tuple[Figure, Figure]:
    """The same figure of two peers."""
    return Figure(first, case, metric), Figure(second, case, metric)


def _compared(scenario: str, other: str, case: str, metric: str) -> Mark:
    """The same figure of the journal mode and of another broker, without a bound."""
    text = f"{metric}, {case}, journal ÷ {other}"
    return Mark(scenario, text, _both("journal", other, case, metric), _ratio)


def _ratio_at_most(scenario: str, other: str, case: str, metric: str, bound: float, note: str = "") -> Mark:
    return replace(_compared(scenario, other, case, metric), direction=AT_MOST, bound=bound, note=note)


def _ratio_at_least(scenario: str, other: str, case: str, metric: str, bound: float) -> Mark:
    return replace(_compared(scenario, other, case, metric), direction=AT_LEAST, bound=bound)


def _large_requests(scenario: str, records: str, rate: float, cpu: float) -> tuple[Mark, Mark]:
    """Plain records in requests of 1 MB: at least so much of Kafka's rate, with at most so much of its CPU time."""
    case = f"{records} records, 1 MB requests"
    return (
        _ratio_at_least(scenario, "kafka", case, "rate", rate),
        _ratio_at_most(scenario, "kafka", case, "broker CPU", cpu),
    )


def _ratio_of_whole_runs(values: Sequence[float]) -> float:
    """`values` are the rates of ten equal tenths of one peer, then those of the other."""
    seconds = [1 / rate if rate else float("inf") for rate in values]
    return sum(seconds[10:]) / sum(seconds[:10])


def _soak_rate() -> Mark:
    """Writing beside compaction, over the whole run."""
    tenths = [f"rate, tenth {number}" for number in range(1, 11)]
    figures = [Figure(peer, "compaction", tenth) for peer in ("journal", "kafka") for tenth in tenths]
    text = "compaction, rate over the whole run, journal ÷ kafka"
    return Mark("soak", text, figures, _ratio_of_whole_runs, AT_LEAST, 0.7, note="by the medians of the tenths")


def _undisturbed(kind: str) -> Mark:
    """The effect of a hung transaction on the journal mode's readers."""
    metric = f"{kind}, beside it / undisturbed"
    return Mark("hung", f"{metric}, journal", [Figure("journal", _HUNG, metric)], _itself, AT_MOST, 1.05)


def _stalled(peer: str) -> Mark:
    """Its effect on readers if records are in the order in which they were sent: they wait until it ends."""
    text = f"longest stall of {peer} while a transaction hangs for 30 s"
    return Mark("hung", text, [Figure(peer, _HUNG, "longest stall")], _itself, AT_LEAST, 30.0, "s")


def _beside_the_connector(case: str, bound: float, note: str = "") -> Mark:
    """The same Spark job on one node, with our format and with Spark's Kafka connector."""
    figures = [Figure("journal", case, f'rate, format("{kind}")') for kind in ("fairlog", "kafka")]
    return Mark("spark", f"rate, {case}, fairlog ÷ kafka connector", figures, _ratio, AT_LEAST, bound, note=note)


def _large_batches() -> Mark:
    """Information: the connector's sink with our client's batches, which is not the default."""
    metrics = ('rate, format("fairlog")', 'rate, format("kafka"), batches of 1 MB')
    figures = [Figure("journal", "sink, 1 KB", metric) for metric in metrics]
    return Mark("spark", "rate, sink, 1 KB, fairlog ÷ kafka connector with batches of 1 MB", figures, _ratio)


def _read_meanwhile(peer: str, kind: str, direction: str, bound: float) -> Mark:
    """What a Spark stream reads while a transaction hangs: everything, or nothing."""
    metric = f'read meanwhile, format("{kind}")'
    return Mark("spark", f"{metric}, {peer}", [Figure(peer, _HUNG, metric)], _itself, direction, bound, "%")


def _two_processes(case: str) -> tuple[Mark, Mark]:
    """What a second process gives to many producers, and what it costs: on two cores the second one decides."""
    text, cpu = f"{case}, journal-2 ÷ journal", "with a core for each, twice the rate is divided by it"
    return (
        Mark(
            "processes", f"rate, {text}", _both("journal-2", "journal", case, "rate"), _ratio, AT_LEAST, 1.6,
            note="asks for a core for each process, and others for the clients",
        ),
        Mark("processes", f"broker CPU, {text}", _both("journal-2", "journal", case, "broker CPU"), _ratio, note=cpu),
    )  # fmt: skip


def _load_alone(case: str) -> Mark:
    """Information: the load against a broker that does next to nothing."""
    return Mark("processes", f"rate, {case}, mock ÷ journal-2", _both("mock", "journal-2", case, "rate"), _ratio)


def _engines_own(case: str) -> Mark:
    """A commit through nodes against the same engine's own transaction, with the same replicas in sync."""
    text, both = f"transaction, {case}, cluster ÷ kafka-3", _both("cluster", "kafka-3", case, "transaction")
    return Mark("cluster", text, both, _ratio, AT_MOST, 1.5)


_SMALL, _EVERY_100_MS, _HUNG = "10 × 2", "commit every 100 ms", "one transaction left open"
_SEEN, _PLAIN, _MANY_IDS = "transaction of 10 × 1 KB to 2 partitions", "plain record of 1 KB", "100,000 ids"
_BACK_OFF = (
    "most of Kafka's figure is librdkafka's back-off of some 20 ms after CONCURRENT_TRANSACTIONS, while the markers of"
    " the transaction before are still being written; the paced line is free of it"
)

MARKS: tuple[Mark, ...] = (
    _ratio_at_most("txn-latency", "markers", _SMALL, "transaction", 0.8),
    _ratio_at_most("txn-latency", "kafka-fsync", _SMALL, "transaction", 0.6, _BACK_OFF),
    _ratio_at_most("txn-latency", "kafka-fsync", _SMALL, "transaction, paced", 0.6),
    _ratio_at_most("txn-latency", "kafka", _SMALL, "transaction", 1.0),
    _compared("txn-latency", "kafka", _SMALL, "transaction, paced"),
    Mark(
        "txn-latency", f"transaction, {_SMALL}, journal − mock",
        _both("journal", "mock", _SMALL, "transaction"), _difference, AT_MOST, 1.0, "ms",
    ),
    Mark(
        "txn-throughput", f"loss, {_EVERY_100_MS}, journal",
        [Figure("journal", _EVERY_100_MS, "loss")], _itself, AT_MOST, 3.0, "%",
    ),
    *_large_requests("produce", "100 B", 1.0, 1.0),
    *_large_requests("produce", "1 KB", 1.0, 1.0),
    *_large_requests("produce", "16 KB", 1.0, 1.0),
    *(replace(mark, text=f"catching up, {mark.text}") for mark in _large_requests("fetch", "16 KB", 0.8, 2.0)),
    _undisturbed("plain record"),
    _undisturbed("transaction"),
    _stalled("markers"),
    _stalled("kafka"),
    Mark(
        "aborts", "fetched per record, journal, 50 % aborted ÷ 0 %",
        [Figure("journal", f"{percent} % aborted", "fetched per record") for percent in (50, 0)],
        _ratio, AT_MOST, 1.01,
    ),
    _ratio_at_most("visible", "kafka", _SEEN, "produced to seen", 1.0),
    _ratio_at_most("visible", "kafka", _SEEN, "commit to seen", 1.0),
    _ratio_at_most("visible", "kafka-fsync", _PLAIN, "produced to answered", 1.0),
    _ratio_at_most("visible", "kafka-fsync", _PLAIN, "produced to seen", 1.0),
    *(
        Mark(
            "soak", f"{kind}, rate of the last tenth against the first, journal",
            [Figure("journal", kind, "last tenth against first")], _itself, AT_LEAST, -10.0, "%",
        )
        for kind in ("deletion", "compaction")
    ),
    _soak_rate(),
    *(_ratio_at_most("soak", "kafka", kind, "record beside it", 3.0) for kind in ("deletion", "compaction")),
    _compared("scale", "kafka", "4 producers", "transaction"),
    _ratio_at_most("scale", "kafka", "16 producers", "transaction", 1.0),
    _compared("scale", "kafka", "64 producers", "transaction"),
    Mark(
        "scale", "transaction, journal, 100,000 ids ÷ 10",
        [Figure("journal", case, "transaction") for case in (_MANY_IDS, "base")], _ratio, AT_MOST, 1.2,
    ),
    Mark(
        "scale", "memory per id, journal, second half of 100,000 ÷ first (linear is 1)",
        [Figure("journal", _MANY_IDS, f"memory per id, {half} half") for half in ("second", "first")],
        _ratio, AT_MOST, 1.2,
    ),
    Mark(
        "processes", "transaction, journal-2, over two shards ÷ within one",
        [Figure("journal-2", case, "transaction") for case in ("over two shards", "within one shard")],
        _ratio, AT_MOST, 1.4,
    ),
    *_two_processes("16 producers within shards"),
    *_two_processes("16 producers"),
    _load_alone("16 producers"),
    _load_alone("64 producers"),
    _engines_own("within one shard"),
    _engines_own("over two shards"),
    Mark(
        "cluster", "from SIGKILL to a commit, cluster",
        [Figure("cluster", "failover", "from SIGKILL to a commit")], _itself, AT_MOST, 5000.0, "ms",
        note="3 s without a heartbeat, and 2 s",
    ),
    Mark(
        "cluster", "longest wait for a commit after SIGTERM, cluster",
        [Figure("cluster", "hand-over", "longest wait for a commit")], _itself, AT_MOST, 1000.0, "ms",
    ),
    _beside_the_connector("source, 1 KB", 1.5),
    _beside_the_connector("sink, 1 KB", 1.0, "ours exactly once, the connector's at least once"),
    _large_batches(),
    Mark(
        "spark", "commit of a micro-batch in Spark's driver, journal",
        [Figure("journal", "micro-batch", "commit in the driver")], _itself, AT_MOST, 20.0, "ms",
    ),
    _read_meanwhile("journal", "fairlog", AT_LEAST, 99.0),
    _read_meanwhile("markers", "kafka", AT_MOST, 1.0),
    _read_meanwhile("kafka", "kafka", AT_MOST, 1.0),
)  # fmt: skip
"""All marks in the order of the report. The names of cases and metrics are those of the scenarios."""
