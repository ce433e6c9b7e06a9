"""results.json: all rows of a run, flat, under a header that says what they were measured on. Pure.

    {"header": {"machine": …, "versions": …, "peers": {name: {description, settings}}, "scenarios": {name: …}},
     "rows": [{scenario, peer, case, metric, unit, median, p99, low, high, rounds, values, p99s}, …]}

A directory holds one machine's results with one set of versions. Scenarios may be measured one by one into it: what is
measured again replaces what was there. A scenario may set brokers otherwise than others do, so each keeps its own
`setups`; the header's `peers` are made of them, and say what a broker was set to in all scenarios alike.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Literal

from benchmarks.rows import Row, row_from_json

FORMAT = 2


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
class PeerSetup:
    """A broker as it was measured."""

    description: str
    settings: Mapping[str, str]


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
    setups: Mapping[str, PeerSetup] = field(default_factory=dict[str, PeerSetup])
    """The peers that took part, in the order of the tables, as this scenario set them up."""


@dataclass(slots=True)
class Results:
    """What results.json holds."""

    machine: Mapping[str, Any]
    versions: Mapping[str, str]
    scenarios: dict[str, ScenarioRun] = field(default_factory=dict[str, ScenarioRun])
    rows: list[Row] = field(default_factory=list[Row])

    @property
    def quick(self) -> bool:
        """Whether any of it may not be quoted."""
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
        """By peer: what this scenario set otherwise than another one of these did. Peers without any are left out."""
        everywhere = self.peers
        own = {
            name: dict(setup.settings.items() - everywhere[name].settings.items()) for name, setup in run.setups.items()
        }
        return {name: dict(sorted(settings.items())) for name, settings in own.items() if settings}

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
