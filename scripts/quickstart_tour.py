"""The demonstration of the quick start: commits, an abort and a hung transaction, as a plain consumer sees them.

The data are real: four days of departures from New York's airports. Each hour of the schedule is one transaction over
two topics: its departures go to `departures` (a partition per airport), their summary to `hours`. So the details and
the sums agree for every reader at every moment, unless a transaction was torn.

The consumer knows nothing about transactions (isolation.level=read_uncommitted). On a broker that marks aborted records
it would also see the aborted and open records, with holes in between; and a reader with read_committed would stop at
the hung transaction.
"""

from __future__ import annotations

import csv
import json
import shutil
import statistics
import sys
import tempfile
import threading
import time
from collections import defaultdict
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path

from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic  # pyright: ignore[reportPrivateImportUsage]
from node_process import ROOT, NodeDidNotStart, NodeProcess
from rich.console import Console
from rich.table import Table

DATA = ROOT / "examples" / "data" / "departures-nyc-2013-01.csv"
DEPARTURES, HOURS = "departures", "hours"
AIRPORTS = ("EWR", "JFK", "LGA")
LOGS = [*((DEPARTURES, partition) for partition in range(len(AIRPORTS))), (HOURS, 0)]
WAIT_S = 20.0

Log = tuple[str, int]
"""(topic, partition)"""

console = Console(highlight=False)


@dataclass(frozen=True, slots=True)
class Record:
    """A record to send, or one that was seen (then with its offset and time)."""

    log: Log
    key: bytes
    value: bytes
    offset: int = -1
    seen_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Hour:
    """One hour of the schedule: the content of one transaction."""

    name: str
    records: tuple[Record, ...]


@dataclass(frozen=True, slots=True)
class Latency:
    """Times of one commit in seconds: the call, and from its answer until the consumer had the last record."""

    commit_s: float
    seen_s: float


# --- the data ------------------------------------------------------------------------------------


def read_hours() -> list[Hour]:
    with DATA.open(encoding="utf-8", newline="") as file:
        by_hour = groupby(csv.DictReader(file), key=lambda row: row["scheduled_departure"][:13])
        return [_hour(name, list(rows)) for name, rows in by_hour]


def _hour(name: str, rows: Sequence[dict[str, str]], *, minutes_per_unit: int = 1) -> Hour:
    records: list[Record] = []
    delays: list[int] = []
    for row in rows:
        delay = int(row["departure_delay_min"]) * minutes_per_unit if row["departure_delay_min"] else None
        if delay is not None:
            delays.append(delay)
        departure = {
            "scheduled": row["scheduled_departure"],
            "from": row["origin"],
            "to": row["destination"],
            "delay_min": delay,
        }
        key = (row["carrier"] + row["flight"]).encode()
        records.append(Record((DEPARTURES, AIRPORTS.index(row["origin"])), key, json.dumps(departure).encode()))
    mean = round(statistics.fmean(delays), 1) if delays else None
    total = {"hour": name, "departures": len(rows), "cancelled": len(rows) - len(delays), "mean_delay_min": mean}
    return Hour(name, (*records, Record((HOURS, 0), name.encode(), json.dumps(total).encode())))


def with_bad_delays(hour: Hour) -> Hour:
    """The hour as a broken feed delivers it: delays in seconds. Its transaction is aborted."""
    values = [json.loads(record.value) for record in hour.records]
    for value in values:
        for field in ("delay_min", "mean_delay_min"):
            if value.get(field) is not None:
                value[field] *= 60
    return Hour(
        hour.name,
        tuple(
            Record(record.log, record.key, json.dumps(value).encode())
            for record, value in zip(hour.records, values, strict=True)
        ),
    )


# --- the consumer --------------------------------------------------------------------------------


class Tail(threading.Thread):
    """A plain consumer of all four partitions, from the beginning, in a thread of its own."""

    def __init__(self, address: str) -> None:
        super().__init__(name="tail", daemon=True)
        self._consumer = Consumer(
            {
                "bootstrap.servers": address,
                "group.id": "quickstart",
                "enable.auto.commit": False,
                "isolation.level": "read_uncommitted",
                "topic.metadata.refresh.interval.ms": 1000,
            }
        )
        self._consumer.assign([TopicPartition(topic, partition, 0) for topic, partition in LOGS])
        self._changed = threading.Condition()
        self._stopping = False
        self.seen: list[Record] = []

    def run(self) -> None:
        while not self._stopping:
            first = self._consumer.poll(0.1)
            if first is None:
                continue
            now = time.perf_counter()
            messages = [first, *self._consumer.consume(500, 0)]
            records = [
                Record((m.topic() or "", m.partition() or 0), m.key() or b"", m.value() or b"", m.offset() or 0, now)
                for m in messages
                if m.error() is None
            ]
            with self._changed:
                self.seen += records
                self._changed.notify_all()
        self._consumer.close()

    def wait_for(self, count: int) -> float | None:
        """The time at which record number `count` was seen; None if it does not arrive."""
        with self._changed:
            if not self._changed.wait_for(lambda: len(self.seen) >= count, WAIT_S):
                return None
            return self.seen[count - 1].seen_s

    def stop(self) -> None:
        self._stopping = True
        self.join()


def ends(address: str) -> dict[Log, int]:
    """The end of each partition, as the node reports it to a new consumer."""
    consumer = Consumer({"bootstrap.servers": address, "group.id": "quickstart"})
    try:
        return {log: consumer.get_watermark_offsets(TopicPartition(*log), timeout=WAIT_S)[1] for log in LOGS}
    finally:
        consumer.close()


# --- the producers -------------------------------------------------------------------------------


def make_producer(address: str, transactional_id: str, *, timeout_s: int = 60) -> Producer:
    producer = Producer(
        {
            "bootstrap.servers": address,
            "transactional.id": transactional_id,
            "transaction.timeout.ms": timeout_s * 1000,
            "linger.ms": 0,
        }
    )
    producer.init_transactions(WAIT_S)
    return producer


def write(producer: Producer, hour: Hour) -> None:
    producer.begin_transaction()
    for record in hour.records:
        topic, partition = record.log
        producer.produce(topic, record.value, record.key, partition=partition)


class Tour:
    """The steps of the tour, and their results for the comparison at the end."""

    def __init__(self, address: str) -> None:
        self.address = address
        self.tail = Tail(address)
        self.committed: list[Hour] = []
        self.aborted: list[Hour] = []
        self.hung: list[Hour] = []
        self.latencies: dict[str, list[Latency]] = defaultdict(list)

    def commit(self, producer: Producer, hours: Sequence[Hour], act: str) -> None:
        """Commit these hours one after the other, each as soon as the previous one is answered and seen."""
        for hour in hours:
            write(producer, hour)
            asked = time.perf_counter()
            producer.commit_transaction(WAIT_S)
            answered = time.perf_counter()
            self.committed.append(hour)
            seen = self.tail.wait_for(sum(len(each.records) for each in self.committed))
            self.latencies[act].append(Latency(answered - asked, WAIT_S if seen is None else max(0.0, seen - answered)))

    def abort(self, producer: Producer, hour: Hour) -> None:
        write(producer, hour)
        producer.flush(WAIT_S)
        producer.abort_transaction(WAIT_S)
        self.aborted.append(hour)

    def hang(self, producer: Producer, hour: Hour) -> None:
        write(producer, hour)
        producer.flush(WAIT_S)
        self.hung.append(hour)

    # --- the verdict ---

    def faults(self) -> list[str]:
        """All differences between the seen and the committed records."""
        faults: list[str] = []
        expected: dict[Log, list[tuple[bytes, bytes]]] = defaultdict(list)
        seen: dict[Log, list[Record]] = defaultdict(list)
        for hour in self.committed:
            for record in hour.records:
                expected[record.log].append((record.key, record.value))
        for record in self.tail.seen:
            seen[record.log].append(record)
        at_end = ends(self.address)
        for log in LOGS:
            name = f"{log[0]}/{log[1]}"
            if [(record.key, record.value) for record in seen[log]] != expected[log]:
                faults.append(
                    f"{name}: the consumer saw {len(seen[log])} records, not the {len(expected[log])} committed"
                )
            if [record.offset for record in seen[log]] != list(range(len(seen[log]))):
                faults.append(f"{name}: the offsets are not 0, 1, 2, …")
            if at_end[log] != len(expected[log]):
                faults.append(f"{name}: its end is {at_end[log]}, but {len(expected[log])} records were committed")
        return faults


# --- what the reader sees ------------------------------------------------------------------------


def tour(*, keep: bool) -> int:
    """Run the whole tour; 0 if the consumer saw exactly what was committed."""
    started = time.monotonic()
    hours = read_hours()
    departures = sum(len(hour.records) - 1 for hour in hours)
    console.print(
        f"\n[bold]Fairlog quick start[/]: {departures:,} departures from New York, {len(hours)} hours of them"
    )
    console.print(
        "Each hour is one transaction over two topics: its departures, and their summary.\n"
        "A plain consumer, which knows nothing about transactions, tails both.\n"
    )
    directory = Path(tempfile.mkdtemp(prefix="fairlog-quickstart-"))
    # With --keep the console is available, on a free port.
    node = NodeProcess(directory / "data", {"FAIRLOG_ADMIN_LISTEN": "127.0.0.1:0"} if keep else {})
    try:
        with _step("starting a node"):
            node.start()
        verdict = _acts(node, hours)
    except NodeDidNotStart as error:
        console.print(f"[red]{error}[/]", markup=True)
        return 1
    finally:
        leave = keep and node.running
        if not leave:
            node.stop()
            shutil.rmtree(directory, ignore_errors=True)
    console.print(f"[dim]{time.monotonic() - started:.1f} s in all[/]\n")
    _how_to_go_on(node, kept=leave)
    return verdict


def _acts(node: NodeProcess, hours: Sequence[Hour]) -> int:
    admin = AdminClient({"bootstrap.servers": node.address})
    topics = [NewTopic(DEPARTURES, len(AIRPORTS), 1), NewTopic(HOURS, 1, 1)]
    for future in admin.create_topics(topics).values():
        future.result(timeout=WAIT_S)
    show = Tour(node.address)
    show.tail.start()
    feed = make_producer(node.address, "feed")
    other = make_producer(node.address, "hung-feed", timeout_s=900)  # long enough for the reader to look at it
    busiest = max(hours, key=lambda hour: len(hour.records))
    half = next(at for at in range(len(hours) // 2, len(hours)) if len(hours[at].records) > len(busiest.records) // 2)
    with _step(f"{half} hours commit, one transaction each"):
        show.commit(feed, hours[:half], "before")
    with _step("one hour contains bad data (delays in seconds), and its transaction is aborted"):
        show.abort(feed, with_bad_delays(hours[half]))
    with _step("another producer writes an hour to the same partitions, and hangs"):
        show.hang(other, busiest)
    with _step(f"{len(hours) - half} hours commit, while the other transaction hangs"):
        show.commit(feed, hours[half:], "during")
    show.tail.stop()
    faults = show.faults()
    console.print()
    _print_outcomes(show)
    _print_seam(show, hours[half - 1], hours[half])
    _print_latencies(show)
    for fault in faults:
        console.print(f"[bold red]✗[/] {fault}")
    if not faults:
        console.print(
            "[bold green]✓[/] The consumer saw every committed record, in order, at offsets without gaps, "
            "and no others."
        )
    return 1 if faults else 0


@contextmanager
def _step(text: str) -> Generator[None]:
    started = time.monotonic()
    with console.status(text):
        yield
    console.print(f"  [green]•[/] {text} [dim]({time.monotonic() - started:.2f} s)[/]")


def _print_outcomes(show: Tour) -> None:
    table = Table(title="Written and seen, by partition", title_justify="left")
    columns = ("partition", "committed", "aborted", "hung", "seen", "offsets seen")
    for number, column in enumerate(columns):
        table.add_column(column, justify="left" if number in (0, 5) else "right")
    for log in LOGS:
        written = [
            sum(record.log == log for hour in hours for record in hour.records)
            for hours in (show.committed, show.aborted, show.hung)
        ]
        offsets = [record.offset for record in show.tail.seen if record.log == log]
        holes = (offsets[-1] - offsets[0] + 1 - len(offsets)) if offsets else 0
        span = f"{offsets[0]} … {offsets[-1]}, {holes or 'no'} gaps" if offsets else "none"
        name = f"{log[0]}/{log[1]}" + (f" {AIRPORTS[log[1]]}" if log[0] == DEPARTURES else "")
        table.add_row(name, *(f"{count:,}" for count in written), f"{len(offsets):,}", span)
    console.print(table)


def _print_seam(show: Tour, before: Hour, after: Hour) -> None:
    """The place in one partition where the aborted records would be."""
    log = (DEPARTURES, AIRPORTS.index("JFK"))
    seen = [record for record in show.tail.seen if record.log == log]
    first_after = sum(record.log == log for hour in show.committed for record in hour.records if hour.name < after.name)
    taken_back = sum(record.log == log for hour in show.aborted for record in hour.records)
    table = Table(
        title=f"Where the abort was, in {DEPARTURES}/1 JFK ({before.name[-2:]}:00, {after.name[-2:]}:00)",
        title_justify="left",
    )
    table.add_column("offset", justify="right")
    for column in ("flight", "scheduled", "to", "delay"):
        table.add_column(column)
    for record in seen[max(0, first_after - 2) : first_after + 2]:
        departure = json.loads(record.value)
        delay = "cancelled" if departure["delay_min"] is None else f"{departure['delay_min']:+d} min"
        if record.offset == first_after:
            table.add_row("", f"[dim]{taken_back} aborted records: no trace[/]", "", "", "")
        table.add_row(
            str(record.offset), record.key.decode(), departure["scheduled"].replace("T", " "), departure["to"], delay
        )
    console.print(table)


def _print_latencies(show: Tour) -> None:
    table = Table(title="Milliseconds, median (max)", title_justify="left")
    table.add_column("")
    table.add_column("commit until answered", justify="right")
    table.add_column("from the answer until seen", justify="right")
    for act, label in (("before", "no transaction hangs"), ("during", "one hangs in every partition")):
        latencies = show.latencies[act]
        cells = [
            f"{statistics.median(values) * 1e3:.1f} ({max(values) * 1e3:.1f})"
            for values in ([each.commit_s for each in latencies], [each.seen_s for each in latencies])
        ]
        table.add_row(label, *cells)
    console.print(table)


def _how_to_go_on(node: NodeProcess, *, kept: bool) -> None:
    fairlog = Path(sys.executable).with_name("fairlog")
    if not kept:
        console.print("To look around: [bold]python3 scripts/quickstart.py --keep[/]")
        console.print("Your own node:  [bold].venv/bin/fairlog serve --data-dir data --listen 127.0.0.1:9092[/]\n")
        return
    command = _shortest(fairlog)
    console.print(
        f"The node keeps running at [bold]{node.address}[/] (process {node.pid}, data in {node.data_dir}). Try:\n"
    )
    for words in ("topic list", "txn list", "txn describe hung-feed", "txn show feed", "txn abort hung-feed"):
        console.print(f"  {command} {words} --bootstrap {node.address}", soft_wrap=True)
    console.print(f"\nSee the hung transaction in the console: [bold]{node.console}[/]", soft_wrap=True)
    console.print(f"Stop the node with  kill {node.pid}  (its data stays until you delete it)\n")


def _shortest(path: Path) -> str:
    """The path relative to the reader's directory, if it is below."""
    return str(path.relative_to(Path.cwd())) if path.is_relative_to(Path.cwd()) else str(path)
