"""When processes are started again, and how all are stopped."""

from __future__ import annotations

import signal
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairlog.supervisor.machine import (
    ALIVE,
    Announce,
    Effect,
    Ended,
    Event,
    Failure,
    Finish,
    GiveTime,
    GraceOver,
    Kill,
    Pause,
    PauseOver,
    Phase,
    Ready,
    Report,
    Start,
    State,
    StopAsked,
    Terminate,
    begin,
    step,
)


def after(state: State, *events: Event) -> tuple[State, Sequence[Effect]]:
    """The state after some events, and the effects of the last one."""
    effects: Sequence[Effect] = ()
    for event in events:
        state, effects = step(state, event)
    return state, effects


def serving(count: int = 2) -> State:
    """All are ready at the time 0."""
    state, _ = begin(count, 0.0)
    return after(state, *map(Ready, range(count)))[0]


def test_processes_are_started_together_and_announced_when_all_are_ready() -> None:
    """Once, in whichever order they are."""
    state, effects = begin(3, 0.0)
    assert effects == [Start(0), Start(1), Start(2)]
    state, effects = after(state, Ready(2), Ready(0))
    assert effects == ()
    state, effects = after(state, Ready(1))
    assert effects == [Announce()]


@pytest.mark.parametrize("ready", [[], [0], [1]])
def test_process_that_ends_before_all_are_ready_stops_the_others(ready: list[int]) -> None:
    """A start is refused whole, also if the process itself was ready."""
    state, effects = after(begin(3, 0.0)[0], *map(Ready, ready), Ended(1, 1, 0.5))
    assert effects == [Report(1, 1, None), Terminate(0), Terminate(2), GiveTime()]
    state, effects = after(state, Ended(0, 0, 0.6))
    assert effects == ()
    assert after(state, Ended(2, -signal.SIGTERM, 0.7))[1] == [Finish(False, Failure(1, 1))]


def test_only_process_left_that_ends_before_all_are_ready_finishes() -> None:
    """There is no other to wait for."""
    assert after(begin(1, 0.0)[0], Ended(0, 3, 0.1))[1] == [Report(0, 3, None), Finish(False, Failure(0, 3))]


def test_process_that_ends_is_started_again_after_pauses_that_grow() -> None:
    """At once, and then ever later; the others hear nothing of it, and nothing is announced again."""
    state, pauses, now_s = serving(), [], 1.0
    for _ in range(10):
        state, effects = step(state, Ended(1, -9, now_s))
        report, pause = effects
        assert isinstance(pause, Pause)
        assert report == Report(1, -9, pause.seconds)
        pauses.append(pause.seconds)
        now_s += pause.seconds
        state, effects = step(state, PauseOver(1, now_s))
        assert effects == [Start(1)]
        now_s += 0.1
        state, effects = step(state, Ready(1))
        assert effects == ()
    assert pauses == [0, 0.5, 1, 2, 4, 8, 16, 30, 30, 30]


def test_process_that_keeps_failing_to_start_does_not_take_the_others_down() -> None:
    """It was ready once."""
    state, effects = after(serving(), Ended(1, -9, 1.0), PauseOver(1, 1.0), Ended(1, 1, 2.0))
    assert effects == [Report(1, 1, 0.5), Pause(1, 0.5)]
    assert state.processes[0].phase is Phase.READY


@pytest.mark.parametrize(("life_s", "pause_s"), [(59.9, 0.5), (60.0, 0.0)])
def test_process_that_has_lived_for_a_minute_is_started_again_at_once(life_s: float, pause_s: float) -> None:
    """What ended it before is over."""
    state, _ = after(serving(), Ended(0, 1, 5.0), PauseOver(0, 100.0), Ready(0))
    assert after(state, Ended(0, 1, 100.0 + life_s))[1] == [Report(0, 1, pause_s), Pause(0, pause_s)]


def test_stop_asks_all_to_end_and_waits() -> None:
    """The end is good if all ended well; what was to be started again is not."""
    state, _ = after(serving(3), Ended(1, -9, 1.0))
    state, effects = after(state, StopAsked())
    assert effects == [Terminate(0), Terminate(2), GiveTime()]
    state, effects = after(state, PauseOver(1, 2.0), Ended(2, 0, 2.0))
    assert effects == ()
    assert after(state, Ended(0, 0, 2.0))[1] == [Finish(True, None)]


def test_stop_while_no_process_lives_finishes() -> None:
    """All wait to be started again."""
    state, _ = after(serving(), Ended(0, -9, 1.0), Ended(1, -9, 1.0))
    assert after(state, StopAsked())[1] == [Finish(True, None)]


@pytest.mark.parametrize("event", [StopAsked(), GraceOver()])
def test_stop_that_is_asked_for_twice_or_takes_too_long_kills(event: Event) -> None:
    """All that still live; that is no good end."""
    state, effects = after(serving(), StopAsked(), Ended(0, 0, 1.0), event)
    assert effects == [Kill(1)]
    assert after(state, Ended(1, -9, 1.0))[1] == [Report(1, -9, None), Finish(False, None)]


def test_stop_of_a_process_that_ends_badly_is_told() -> None:
    """By the exit code of the supervisor, and a line."""
    state, effects = after(serving(), StopAsked(), Ended(0, 1, 1.0))
    assert effects == [Report(0, 1, None)]
    assert after(state, Ended(1, 0, 1.0))[1] == [Finish(False, None)]


@given(st.integers(1, 4), st.lists(st.tuples(st.integers(0, 5), st.integers(0, 3), st.integers(-15, 2)), max_size=60))
def test_processes_live_one_at_a_time_and_none_is_left_at_the_end(
    count: int, moves: list[tuple[int, int, int]]
) -> None:
    """Whatever happens in whatever order: invariants 1 and 2 of the machine's head."""
    state, effects = begin(count, 0.0)
    alive: set[int] = set()
    paused: set[int] = set()
    now_s = 0.0
    for kind, number, code in [*moves, (4, 0, 0), *((1, number, -9) for number in range(count))]:
        for effect in effects:
            match effect:
                case Start(process):
                    assert process not in alive
                    alive.add(process)
                case Pause(process, _):
                    paused.add(process)
                case Kill(process) | Terminate(process):
                    assert process in alive
                case Finish():
                    assert alive == set()
                    return
                case _:
                    pass
        assert {k for k, each in enumerate(state.processes) if each.phase in ALIVE} == alive
        now_s += 0.3
        event: Event
        if kind == 0 and number in alive and state.processes[number].phase is Phase.STARTING:
            event = Ready(number)
        elif kind == 1 and number in alive:
            alive.remove(number)
            event = Ended(number, code, now_s)
        elif kind == 2 and number in paused:
            paused.remove(number)
            event = PauseOver(number, now_s)
        elif kind == 3 and state.stopping:
            event = GraceOver()
        elif kind == 4:
            event = StopAsked()
        else:
            effects = ()
            continue
        state, effects = step(state, event)
    assert any(isinstance(effect, Finish) for effect in effects)
