"""Which process serves which shard, when processes are started again, how shards move, and how all are stopped."""

from __future__ import annotations

import signal
from collections.abc import Sequence
from functools import partial

import pytest
from hypothesis import event as note
from hypothesis import given
from hypothesis import strategies as st

from fairlog.supervisor.machine import (
    RUNNING,
    Add,
    Announce,
    Answer,
    ChangeAsked,
    Effect,
    Ended,
    Event,
    Failure,
    Finish,
    GiveTime,
    GiveTimeToHalt,
    GiveTimeToServe,
    GraceOver,
    Halt,
    Halted,
    HaltTimeOver,
    Kill,
    Life,
    Move,
    Pause,
    PauseOver,
    Ready,
    Report,
    Serve,
    ServeTimeOver,
    Service,
    Start,
    State,
    StopAsked,
    Terminate,
    Write,
    Written,
    begin,
    fewest,
    step,
)

ASKER = 5


def after(state: State, *events: Event, now_s: float = 1.0) -> tuple[State, Sequence[Effect]]:
    """The state after some events, and the effects of the last one."""
    effects: Sequence[Effect] = ()
    for event in events:
        state, effects = step(state, event, now_s)
    return state, [*effects]


def serving(*processes: int, of: int = 2) -> State:
    """All shards are ready at the time 0: `processes` are theirs, by default each has the one of its number."""
    state, _ = begin(of, processes or range(of), 0.0)
    return after(state, *map(Ready, range(len(state.shards))))[0]


def asked(change: Move | Add) -> ChangeAsked:
    return ChangeAsked(change, ASKER)


# --- the start -------------------------------------------------------------------------------------


def test_shards_are_announced_when_all_are_ready() -> None:
    """Once, in whichever order they are."""
    state, effects = begin(3, [0, 1, 2], 0.0)
    assert effects == [Start(0), Serve(0, 0), Start(1), Serve(1, 1), Start(2), Serve(2, 2)]
    state, effects = after(state, Ready(2), Ready(0))
    assert effects == []
    state, effects = after(state, Ready(1))
    assert effects == [Announce((0, 1, 2))]


def test_process_without_a_shard_is_not_started_and_one_may_have_several() -> None:
    """The shards are announced by their numbers, whoever serves them."""
    state, effects = begin(3, [2, 0, 2], 0.0)
    assert effects == [Start(2), Serve(2, 0), Start(0), Serve(0, 1), Serve(2, 2)]
    assert after(state, Ready(0), Ready(2), Ready(1))[1] == [Announce((0, 1, 2))]


@pytest.mark.parametrize("ready", [[], [0], [1]])
def test_process_that_ends_before_all_are_ready_stops_the_others(ready: list[int]) -> None:
    """A start is refused whole, also if the process itself was ready."""
    state, effects = after(begin(3, [0, 1, 2], 0.0)[0], *map(Ready, ready), Ended(1, 1))
    assert effects == [Report(1, 1, None), Terminate(0), Terminate(2), GiveTime()]
    state, effects = after(state, Ended(0, 0))
    assert effects == []
    assert after(state, Ended(2, -signal.SIGTERM))[1] == [Finish(False, Failure(1, 1))]


def test_only_process_left_that_ends_before_all_are_ready_finishes() -> None:
    """There is no other to wait for."""
    assert after(begin(1, [0], 0.0)[0], Ended(0, 3))[1] == [Report(0, 3, None), Finish(False, Failure(0, 3))]


# --- a process that ends ---------------------------------------------------------------------------


def test_process_that_ends_is_started_again_after_pauses_that_grow() -> None:
    """At once, and then ever later, with all its shards; the others hear nothing of it."""
    state, now_s = serving(0, 1, 1), 1.0
    pauses: list[float] = []
    for _ in range(10):
        state, effects = step(state, Ended(1, -9), now_s)
        report, pause = effects
        assert isinstance(pause, Pause)
        assert report == Report(1, -9, pause.seconds)
        pauses.append(pause.seconds)
        now_s += pause.seconds
        state, effects = step(state, PauseOver(1), now_s)
        assert effects == [Start(1), Serve(1, 1), Serve(1, 2)]
        now_s += 0.1
        state, effects = after(state, Ready(1), Ready(2), now_s=now_s)
        assert effects == []
    assert pauses == [0, 0.5, 1, 2, 4, 8, 16, 30, 30, 30]


def test_process_that_keeps_failing_to_start_does_not_take_the_others_down() -> None:
    """It was ready once."""
    state, effects = after(serving(), Ended(1, -9), PauseOver(1), Ended(1, 1))
    assert effects == [Report(1, 1, 0.5), Pause(1, 0.5)]
    assert state.shards[0].service is Service.READY


@pytest.mark.parametrize(("life_s", "pause_s"), [(59.9, 0.5), (60.0, 0.0)])
def test_process_that_has_lived_for_a_minute_is_started_again_at_once(life_s: float, pause_s: float) -> None:
    """What ended it before is over."""
    state, _ = after(serving(), Ended(0, 1), PauseOver(0), Ready(0), now_s=100.0)
    assert after(state, Ended(0, 1), now_s=100.0 + life_s)[1] == [Report(0, 1, pause_s), Pause(0, pause_s)]


# --- a shard that moves ----------------------------------------------------------------------------


def test_moved_shard_is_halted_then_noted_then_served_elsewhere() -> None:
    """In this order. The other shards hear nothing of it, and nothing is announced again."""
    state, effects = after(serving(0, 1, 1), asked(Move(1, 0)))
    assert effects == [Halt(1, 1), GiveTimeToHalt(ASKER)]
    state, effects = after(state, Halted(1))
    assert effects == [Write((0, 0, 1))]
    state, effects = after(state, Written(None))
    assert effects == [GiveTimeToServe(ASKER), Serve(0, 1)]
    state, effects = after(state, Ready(1))
    assert effects == [Answer(ASKER, None)]
    assert after(state, Ended(0, -9), PauseOver(0))[1] == [Start(0), Serve(0, 0), Serve(0, 1)]


def test_process_that_gives_its_last_shard_away_ends_and_is_started_when_it_has_one_again() -> None:
    """Its end is nothing to be told, nor to be mended."""
    state, effects = after(serving(), asked(Move(1, 0)), Halted(1), Written(None))
    assert effects == [GiveTimeToServe(ASKER), Serve(0, 1), Terminate(1)]
    state, effects = after(state, Ended(1, 0))
    assert effects == []
    state, effects = after(state, Ready(1), asked(Move(0, 1)), Halted(0), Written(None))
    assert effects == [GiveTimeToServe(ASKER), Start(1), Serve(1, 0)]


def test_shard_that_comes_back_to_a_process_that_is_leaving_waits_for_its_end() -> None:
    """A process that was asked to end serves nothing new."""
    state, effects = after(
        serving(), asked(Move(1, 0)), Halted(1), Written(None), Ready(1), asked(Move(1, 1)), Halted(1), Written(None)
    )
    assert effects == [GiveTimeToServe(ASKER)]
    assert after(state, Ended(1, 0))[1] == [Start(1), Serve(1, 1)]


def test_ready_shard_that_is_to_be_halted_is_not_taken_for_ready() -> None:
    """It had said so before it was told."""
    state, effects = after(serving(), Ended(1, -9), PauseOver(1), asked(Move(1, 0)))
    assert effects == [Halt(1, 1), GiveTimeToHalt(ASKER)]
    state, effects = after(state, Ready(1))
    assert effects == []
    assert after(state, Halted(1))[1] == [Write((0, 0))]


@pytest.mark.parametrize("is_paused", [False, True])
def test_shard_of_a_process_that_has_ended_moves_without_being_halted(is_paused: bool) -> None:
    """It is served by the other process long before the first one is started again."""
    events = [Ended(1, -9), asked(Move(1, 0))] if is_paused else [asked(Move(1, 0)), Ended(1, -9)]
    state, effects = after(serving(), *events)
    assert effects[-1] == Write((0, 0))
    state, effects = after(state, Written(None))
    assert effects == [GiveTimeToServe(ASKER), Serve(0, 1)]
    assert after(state, PauseOver(1))[1] == []


def test_process_that_ends_with_a_shard_that_it_was_just_given_is_told_to_who_asked() -> None:
    """The shard stays with it, and is served when it is started again."""
    state, effects = after(serving(), asked(Move(1, 0)), Halted(1), Written(None), Ended(0, 1))
    refused = "the change is made, but process 0 has ended meanwhile; it is started again"
    assert effects == [Report(0, 1, 0.0), Pause(0, 0.0), Answer(ASKER, refused)]
    state, effects = after(state, PauseOver(0))
    assert effects == [Start(0), Serve(0, 0), Serve(0, 1)]
    assert after(state, Ready(0), Ready(1))[1] == []


def test_end_of_the_process_that_has_given_a_shard_away_is_nothing_to_who_asked() -> None:
    """Its other shards are away; the one that moved is ready."""
    state, effects = after(serving(0, 1, 1), asked(Move(1, 0)), Halted(1), Written(None), Ended(1, -9))
    assert effects == [Report(1, -9, 0.0), Pause(1, 0.0)]
    assert after(state, Ready(1))[1] == [Answer(ASKER, None)]


def test_move_that_cannot_be_noted_is_not_made() -> None:
    """The shard is served where it was."""
    state, effects = after(serving(), asked(Move(1, 0)), Halted(1), Written("the disk is full"))
    assert effects == [Answer(ASKER, "the disk is full"), Serve(1, 1)]
    assert state.shards[1].process == 1


def test_move_to_where_the_shard_is_changes_nothing() -> None:
    """So the same may be asked again."""
    assert after(serving(), asked(Move(1, 1)))[1] == [Answer(ASKER, None)]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (Move(2, 0), "there is no shard 2: there are 2, from 0 on"),
        (Move(1, 2), "there is no process 2: processes is 2, and they are numbered from 0; restart the node with more"),
        (Add(2), "there is no process 2: processes is 2"),
        (Move(-1, 0), "there is no shard -1"),
        (Add(-1), "there is no process -1"),
    ],
)
def test_change_that_is_not_possible_is_refused(change: Move | Add, words: str) -> None:
    """In a sentence; nothing happens."""
    before = serving()
    state, (answer,) = after(before, asked(change))
    assert isinstance(answer, Answer)
    assert (answer.refused or "").startswith(words)
    assert state == before


@pytest.mark.parametrize(
    ("state", "words"),
    [
        (begin(2, [0, 1], 0.0)[0], "not all shards have been ready yet: try again when the node is"),
        (after(serving(), StopAsked())[0], "the node is being stopped"),
        (
            after(serving(), asked(Move(1, 0)))[0],
            "another change of the shards is under way: try again when it is done",
        ),
    ],
)
def test_change_at_a_bad_time_is_refused(state: State, words: str) -> None:
    """Whoever asks is told, not who has asked before."""
    assert after(state, ChangeAsked(Move(0, 1), 6))[1] == [Answer(6, words)]


def test_made_move_keeps_only_changes_of_its_own_shard_away() -> None:
    """The shard may have to wait for one that must move to be mended."""
    state, _ = after(serving(of=3), asked(Move(1, 0)), Halted(1), Written(None))
    for change in (Move(1, 2), Add(None)):
        words = "another change of the shards is under way: try again when it is done"
        assert after(state, ChangeAsked(change, 6))[1] == [Answer(6, words)]
    state, effects = after(state, ChangeAsked(Move(2, 0), 6), Halted(2))
    assert effects == [Write((0, 0, 0))]
    state, effects = after(state, Written(None))
    assert effects == [GiveTimeToServe(6), Serve(0, 2), Terminate(2)]
    state, effects = after(state, Ready(2))
    assert effects == [Answer(6, None)]
    assert after(state, Ready(1))[1] == [Answer(ASKER, None)]


def test_move_is_answered_when_its_shard_is_not_ready_in_time() -> None:
    """From then on the shard may be moved again. An answer that was given already is not given again."""
    state, _ = after(serving(of=3), asked(Move(1, 0)), Halted(1), Written(None))
    state, effects = after(state, ServeTimeOver(ASKER))
    refused = "the change is made; shard 1 is not ready yet: see fairlog shard list and the log"
    assert effects == [Answer(ASKER, refused)]
    state, effects = after(state, ChangeAsked(Move(1, 2), 6))
    assert effects == [Halt(0, 1), GiveTimeToHalt(6)]
    state, effects = after(state, Halted(1), Written(None), Ready(1))
    assert effects == [Answer(6, None)]
    assert after(state, ServeTimeOver(6))[1] == []


def test_process_that_does_not_end_is_killed_when_a_shard_has_waited_for_it() -> None:
    """It had given its last shard away, and hangs. The shard that comes back is served once it has ended."""
    state, effects = after(serving(), asked(Move(1, 0)), Halted(1), Written(None))
    assert Terminate(1) in effects
    state, effects = after(state, Ready(1), ChangeAsked(Move(1, 1), 6), Halted(1), Written(None))
    assert effects == [GiveTimeToServe(6)]
    state, effects = after(state, ServeTimeOver(6))
    refused = "the change is made; shard 1 is not ready yet: see fairlog shard list and the log"
    assert effects == [Answer(6, refused), Kill(1)]
    state, effects = after(state, Ended(1, -9))
    assert effects == [Start(1), Serve(1, 1)]


def test_process_that_does_not_halt_the_shard_in_time_is_killed_and_the_move_goes_on() -> None:
    """As when it is killed by somebody else: its other shards come back with it."""
    state, effects = after(serving(0, 1, 1), asked(Move(1, 0)), HaltTimeOver(ASKER))
    assert effects == [Kill(1), GiveTimeToHalt(ASKER)]
    state, effects = after(state, Ended(1, -9))
    assert effects == [Report(1, -9, 0.0), Pause(1, 0.0), Write((0, 0, 1))]
    state, effects = after(state, Written(None))
    assert effects == [GiveTimeToServe(ASKER), Serve(0, 1)]
    assert after(state, PauseOver(1))[1] == [Start(1), Serve(1, 2)]


def test_process_that_has_halted_its_shards_is_not_killed() -> None:
    """Neither when the time of an earlier change is over."""
    state, _ = after(serving(0, 1, 1), asked(Move(1, 0)), Halted(1))
    assert after(state, HaltTimeOver(ASKER))[1] == []
    state, _ = after(state, Written(None), ChangeAsked(Move(2, 0), 6))
    assert after(state, HaltTimeOver(ASKER))[1] == []
    assert after(state, HaltTimeOver(6))[1] == [Kill(1), GiveTimeToHalt(6)]
    assert after(state, StopAsked(), HaltTimeOver(6))[1] == []


def test_stop_is_told_to_all_who_have_asked() -> None:
    """Each learns what has become of the own change."""
    state, _ = after(serving(of=3), asked(Move(1, 0)), Halted(1), Written(None), ChangeAsked(Move(2, 0), 6))
    assert after(state, StopAsked())[1][:2] == [
        Answer(ASKER, "the change is made, and the node is being stopped"),
        Answer(6, "the node is being stopped, and the change is not made"),
    ]


# --- a shard that is added -------------------------------------------------------------------------


def test_added_shard_is_noted_when_all_are_halted_and_announced_when_all_are_ready() -> None:
    """Each must know how many there are."""
    state, effects = after(serving(), asked(Add(1)))
    assert effects == [Halt(0, 0), Halt(1, 1), GiveTimeToHalt(ASKER)]
    state, effects = after(state, Halted(1))
    assert effects == []
    state, effects = after(state, Halted(0))
    assert effects == [Write((0, 1, 1))]
    state, effects = after(state, Written(None))
    assert effects == [GiveTimeToServe(ASKER), Serve(0, 0), Serve(1, 1), Serve(1, 2)]
    state, effects = after(state, Ready(0), Ready(2))
    assert effects == []
    assert after(state, Ready(1))[1] == [Announce((2,)), Answer(ASKER, None)]


def test_processes_that_do_not_halt_all_shards_in_time_are_killed_when_one_is_added() -> None:
    """Only these: each of the others would be down for as long as they take."""
    state, effects = after(serving(0, 1, 1, 2, of=3), asked(Add(1)), Halted(1), Halted(0), HaltTimeOver(ASKER))
    assert effects == [Kill(1), Kill(2), GiveTimeToHalt(ASKER)]
    state, effects = after(state, Halted(3))
    assert effects == []
    state, effects = after(state, Ended(1, -9))
    assert effects == [Report(1, -9, 0.0), Pause(1, 0.0), Write((0, 1, 1, 2, 1))]


def test_process_that_does_not_end_when_it_is_killed_keeps_no_other_down() -> None:
    """It waits for its disk. No shard is added then; its own are served again when it has ended at last."""
    state, effects = after(serving(), asked(Add(1)), Halted(0), HaltTimeOver(ASKER), HaltTimeOver(ASKER))
    refused = "process 1 does not end, although it was killed: the change is not made; see the log"
    assert effects == [Answer(ASKER, refused), Serve(0, 0)]
    state, effects = after(state, Ready(0), ChangeAsked(Move(1, 0), 6))
    assert effects == [GiveTimeToHalt(6)]
    assert after(state, HaltTimeOver(6), HaltTimeOver(6), Ended(1, -9), PauseOver(1))[1] == [Start(1), Serve(1, 1)]
    assert after(state, Ended(1, -9))[1] == [Report(1, -9, 0.0), Pause(1, 0.0), Write((0, 0))]


def test_added_shard_that_is_not_ready_in_time_is_announced_when_all_are() -> None:
    """Who has asked is told which shards are missing."""
    state, _ = after(serving(), asked(Add(1)), Halted(0), Halted(1), Written(None))
    state, effects = after(state, Ready(1), ServeTimeOver(ASKER))
    refused = "the change is made; shards 0, 2 are not ready yet: see fairlog shard list and the log"
    assert effects == [Answer(ASKER, refused)]
    state, effects = after(state, Ready(2))
    assert effects == []
    assert after(state, Ready(0))[1] == [Announce((2,))]


def test_added_shard_goes_to_the_process_with_the_fewest() -> None:
    """Also to one that has none yet, which is started then."""
    state, effects = after(serving(0, 0, 1, of=3), asked(Add(None)), Halted(0), Halted(1), Halted(2))
    assert effects == [Write((0, 0, 1, 2))]
    state, effects = after(state, Written(None))
    assert effects == [GiveTimeToServe(ASKER), Serve(0, 0), Serve(0, 1), Serve(1, 2), Start(2), Serve(2, 3)]
    assert fewest([0, 1, 1], 2) == 0
    assert fewest([1, 0], 2) == 0


def test_process_that_ends_while_all_are_halted_serves_nothing_before_the_shard_is_noted() -> None:
    """It would not know of it."""
    state, effects = after(serving(), asked(Add(1)), Ended(1, -9), PauseOver(1))
    assert effects == []
    state, effects = after(state, Halted(0))
    assert effects == [Write((0, 1, 1))]
    state, effects = after(state, Written(None))
    assert effects == [GiveTimeToServe(ASKER), Serve(0, 0), Start(1), Serve(1, 1), Serve(1, 2)]


def test_shard_that_cannot_be_added_leaves_all_as_they_were() -> None:
    """All are served again, and nothing is announced."""
    state, effects = after(serving(), asked(Add(1)), Halted(0), Halted(1), Written("no"))
    assert effects == [Answer(ASKER, "no"), Serve(0, 0), Serve(1, 1)]
    assert after(state, Ready(0), Ready(1))[1] == []


# --- the end ---------------------------------------------------------------------------------------


def test_stop_asks_all_to_end_and_waits() -> None:
    """The end is good if all ended well; what was to be started again is not."""
    state, _ = after(serving(of=3), Ended(1, -9))
    state, effects = after(state, StopAsked())
    assert effects == [Terminate(0), Terminate(2), GiveTime()]
    state, effects = after(state, PauseOver(1), Ended(2, 0))
    assert effects == []
    assert after(state, Ended(0, 0))[1] == [Finish(True, None)]


def test_stop_while_no_process_lives_finishes() -> None:
    """All wait to be started again."""
    state, _ = after(serving(), Ended(0, -9), Ended(1, -9))
    assert after(state, StopAsked())[1] == [Finish(True, None)]


@pytest.mark.parametrize(
    ("events", "words"),
    [
        ([], "the node is being stopped, and the change is not made"),
        ([Halted(1)], "the node is being stopped, and the change may be made or not: see fairlog shard list"),
        ([Halted(1), Written(None)], "the change is made, and the node is being stopped"),
    ],
)
def test_stop_ends_a_change_that_is_under_way(events: list[Event], words: str) -> None:
    """Who has asked is told whether it is made. What is on disk by then, the next start reads."""
    state, effects = after(serving(0, 1, 1), asked(Move(1, 0)), *events, StopAsked())
    assert effects == [Answer(ASKER, words), Terminate(0), Terminate(1), GiveTime()]
    assert after(state, Written(None))[1] == []


def test_stop_waits_for_a_process_that_is_leaving() -> None:
    """It was asked already."""
    state, effects = after(serving(), asked(Move(1, 0)), Halted(1), Written(None), Ready(1), StopAsked())
    assert effects == [Terminate(0), GiveTime()]
    assert after(state, Ended(0, 0), Ended(1, 0))[1] == [Finish(True, None)]


@pytest.mark.parametrize("event", [StopAsked(), GraceOver()])
def test_stop_that_is_asked_for_twice_or_takes_too_long_kills(event: Event) -> None:
    """All that still live; that is no good end."""
    state, effects = after(serving(), StopAsked(), Ended(0, 0), event)
    assert effects == [Kill(1)]
    assert after(state, Ended(1, -9))[1] == [Report(1, -9, None), Finish(False, None)]


def test_stop_of_a_process_that_ends_badly_is_told() -> None:
    """By the exit code of the supervisor, and a line."""
    state, effects = after(serving(), StopAsked(), Ended(0, 1))
    assert effects == [Report(0, 1, None)]
    assert after(state, Ended(1, 0))[1] == [Finish(False, None)]


# --- whatever happens ------------------------------------------------------------------------------


class World:
    """Processes and the disk, as the machine's effects make them; asserts its invariants."""

    def __init__(self, processes: int, shards: Sequence[int]) -> None:
        self.now_s = 0.0
        self.alive: set[int] = set()
        self.killed: set[int] = set()
        self.paused: set[int] = set()
        self.served: dict[int, tuple[int, bool]] = {}
        """By shard: the process that has its files, and whether it was told to halt it."""
        self.written = tuple(shards)
        self.to_write: tuple[int, ...] | None = None
        self.askers: set[int] = set()
        self.times: list[Event] = []
        """What comes when a time is over."""
        self.finished = False
        self.state, effects = begin(processes, shards, 0.0)
        self._perform(effects)

    def tell(self, event: Event) -> None:
        self.now_s += 0.3
        self.state, effects = step(self.state, event, self.now_s)
        self._perform(effects)

    def end(self, process: int, code: int) -> None:
        self.alive.remove(process)
        self.killed.discard(process)
        self.served = {shard: by for shard, by in self.served.items() if by[0] != process}
        self.tell(Ended(process, code))

    def _perform(self, effects: Sequence[Effect]) -> None:
        for effect in effects:
            assert not self.finished
            match effect:
                case Start(process):
                    assert process not in self.alive
                    self.alive.add(process)
                case Serve(process, shard):
                    assert process in self.alive
                    assert shard not in self.served
                    assert self.to_write is None or len(self.to_write) == len(self.written)
                    assert self.written[shard] == process
                    self.served[shard] = process, False
                case Halt(process, shard):
                    assert self.served[shard] == (process, False)
                    self.served[shard] = process, True
                case Write(processes):
                    assert self.to_write is None
                    self.to_write = processes
                case Answer(asker, _):
                    self.askers.remove(asker)
                case Pause(process, _):
                    self.paused.add(process)
                case GiveTimeToHalt(asker):
                    self.times.append(HaltTimeOver(asker))
                case GiveTimeToServe(asker):
                    self.times.append(ServeTimeOver(asker))
                case Kill(process):
                    assert (process, True) in self.served.values()
                    self.killed.add(process)
                case Terminate(process):
                    assert process in self.alive
                case Finish():
                    assert not self.alive
                    self.finished = True
                case _:
                    pass
        running = {n for n, each in enumerate(self.state.processes) if each.life in RUNNING}
        assert running == self.alive


@given(st.integers(1, 4), st.lists(st.integers(0, 3), min_size=1, max_size=4), st.data())
def test_whatever_happens_a_shard_has_one_server_and_all_is_served_in_the_end(
    processes: int, shards: list[int], data: st.DataObject
) -> None:
    """The invariants of the machine's head; no change is left without an answer, and none stops the others for ever."""
    world = World(processes, [shard % processes for shard in shards])
    for number in range(len(world.written)):
        world.tell(Ready(number))
    for asker in range(data.draw(st.integers(0, 40))):
        moves = [partial(_ask, world, asker, data)]
        for shard, (_, is_halting) in world.served.items():
            moves.append(partial(_halted, world, shard) if is_halting else partial(world.tell, Ready(shard)))
        moves += [partial(world.end, process, -9) for process in world.alive]
        moves += [partial(_pause_over, world, process) for process in world.paused]
        moves += [partial(_time_over, world, event) for event in world.times]
        if world.to_write is not None:
            moves += [partial(_written, world, None), partial(_written, world, "the disk is full")]
        data.draw(st.sampled_from(moves))()
    _settle(world)
    assert world.served == {shard: (process, False) for shard, process in enumerate(world.written)}
    assert [each.process for each in world.state.shards] == [*world.written]
    assert all(each.service is Service.READY for each in world.state.shards)
    assert not world.askers
    note(f"shards added: {len(world.written) - len(shards)}")
    world.tell(StopAsked())
    for process in tuple(world.alive):
        world.end(process, 0)
    assert world.finished


def _ask(world: World, asker: int, data: st.DataObject) -> None:
    world.askers.add(asker)
    process = data.draw(st.integers(0, 3))
    change = Add(data.draw(st.none() | st.just(process))) if data.draw(st.booleans()) else Move(process, process // 2)
    world.tell(ChangeAsked(change, asker))


def _halted(world: World, shard: int) -> None:
    del world.served[shard]
    world.tell(Halted(shard))


def _pause_over(world: World, process: int) -> None:
    world.paused.remove(process)
    world.tell(PauseOver(process))


def _time_over(world: World, event: Event) -> None:
    world.times.remove(event)
    world.tell(event)


def _written(world: World, refused: str | None) -> None:
    assert world.to_write is not None
    if refused is None:
        world.written = world.to_write
    world.to_write = None
    world.tell(Written(refused))


def _settle(world: World) -> None:
    """Let all end that has begun. What is asked to halt does so only by being killed."""
    for _ in range(200):
        idle = [number for number in world.alive if world.state.processes[number].life is Life.LEAVING]
        starting = [n for n, each in enumerate(world.state.shards) if each.service is Service.STARTING]
        if idle:
            world.end(idle[0], 0)
        elif world.killed:
            world.end(min(world.killed), -9)
        elif world.to_write is not None:
            _written(world, None)
        elif world.paused:
            _pause_over(world, min(world.paused))
        elif starting:
            world.tell(Ready(starting[0]))
        elif world.times:
            _time_over(world, world.times[0])
        else:
            return
    raise AssertionError("it does not come to rest")
