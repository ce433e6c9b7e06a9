"""Planted bugs in what shards say to each other, and do when one of them starts again."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any
from unittest import mock

import trio

import coordinator.housekeeping
import partition.modes
import shard.past_cuts
import shard.routing
from coordinator import events as ev
from coordinator.executor import Executor
from coordinator.expiry import due, open_before
from coordinator.messages import Applied, ApplyCommit, Placement, Preparation, Prepare, Prepared, Undecided
from coordinator.producer import Producer
from coordinator.sinks.committing import Committing
from datalog.cuts import LookedUp, Lookup
from datalog.layout import LogRecord
from fairlog_types import JournalPosition, LeaderEpoch, LogId, ShardNumber, TxId
from partition.state import PartitionState
from shard.commands import ApplyAll, Commands, SaidAll
from shard.conversation import Command, Heard, Hello, Listener, Message, Speaker
from shard.cut_messages import NoCut
from shard.holding import Commits
from shard.own_cuts import OwnCuts
from shard.participant import LocalApplication, Participant
from shard.past_cuts import PastCuts
from shard.routing import RoutedParticipants
from tests.simulation.planting import Mutation, patched


async def _takes_the_newest_of_each_shard(
    self: PastCuts, logs: Sequence[LogId], lookup: Lookup, _newest_own: int
) -> LookedUp:
    asked = [logs[index] for index in lookup.logs]
    found = await self._ends_at(lookup.number, self._by_shard(asked), common=True)
    return shard.past_cuts._looked_up(lookup.number, asked, found)


async def _waits_for_no_coordinator(_participant: Participant, _others: Iterable[ShardNumber]) -> None:
    await trio.lowlevel.checkpoint()


async def _does_not_wait_for_the_last_shard(self: Any) -> Prepared:
    self._asked = dict(list(self._asked.items())[:-1])
    return await _REAL_OUTCOME(self)


_REAL_OUTCOME = shard.routing._RoutedPreparation.outcome


async def _prepared_through_nowhere(self: Participant, *args: Any, **kwargs: Any) -> Any:
    found = await _REAL_PREPARE_IN(self, *args, **kwargs)
    return found if isinstance(found, str) else (found[0], JournalPosition(0))


_REAL_PREPARE_IN = Participant._prepare_in


def _hears_any_epoch(self: Listener, message: Hello | Command) -> Heard:
    if isinstance(message, Command) and message.epoch < self.speaker_epoch and message.listener_epoch == self.epoch:
        return Heard(message.body, message.number + _NEVER_SAID)  # its answer means nothing to the present start
    return _REAL_HEAR(self, message)


_NEVER_SAID = 1_000_000


def _hears_in_any_order(self: Listener, message: Hello | Command) -> Heard:
    """Each command as soon as it arrives, unless it is answered already."""
    if isinstance(message, Command) and (message.epoch, message.listener_epoch) == (self.speaker_epoch, self.epoch):
        self._next = message.number if message.number not in self._replies else -1
    return _REAL_HEAR(self, message)


def _hears_twice(self: Listener, message: Hello | Command) -> Heard:
    """A command that comes a second time is executed again."""
    heard = _REAL_HEAR(self, message)
    if (
        isinstance(message, Command)
        and (message.epoch, message.listener_epoch) == (self.speaker_epoch, self.epoch)
        and heard.execute is None
        and message.number < self._next
    ):
        return Heard(message.body, message.number)
    return heard


def _hears_past_a_gap(self: Listener, message: Hello | Command) -> Heard:
    """Whatever comes is the next one; what it has overtaken counts as executed when it comes."""
    if isinstance(message, Command) and (message.epoch, message.listener_epoch) == (self.speaker_epoch, self.epoch):
        self._next = max(message.number, self._next)
    return _REAL_HEAR(self, message)


_REAL_HEAR = Listener.hear


def _without(is_closed: bool) -> Callable[..., SaidAll]:
    def said_all(
        self: RoutedParticipants, shard: ShardNumber, epoch: int, undecided: Mapping[TxId, Undecided]
    ) -> SaidAll:
        kept = {txid: each for txid, each in undecided.items() if each.is_closed is not is_closed}
        return _REAL_SAID_ALL(self, shard, epoch, kept)

    return said_all


_REAL_SAID_ALL = RoutedParticipants._said_all


def _believes_what_was_said_to_an_earlier_start(self: Commands, shard: ShardNumber, body: Any) -> Any:
    if isinstance(body, SaidAll):
        body = replace(body, listener_epoch=self._epoch)
    return _REAL_EXECUTE(self, shard, body)


_REAL_EXECUTE = Commands.execute


def _places_at_once(self: Participant, messages: Sequence[ApplyCommit]) -> LocalApplication:
    self._partitions.raise_if_failed()
    application = LocalApplication(self._partitions, self._recovered)
    if messages:
        self._place(messages, application)
    return application


def _tells_nobody(self: RoutedParticipants, _undecided: Callable[[], Mapping[TxId, Undecided]]) -> None:
    """What was open or in doubt, each shard has to find out by itself."""
    _REAL_BEGIN_TO_TELL(self, dict[TxId, Undecided])


_REAL_BEGIN_TO_TELL = RoutedParticipants.begin_to_tell


def _tells_only_once(self: RoutedParticipants, other: ShardNumber) -> None:
    told: set[ShardNumber] = vars(self).setdefault("told", set[ShardNumber]())
    if other not in told:
        _REAL_WELCOMED(self, other)
        if self._undecided is not None and self._links.epoch_of(other) is not None:
            told.add(other)


_REAL_WELCOMED = RoutedParticipants.welcomed


async def _visible_here(self: Any) -> Sequence[Applied]:
    places: dict[TxId, list[Placement]] = {message.txid: [] for message in self._messages}
    for part, applied in zip(self._own_parts, await self._own.visible(), strict=True):
        places[part.txid] += applied.placements
    self._commits.ended(places)
    return [Applied(tuple(places[message.txid])) for message in self._messages]


def _repeats_hello_alone(self: Speaker, now_s: float, after_s: float) -> Sequence[Message]:
    return _REAL_REPEAT(self, now_s, after_s) if self._listener_epoch is None else ()


_REAL_REPEAT = Speaker.repeat


def _begins_anew_without_what_was_unanswered(self: Speaker, listener_epoch: int, now_s: float) -> Sequence[Message]:
    if self._listener_epoch is not None:
        self._unanswered.clear()
    return _REAL_BEGIN_ANEW(self, listener_epoch, now_s)


_REAL_BEGIN_ANEW = Speaker._begin_anew


def _goes_on_behind_prepared(self: PartitionState, txid: TxId) -> Any:
    transaction = self.open_transactions.get(txid)
    if transaction is not None:
        transaction.prepared_for = None
        transaction.sealed = False
    return _REAL_RESUME(self, txid)


_REAL_RESUME = PartitionState.resume


def _applies_nothing_without_records(self: Any, state: PartitionState, txid: TxId, *args: Any, **kwargs: Any) -> Any:
    held = state.held(txid)
    return _REAL_COMMIT(self, state, txid, *args, **kwargs) if held is not None and held.records else None


_REAL_COMMIT = partition.modes._Journal.commit


def _notes_the_coordinator_alone(self: Participant, shard: ShardNumber, txid: TxId) -> None:
    self._coordinators[txid] = shard


def _takes_one_shard_at_a_time(self: RoutedParticipants, messages: Sequence[ApplyCommit]) -> Any:
    """Tells the last of the other shards nothing."""
    ask = self._ask

    def ask_all_but_one(commands: Mapping[ShardNumber, Any]) -> Any:
        return ask(dict(list(commands.items())[:-1])) | dict.fromkeys(list(commands)[-1:], _Answered())

    self._ask = ask_all_but_one  # type: ignore[method-assign]
    try:
        return _REAL_APPLY(self, messages)
    finally:
        del self._ask


class _Answered:
    async def answer(self) -> tuple[Applied, ...]:
        await trio.lowlevel.checkpoint()
        return (Applied(()),)


_REAL_APPLY = RoutedParticipants.apply


_NOTHING_WAS_LOST = property(lambda _: LeaderEpoch(0))


def _without_an_earlier_loss(self: Participant) -> LeaderEpoch:
    whole_since = self._whole_since()
    return whole_since if whole_since == self._partitions.leader_epoch else LeaderEpoch(0)


_EARLIER_LOSS_FORGOTTEN = property(_without_an_earlier_loss)


async def _admits_at_once(_commits: Commits) -> None:
    await trio.lowlevel.checkpoint()


def _holds_what_is_under_way(self: Commits, taker: ShardNumber, number: int) -> Callable[[], Awaitable[bool]]:
    """It holds, as far as it could, and is answered before all that is under way is visible."""
    under_way, self._under_way = self._under_way, {}
    _REAL_HOLD(self, taker, number)
    self._under_way = under_way
    is_held = self._holds.get(taker, (None, 0.0))[0] == number

    async def at_once() -> bool:
        await trio.lowlevel.checkpoint()
        return is_held

    return at_once


_REAL_HOLD = Commits.hold


async def _waits_for_no_ends(_cuts: OwnCuts, _logs: Collection[LogId]) -> NoCut | None:
    await trio.lowlevel.checkpoint()
    return None


class _VisibleHere(shard.routing._RoutedApplication):
    """Ended when the own shard can read."""

    async def visible(self) -> Sequence[Applied]:
        await self._own.visible()
        self._commits.ended(message.txid for message in self._messages)
        return await super().visible()


def _notes_no_prepared(self: RoutedParticipants, messages: Sequence[Prepare]) -> Preparation:
    commits, self._commits = self._commits, Commits()
    try:
        return _REAL_PREPARE(self, messages)
    finally:
        self._commits = commits


_REAL_PREPARE = RoutedParticipants.prepare


def _believes_counts_of_other_shards(self: Committing, transactions: Any, counts: Any, number: int) -> Any:
    """Of a lane that has written there, what its winner has counted is right."""
    shard_of = self._executor.participants._shard_of  # type: ignore[attr-defined]
    found = []
    for it in transactions:
        if any(shard_of(log) is not None for log in it.message.logs):
            held = sum(expected.records for expected in counts[it.message.txid].values())
            found.append(it._replace(winner=replace(it.winner, records=held)))
        else:
            found.append(it)
    return _REAL_COUNTED(self, found, counts, number)


_REAL_COUNTED = Committing._counted


def _tells_each_lane_by_itself(self: RoutedParticipants, commands: Mapping[ShardNumber, Any]) -> Any:
    """Other shards place a batch's lanes one after the other."""
    apart = {
        shard: [ApplyAll((part,)) for part in body.messages] if isinstance(body, ApplyAll) else [body]
        for shard, body in commands.items()
    }
    asked = {shard: [self._links.ask(shard, each) for each in bodies] for shard, bodies in apart.items()}
    return {shard: of[0] if len(of) == 1 else _AllAsked(of) for shard, of in asked.items()}


class _AllAsked:
    def __init__(self, asked: Sequence[Any]) -> None:
        self._asked = asked

    async def answer(self) -> tuple[Applied, ...]:
        return tuple([applied for each in self._asked for applied in await each.answer()])


async def _visible_here_is_visible(self: Any) -> Sequence[Applied]:
    """A batch's other shards are not waited for."""
    if len(self._messages) > 1:
        self._asked = {}
    return await _REAL_VISIBLE(self)


_REAL_VISIBLE = shard.routing._RoutedApplication.visible


def _due_by_the_wall_clock(producer: Producer, _open_ms: float, *others: Any) -> ev.TimedOut | ev.Idle | None:
    return due(producer, open_before(producer, others[-1]), *others)


MUTATIONS = (
    Mutation(
        "batch-counts-of-others-believed",
        "a sink's commit does not look how many records other shards have counted",
        patched(Committing, "_counted", _believes_counts_of_other_shards),
    ),
    Mutation(
        "batch-apart-elsewhere",
        "other shards are told of a batch's lanes one by one",
        patched(RoutedParticipants, "_ask", _tells_each_lane_by_itself),
    ),
    Mutation(
        "batch-answered-when-visible-here",
        "a batch is answered when the sink's own shard can read it",
        patched(shard.routing._RoutedApplication, "visible", _visible_here_is_visible),
    ),
    Mutation(
        "begun-before-the-last-is-placed",
        "a producer writes while its last commit waits in its group",
        patched(Executor, "waits_in_group", lambda *_: False),
    ),
    Mutation(
        "lost-one-ends-after-the-next-has-begun",
        "a shard does not end what is in doubt of a producer when its coordinator begins the next transaction",
        patched(Participant, "begins", Participant.note_coordinator),
    ),
    Mutation(
        "last-stable-not-held-back",
        "the last stable offset does not stop at what is open",
        patched(LogRecord, "last_stable_offset", property(lambda record: record.next_offset)),
    ),
    Mutation(
        "participant-decides-alone",
        "a shard that starts aborts what is PREPARED there, without asking the coordinator",
        patched(Participant, "hear_coordinators", _waits_for_no_coordinator),
    ),
    Mutation(
        "last-shard-not-waited-for",
        "a commit is answered before the last shard has PREPARED",
        patched(shard.routing._RoutedPreparation, "outcome", _does_not_wait_for_the_last_shard),
    ),
    Mutation(
        "prepared-not-flushed",
        "a shard answers *prepare* before PREPARED is on disk",
        patched(Participant, "_prepare_in", _prepared_through_nowhere),
    ),
    Mutation(
        "stale-coordinator-obeyed",
        "commands of a coordinator's earlier start are executed",
        patched(Listener, "hear", _hears_any_epoch),
    ),
    Mutation(
        "commands-in-any-order",
        "commands are executed as they arrive",
        patched(Listener, "hear", _hears_in_any_order),
    ),
    Mutation(
        "apply-number-skipped",
        "a shard executes a command although one before it, such as an *apply*, has not come, and never executes that",
        patched(Listener, "hear", _hears_past_a_gap),
    ),
    Mutation(
        "commands-executed-twice",
        "a command that arrives twice is executed twice",
        patched(Listener, "hear", _hears_twice),
    ),
    Mutation(
        "open-not-said",
        "a coordinator does not name what is open when a shard has started again",
        patched(RoutedParticipants, "_said_all", _without(is_closed=False)),
    ),
    Mutation(
        "decided-not-said",
        "a coordinator does not name what is being decided, or copied",
        patched(RoutedParticipants, "_said_all", _without(is_closed=True)),
    ),
    Mutation(
        "said-to-an-earlier-start",
        "what a coordinator has said to an earlier start of a shard counts for this one",
        patched(Commands, "execute", _believes_what_was_said_to_an_earlier_start),
    ),
    Mutation(
        "placed-before-all-is-said",
        "a shard that starts places what one coordinator says before it has heard the others",
        patched(Participant, "apply", _places_at_once),
    ),
    Mutation(
        "restart-not-told",
        "a coordinator that starts names nothing that goes on",
        patched(RoutedParticipants, "begin_to_tell", _tells_nobody),
    ),
    Mutation(
        "restart-of-others-not-told",
        "a coordinator says what goes on at its own start only",
        patched(RoutedParticipants, "welcomed", _tells_only_once),
    ),
    Mutation(
        "restarted-coordinator-not-doubted",
        "what a coordinator that has started again does not name stays open",
        patched(Participant, "coordinator_restarted", lambda *_: None),
    ),
    Mutation(
        "lost-tail-goes-on",
        "a shard that has lost its tail prepares, and goes on with, what may lack records",
        lambda: mock.patch.object(Participant, "whole_since", _NOTHING_WAS_LOST),
    ),
    Mutation(
        "earlier-loss-forgotten",
        "a shard goes on with what lost records before its last start",
        lambda: mock.patch.object(Participant, "whole_since", _EARLIER_LOSS_FORGOTTEN),
    ),
    Mutation(
        "committed-before-others-can-read",
        "COMMITTED is written before another shard can read",
        patched(shard.routing._RoutedApplication, "visible", _visible_here),
    ),
    Mutation(
        "not-said-again",
        "a command that is not answered is not said again",
        patched(Speaker, "repeat", _repeats_hello_alone),
    ),
    Mutation(
        "not-said-to-the-next-start",
        "what a shard has not answered before it started again is forgotten",
        patched(Speaker, "_begin_anew", _begins_anew_without_what_was_unanswered),
    ),
    Mutation(
        "goes-on-behind-prepared",
        "a log that is PREPARED takes batches again, if its coordinator has forgotten that in a kill",
        patched(PartitionState, "resume", _goes_on_behind_prepared),
    ),
    Mutation(
        "empty-part-forgotten",
        "a log without records does not remember that it has applied",
        patched(partition.modes._Journal, "commit", _applies_nothing_without_records),
    ),
    Mutation(
        "begun-again-and-aborted",
        "what begins again is aborted, as its coordinator had it before it started again",
        patched(Participant, "note_coordinator", _notes_the_coordinator_alone),
    ),
    Mutation(
        "last-shard-not-told",
        "the last of the other shards does not hear of a commit",
        patched(RoutedParticipants, "apply", _takes_one_shard_at_a_time),
    ),
    Mutation(
        "goes-on-while-it-holds",
        "a coordinator that holds for a cut prepares what comes, as ever",
        patched(Commits, "admit", _admits_at_once),
    ),
    Mutation(
        "held-with-commits-under-way",
        "a coordinator says that it holds before what it has prepared is visible everywhere",
        patched(Commits, "hold", _holds_what_is_under_way),
    ),
    Mutation(
        "cut-without-what-was-answered",
        "a cut does not wait until what was answered before it can be read",
        patched(OwnCuts, "await_ends", _waits_for_no_ends),
    ),
    Mutation(
        "under-way-until-visible-here",
        "a commit has ended for a cut when the coordinator's own shard can read it",
        patched(shard.routing, "_RoutedApplication", _VisibleHere),
    ),
    Mutation(
        "past-cut-that-not-all-know",
        "a reader with a limit gets the newest cut that each shard knows, whether or not it is the same one",
        patched(PastCuts, "_look_up", _takes_the_newest_of_each_shard),
    ),
    Mutation(
        "time-outs-by-the-wall-clock",
        "how long a transaction is open is told by the wall clock",
        patched(coordinator.housekeeping, "due", _due_by_the_wall_clock),
    ),
    Mutation(
        "prepared-is-not-under-way",
        "a commit is waited for from when it is placed, not from when it is prepared",
        patched(RoutedParticipants, "prepare", _notes_no_prepared),
    ),
)
