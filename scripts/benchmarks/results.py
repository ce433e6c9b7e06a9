"""results.json: all rows of a run, flat, under a header that describes the environment. Pure.

    {"header": {"machine": …, "versions": …, "peers": {name: {description, settings}}, "scenarios": {name: …}},
     "rows": [{scenario, peer, case, metric, unit, median, p99, low, high, rounds, values, p99s}, …]}

A directory holds one machine's results with one set of versions. Scenarios may be measured one by one: a new run of a
scenario replaces its earlier results. A scenario may have other broker settings than the rest, so each keeps its own
`setups`; the header's `peers` are computed from them, and contain the settings common to all scenarios.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Literal

from benchmarks.rows import Row, row_from_json

FORMAT = 2


class OtherRun(Exception):
    """The directory contains results of another machine or of other versions. The message says what differs."""


@dataclass(frozen=True, slots=True)
class Remark:
    """Why something has no row: the peer is not available, it cannot do the case, or it failed."""

    kind: Literal["missing", "not measured", "failed"]
    peer: str
    case: str
    text: str


@dataclass(frozen=True, slots=True)
class PeerSetup:
    """A broker as it was measured."""

    description: str
    settings: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class ScenarioRun:
    """One run of a scenario: everything except the rows."""

    name: str
    question: str
    quick: bool
    rounds: int
    begun: str
    """The time, in UTC: 2026-01-31T12:00:00Z."""
    commit: str
    """The measured source, as `git describe` names it."""
    seconds: float
    load_before: float
    """The machine's load average over the minute before: if it is not small, something else was running."""
    flush_us: float
    """Microseconds of an fdatasync of one changed page, measured just before: no durable commit can be faster."""
    cases: Mapping[str, Mapping[str, int | float | str | bool]]
    """The parameters of each case, by its name, in the order of the tables."""
    remarks: Sequence[Remark] = ()
    idle_cores: Mapping[str, float] = field(default_factory=dict[str, float])
    """How many cores each peer used while others were measured."""
    setups: Mapping[str, PeerSetup] = field(default_factory=dict[str, PeerSetup])
    """The peers that took part, in the order of the tables, as this scenario set them up."""


@dataclass(slots=True)
class Results:
    """The content of results.json."""

    machine: Mapping[str, Any]
    versions: Mapping[str, str]
    scenarios: dict[str, ScenarioRun] = field(default_factory=dict[str, ScenarioRun])
    rows: list[Row] = field(default_factory=list[Row])

    @property
    def quick(self) -> bool:
        """Whether any of its figures must not be quoted."""
        return any(run.quick for run in self.scenarios.values())

    @property
    def peers(self) -> dict[str, PeerSetup]:
        """Every peer that took part somewhere, with the settings that it had in all of its scenarios."""
        found: dict[str, PeerSetup] = {}
        for run in self.scenarios.values():
            for name, setup in run.setups.items():
                common = found.get(name, setup).settings.items() & setup.settings.items()
                settings = {key: value for key, value in setup.settings.items() if (key, value) in common}
                found[name] = PeerSetup(setup.description, settings)
        return found

    def own_settings(self, run: ScenarioRun) -> dict[str, dict[str, str]]:
        """By peer, the settings in which this scenario differs from another one of these. Peers without any are left
        out.
        """
        everywhere = self.peers
        own = {
            name: dict(setup.settings.items() - everywhere[name].settings.items()) for name, setup in run.setups.items()
        }
        return {name: dict(sorted(settings.items())) for name, settings in own.items() if settings}

    def put(self, run: ScenarioRun, rows: Sequence[Row]) -> None:
        """Add a scenario's run, replacing an earlier one."""
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
    """The inverse of `as_json`. Raises OtherRun for another format."""
    header = document["header"]
    if header["format"] != FORMAT:
        raise OtherRun(f"the results that are there have format {header['format']}, and this program writes {FORMAT}")
    scenarios: dict[str, dict[str, Any]] = header["scenarios"]
    runs = (
        replace(
            ScenarioRun(**run),
            remarks=[Remark(**remark) for remark in run["remarks"]],
            setups={name: PeerSetup(**setup) for name, setup in run["setups"].items()},
        )
        for run in scenarios.values()
    )
    return Results(
        machine=header["machine"],
        versions=header["versions"],
        scenarios={run.name: run for run in runs},
        rows=[row_from_json(line) for line in document["rows"]],
    )
