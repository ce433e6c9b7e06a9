"""Which process serves which shard, when a process is started again, and how all are stopped. Pure.

`step(state, event, now_s) -> (state, effects)`. A process has the shards that are allotted to it; one that has none is
not started. A shard:

    AWAY ──Serve──▶ STARTING ──Ready──▶ READY        AWAY again: it was halted, or its process has ended
      ▲                │                  │
      └──── Halted ── HALTING ◀───Halt────┘

A process:

    before all shards have been ready once   one that ends stops the others: a start that fails is refused whole
    from then on                             one that ends is started again; the others go on, whatever becomes of it
    told to stop                             all are asked to end, and killed when their time is over, or if told again

The pauses before a process is started again grow while it keeps ending soon: 0, 0.5, 1, 2, 4, 8, 16, 30, 30 … seconds.
One that has lived for a minute is taken for well.

Two changes can be asked for while all is served:

    Move    halt the shard ─▶ allot it to the other process, on disk ─▶ serve it there
    Add     halt all shards, for each must know how many there are ─▶ make one more, on disk ─▶ serve all

One at a time is on its way to the disk. What is on disk is made, and keeps only further changes of the same shards away
until these are ready; or until its time is over, for a shard may wait for another one that must move to be mended.

A process that does not halt its shards in time is killed, as in a stop: so they are away, too, and the change goes on.
All that are served meanwhile by that process start again with it. One that does not even end then, for it waits for the
disk, ends the change: nothing is made, and the other shards are served again.

Halting a shard is a stop in good order. So what is open stays open, and its clients find the shard where it was: its
broker keeps its id and its address.

Invariants:

1. A process is started only when the one before it, of the same number, has ended.
2. A shard is served by one process at a time: by another one only after the first one has halted it, or has ended.
3. After `Finish` there is no process.
"""

from __future__ import annotations

import dataclasses
import signal
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum, auto

LIFE_OF_THE_WELL_S = 60.0
_PAUSE_S = 0.5
_PAUSE_MAX_S = 30.0


class Life(Enum):
    """Where a process is in its life."""

    AWAY = auto()
    """There is none: it has no shard, or is about to be started."""
    ALIVE = auto()
    LEAVING = auto()
    """It was asked to end, for it has no shard any more."""
    PAUSED = auto()
    """It has ended, and waits to be started again."""
    GONE = auto()
    """It has ended for good."""


RUNNING = frozenset({Life.ALIVE, Life.LEAVING})


class Service(Enum):
    """How far a shard is served."""

    AWAY = auto()
    STARTING = auto()
    READY = auto()
    HALTING = auto()


@dataclass(frozen=True, slots=True)
class Process:
    """One of the processes, over all its lives."""

    life: Life = Life.AWAY
    started_s: float = 0.0
    """When it was started last."""
    restarts: int = 0
    """How often in a row it was started again because it had ended soon."""


@dataclass(frozen=True, slots=True)
class Shard:
    """A shard, and the process that it is allotted to."""

    process: int
    service: Service = Service.AWAY


@dataclass(frozen=True, slots=True)
class Move:
    """Give a shard to a process."""

    shard: int
    process: int


@dataclass(frozen=True, slots=True)
class Add:
    """Make one more shard, for this process; None: for the one with the fewest shards."""

    process: int | None


@dataclass(frozen=True, slots=True)
class Change:
    """A change that is under way."""

    asked: Move | Add
    asker: int
    is_late: bool = False
    """The processes that have not halted its shards in time were killed."""
    is_being_written: bool = False


@dataclass(frozen=True, slots=True)
class Failure:
    """The process because of which a start was refused."""

    process: int
    code: int


@dataclass(frozen=True, slots=True)
class State:
    """What the supervisor knows."""

    processes: tuple[Process, ...]
    shards: tuple[Shard, ...]
    announced: int = 0
    """How many of the shards have been announced; that is none before all have been ready once."""
    stopping: bool = False
    change: Change | None = None
    """The one that is not on disk yet."""
    made: tuple[Change, ...] = ()
    """Those that are on disk, while their shards are not all ready."""
    well: bool = True
    """All that ended after they were told to did so in good order."""
    failure: Failure | None = None

    @property
    def serving(self) -> bool:
        """All shards have been ready once."""
        return self.announced > 0


# --- events: what happened -----------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Ready:
    """A shard accepts clients."""

    shard: int


@dataclass(frozen=True, slots=True)
class Halted:
    """A shard is served no more, and its files are closed."""

    shard: int


@dataclass(frozen=True, slots=True)
class Ended:
    """A process is no more. `code` is as `subprocess` has it: that of its exit, or a signal's, negative."""

    process: int
    code: int


@dataclass(frozen=True, slots=True)
class PauseOver:
    """It is time to start a process again."""

    process: int


@dataclass(frozen=True, slots=True)
class ChangeAsked:
    """An operator asks for a change; an `Answer` to this asker follows."""

    change: Move | Add
    asker: int


@dataclass(frozen=True, slots=True)
class Written:
    """What `Write` asked for has been done; or it was not, and nothing is changed: the reason."""

    refused: str | None


@dataclass(frozen=True, slots=True)
class StopAsked:
    """A signal tells the supervisor to stop."""


@dataclass(frozen=True, slots=True)
class GraceOver:
    """The time for stopping is over."""


@dataclass(frozen=True, slots=True)
class HaltTimeOver:
    """The time is over in which the shards of a change should have been halted."""

    asker: int


@dataclass(frozen=True, slots=True)
class ServeTimeOver:
    """The time is over in which the shards of a change should have been ready."""

    asker: int


Event = (
    Ready | Halted | Ended | PauseOver | ChangeAsked | Written | StopAsked | GraceOver | HaltTimeOver | ServeTimeOver
)


# --- effects: what is to be done, in this order --------------------------------------------------


@dataclass(frozen=True, slots=True)
class Start:
    """Start a process."""

    process: int


@dataclass(frozen=True, slots=True)
class Serve:
    """Have a process serve a shard."""

    process: int
    shard: int


@dataclass(frozen=True, slots=True)
class Halt:
    """Have a process end the service of a shard in good order."""

    process: int
    shard: int


@dataclass(frozen=True, slots=True)
class Write:
    """Write on disk which process has which shard; one more than before if a shard is added. `Written` follows."""

    processes: tuple[int, ...]
    """By shard."""


@dataclass(frozen=True, slots=True)
class Announce:
    """Say that these shards are ready."""

    shards: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Answer:
    """Tell who has asked for a change that it is made; or why it is not, or not yet."""

    asker: int
    refused: str | None


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


@dataclass(frozen=True, slots=True)
class GiveTimeToHalt:
    """Make a `HaltTimeOver` when the time for halting the shards of a change is over."""

    asker: int


@dataclass(frozen=True, slots=True)
class GiveTimeToServe:
    """Make a `ServeTimeOver` when the time for serving the shards of a change is over."""

    asker: int


Effect = (
    Start
    | Serve
    | Halt
    | Write
    | Announce
    | Answer
    | Report
    | Pause
    | Terminate
    | Kill
    | GiveTime
    | GiveTimeToHalt
    | GiveTimeToServe
    | Finish
)

Stepped = tuple[State, Sequence[Effect]]


def begin(processes: int, process_of_shard: Sequence[int], now_s: float) -> Stepped:
    """Start the processes that have a shard, of so many."""
    return _go_on(State((Process(),) * processes, tuple(map(Shard, process_of_shard))), [], now_s)


def step(state: State, event: Event, now_s: float) -> Stepped:
    """What becomes of the state when something happens, and what is to be done."""
    state, effects = _happened(state, event, now_s)
    return _go_on(state, effects, now_s)


def _happened(state: State, event: Event, now_s: float) -> Stepped:
    match event:
        case Ready():
            return _ready(state, event.shard)
        case Halted():
            return _with_service(state, event.shard, Service.AWAY), ()
        case Ended():
            return _ended(state, event, now_s)
        case PauseOver():
            if state.processes[event.process].life is not Life.PAUSED:
                return state, ()
            return _with_life(state, event.process, Life.AWAY), ()
        case ChangeAsked():
            return _change_asked(state, event.change, event.asker)
        case Written():
            return _written(state, event.refused)
        case StopAsked():
            return _killed(state) if state.stopping else _stop(state)
        case GraceOver():
            return _killed(state)
        case HaltTimeOver():
            return _halt_time_over(state, event.asker)
        case ServeTimeOver():
            return _serve_time_over(state, event.asker)


def _ready(state: State, shard: int) -> Stepped:
    if state.shards[shard].service is not Service.STARTING:
        return state, ()  # it is to be halted already
    state = _with_service(state, shard, Service.READY)
    count = len(state.shards)
    if state.announced == count or state.stopping or not _all(state, range(count), Service.READY):
        return state, ()
    return dataclasses.replace(state, announced=count), [Announce(tuple(range(state.announced, count)))]


# --- the end of a process --------------------------------------------------------------------------


def _ended(state: State, event: Ended, now_s: float) -> Stepped:
    was = state.processes[event.process]
    lost = [number for number, shard in enumerate(state.shards) if shard.process == event.process]
    for number in lost:
        state = _with_service(state, number, Service.AWAY)
    if state.stopping:
        return _ended_when_stopping(state, event)
    if not state.serving:
        return _ended_at_the_start(state, event)
    if was.life is Life.LEAVING:
        return _with_life(state, event.process, Life.AWAY), ()
    restarts = 0 if now_s - was.started_s >= LIFE_OF_THE_WELL_S else was.restarts
    pause_s = _pause_s(restarts)
    state = _with_process(state, event.process, dataclasses.replace(was, life=Life.PAUSED, restarts=restarts + 1))
    effects: list[Effect] = [Report(event.process, event.code, pause_s), Pause(event.process, pause_s)]
    delayed = [change for change in state.made if _is_delayed(change, event.process, lost)]
    refused = f"the change is made, but process {event.process} has ended meanwhile; it is started again"
    effects += [Answer(change.asker, refused) for change in delayed]
    return _without(state, delayed), effects


def _is_delayed(change: Change, process: int, lost: Sequence[int]) -> bool:
    """Whether the end of a process that had these shards keeps the change from being done soon."""
    return change.asked.process == process if isinstance(change.asked, Move) else bool(lost)


def _ended_at_the_start(state: State, event: Ended) -> Stepped:
    state = _with_life(state, event.process, Life.GONE)
    state = dataclasses.replace(state, failure=Failure(event.process, event.code))
    state, effects = _stop(state)
    return state, [Report(event.process, event.code, None), *effects]


def _ended_when_stopping(state: State, event: Ended) -> Stepped:
    state = _with_life(state, event.process, Life.GONE)
    # A process that was only just started does not hear the signal yet, and dies of it: it has opened nothing.
    if event.code in (0, -signal.SIGTERM):
        return state, _finish_if_alone(state)
    state = dataclasses.replace(state, well=False)
    return state, [Report(event.process, event.code, None), *_finish_if_alone(state)]


# --- changes ---------------------------------------------------------------------------------------


def _change_asked(state: State, change: Move | Add, asker: int) -> Stepped:
    refused = _refusal(state, change)
    if refused is not None:
        return state, [Answer(asker, refused)]
    if isinstance(change, Move) and state.shards[change.shard].process == change.process:
        return state, [Answer(asker, None)]
    if isinstance(change, Add) and change.process is None:
        change = Add(fewest([shard.process for shard in state.shards], len(state.processes)))
    state = dataclasses.replace(state, change=Change(change, asker))
    effects: list[Effect] = []
    for number in _shards_of(state, change):
        shard = state.shards[number]
        if shard.service in (Service.STARTING, Service.READY):
            state = _with_service(state, number, Service.HALTING)
            effects.append(Halt(shard.process, number))
    if not _all(state, _shards_of(state, change), Service.AWAY):  # it may be halting since a change that was given up
        effects.append(GiveTimeToHalt(asker))
    return state, effects


def _halt_time_over(state: State, asker: int) -> Stepped:
    change = state.change
    if change is None or change.asker != asker or change.is_being_written:
        return state, ()
    late = sorted({it.process for it in state.shards if it.service is Service.HALTING})
    if change.is_late:
        refused = f"process {late[0]} does not end, although it was killed: the change is not made; see the log"
        return dataclasses.replace(state, change=None), [Answer(asker, refused)]
    state = dataclasses.replace(state, change=dataclasses.replace(change, is_late=True))
    return state, [*map(Kill, late), GiveTimeToHalt(asker)]


def _refusal(state: State, change: Move | Add) -> str | None:
    """Why the change cannot be made now; None if it can."""
    if state.stopping:
        return "the node is being stopped"
    if not state.serving:
        return "not all shards have been ready yet: try again when the node is"
    if state.change is not None or any(_have_a_shard_in_common(state, made.asked, change) for made in state.made):
        return "another change of the shards is under way: try again when it is done"
    if isinstance(change, Move) and not 0 <= change.shard < len(state.shards):
        return f"there is no shard {change.shard}: there are {len(state.shards)}, from 0 on"
    if change.process is not None and not 0 <= change.process < len(state.processes):
        return (
            f"there is no process {change.process}: processes is {len(state.processes)}, and they are numbered from 0;"
            " restart the node with more (--processes)"
        )
    return None


def _shards_of(state: State, change: Move | Add) -> Sequence[int]:
    """The shards that a change is about."""
    return range(len(state.shards)) if isinstance(change, Add) else [change.shard]


def _have_a_shard_in_common(state: State, one: Move | Add, other: Move | Add) -> bool:
    return not set(_shards_of(state, one)).isdisjoint(_shards_of(state, other))


def _written(state: State, refused: str | None) -> Stepped:
    change, state = state.change, dataclasses.replace(state, change=None)
    if change is None:
        return state, ()  # the node is being stopped meanwhile; what is on disk, the next start reads
    if refused is not None:
        return state, [Answer(change.asker, refused)]
    asked, shards = change.asked, list(state.shards)
    if isinstance(asked, Add):
        assert asked.process is not None
        shards.append(Shard(asked.process))
    else:
        shards[asked.shard] = Shard(asked.process)
    state = dataclasses.replace(state, shards=tuple(shards), made=(*state.made, change))
    return state, [GiveTimeToServe(change.asker)]


def _serve_time_over(state: State, asker: int) -> Stepped:
    effects: list[Effect] = []
    late = [change for change in state.made if change.asker == asker]
    for change in late:
        about = _shards_of(state, change.asked)
        missing = [str(number) for number in about if state.shards[number].service is not Service.READY]
        shards = f"shard {missing[0]} is" if len(missing) == 1 else f"shards {', '.join(missing)} are"
        refused = f"the change is made; {shards} not ready yet: see fairlog shard list and the log"
        effects.append(Answer(asker, refused))
        # One that had no shard any more should have ended long ago. It is started again once it has.
        serving = {state.shards[number].process for number in about}
        effects += [Kill(number) for number in sorted(serving) if state.processes[number].life is Life.LEAVING]
    return _without(state, late), effects


def _without(state: State, changes: Sequence[Change]) -> State:
    """Once these are answered."""
    return dataclasses.replace(state, made=tuple(change for change in state.made if change not in changes))


# --- what follows from the state, whatever has happened --------------------------------------------


def _go_on(state: State, effects: Sequence[Effect], now_s: float) -> Stepped:
    """Go on with changes, serve the shards that are away, and let processes end that have none."""
    if state.stopping:
        return state, effects
    state, written = _write_what_is_halted(state)
    state, answered = _answer_what_is_ready(state)
    state, served = _serve_what_is_away(state, now_s)
    state, ended = _end_the_idle(state)
    return state, [*effects, *written, *answered, *served, *ended]


def _write_what_is_halted(state: State) -> Stepped:
    change = state.change
    if change is None or change.is_being_written:
        return state, ()
    asked = change.asked
    if not _all(state, _shards_of(state, asked), Service.AWAY):
        return state, ()
    processes = [shard.process for shard in state.shards]
    if isinstance(asked, Add):
        assert asked.process is not None
        processes.append(asked.process)
    else:
        processes[asked.shard] = asked.process
    writing = dataclasses.replace(change, is_being_written=True)
    return dataclasses.replace(state, change=writing), [Write(tuple(processes))]


def _answer_what_is_ready(state: State) -> Stepped:
    ready = [change for change in state.made if _all(state, _shards_of(state, change.asked), Service.READY)]
    return _without(state, ready), [Answer(change.asker, None) for change in ready]


def _serve_what_is_away(state: State, now_s: float) -> Stepped:
    effects: list[Effect] = []
    for number, shard in enumerate(state.shards):
        if shard.service is not Service.AWAY or _is_held(state, number):
            continue
        process = state.processes[shard.process]
        if process.life is Life.AWAY:
            started = dataclasses.replace(process, life=Life.ALIVE, started_s=now_s)
            state = _with_process(state, shard.process, started)
            effects.append(Start(shard.process))
        elif process.life is not Life.ALIVE:
            continue
        state = _with_service(state, number, Service.STARTING)
        effects.append(Serve(shard.process, number))
    return state, effects


def _is_held(state: State, shard: int) -> bool:
    """Whether a change must be written before the shard is served again."""
    return state.change is not None and shard in _shards_of(state, state.change.asked)


def _end_the_idle(state: State) -> Stepped:
    used = {shard.process for shard in state.shards}
    idle = [n for n, process in enumerate(state.processes) if process.life is Life.ALIVE and n not in used]
    for number in idle:
        state = _with_life(state, number, Life.LEAVING)
    return state, [Terminate(number) for number in idle]


# --- the end of all --------------------------------------------------------------------------------


def _stop(state: State) -> Stepped:
    made = "the change is made, and the node is being stopped"
    effects: list[Effect] = [Answer(change.asker, made) for change in state.made]
    if state.change is not None:
        effects.append(Answer(state.change.asker, _outcome_at_a_stop(state.change)))
    for number, process in enumerate(state.processes):
        if process.life not in RUNNING:
            state = _with_life(state, number, Life.GONE)
    state = dataclasses.replace(state, stopping=True, change=None, made=())
    asked = [number for number, process in enumerate(state.processes) if process.life is Life.ALIVE]
    return state, [*effects, *(_finish_if_alone(state) or [*map(Terminate, asked), GiveTime()])]


def _outcome_at_a_stop(change: Change) -> str:
    """Whether a change is made, for who has asked: a shard that is added twice cannot be removed."""
    if change.is_being_written:
        return "the node is being stopped, and the change may be made or not: see fairlog shard list"
    return "the node is being stopped, and the change is not made"


def _killed(state: State) -> Stepped:
    return dataclasses.replace(state, well=False), [Kill(number) for number in _running(state)]


def _finish_if_alone(state: State) -> Sequence[Effect]:
    return () if _running(state) else [Finish(state.well and state.failure is None, state.failure)]


def _running(state: State) -> Sequence[int]:
    return [number for number, each in enumerate(state.processes) if each.life in RUNNING]


# --- small tools -----------------------------------------------------------------------------------


def fewest(processes: Sequence[int], of: int) -> int:
    """The one of so many processes that has the fewest shards, if these are the processes of the shards."""
    had = Counter(processes)
    return min(range(of), key=lambda number: had[number])


def _all(state: State, shards: Sequence[int], service: Service) -> bool:
    return all(state.shards[number].service is service for number in shards)


def _pause_s(restarts: int) -> float:
    return 0.0 if restarts == 0 else min(_PAUSE_MAX_S, _PAUSE_S * 2.0 ** (restarts - 1))


def _with_life(state: State, process: int, life: Life) -> State:
    return _with_process(state, process, dataclasses.replace(state.processes[process], life=life))


def _with_process(state: State, number: int, process: Process) -> State:
    return dataclasses.replace(state, processes=(*state.processes[:number], process, *state.processes[number + 1 :]))


def _with_service(state: State, number: int, service: Service) -> State:
    shard = dataclasses.replace(state.shards[number], service=service)
    return dataclasses.replace(state, shards=(*state.shards[:number], shard, *state.shards[number + 1 :]))
