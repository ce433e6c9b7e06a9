"""When a process is started again, and how all are stopped: `step(state, event) -> (state, effects)`. Pure.

A process:

    STARTING ──Ready──▶ READY
        │                 │
        └──────Ended──────┴──▶ PAUSED ──PauseOver──▶ STARTING
                          └──▶ GONE, once all are being stopped

    before all have been ready once    one that ends stops the others: a start that does not succeed is refused whole
    from then on                       one that ends is started again; the others go on, whatever becomes of it
    told to stop                       all are asked to end, and killed when their time is over, or when told again

The pauses before a process is started again grow while it keeps ending soon: 0, 0.5, 1, 2, 4, 8, 16, 30, 30 … seconds.
One that has lived for a minute is taken for well.

Invariants:

1. A process is started only when the one before it, of the same number, has ended.
2. After `Finish` there is no process.
"""

from __future__ import annotations

import dataclasses
import signal
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum, auto

LIFE_OF_THE_WELL_S = 60.0
_PAUSE_S = 0.5
_PAUSE_MAX_S = 30.0


class Phase(Enum):
    """Where a process is in its life."""

    STARTING = auto()
    READY = auto()
    PAUSED = auto()
    """It has ended, and waits to be started again."""
    GONE = auto()
    """It has ended for good."""


ALIVE = frozenset({Phase.STARTING, Phase.READY})


@dataclass(frozen=True, slots=True)
class Process:
    """One of the processes, over all its lives."""

    phase: Phase
    started_s: float
    """When it was started last."""
    restarts: int = 0
    """How often in a row it was started again because it had ended soon."""


@dataclass(frozen=True, slots=True)
class Failure:
    """The process because of which a start was refused."""

    process: int
    code: int


@dataclass(frozen=True, slots=True)
class State:
    """What the supervisor knows."""

    processes: tuple[Process, ...]
    serving: bool = False
    """All have been ready once."""
    stopping: bool = False
    well: bool = True
    """All that ended after they were told to did so in good order."""
    failure: Failure | None = None


# --- events: what happened -----------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Ready:
    """A process accepts clients."""

    process: int


@dataclass(frozen=True, slots=True)
class Ended:
    """A process is no more. `code` is as `subprocess` has it: that of its exit, or a signal's, negative."""

    process: int
    code: int
    now_s: float


@dataclass(frozen=True, slots=True)
class PauseOver:
    """It is time to start a process again."""

    process: int
    now_s: float


@dataclass(frozen=True, slots=True)
class StopAsked:
    """A signal tells the supervisor to stop."""


@dataclass(frozen=True, slots=True)
class GraceOver:
    """The time for stopping is over."""


Event = Ready | Ended | PauseOver | StopAsked | GraceOver


# --- effects: what is to be done, in this order --------------------------------------------------


@dataclass(frozen=True, slots=True)
class Start:
    """Start a process."""

    process: int


@dataclass(frozen=True, slots=True)
class Announce:
    """Say that all are ready."""


@dataclass(frozen=True, slots=True)
class Report:
    """Say that a process has ended, and in how many seconds it is started again; None: not at all."""

    process: int
    code: int
    pause_s: float | None


@dataclass(frozen=True, slots=True)
class Pause:
    """Make a `PauseOver` in so many seconds."""

    process: int
    seconds: float


@dataclass(frozen=True, slots=True)
class Terminate:
    """Ask a process to end in good order."""

    process: int


@dataclass(frozen=True, slots=True)
class Kill:
    """End a process at once."""

    process: int


@dataclass(frozen=True, slots=True)
class GiveTime:
    """Make a `GraceOver` when the time for stopping is over."""


@dataclass(frozen=True, slots=True)
class Finish:
    """All processes are gone: end."""

    well: bool
    failure: Failure | None


Effect = Start | Announce | Report | Pause | Terminate | Kill | GiveTime | Finish


def begin(count: int, now_s: float) -> tuple[State, Sequence[Effect]]:
    """Start so many processes."""
    return State((Process(Phase.STARTING, now_s),) * count), [Start(number) for number in range(count)]


def step(state: State, event: Event) -> tuple[State, Sequence[Effect]]:
    """What becomes of the state when something happens, and what is to be done."""
    match event:
        case Ready():
            return _ready(state, event.process)
        case Ended():
            if state.stopping:
                return _ended_when_stopping(state, event)
            return _ended_unasked(state, event) if state.serving else _ended_at_the_start(state, event)
        case PauseOver():
            if state.processes[event.process].phase is not Phase.PAUSED:
                return state, ()
            return _with(state, event.process, phase=Phase.STARTING, started_s=event.now_s), [Start(event.process)]
        case StopAsked():
            return _killed(state) if state.stopping else _stop(state)
        case GraceOver():
            return _killed(state)


def _ready(state: State, process: int) -> tuple[State, Sequence[Effect]]:
    state = _with(state, process, phase=Phase.READY)
    if state.serving or state.stopping or any(each.phase is not Phase.READY for each in state.processes):
        return state, ()
    return dataclasses.replace(state, serving=True), [Announce()]


def _ended_at_the_start(state: State, event: Ended) -> tuple[State, Sequence[Effect]]:
    state = _with(state, event.process, phase=Phase.GONE)
    state = dataclasses.replace(state, failure=Failure(event.process, event.code))
    state, effects = _stop(state)
    return state, [Report(event.process, event.code, None), *effects]


def _ended_unasked(state: State, event: Ended) -> tuple[State, Sequence[Effect]]:
    process = state.processes[event.process]
    restarts = 0 if event.now_s - process.started_s >= LIFE_OF_THE_WELL_S else process.restarts
    pause_s = _pause_s(restarts)
    state = _with(state, event.process, phase=Phase.PAUSED, restarts=restarts + 1)
    return state, [Report(event.process, event.code, pause_s), Pause(event.process, pause_s)]


def _ended_when_stopping(state: State, event: Ended) -> tuple[State, Sequence[Effect]]:
    state = _with(state, event.process, phase=Phase.GONE)
    # A process that was only just started does not hear the signal yet, and dies of it: it has opened nothing.
    if event.code in (0, -signal.SIGTERM):
        return state, _finish_if_alone(state)
    state = dataclasses.replace(state, well=False)
    return state, [Report(event.process, event.code, None), *_finish_if_alone(state)]


def _stop(state: State) -> tuple[State, Sequence[Effect]]:
    paused = [number for number, each in enumerate(state.processes) if each.phase is Phase.PAUSED]
    for number in paused:
        state = _with(state, number, phase=Phase.GONE)
    state = dataclasses.replace(state, stopping=True)
    return state, _finish_if_alone(state) or [*map(Terminate, _alive(state)), GiveTime()]


def _killed(state: State) -> tuple[State, Sequence[Effect]]:
    return dataclasses.replace(state, well=False), [Kill(number) for number in _alive(state)]


def _finish_if_alone(state: State) -> Sequence[Effect]:
    return () if _alive(state) else [Finish(state.well and state.failure is None, state.failure)]


def _alive(state: State) -> Sequence[int]:
    return [number for number, each in enumerate(state.processes) if each.phase in ALIVE]


def _pause_s(restarts: int) -> float:
    return 0.0 if restarts == 0 else min(_PAUSE_MAX_S, _PAUSE_S * 2.0 ** (restarts - 1))


def _with(
    state: State,
    process: int,
    *,
    phase: Phase,
    started_s: float | None = None,
    restarts: int | None = None,
) -> State:
    old = state.processes[process]
    new = Process(
        phase,
        old.started_s if started_s is None else started_s,
        old.restarts if restarts is None else restarts,
    )
    return dataclasses.replace(state, processes=(*state.processes[:process], new, *state.processes[process + 1 :]))
