"""results.json: all rows of a run, flat, under a header that says what they were measured on. Pure.

    {"header": {"machine": …, "versions": …, "peers": {name: {description, settings}}, "scenarios": {name: …}},
     "rows": [{scenario, peer, case, metric, unit, median, p99, low, high, rounds, values, p99s}, …]}

A directory holds one machine's results with one set of versions. Scenarios may be measured one by one into it: what is
measured again replaces what was there.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Literal

from benchmarks.rows import Row, row_from_json

FORMAT = 1


class OtherRun(Exception):
    """The directory holds results of another machine or of other versions. The message says what differs."""


@dataclass(frozen=True, slots=True)
class Remark:
    """Why something has no row: the peer is not there, it cannot do the case at all, or it broke."""

    kind: Literal["missing", "not measured", "failed"]
    peer: str
    case: str
    text: str


@dataclass(frozen=True, slots=True)
class ScenarioRun:
    """One scenario as it was run: everything but the rows."""

    name: str
    question: str
    quick: bool
    rounds: int
    begun: str
    """When, in UTC: 2026-01-31T12:00:00Z."""
    commit: str
    """The source that was measured, as `git describe` names it."""
    seconds: float
    load_before: float
    """The machine's load average over the minute before: more than a little, and something else was running."""
    flush_us: float
    """Microseconds of an fdatasync of one changed page, just before: no durable commit can be faster."""
    cases: Mapping[str, Mapping[str, int | float | str | bool]]
    """The parameters of each case, by its name, in the order of the tables."""
    remarks: Sequence[Remark] = ()
    idle_cores: Mapping[str, float] = field(default_factory=dict[str, float])
    """By peer: how many cores it used while others were measured."""


@dataclass(frozen=True, slots=True)
class PeerSetup:
    """A broker as it was measured."""

    description: str
    settings: Mapping[str, str]


@dataclass(slots=True)
class Results:
    """What results.json holds."""

    machine: Mapping[str, Any]
    versions: Mapping[str, str]
    peers: dict[str, PeerSetup] = field(default_factory=dict[str, PeerSetup])
    scenarios: dict[str, ScenarioRun] = field(default_factory=dict[str, ScenarioRun])
    rows: list[Row] = field(default_factory=list[Row])

    @property
    def quick(self) -> bool:
        """Whether any of it may not be quoted."""
        return any(run.quick for run in self.scenarios.values())

    def put(self, run: ScenarioRun, rows: Sequence[Row]) -> None:
        """Add a scenario's run, in place of an earlier one."""
        self.scenarios[run.name] = run
        self.rows = [row for row in self.rows if row.scenario != run.name] + list(rows)

    def of(self, scenario: str) -> list[Row]:
        return [row for row in self.rows if row.scenario == scenario]

    def find(self, scenario: str, peer: str, case: str, metric: str) -> Row | None:
        wanted = (scenario, peer, case, metric)
        return next((row for row in self.rows if (row.scenario, row.peer, row.case, row.metric) == wanted), None)

    def must_be_like(self, other: Results) -> None:
        """Raise OtherRun unless both were measured on one machine with the same versions."""
        for what, mine, others in (
            ("machine", self.machine, other.machine),
            ("versions", self.versions, other.versions),
        ):
            differing = [name for name in mine if mine[name] != others.get(name)]
            if differing:
                raise OtherRun(f"the results that are there are of another {what}: {', '.join(differing)}")

    def as_json(self) -> dict[str, object]:
        header = {
            "format": FORMAT,
            "machine": self.machine,
            "versions": self.versions,
            "peers": {name: asdict(setup) for name, setup in self.peers.items()},
            "scenarios": {name: asdict(run) for name, run in self.scenarios.items()},
        }
        return {"header": header, "rows": [row.as_json() for row in self.rows]}


def results_from_json(document: Mapping[str, Any]) -> Results:
    """What `as_json` made this of. Raises OtherRun for another format."""
    header = document["header"]
    if header["format"] != FORMAT:
        raise OtherRun(f"the results that are there have format {header['format']}, and this program writes {FORMAT}")
    scenarios: dict[str, dict[str, Any]] = header["scenarios"]
    runs = (
        replace(ScenarioRun(**run), remarks=[Remark(**remark) for remark in run["remarks"]])
        for run in scenarios.values()
    )
    return Results(
        machine=header["machine"],
        versions=header["versions"],
        peers={name: PeerSetup(**setup) for name, setup in header["peers"].items()},
        scenarios={run.name: run for run in runs},
        rows=[row_from_json(line) for line in document["rows"]],
    )
