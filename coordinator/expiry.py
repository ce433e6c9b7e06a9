"""When a transaction, or a transactional id, has had its time.

An open transaction has the time-out that its client asked for, within the operator's bounds; then it is ended by force.
Only what another system decides about has none (KIP-939).
An id that nobody asks for is forgotten much later, if nothing of it is open or being copied.

Ages are durations: the wall clock may jump. How old they are when a run begins is told by the wall clock of two
runs. Pure: ages and times come in (`housekeeping.py`, `recovery.py`), and what follows is an event of the machine
(`machine.py`).
"""

from __future__ import annotations

from coordinator import events as ev
from coordinator.lane_ids import is_lane
from coordinator.producer import NO_TIMEOUT_MS, Producer
from coordinator.settings import CoordinatorSettings
from coordinator.states import IdState


def due(
    producer: Producer, open_ms: float, idle_ms: float, settings: CoordinatorSettings, now_ms: int
) -> ev.TimedOut | ev.Idle | None:
    """What time alone brings to this id now.

    `open_ms` is the age of the open transaction, `idle_ms` the time since the last request: durations, since the
    wall clock may jump. `now_ms`, in milliseconds since 1970, is only written down.
    """
    if producer.state is IdState.OPEN:
        timeout_ms = producer.open_timeout_ms
        if timeout_ms == NO_TIMEOUT_MS or open_ms < timeout_ms:
            return None
        return ev.TimedOut(fences(producer.transactional_id, settings), now_ms)
    may_expire = producer.state in (IdState.EMPTY, IdState.MUST_ABORT) and not producer.decided
    if may_expire and idle_ms >= settings.transactional_id_expiration_ms:
        return ev.Idle()
    return None


def fences(transactional_id: str, settings: CoordinatorSettings) -> bool:
    """Whether an end by force bumps the epoch. That of a lane always does: its batch is written by another one then."""
    return settings.fence_on_timeout or is_lane(transactional_id)


def idle_before(producer: Producer, settings: CoordinatorSettings, now_ms: int) -> int:
    """How long the id counts as idle when a run begins, in milliseconds, by the wall clock of two runs.

    That clock may have been wrong in either. So an id always has the longest time-out left in this run, in which a
    client that is alive will ask for something.
    """
    longest = settings.transactional_id_expiration_ms - settings.max_timeout_ms
    return min(max(now_ms - producer.used_ms, 0), longest)


def open_before(producer: Producer, now_ms: int) -> int:
    """How long the open transaction counts as open when a run begins, in milliseconds, by the wall clock of two runs.

    The time while the node was down counts, as in Kafka: a transaction has one deadline, whoever leads it. 0 if nothing
    is open, and if the clock was set back meanwhile.
    """
    return 0 if producer.transaction is None else max(now_ms - producer.transaction.started_ms, 0)
