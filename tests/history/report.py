"""A verdict as text for people, and as JSON for programs. Pure."""

from __future__ import annotations

import json
from collections.abc import Iterator

from tests.history.anomalies import KINDS, AnomalyKind
from tests.history.checker import Found, Verdict
from tests.history.held import PAIRS_MIN, Beside
from tests.history.latency import Delays


def as_text(verdict: Verdict) -> str:
    """Counts first, then each kind that was found with its meaning, its first examples and their lines."""
    return "\n".join(_text_lines(verdict)) + "\n"


def _text_lines(verdict: Verdict) -> Iterator[str]:
    about = ", ".join(f"{key} {value}" for key, value in verdict.about.items())
    yield f"history: {about}"
    kinds = sorted({kind for kind, _outcome in verdict.operations})
    for kind in kinds:
        by_outcome = {outcome: verdict.operations.get((kind, outcome), 0) for outcome in ("ok", "fail", "info")}
        counts = ", ".join(f"{count} {outcome}" for outcome, count in by_outcome.items() if count)
        yield f"  {kind:<7} {sum(by_outcome.values()):>8}: {counts}"
    if "owners" in verdict.about:
        yield f"  owners  {verdict.about['owners']:>8} changes, {verdict.about.get('handed_over')} in order"
    yield f"  records {verdict.records_sent:>8} sent, {verdict.records_read} read by all consumers together"
    if "owners" in verdict.about:
        yield f"  of these, by consumers that name a rack from copies: {verdict.records_from_copies or 'NONE'}"
    yield f"  from the answer until it is seen: a commit {_delays(verdict.delays.transactions)}"
    yield f"  a plain record {_delays(verdict.delays.plain)}"
    beside = verdict.beside
    yield f"  beside transactions that were left open: {_beside('records of transactions', beside.transactions)}"
    yield f"  {_beside('plain records', beside.plain)}"
    if not verdict.has_finals:
        yield "  no reading to the end: lost writes were not looked for"
    for kind, found in verdict.found.items():
        yield from _kind_lines(kind, found, violation=kind in verdict.violations)
    total = sum(found.count for found in verdict.violations.values())
    yield f"{total} violations" if total else "no violation"


def _delays(delays: Delays) -> str:
    parts = [
        f"{'nothing' if median_us is None else f'{median_us / 1000:.1f} ms'} (median of {count}) {where}"
        for median_us, count, where in (
            (delays.alone_us, delays.alone_count, "alone"),
            (delays.beside_us, delays.beside_count, "beside an open transaction"),
        )
    ]
    ratio = "" if delays.ratio is None else f": {delays.ratio:.1f} times as long"
    return f"{parts[0]}, {parts[1]}{ratio}"


def _beside(what: str, beside: Beside) -> str:
    of_pairs = f"{len(beside.held)} of {len(beside.pairs)} pairs held ({beside.late} of {beside.records} {what} late)"
    return of_pairs if beside.judged else f"{of_pairs}: not judged, that takes {PAIRS_MIN}"


def _kind_lines(kind: AnomalyKind, found: Found, *, violation: bool) -> Iterator[str]:
    word = "VIOLATION" if violation else "allowed in this mode"
    yield f"{kind.name}: {found.count} ({word}): {kind.meaning} [{kind.source}]"
    for anomaly in found.examples:
        where = f"lines {', '.join(map(str, anomaly.lines))}" if len(anomaly.lines) != 1 else f"line {anomaly.lines[0]}"
        yield f"  - {where}: {anomaly.text}" if anomaly.lines else f"  - {anomaly.text}"
    if found.count > len(found.examples):
        yield f"  - and {found.count - len(found.examples)} more"


def as_json(verdict: Verdict) -> str:
    """One object; `anomalies` has every kind of the catalogue, with count 0 where there is none."""
    return (
        json.dumps(
            {
                "valid": verdict.valid,
                "mode": verdict.mode.value,
                "about": dict(verdict.about),
                "operations": {
                    kind: {outcome: count for (of, outcome), count in verdict.operations.items() if of == kind}
                    for kind in sorted({kind for kind, _outcome in verdict.operations})
                },
                "records_sent": verdict.records_sent,
                "records_read": verdict.records_read,
                "records_from_copies": verdict.records_from_copies,
                "read_to_the_end": verdict.has_finals,
                "delay": {
                    what: {
                        "alone_us": delays.alone_us,
                        "alone_count": delays.alone_count,
                        "beside_us": delays.beside_us,
                        "beside_count": delays.beside_count,
                        "ratio": delays.ratio,
                    }
                    for what, delays in (("transactions", verdict.delays.transactions), ("plain", verdict.delays.plain))
                },
                "beside_open": {
                    what: {
                        "judged": beside.judged,
                        "pairs": len(beside.pairs),
                        "pairs_held": len(beside.held),
                        "records": beside.records,
                        "records_late": beside.late,
                    }
                    for what, beside in (("transactions", verdict.beside.transactions), ("plain", verdict.beside.plain))
                },
                "anomalies": {
                    kind.name: {
                        "forbidden": verdict.mode in kind.forbidden,
                        "count": verdict.found[kind].count if kind in verdict.found else 0,
                        "examples": [
                            {"lines": list(anomaly.lines), "text": anomaly.text}
                            for anomaly in (verdict.found[kind].examples if kind in verdict.found else ())
                        ],
                    }
                    for kind in KINDS
                },
            },
            indent=2,
            ensure_ascii=False,
        )
        + "\n"
    )
