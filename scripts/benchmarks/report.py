"""The report of a run: report.md with its charts as PNG, and the same content as one report.html.

It is computed only from results.json, so it can be written again. Nothing is left out: missing peers, cases that could
not be measured, and all comparisons with a worse result are listed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

from benchmarks import charts
from benchmarks.comparing import AMOUNTS, BASELINE, OURS, SHARES, Comparison, comparisons, figure, ratio_of
from benchmarks.document import Block, Heading, Paragraph, Picture, Points, Table, as_html, as_markdown
from benchmarks.estimate import duration
from benchmarks.marks import MARKS, Verdict, verdict
from benchmarks.results import Results, ScenarioRun
from benchmarks.rows import Row
from benchmarks.series import unrolled
from benchmarks.warming import WARM_UP_S

TITLE = "Benchmark report"
NOT_FOR_QUOTING = "**A quick run: not for quoting.** The amounts are a tenth, and the warm-up is too short."


def write_report(results: Results, out: Path) -> None:
    """Write report.md, report.html and a PNG for each chart into `out`."""
    blocks = blocks_of(results, charts.draw(unrolled(results), out))
    (out / "report.md").write_text(as_markdown(blocks), encoding="utf-8")
    (out / "report.html").write_text(as_html(TITLE, blocks), encoding="utf-8")


def blocks_of(results: Results, pictures: Sequence[charts.Chart]) -> list[Block]:
    """The whole report."""
    blocks: list[Block] = [Heading(1, TITLE)]
    if results.quick:
        blocks.append(Paragraph(NOT_FOR_QUOTING))
    blocks += [*_reading(), *_index(results), *_setup(results), *_marks(results)]
    results = unrolled(results)
    blocks += _losses(results)
    for run in results.scenarios.values():
        blocks += _scenario(results, run, [chart.picture for chart in pictures if chart.scenario == run.name])
    return blocks


def _reading() -> Iterator[Block]:
    yield Paragraph(
        "A figure is the median over the rounds, with the lowest and the highest round in brackets. Of what is sampled"
        " many times within a round, the round's figure is the median, and *p99* is the median of the rounds' 99th"
        f" percentiles. A ratio is {OURS} ÷ the other peer, of medians; it is bold where {OURS} is worse by more than"
        " 2 %. Peers were measured in turns within each round, after what the one before had left to be written was on"
        f" the disk; each had {WARM_UP_S:.0f} s of transactions and a consumer before its first, unless the scenario"
        " says otherwise. Between machines, compare ratios."
    )


def _index(results: Results) -> Iterator[Block]:
    """The scenarios, each with the run of its figures: the runs may be days apart."""
    yield Heading(2, "Scenarios")
    yield Table(
        ["scenario", "begun (UTC)", "rounds", "peers", "took", "commit", "load before", "fdatasync of a page"],
        [
            [
                f"[{run.name}](#{run.name}){_label(run)}",
                run.begun,
                str(run.rounds),
                ", ".join(run.setups),
                duration(run.seconds),
                f"`{run.commit}`",
                f"{run.load_before:.2f}",
                f"{run.flush_us:.0f} µs",
            ]
            for run in results.scenarios.values()
        ],
    )


def _setup(results: Results) -> Iterator[Block]:
    yield Heading(2, "What was measured, and on what")
    machine, versions = results.machine, results.versions
    yield Points(
        [
            f"Machine: {machine['cores']} cores ({machine['processor']}), {machine['memory_gb']} GB,"
            f" {machine['file_system']}, {machine['system']}",
            "Versions: " + ", ".join(f"{name} {version}" for name, version in versions.items()),
            *(f"*{name}*: {setup.description}. {_settings(setup.settings)}" for name, setup in results.peers.items()),
            *_missing(results),
        ]
    )


def _label(run: ScenarioRun | None) -> str:
    """The note after the name of a scenario whose figures must not be quoted."""
    return " (quick)" if run is not None and run.quick else ""


def _settings(settings: Mapping[str, str]) -> str:
    if not settings:
        return "Nothing is set: its defaults."
    return "Set: " + _listed(settings)


def _listed(settings: Mapping[str, str]) -> str:
    return ", ".join(f"`{name}={value}`" for name, value in settings.items())


def _missing(results: Results) -> Iterator[str]:
    """The peers that were not available, and in which scenarios, if only in some."""
    remarks = [
        (name, remark) for name, run in results.scenarios.items() for remark in run.remarks if remark.kind == "missing"
    ]
    for peer, reason in dict.fromkeys((remark.peer, remark.text) for _, remark in remarks):
        names = [f"`{name}`" for name, remark in remarks if (remark.peer, remark.text) == (peer, reason)]
        where = f" in {', '.join(names)}" if len(names) < len(results.scenarios) else ""
        yield f"*{peer}* is missing{where}: {reason}"


def _marks(results: Results) -> Iterator[Block]:
    yield Heading(2, "The marks")
    yield Table(
        ["mark", "bound", "value", "rounds", "reached"],
        [_mark_line(verdict(mark, results), results) for mark in MARKS],
    )


def _mark_line(found: Verdict, results: Results) -> list[str]:
    mark = found.mark
    run = results.scenarios.get(mark.scenario)
    text = f"`{mark.scenario}`{_label(run)}: {mark.text}" + (f" ({mark.note})" if mark.note else "")
    bound = "none: information" if mark.bound is None else f"{mark.direction} {mark.bound:g} {mark.unit}".strip()
    if found.value is None or found.low is None or found.high is None:
        return [text, bound, "–", found.why, "not measured"]
    spread = f"{figure(found.low)}–{figure(found.high)}"
    reached = {True: "yes", False: "**no**", None: "–"}[found.reached]
    return [text, bound, f"{figure(found.value)} {mark.unit}".strip(), spread, reached]


def _losses(results: Results) -> Iterator[Block]:
    yield Heading(2, f"Where {OURS} loses")
    lost = [each for each in comparisons(results) if each.lost]
    if not lost:
        yield Paragraph("In nothing that was measured here.")
        return
    yield Paragraph(
        f"Against each broker that does the same work, by more than 2 %; {BASELINE} does none and is left out here."
        " *worst* is the case with the largest ratio, and how many times worse it is. Shares (in % or as a ratio) are"
        " of two figures of one broker: they are in the tables beside each other, and here those figures are."
    )
    lines: list[list[str]] = []
    for key in dict.fromkeys((each.row.scenario, each.row.metric, each.other.peer) for each in lost):
        group = [each for each in lost if (each.row.scenario, each.row.metric, each.other.peer) == key]
        worst = max(group, key=lambda each: each.times_worse)
        lines.append([
            f"`{key[0]}`: {key[1]}", key[2], str(len(group)),
            f"{worst.row.case}: {figure(worst.row.median)} against {figure(worst.other.median)} {worst.row.unit}",
            f"× {figure(worst.times_worse)}",
        ])  # fmt: skip
    yield Table(["what", "against", "cases", "worst", "worse"], lines)


def _scenario(results: Results, run: ScenarioRun, pictures: Sequence[Picture]) -> Iterator[Block]:
    yield Heading(2, run.name)
    if run.quick:
        yield Paragraph(NOT_FOR_QUOTING)
    yield Paragraph(run.question)
    points = [
        f"{remark.kind}: {remark.peer}" + (f", {remark.case}" if remark.case else "") + f": {remark.text}"
        for remark in run.remarks
    ]
    points += [
        f"set for this scenario: {name}: {_listed(settings)}" for name, settings in results.own_settings(run).items()
    ]
    if run.idle_cores:
        idle = ", ".join(f"{name} {cores * 100:.1f} %" for name, cores in run.idle_cores.items())
        points.append(f"what each broker took of a core while others were measured: {idle}")
    if points:
        yield Points(points)
    yield from pictures
    rows = results.of(run.name)
    for metric in dict.fromkeys(row.metric for row in rows):
        yield from _metric([row for row in rows if row.metric == metric], list(run.cases))


def _metric(rows: Sequence[Row], cases: Sequence[str]) -> Iterator[Block]:
    """One metric: its figures, and the ratios."""
    peers = list(dict.fromkeys(row.peer for row in rows))
    found = {(row.case, row.peer): row for row in rows}
    cases = [case for case in cases if any((case, peer) in found for peer in peers)]
    yield Heading(3, f"{rows[0].metric}, {rows[0].unit}")
    yield _table("", cases, peers, lambda case, peer: _cell(found.get((case, peer))))
    others = [peer for peer in peers if peer != OURS]
    if OURS in peers and others and rows[0].unit not in SHARES | AMOUNTS:
        yield _table(
            f"{OURS} ÷", cases, others, lambda case, peer: _ratio_cell(found.get((case, OURS)), found.get((case, peer)))
        )
    brokers = [peer for peer in peers if peer != BASELINE]
    if BASELINE in peers and brokers and rows[0].unit == "ms":
        yield _table(
            f"above the floor: − {BASELINE}, ms", cases, brokers,
            lambda case, peer: _above_cell(found.get((case, peer)), found.get((case, BASELINE))),
        )  # fmt: skip


def _table(corner: str, cases: Sequence[str], peers: Sequence[str], cell: Callable[[str, str], str]) -> Table:
    """A row for each case, a column for each peer."""
    return Table([corner, *peers], [[case, *(cell(case, peer) for peer in peers)] for case in cases])


def _cell(row: Row | None) -> str:
    if row is None:
        return "–"
    spread = "" if row.rounds == 1 else f" ({figure(row.low)}–{figure(row.high)})"
    return figure(row.median) + spread + ("" if row.p99 is None else f", p99 {figure(row.p99)}")


def _ratio_cell(row: Row | None, other: Row | None) -> str:
    ratio = ratio_of(row, other) if row is not None and other is not None else None
    if row is None or other is None or ratio is None:
        return "–"
    lost = other.peer != BASELINE and Comparison(row, other).lost
    text = f"{ratio:.2f}" if ratio >= 0.1 else figure(ratio)
    return f"**{text}**" if lost else text


def _above_cell(row: Row | None, floor: Row | None) -> str:
    return "–" if row is None or floor is None else figure(row.median - floor.median)
