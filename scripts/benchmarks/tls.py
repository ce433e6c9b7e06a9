"""`tls`: what TLS costs a broker, and what asking an authorizer does.

Each peer has two listeners, one with TLS. Both halves of a case run in the same round, one right after the other,
alternately first, against one process: so what TLS costs is a ratio of two neighbouring measurements. A client with TLS
shows a certificate. To `journal-acls` it is somebody who has ACLs, and one without TLS an operator, who is not looked
up; `journal-tls` has no authorizer. So what authorization costs is the difference of the broker's CPU of these two, in
the halves with TLS.

Connections are made before what is measured: a handshake is paid once.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace

from peers.interface import Peer, SecuredPeer, Tuning

from benchmarks.client import ClientProcess
from benchmarks.fetch import LARGE_FETCH_BYTES, READING_S, SMALL_FETCH_BYTES
from benchmarks.plain_load import LARGE_REQUEST_BYTES, LINGER_MS, PARTITIONS, SHAPES, Shape, records_of, write
from benchmarks.rows import Measurements, counted, sampled
from benchmarks.scenario import Bench, Case, Lifetime, NotMeasured, Scenario

HALVES = OPEN, TLS = "without TLS", "with TLS"
MEASURED = (SHAPES[1], SHAPES[4])
"""Records of 1 KB, in requests of 16 KB and of 1 MB."""
WARM_UP_SHARE = 10
RECORDS, TOUCHED = 10, 2
TRANSACTIONS_S, TRANSACTIONS_WARM_UP_S = 3.0, 0.5
PRODUCE, FETCH, TRANSACTIONS = "produce", "fetch", f"transactions of {RECORDS} × {TOUCHED}"
TOPIC = "transactions"


class Tls:
    """Writing and reading of two shapes, and transactions, each in both halves."""

    name = "tls"
    question = (
        "What does TLS cost, and what does asking an authorizer? Each broker has a listener without TLS and one with it"
        " (TLS 1.3, keys of P-256, clients with certificates). Both halves of a case are measured in the same round,"
        " one right after the other, in turns first: *loss* compares them. *produce*: one idempotent producer,"
        f" acks=all, linger.ms={LINGER_MS}, {PARTITIONS} partitions, {MEASURED[0].total_bytes // 1_000_000} MB in"
        f" requests of 16 KB or {MEASURED[1].total_bytes // 1_000_000} MB in requests of 1 MB, after a tenth as much."
        f" *fetch*: as much, from the page cache, in whole passes until {READING_S} s have gone. *transactions*: one"
        f" producer, one after the other, {RECORDS} × 1 KB to {TOUCHED} partitions, linger.ms 0, for"
        f" {TRANSACTIONS_S:.0f} s after {TRANSACTIONS_WARM_UP_S} s. *broker CPU* is that of the whole process."
        " Handshakes are not in it. To *journal-acls* a client with TLS is a user with ACLs, among those of 200 others,"
        " and one without TLS an operator; *journal-tls* asks nobody: compare their broker CPU with TLS."
    )
    lifetime = Lifetime.SCENARIO
    tuning = Tuning()

    def cases(self, quick: bool) -> Sequence[Case]:  # noqa: ARG002
        shapes = [
            Case(f"{what}, {shape.name}", {"request_bytes": shape.request_bytes})
            for what in (PRODUCE, FETCH)
            for shape in MEASURED
        ]
        return [*shapes, Case(TRANSACTIONS, {"records": RECORDS, "partitions": TOUCHED})]

    def measure(self, bench: Bench, peer: Peer, case: Case, round_number: int) -> Measurements:
        secured = peer.secured if isinstance(peer, SecuredPeer) else None
        if secured is None:
            raise NotMeasured("it has no listener with TLS: name journal-tls, journal-acls or kafka-tls")
        found: dict[str, Measurements] = {}
        for half in HALVES if round_number % 2 == 0 else HALVES[::-1]:
            client = secured if half == TLS else {}
            if case.name == TRANSACTIONS:
                found[half] = _transactions(bench, peer, half, client)
            else:
                (shape,) = (each for each in MEASURED if each.request_bytes == case.parameters["request_bytes"])
                shape = replace(shape, total_bytes=bench.amount(shape.total_bytes))
                measure = _produce if case.name.startswith(PRODUCE) else _fetch
                found[half] = measure(bench, peer, half, client, shape, round_number)
        rate = "transactions" if case.name == TRANSACTIONS else "rate"
        loss = 1 - found[TLS][rate].value / found[OPEN][rate].value
        rows = {f"{metric}, {half}": each for half in HALVES for metric, each in found[half].items()}
        return {"loss": counted("%", loss * 100), **rows}


def _client(
    bench: Bench, peer: Peer, target: str, half: str, client: Mapping[str, str], **more: object
) -> ClientProcess:
    return bench.client(peer, target, half, client=dict(client), **more)


def _produce(
    bench: Bench, peer: Peer, half: str, client: Mapping[str, str], shape: Shape, round_number: int
) -> Measurements:
    topic = f"produce-{shape.request_bytes}-{HALVES.index(half)}-{round_number}"
    peer.create_topics([topic], PARTITIONS)
    sender = _client(bench, peer, "benchmarks.plain_load:PlainSender", half, client)
    sender.call("open", shape=asdict(shape))
    before = replace(shape, total_bytes=shape.total_bytes // WARM_UP_SHARE)
    sender.call("send", topic=topic, shape=asdict(before))
    cpu_before = peer.cpu_s()
    sent = sender.call("send", topic=topic, shape=asdict(shape))
    cpu_s = peer.cpu_s() - cpu_before
    sender.call("close")
    return _moved(sent["records"] * shape.record_bytes, sent["seconds"], cpu_s, sent["client_cpu_s"])


def _fetch(
    bench: Bench, peer: Peer, half: str, client: Mapping[str, str], shape: Shape, round_number: int
) -> Measurements:
    topic = f"fetch-{shape.request_bytes}"
    if bench.first_time(peer, topic):
        peer.create_topics([topic], PARTITIONS)
        write(bench, peer, topic, shape)
    reader = _client(bench, peer, "benchmarks.catch_up:CatchUpReader", half, client)
    large = shape.request_bytes == LARGE_REQUEST_BYTES
    reader.call("open", isolation="read_uncommitted", fetch_bytes=LARGE_FETCH_BYTES if large else SMALL_FETCH_BYTES)
    what = {"topic": topic, "partitions": PARTITIONS, "records": records_of(shape)}
    seconds = READING_S / 10 if bench.quick else READING_S
    if round_number == 0:
        reader.call("read", **what, seconds_min=seconds)
    cpu_before = peer.cpu_s()
    read = reader.call("read", **what, seconds_min=seconds)
    cpu_s = peer.cpu_s() - cpu_before
    reader.call("close")
    return _moved(read["bytes"], read["seconds"], cpu_s, read["client_cpu_s"])


def _moved(value_bytes: float, seconds: float, cpu_s: float, client_cpu_s: float) -> Measurements:
    return {
        "rate": counted("MB/s", value_bytes / 1e6 / seconds),
        "broker CPU": counted("CPU-s/GB", cpu_s / (value_bytes / 1e9)),
        "client CPU": counted("CPU-s/GB", client_cpu_s / (value_bytes / 1e9)),
    }


def _transactions(bench: Bench, peer: Peer, half: str, client: Mapping[str, str]) -> Measurements:
    if bench.first_time(peer, TOPIC):
        peer.create_topics([TOPIC], TOUCHED)
    transactional_id = half.replace(" ", "-")
    target = "benchmarks.txn_latency:Transactor"
    writer = _client(bench, peer, target, half, client, transactional_id=transactional_id)
    shorter = 0.1 if bench.quick else 1.0
    what = {"topic": TOPIC, "records": RECORDS, "partitions": TOUCHED}
    writer.call("run", **what, seconds=TRANSACTIONS_WARM_UP_S * shorter)
    cpu_before = peer.cpu_s()
    totals, _ = writer.call("run", **what, seconds=TRANSACTIONS_S * shorter)
    cpu_ms = (peer.cpu_s() - cpu_before) * 1e3
    return {
        "transactions": counted("transactions/s", len(totals) / (sum(totals) / 1e3)),
        "transaction": sampled("ms", totals),
        "broker CPU": counted("CPU-ms/transaction", cpu_ms / len(totals)),
    }


SCENARIO: Scenario = Tls()
