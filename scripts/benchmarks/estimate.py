"""How long a scenario will take, before it starts. Pure.

A turn is one measurement of one case on one peer, with the work before and after it. Its time on two cores was derived
from the amounts of each scenario, for brokers about as fast as the measured ones: it is for planning, not for judging.
Data that are made once for all runs (finished.py) are not included; that step prints its own estimate.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from benchmarks.comparing import BASELINE
from benchmarks.warming import warm_up_s

START_S = 4.0
QUICK_SHARE, QUICK_TURN_S = 0.1, 0.5
"""A quick run does a tenth of the work, but still has to wait for answers and processes."""


@dataclass(frozen=True, slots=True)
class Cost:
    """The seconds of one scenario at full size."""

    turn_s: float
    once_s: float = 0.0
    """For each peer, besides starting it and warming it up."""
    with_mock: bool = True
    """Whether the mock has turns, too."""
    warmed: bool = True
    """Whether the runner starts the peers; otherwise their start is part of the turn."""


COSTS = {
    "txn-latency": Cost(1.3, 9.0),
    "txn-throughput": Cost(4.5, 6.5),
    "visible": Cost(2.2, 4.0, with_mock=False),
    "hung": Cost(42.0, 5.0, with_mock=False),
    "aborts": Cost(1.8, 30.0, with_mock=False),
    "produce": Cost(2.2, 6.0),
    "fetch": Cost(2.5, 20.0, with_mock=False),
    "scale": Cost(4.5, 500.0),
    "soak": Cost(45.0, with_mock=False, warmed=False),
    "recovery": Cost(22.0, 20.0, with_mock=False),
    "recovery-full": Cost(35.0, 60.0, with_mock=False),
    "offsets": Cost(4.8, 5.0),
    "processes": Cost(4.5, 8.0),
    "cluster": Cost(15.0, 40.0, with_mock=False),
    "streams": Cost(60.0, with_mock=False, warmed=False),
    "spark": Cost(35.0, 60.0, with_mock=False),
    "tls": Cost(7.0, 20.0, with_mock=False),
}
"""By scenario."""


def estimate_s(scenario: str, peers: Sequence[str], *, cases: int, rounds: int, quick: bool) -> float:
    """Seconds that the scenario will take on these peers. Raises KeyError for a scenario that is not in COSTS."""
    cost = COSTS[scenario]
    brokers = [peer for peer in peers if peer != BASELINE]
    turn_s, once_s = cost.turn_s, cost.once_s
    if quick:
        turn_s, once_s = turn_s * QUICK_SHARE + QUICK_TURN_S, once_s * QUICK_SHARE
    before_s = once_s + (START_S + warm_up_s(quick) if cost.warmed else 0.0)
    return before_s * len(brokers) + turn_s * cases * rounds * len(peers if cost.with_mock else brokers)


def duration(seconds: float) -> str:
    """In the usual form: 40 s, 8 min, 2.5 h."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"
