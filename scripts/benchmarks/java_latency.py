"""The case of `txn-latency` with a Java client, in both versions of the transaction protocol.

Java's client uses transaction version 2 (KIP-890) if the broker's feature `transaction.version` is at level 2. Then
Produce adds the partitions, so AddPartitionsToTxn is not needed, and each EndTxn grants the next epoch. Here the same
client uses version 1 and version 2 alternately, with the same broker. It has a producer for each in one virtual
machine: the level is set on the broker before the producer connects, and the producer keeps it. Only the protocol
differs. The turns are short (SLICES of them in a round), so that other load on the machine affects both equally.

The program is java/TransactionLatency.java, compiled against the newest clients from Maven. It gets one command per
line and answers with a line of JSON.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from peers import kafka_artifacts
from peers.interface import Peer
from peers.java_programs import CLIENTS_POM, JavaProgram

from benchmarks.client import ClientProcess
from benchmarks.rows import Measured, Measurements, counted, sampled
from benchmarks.scenario import Bench, NotMeasured

VERSIONS = (1, 2)
"""Levels of `transaction.version`."""
SAVED = "version 2 ÷ version 1"
"""How metrics name the time of version 2 as a share of version 1's."""
SLICES = 7
"""Turns of each version in a round."""
WARM_UP_S = 5.0
"""In each version, before the first round, so that frequent code is compiled, in the client and in Kafka."""
OPTIONS = ("-Xmx512m", "-Dorg.slf4j.simpleLogger.defaultLogLevel=error")
PROGRAM = JavaProgram("clients-4", CLIENTS_POM, "kafka-clients", Path(__file__).resolve().parent / "java")


@dataclass(frozen=True, slots=True)
class Load:
    """The work of a round in each version: amounts and times of `txn-latency`."""

    topic: str
    records: int
    partitions: int
    transactions_min: int
    warm_up_s: float
    seconds: float
    paced_s: float
    pause_s: float


@dataclass(frozen=True, slots=True)
class Ran:
    """The transactions of one run, in order."""

    totals: Sequence[float]
    """Milliseconds from begin to the commit's answer."""
    commits: Sequence[float]
    """Milliseconds of these that the commit alone took."""
    requests: int
    """How many requests the client sent for all of them together."""


def ran(answer: Mapping[str, Any]) -> Ran:
    """The program's answer to `run`. Raises ValueError if the answer is not one."""
    match answer:
        case {"totals": [*totals], "commits": [*commits], "requests": int(requests)} if len(totals) == len(commits) > 0:
            return Ran([float(each) for each in totals], [float(each) for each in commits], requests)
        case _:
            raise ValueError(f"the Java program answered {str(answer)[:200]}")


def in_turns(round_number: int) -> tuple[int, ...]:
    """The versions in this round's order, SLICES of each. The version that begins now is second in the next round."""
    return (VERSIONS if round_number % 2 == 0 else VERSIONS[::-1]) * SLICES


class JavaTransactor:
    """The Java program, in a process of its own; it ends when its input ends, so also when this process ends."""

    def __init__(self, address: str, command: Sequence[str]) -> None:
        self._program = subprocess.Popen([*command, address], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def open(self, version: int) -> None:
        """Set the broker's level, and make a producer that learns it."""
        said = self._ask("open", version)
        if said != {"opened": version}:
            raise ValueError(f"the Java program answered {said}")

    def run(
        self,
        version: int,
        topic: str,
        records: int,
        partitions: int,
        transactions_min: int,
        seconds: float,
        pause_s: float,
    ) -> dict[str, object]:
        """Run transactions with that version's producer, like `txn_latency.Transactor.run`.

        Returns the program's answer, for `ran`.
        """
        return self._ask("run", version, topic, records, partitions, transactions_min, seconds, round(pause_s * 1e3))

    def _ask(self, *words: object) -> dict[str, object]:
        assert self._program.stdin is not None
        assert self._program.stdout is not None
        self._program.stdin.write("\t".join(map(str, words)) + "\n")
        self._program.stdin.flush()
        line = self._program.stdout.readline()
        if not line:
            raise RuntimeError(f"the Java program has ended with status {self._program.wait()}")
        return json.loads(line)


def measure(bench: Bench, peer: Peer, load: Load, round_number: int) -> Measurements:
    """One round: both versions alternately, unpaced and paced. Raises NotMeasured."""
    client = _started(bench, peer)
    if bench.first_time(peer, "java"):
        for version in VERSIONS:
            client.call("open", version=version)
            _run(client, load, version, WARM_UP_S / 10 if bench.quick else WARM_UP_S)
    for version in VERSIONS:
        _run(client, load, version, load.warm_up_s)
    cpu_s: dict[int, float] = dict.fromkeys(VERSIONS, 0.0)
    whole: dict[int, list[Ran]] = {version: [] for version in VERSIONS}
    for version in in_turns(round_number):
        before = peer.cpu_s()
        whole[version].append(_run(client, load, version, load.seconds / SLICES))
        cpu_s[version] += peer.cpu_s() - before
    paced: dict[int, list[Ran]] = {version: [] for version in VERSIONS}
    for version in in_turns(round_number):
        paced[version].append(_run(client, load, version, load.paced_s / SLICES, load.pause_s))
    of_version = {version: _figures(whole[version], paced[version], cpu_s[version]) for version in VERSIONS}
    measured = {
        f"Java {metric}, version {version}": of_version[version][metric]
        for metric in of_version[VERSIONS[0]]
        for version in VERSIONS
    }
    # Of each round by itself: what else the machine does changes from round to round, and hits both of a round.
    for metric in ("transaction", "transaction, paced"):
        first, second = (of_version[version][metric] for version in VERSIONS)
        assert first.p99 is not None
        assert second.p99 is not None
        measured[f"Java {metric}, {SAVED}"] = counted("ratio", second.value / first.value)
        measured[f"Java {metric}, p99, {SAVED}"] = counted("ratio", second.p99 / first.p99)
    return measured


def _started(bench: Bench, peer: Peer) -> ClientProcess:
    """The Java client of this peer. Raises NotMeasured if it is not available."""
    if not peer.durable:
        raise NotMeasured("it has no level of transaction.version that could be set")
    if peer.name == "markers":
        raise NotMeasured("it is the node of journal, and the round trip that is saved is the same")
    if (missing := PROGRAM.tools_missing()) is not None:
        raise NotMeasured(missing)
    try:
        PROGRAM.obtain()
    except kafka_artifacts.Unavailable as unavailable:
        raise NotMeasured(str(unavailable)) from None
    command = PROGRAM.command("TransactionLatency", options=OPTIONS)
    return bench.client(peer, "benchmarks.java_latency:JavaTransactor", command=command)


def _figures(whole: Sequence[Ran], paced: Sequence[Ran], cpu_s: float) -> dict[str, Measured]:
    """One version's figures of a round, from all its turns."""
    totals = [each for ran in whole for each in ran.totals]
    return {
        "transaction": sampled("ms", totals),
        # The first of each turn is left out: it may wait for what came without a pause before it.
        "transaction, paced": sampled("ms", [each for ran in paced for each in ran.totals[1:]]),
        "commit alone": sampled("ms", [each for ran in whole for each in ran.commits]),
        "requests": counted("requests/transaction", sum(ran.requests for ran in whole) / len(totals)),
        "broker CPU": counted("CPU-ms/transaction", cpu_s * 1e3 / len(totals)),
        "transactions measured": counted("transactions", len(totals)),
    }


def _run(client: ClientProcess, load: Load, version: int, seconds: float, pause_s: float = 0.0) -> Ran:
    answer = client.call(
        "run",
        version=version,
        topic=load.topic,
        records=load.records,
        partitions=load.partitions,
        transactions_min=load.transactions_min,
        seconds=seconds,
        pause_s=pause_s,
    )
    return ran(answer)
