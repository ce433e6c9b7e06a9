"""Verdicts side by side, as a table of markdown: a column for each history, a line for what any of them shows; or all
together, in one column. Pure.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

from tests.history.checker import Verdict
from tests.history.latency import Delays

OUTCOMES = ("ok", "fail", "info")


def as_markdown(verdicts: Sequence[Verdict]) -> str:
    """What was done, what was found wrong, and what was found and is allowed; – where nothing was found."""
    return "".join(f"| {' | '.join(cells)} |\n" for cells in _lines(verdicts))


def as_sums(verdicts: Sequence[Verdict]) -> str:
    """What was done in all of them together, and how many violations there are of each kind."""
    return "".join(f"| {what} | {count} |\n" for what, count in _sums(verdicts))


def _sums(verdicts: Sequence[Verdict]) -> Iterator[tuple[str, str]]:
    operations = sum((Counter(verdict.operations) for verdict in verdicts), Counter[tuple[str, str]]())
    yield "histories", f"{len(verdicts):,}"
    yield "---", "---:"
    yield "seconds under faults", f"{sum(float(str(verdict.about.get('seconds', 0))) for verdict in verdicts):,.0f}"
    yield "operations in all", f"**{operations.total():,}**"
    for kind in sorted({kind for kind, _ in operations}):
        yield f"{kind}: ok, failed, unknown", ", ".join(f"{operations[kind, outcome]:,}" for outcome in OUTCOMES)
    yield "records sent", f"{sum(verdict.records_sent for verdict in verdicts):,}"
    yield "records read, by all", f"{sum(verdict.records_read for verdict in verdicts):,}"
    if any("owners" in verdict.about for verdict in verdicts):
        yield "of these, from copies", f"{sum(verdict.records_from_copies for verdict in verdicts):,}"
        for what, name in (("changes of owner", "owners"), ("of these, handed over in order", "handed_over")):
            yield what, f"{sum(int(str(verdict.about.get(name, 0))) for verdict in verdicts):,}"
    faults: Counter[str] = Counter()
    for verdict in verdicts:
        faults.update({what: int(count) for what, count in _faults(verdict).items()})
    yield from ((what, f"{count:,}") for what, count in faults.items())
    violations: Counter[str] = Counter()
    for verdict in verdicts:
        violations.update({kind.name: found.count for kind, found in verdict.violations.items()})
    yield "violations", f"**{violations.total():,}**"
    yield from ((name, f"{count:,}, **forbidden**") for name, count in violations.items())


def _lines(verdicts: Sequence[Verdict]) -> Iterator[Sequence[str]]:
    yield ["", *(_title(verdict) for verdict in verdicts)]
    yield ["---"] * (len(verdicts) + 1)
    yield ["transactions: ok, failed, unknown", *(_transactions(verdict) for verdict in verdicts)]
    yield ["operations in all", *(f"{sum(verdict.operations.values()):,}" for verdict in verdicts)]
    yield ["records sent, and read by all", *(f"{v.records_sent:,}, {v.records_read:,}" for v in verdicts)]
    if any("owners" in verdict.about for verdict in verdicts):
        yield ["of these, from copies", *(f"{v.records_from_copies:,}" for v in verdicts)]
        yield ["changes of owner", *(str(v.about.get("owners", "–")) for v in verdicts)]
        yield ["of these, handed over in order", *(str(v.about.get("handed_over", "–")) for v in verdicts)]
    faults = [_faults(verdict) for verdict in verdicts]
    for what in dict.fromkeys(what for each in faults for what in each):
        yield [what, *(each.get(what, "–") for each in faults)]
    where = "median: alone, beside an open transaction"
    yield [f"a commit is seen after its answer, {where}", *(_delays(v.delays.transactions) for v in verdicts)]
    yield [f"a plain record is, {where}", *(_delays(v.delays.plain) for v in verdicts)]
    yield [
        "held by an open transaction, in pairs of it and a partition: commits, plain records",
        *(_beside(v) for v in verdicts),
    ]
    yield ["violations", *(str(sum(found.count for found in v.violations.values())) for v in verdicts)]
    kinds = dict.fromkeys(kind for verdict in verdicts for kind in verdict.found)
    for kind in kinds:
        yield [kind.name, *(_count(verdict, kind.name) for verdict in verdicts)]


def _faults(verdict: Verdict) -> Mapping[str, str]:
    """How often each was done, as the history's first line says it: "3 × this, 1 × that"."""
    said = re.findall(r"(\d+) × (.*?)(?=, \d+ × |$)", str(verdict.about.get("faults", "")))
    return {what: count for count, what in said}


def _title(verdict: Verdict) -> str:
    broker = str(verdict.about.get("broker", f"{verdict.mode.value} mode"))
    return f"{broker}, seed {verdict.about['seed']}" if "seed" in verdict.about else broker


def _transactions(verdict: Verdict) -> str:
    return ", ".join(f"{verdict.operations.get(('txn', outcome), 0):,}" for outcome in OUTCOMES)


def _delays(delays: Delays) -> str:
    return ", ".join("–" if each is None else f"{each / 1000:,.1f} ms" for each in (delays.alone_us, delays.beside_us))


def _beside(verdict: Verdict) -> str:
    both = (verdict.beside.transactions, verdict.beside.plain)
    return ", ".join(f"{len(each.held)} of {len(each.pairs)}" if each.judged else "–" for each in both)


def _count(verdict: Verdict, name: str) -> str:
    for kind, found in verdict.found.items():
        if kind.name == name:
            return f"{found.count:,}, **forbidden**" if kind in verdict.violations else f"{found.count:,}, allowed"
    return "–"
