"""Verdicts side by side, as a table of markdown: a column for each history, a line for what any of them shows. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence

from tests.history.checker import Verdict
from tests.history.latency import Delays

OUTCOMES = ("ok", "fail", "info")


def as_markdown(verdicts: Sequence[Verdict]) -> str:
    """What was done, what was found wrong, and what was found and is allowed; – where nothing was found."""
    return "".join(f"| {' | '.join(cells)} |\n" for cells in _lines(verdicts))


def _lines(verdicts: Sequence[Verdict]) -> Iterator[Sequence[str]]:
    yield ["", *(_title(verdict) for verdict in verdicts)]
    yield ["---"] * (len(verdicts) + 1)
    yield ["transactions: ok, failed, unknown", *(_transactions(verdict) for verdict in verdicts)]
    yield ["operations in all", *(f"{sum(verdict.operations.values()):,}" for verdict in verdicts)]
    yield ["records sent, and read by all", *(f"{v.records_sent:,}, {v.records_read:,}" for v in verdicts)]
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
