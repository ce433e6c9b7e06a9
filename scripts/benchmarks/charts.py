"""Charts of the rows, each as a PNG beside the report and as SVG for its HTML page.

There is one chart for each metric of a scenario. The parameters of the cases determine its form:

    one number        lines over it
    and a second      lines over the first, with a panel for each value of the second
    anything else     bars, a group for each case; dots where the axis is logarithmic and a bar's length says nothing

A figure is a median; its whisker extends from the lowest round to the highest. Axes are logarithmic if values span more
than a factor of twenty.
"""

from __future__ import annotations

import io
import re
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter

from benchmarks.comparing import AMOUNTS
from benchmarks.document import Picture
from benchmarks.results import Results, ScenarioRun
from benchmarks.rows import Row

# Told apart also by eyes that do not see all colours (Okabe and Ito), and by their markers.
LOOKS = {
    "journal": ("#0072b2", "o"),
    "markers": ("#e69f00", "s"),
    "kafka": ("#009e73", "^"),
    "kafka-fsync": ("#cc79a7", "v"),
    "mock": ("#888888", "x"),
}
LOG_FROM = 20
PANEL_INCHES = (3.4, 3.2)
BARS_INCHES = (9.0, 3.6)
LABEL_LETTERS = 100
"""How many letters fit next to each other below a bar chart."""

_STYLE: dict[Any, object] = {
    "axes.axisbelow": True,
    "axes.grid": True,
    "axes.spines.right": False,
    "axes.spines.top": False,
    "font.size": 9,
    "grid.alpha": 0.3,
    # Words stay words in the SVG, and the same rows make the same file.
    "svg.fonttype": "none",
    "svg.hashsalt": "fairlog",
}


@dataclass(frozen=True, slots=True)
class Chart:
    """A chart of one metric of a scenario."""

    scenario: str
    picture: Picture


def draw(results: Results, out: Path) -> list[Chart]:
    """Draw a chart of every metric that is compared, and write its PNG, SCENARIO.METRIC.png, into `out`.

    Earlier charts of these scenarios are deleted.
    """
    by_metric: dict[tuple[str, str], list[Row]] = {}
    for row in results.rows:
        if row.unit not in AMOUNTS:
            by_metric.setdefault((row.scenario, row.metric), []).append(row)
    for name in results.scenarios:
        for earlier in out.glob(f"{name}.*.png"):
            earlier.unlink()
    with mpl.rc_context(_STYLE):
        return [_chart(results.scenarios[scenario], rows, out) for (scenario, _), rows in by_metric.items()]


def _chart(run: ScenarioRun, rows: Sequence[Row], out: Path) -> Chart:
    """One metric of one scenario."""
    metric, unit = rows[0].metric, rows[0].unit
    panels = _panels(run, rows)
    drawing = _bars(run, rows) if panels is None else _lines(rows, *panels)
    drawing.suptitle(f"{run.name}: {metric}, {unit}" + (" (quick run: not for quoting)" if run.quick else ""))
    name = f"{run.name}.{re.sub(r'[^a-z0-9]+', '-', metric.lower()).strip('-')}"
    drawing.savefig(out / f"{name}.png", dpi=150, metadata={"Software": None})
    svg = io.BytesIO()
    drawing.savefig(svg, format="svg", metadata={"Date": None})
    return Chart(run.name, Picture(name, f"{run.name}: {metric}, {unit}", svg.getvalue()))


_Panels = dict[str, dict[str, float]]
"""The position of each case on the axis, by the title of its panel."""


def _panels(run: ScenarioRun, rows: Sequence[Row]) -> tuple[str, _Panels] | None:
    """The axis, and the position of each case on it; None if there is no number that tells the cases apart."""
    found = {row.case for row in rows}
    cases = {name: parameters for name, parameters in run.cases.items() if name in found}
    names = list(next(iter(cases.values()), {}))
    if len(names) not in (1, 2) or any(list(parameters) != names for parameters in cases.values()):
        return None
    panels: _Panels = {}
    for case, parameters in cases.items():
        place, *rest = parameters.values()
        if isinstance(place, str | bool):
            return None
        title = rest[0] if rest else ""
        if not isinstance(title, str):
            title = f"{_plain(title)} {_words(names[1])}"
        panels.setdefault(title, {})[case] = float(place)
    if any(len(places) < 2 or len(set(places.values())) < len(places) for places in panels.values()):
        return None
    return _words(names[0]), panels


def _lines(rows: Sequence[Row], axis: str, panels: _Panels) -> Figure:
    drawing = Figure(figsize=(max(6.0, PANEL_INCHES[0] * len(panels)), PANEL_INCHES[1]), layout="constrained")
    axes: list[Axes] = list(drawing.subplots(1, len(panels), sharey=True, squeeze=False)[0])
    for panel, (title, places) in zip(axes, panels.items(), strict=True):
        for peer in dict.fromkeys(row.peer for row in rows):
            points = sorted((places[row.case], row) for row in rows if row.peer == peer and row.case in places)
            colour, marker = LOOKS.get(peer, ("black", "."))
            panel.errorbar(
                [place for place, _ in points],
                [row.median for _, row in points],
                _whiskers([row for _, row in points]),
                label=peer,
                color=colour,
                marker=marker,
                markersize=5,
                capsize=2,
            )
        panel.set_xlabel(axis)
        panel.set_title(title)
        _scale(panel, rows)
        if _spans(list(places.values())):
            panel.set_xscale("log")
            panel.set_xticks(sorted(places.values()), [_plain(place) for place in sorted(places.values())])
            panel.minorticks_off()
    _legend(drawing, axes[0])
    return drawing


def _bars(run: ScenarioRun, rows: Sequence[Row]) -> Figure:
    drawing = Figure(figsize=BARS_INCHES, layout="constrained")
    panel: Axes = drawing.subplots()
    peers = list(dict.fromkeys(row.peer for row in rows))
    cases = [case for case in run.cases if any(row.case == case for row in rows)]
    width = 0.8 / len(peers)
    logarithmic = _spans([row.median for row in rows])
    for number, peer in enumerate(peers):
        own = [row for row in rows if row.peer == peer]
        places = [cases.index(row.case) + (number - (len(peers) - 1) / 2) * width for row in own]
        colour, marker = LOOKS.get(peer, ("black", "."))
        heights, whiskers = [row.median for row in own], _whiskers(own)
        if logarithmic:
            panel.errorbar(places, heights, whiskers, label=peer, color=colour, fmt=marker, capsize=2)
        else:
            panel.bar(places, heights, width * 0.9, yerr=whiskers, capsize=2, label=peer, color=colour)
    panel.set_xticks(range(len(cases)), [textwrap.fill(case, max(8, LABEL_LETTERS // len(cases))) for case in cases])
    panel.set_xlim(-0.5, len(cases) - 0.5)
    panel.grid(visible=False, axis="x")
    _scale(panel, rows)
    _legend(drawing, panel)
    return drawing


def _whiskers(rows: Sequence[Row]) -> tuple[list[float], list[float]]:
    return [row.median - row.low for row in rows], [row.high - row.median for row in rows]


def _scale(panel: Axes, rows: Sequence[Row]) -> None:
    if _spans([row.median for row in rows]):
        panel.set_yscale("log")
        panel.yaxis.set_major_formatter(FuncFormatter(lambda value, _: _plain(value)))
    elif all(row.low >= 0 for row in rows):
        panel.set_ylim(bottom=0)


def _spans(values: Sequence[float]) -> bool:
    return min(values) > 0 and max(values) / min(values) > LOG_FROM


def _legend(drawing: Figure, panel: Axes) -> None:
    handles, labels = panel.get_legend_handles_labels()
    drawing.legend(handles, labels, loc="outside lower center", ncols=len(labels), frameon=False)


def _plain(value: float) -> str:
    """A number in the usual form: 0.05, 2.5, 1,000,000."""
    return f"{value:,.0f}" if value >= 1000 else f"{value:g}"


def _words(name: str) -> str:
    return name.replace("_", " ")
