"""All checks over one history. Pure: `check` takes a history and answers a verdict.

Which anomalies are violations depends on the history's mode (tests/history/anomalies.py); all are counted, so that the
two modes can be laid side by side.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from tests.history import cycles, held, latency, order_checks, record_checks
from tests.history.anomalies import KINDS, Anomaly, AnomalyKind
from tests.history.held import AllBeside
from tests.history.latency import AllDelays
from tests.history.operations import History, Kind, Mode
from tests.history.versions import versions_of

EXAMPLES = 5


@dataclass(frozen=True, slots=True)
class Found:
    """Anomalies of one kind."""

    count: int
    examples: tuple[Anomaly, ...]
    """The first of them."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """What a history shows."""

    mode: Mode
    about: Mapping[str, object]
    operations: Mapping[tuple[str, str], int]
    """How many, by (kind, outcome)."""
    records_sent: int
    records_read: int
    """By all readers together."""
    records_from_copies: int
    """How many of these came from brokers that do not lead their partitions."""
    found: Mapping[AnomalyKind, Found]
    """By kind, in the catalogue's order; only what was found."""
    delays: AllDelays
    beside: AllBeside
    """What was judged beside transactions that were left open."""
    has_finals: bool
    """Whether partitions were read to their ends; if not, lost writes have not been looked for."""

    @property
    def violations(self) -> Mapping[AnomalyKind, Found]:
        """What this mode forbids."""
        return {kind: found for kind, found in self.found.items() if self.mode in kind.forbidden}

    @property
    def valid(self) -> bool:
        return not self.violations


def check(history: History, *, examples: int = EXAMPLES) -> Verdict:
    """Look for every anomaly of the catalogue; of each kind keep the first `examples`.

    Raises BadHistory if a value was sent twice.
    """
    versions = versions_of(history)
    beside = held.beside_open(versions)
    everything: Iterable[Anomaly] = itertools.chain(
        versions.conflicts,
        record_checks.reads(versions),
        record_checks.losses(versions),
        record_checks.consumption(versions),
        record_checks.ends(versions),
        record_checks.commits(versions),
        record_checks.places(versions),
        order_checks.reading(versions),
        order_checks.sending(versions),
        order_checks.transactions(versions),
        cycles.cycles(versions),
        held.held(beside),
    )
    counts: Counter[AnomalyKind] = Counter()
    kept: dict[AnomalyKind, list[Anomaly]] = {}
    for anomaly in everything:
        counts[anomaly.kind] += 1
        if counts[anomaly.kind] <= examples:
            kept.setdefault(anomaly.kind, []).append(anomaly)
    return Verdict(
        mode=history.mode,
        about=history.about,
        operations=Counter((each.kind.value, each.outcome.value) for each in history.operations),
        records_sent=sum(1 for each in history.operations for _send in each.sends()),
        records_read=sum(len(poll.records) for each in history.operations for poll in each.polls()),
        records_from_copies=sum(each.from_copies for each in history.operations),
        found={kind: Found(counts[kind], tuple(kept.get(kind, ()))) for kind in KINDS if counts[kind]},
        delays=latency.delays(versions),
        beside=beside,
        has_finals=any(each.kind is Kind.FINAL for each in history.operations),
    )
