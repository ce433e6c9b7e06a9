"""The interface of a scenario: cases, and a way to measure one of them once on one peer. The runner does the rest.

The runner (runner.py) takes the peers in turns: for each case, for each round, every peer once, and in each round
another peer first. So drift of the machine affects all equally, and a scenario must not depend on which peer was
measured before.

A scenario's client work runs in processes of its own (client.py), never in the runner's: one client process per peer,
kept warm between rounds (`bench.client`), or a new one where a new client is to be measured.

The module of a scenario has the scenario's name (`txn-latency`: txn_latency.py); in it, SCENARIO is the scenario.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import Protocol

from peers.interface import Peer, Tuning

from benchmarks.client import ClientProcess
from benchmarks.rows import Measurements


@dataclass(frozen=True, slots=True)
class Case:
    """One setting of a scenario. Tables show `name`; `parameters` can be written as JSON."""

    name: str
    parameters: Mapping[str, int | float | str | bool] = field(default_factory=dict[str, int | float | str | bool])


class NotMeasured(Exception):
    """Raised by `measure` if a peer cannot do a case. The message says why; the report repeats it."""


class Lifetime(Enum):
    """What starts a scenario's peers, and when."""

    SCENARIO = "the runner starts every peer on an empty directory and warms it up (warming.py), before the first case"
    OWN = "measure() gets a peer that is not started, with an empty directory, and leaves it stopped"


class Scenario(Protocol):
    """One question that the benchmark answers."""

    @property
    def name(self) -> str:
        """The name on the command line: `txn-latency`."""
        ...

    @property
    def question(self) -> str:
        """What is measured and how, for the report: one paragraph with load, warm-up and amounts."""
        ...

    @property
    def lifetime(self) -> Lifetime: ...

    @property
    def tuning(self) -> Tuning:
        """The settings of every peer beyond its defaults; `Tuning()` for none."""
        ...

    def cases(self, quick: bool) -> Sequence[Case]: ...

    def measure(self, bench: Bench, peer: Peer, case: Case, round_number: int) -> Measurements:
        """Measure this case once. `round_number` counts from 0. The first call for a peer creates its topics.

        Raises NotMeasured if this peer cannot do this case; anything else that is raised ends the run.
        """
        ...


@dataclass(slots=True)
class Bench:
    """What a scenario gets from the runner. There is one for each scenario, so names must be unique only within it."""

    quick: bool
    """A tenth of the work, for experiments. The report says that its figures must not be quoted."""
    rounds: int
    directory: Path
    """An empty directory on the measured disk; deleted afterwards."""
    _clients: dict[tuple[str, str], ClientProcess] = field(default_factory=dict[tuple[str, str], ClientProcess])
    _done: set[tuple[str, str]] = field(default_factory=set[tuple[str, str]])

    def amount(self, full: int) -> int:
        """`full`, or a tenth of it (at least 1) in a quick run."""
        return max(1, full // 10) if self.quick else full

    def client(self, peer: Peer, target: str, role: str = "", **arguments: object) -> ClientProcess:
        """This peer's client of that class: started with `arguments` at the first call, and kept for all later ones.

        `target` is "module:Class", such as "benchmarks.transactions:Transactor". `role` distinguishes two clients of
        one class. Closed at the end of the scenario, or earlier by `close_clients`.
        """
        key = (peer.name, f"{target} {role}")
        client = self._clients.get(key)
        if client is None:
            client = self._clients[key] = ClientProcess(target, address=peer.address, **arguments)
        return client

    def close_clients(self, peer: Peer | None = None) -> None:
        """End the client processes of this peer, or of all."""
        for key in [key for key in self._clients if peer is None or key[0] == peer.name]:
            self._clients.pop(key).close()

    def first_time(self, peer: Peer, what: str = "") -> bool:
        """True once for each peer and `what`: for creating topics, and for warming up."""
        key = (peer.name, what)
        if key in self._done:
            return False
        self._done.add(key)
        return True
