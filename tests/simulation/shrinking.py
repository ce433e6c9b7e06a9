"""A failing run made smaller, as long as it breaks the same invariant.

Tried, again and again until nothing helps: fewer deaths, fewer clients, fewer logs, a kinder network, a kinder disk,
threads that do not pause. As everything random has its own stream, what is left goes on much as before; where the
schedule matters, a few other seeds of the same plan are tried too.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from tests.simulation.plan import Plan
from tests.simulation.simulation import Outcome, run

RUNS_MAX = 300


def shrink(failed: Outcome, *, runs_max: int = RUNS_MAX) -> Outcome:
    """The shortest run that was found, `failed` itself at worst."""
    assert failed.violation is not None
    best = failed
    left = runs_max
    improved = True
    while improved and left > 0:
        improved = False
        for plan in _smaller(best.plan):
            for variant in (plan, *(replace(plan, seed=f"{failed.plan.seed}+{salt}") for salt in range(2))):
                left -= 1
                outcome = run(variant)
                if (
                    outcome.violation is not None
                    and outcome.violation.invariant == failed.violation.invariant
                    and _size(outcome) < _size(best)
                ):
                    best, improved = outcome, True
                    break
                if left <= 0:
                    return best
            if improved:
                break
    return best


def _size(outcome: Outcome) -> tuple[int, int]:
    """Of two runs the one with the shorter transcript is the smaller one."""
    plan = outcome.plan
    clients = sum(getattr(plan, field) for field in _CLIENTS)
    return len(outcome.transcript), clients + len(plan.deaths)


_CLIENTS = ("transactional", "rivals", "plain", "readers", "sinks", "second_drivers", "patient", "cutters", "deleters")


def _smaller(plan: Plan) -> Iterator[Plan]:
    for index in range(len(plan.deaths)):
        yield replace(plan, deaths=plan.deaths[:index] + plan.deaths[index + 1 :])
    for field in (*_CLIENTS, "markers", "logs"):
        value = getattr(plan, field)
        least = 1 if field == "logs" else 0
        for fewer in {least, value - 1}:
            if least <= fewer < value:
                yield replace(plan, **{field: fewer})
    kinder = "lost_requests", "late_requests", "write_error", "sync_error", "commit_error", "disk_full"
    of_shards = "lost_messages", "late_messages", "doubled_messages", "cut_ways", "suspensions"
    of_processes = "long_suspension_s", "clock_jumps", "clocks_apart_s", "full_s"
    of_replicas = "hasty", "lost_disks", "comes_late_s", "synced_by", "changes"
    for field in (*kinder, *of_shards, *of_processes, *of_replicas, "pause_probability"):
        if value := getattr(plan, field):
            yield replace(plan, **{field: type(value)(0)})
    if plan.ring:
        yield replace(plan, ring=False)
    for index, death in enumerate(plan.deaths):
        shorter = replace(death, after_s=death.after_s / 2)
        yield replace(plan, deaths=(*plan.deaths[:index], shorter, *plan.deaths[index + 1 :]))
