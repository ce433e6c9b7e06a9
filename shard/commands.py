"""What a coordinator of another shard has this shard's participant do, and what it is answered.

They are the messages of `coordinator.messages`; a call that takes several is one command. A participant whose disk has
failed answers `Failed`: its shard refuses writes until it is restarted, and the coordinator's shard goes on. To *apply*
it gives no answer then: what is decided is said again until it can be placed, by the next start of either shard. Nor to
*prepare* of a coordinator that has started again: what it asks for may have been answered as committed.

*prepare* of another shard's transaction is not that of an own one. The coordinator has written PREPARE_COMMIT without
the counts of these logs. So each log writes PREPARED behind the data, and it is answered when that is on disk.
"""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any

import structlog
import trio

from coordinator.messages import (
    Application,
    Applied,
    ApplyCommit,
    Begin,
    DiscardTransaction,
    Prepare,
    Prepared,
    Resume,
    Undecided,
)
from fairlog_types import CorruptStorage, ShardNumber, StorageFailure, TxId
from journal.failpoints import reach
from journal.journal import NoFiles
from shard.adding import AddingForOthers, AddLog
from shard.cut_messages import (
    AwaitEnds,
    CutAnswer,
    CutLogs,
    CutQuestion,
    FindCuts,
    FindEnds,
    Hold,
    KeepCut,
    KeepEnds,
    NoCut,
    NoteEnds,
    Release,
    TakeCut,
)
from shard.cutting import Cutting
from shard.high_watermarks import FindHighWatermarks, HighWatermarks
from shard.links import Confirm
from shard.offset_messages import WriteOffsets
from shard.other_offsets import OwnOffsets
from shard.own_cuts import OwnCuts
from shard.participant import Participant
from shard.partitions import Partitions

logger = structlog.get_logger("fairlog.participant")

_NO_FILES_PAUSE_S = 0.5
"""Between two attempts to prepare again while no file can be opened."""


@dataclass(frozen=True, slots=True)
class PrepareAll:
    """See `Participants.prepare`. Answered with `Prepared`, whose `counts` has all logs."""

    messages: tuple[Prepare, ...]


@dataclass(frozen=True, slots=True)
class ApplyAll:
    """See `Participants.apply`. Answered with a tuple of `Applied`, when all is visible."""

    messages: tuple[ApplyCommit, ...]


@dataclass(frozen=True, slots=True)
class Failed:
    """The answer of a shard that refuses writes."""

    reason: str


@dataclass(frozen=True, slots=True)
class SaidAll:
    """Either shard has started again, and the coordinator has said again what it had decided. Answered with None."""

    listener_epoch: int
    """To which start of the participant's shard this is said; at another one it says nothing."""
    undecided: Mapping[TxId, Undecided]
    """What goes on, with its logs in that shard. Of all that the participant had before this start, the rest was
    aborted, or is visible."""


CommandBody = (
    Begin
    | Resume
    | PrepareAll
    | ApplyAll
    | DiscardTransaction
    | SaidAll
    | CutQuestion
    | WriteOffsets
    | AddLog
    | FindHighWatermarks
)


_ANSWERED_BY_OWNERS = (
    Begin | Resume | PrepareAll | ApplyAll
    | AwaitEnds | Hold | CutLogs | Release | NoteEnds | KeepEnds | FindCuts | FindEnds
)  # fmt: skip
"""What is answered only once it is certain that this process owned the shard when it was asked. A deposed owner that
does not know it may lack what is asked for: it would say that nothing is there, so that all of it is visible. Where it
begins a transaction, the present owner goes on taking batches for the producer's last one; where it does not know an
open one, the coordinator aborts that. The others are looked at again by *prepare*, or by the next SaidAll."""


class Commands:
    """Executes what other shards ask of this one: coordinators, leaders of logs, sinks, groups, the taker of cuts."""

    def __init__(
        self,
        partitions: Partitions,
        participant: Participant,
        epoch: int,
        own_cuts: OwnCuts,
        cutting: Cutting,
        own_offsets: OwnOffsets,
        adding: AddingForOthers,
        confirm: Confirm | None = None,
        *,
        place_due: Callable[[], None],
    ) -> None:
        """`epoch` is that of this shard; `cutting` takes cuts over all shards; `confirm`: see `shard.links`.

        `place_due` is called before each command: see `Coordinator.place_due`.
        """
        self._partitions = partitions
        self._participant = participant
        self._epoch = epoch
        self._own_cuts = own_cuts
        self._cutting = cutting
        self._own_offsets = own_offsets
        self._adding = adding
        self._confirm = confirm
        self._place_due = place_due

    def restarted(self, shard: ShardNumber) -> None:
        """See `shard.links.Executes`."""
        self._participant.coordinator_restarted(shard)
        self._own_cuts.forget(shard)

    def execute(self, shard: ShardNumber, body: CommandBody) -> Callable[[], Awaitable[Any]]:
        """See `shard.links.Executes`."""
        self._place_due()
        if self._confirm is None or not isinstance(body, _ANSWERED_BY_OWNERS):
            return self._begin(shard, body)
        confirmed = self._confirm()
        return partial(_once_confirmed, self._begin(shard, body), confirmed)

    def _begin(self, shard: ShardNumber, body: CommandBody) -> Callable[[], Awaitable[Any]]:
        participant = self._participant
        match body:
            case Begin():
                participant.begins(shard, body.txid)
                return lambda: _or_failed(participant.begin_for(shard, body))
            case Resume():
                participant.note_coordinator(shard, body.txid)
                return lambda: _or_failed(participant.resume(body))
            case PrepareAll(messages):
                for message in messages:
                    participant.note_coordinator(shard, message.txid)
                if any(message.expected is not None for message in messages):
                    return lambda: _prepared_again(participant, shard, messages)
                return lambda: _or_failed(participant.prepare_for(shard, messages))
            case ApplyAll(messages):
                try:
                    application = participant.apply(messages)
                except (StorageFailure, OSError):
                    return trio.sleep_forever
                return lambda: _visible(application)
            case DiscardTransaction():
                # What cannot be written now, the next start finds without a coordinator, and aborts it.
                with suppress(StorageFailure, OSError):
                    participant.discard_for_other(body)
                return trio.lowlevel.checkpoint
            case SaidAll(listener_epoch, undecided):
                if listener_epoch == self._epoch:
                    participant.said_all(shard, undecided)
                return trio.lowlevel.checkpoint
            case AwaitEnds(logs):
                return lambda: self._own_cuts.await_ends(logs)
            case Hold(number):
                return self._own_cuts.hold(shard, number)
            case CutLogs(logs):
                return _at_once(self._own_cuts.cut(logs))
            case Release(number):
                return _at_once(self._own_cuts.release(shard, number))
            case NoteEnds(hold):
                return _at_once(self._own_cuts.note(hold))
            case KeepEnds():
                return self._own_cuts.keep(body)
            case TakeCut(logs):
                return lambda: self._cutting.cut(logs)
            case KeepCut():
                return self._cutting.keep
            case FindCuts():
                return lambda: _or_no_cut(self._own_cuts.find(body))
            case FindEnds():
                return lambda: _or_no_cut(self._own_cuts.find_ends(body))
            case WriteOffsets():
                return lambda: self._own_offsets.write(body)
            case AddLog():
                return lambda: self._adding.add(body)
            case FindHighWatermarks(logs):
                return _at_once(HighWatermarks(self._partitions.high_watermarks(logs)))


async def _once_confirmed(result: Callable[[], Awaitable[Any]], confirmed: Callable[[], Awaitable[None]]) -> Any:
    """The answer; none from a process that is no owner any more: the present one is asked, too."""
    answer = await result()
    with suppress(StorageFailure):
        await confirmed()
        return answer
    await trio.sleep_forever()
    raise AssertionError("nobody wakes this task")


def _at_once(answer: Any) -> Callable[[], Awaitable[Any]]:
    async def answered() -> Any:
        await trio.lowlevel.checkpoint()
        return answer

    return answered


async def _visible(application: Application) -> tuple[Applied, ...]:
    with suppress(StorageFailure):
        applied = tuple(await application.visible())
        reach("participant.applied")
        return applied
    await trio.sleep_forever()
    raise AssertionError("nobody wakes this task")


async def _prepared_again(participant: Participant, shard: ShardNumber, messages: Sequence[Prepare]) -> Prepared:
    while True:
        try:
            return await participant.prepare_for(shard, messages)
        except NoFiles:
            pause_s = _NO_FILES_PAUSE_S
        except StorageFailure as failure:
            logger.warning("prepared again only after a restart of this shard", reason=str(failure))
            pause_s = math.inf
        await trio.sleep(pause_s)


async def _or_no_cut(answering: Awaitable[CutAnswer]) -> CutAnswer:
    try:
        return await answering
    except (StorageFailure, CorruptStorage) as failure:
        return NoCut(str(failure))


async def _or_failed(executing: Awaitable[Any]) -> Any:
    try:
        return await executing
    except StorageFailure as failure:
        return Failed(str(failure))
