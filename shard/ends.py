"""The ends of logs that clients ask for: after everything answered or decided before the request (invariant 13).

    request ─▶ where the journals say that the logs end ─▶ wait for the copy up to there ─▶ how far they can be read

An answer is sent as soon as its record is in a journal (acks=1), or on disk (acks=all, a commit), so that only clients
that want to see the record wait for the copy: they ask for an end. The leader knows at once the end of everything that
is placed in its journal, and the copier gets there, usually within a millisecond or two. Open transactions are not
placed, and no one waits for them: with a transaction open in marker mode, the end for readers of committed records
stays where that transaction begins.

A transaction whose coordinator is in another shard may have been answered before its decision has come here. Until then
it is in doubt: it is prepared, and so will be decided soon, whatever its client does. Its decision is waited for first.
The same holds for a committed transaction that is not placed yet, because an earlier one of its group is still being
decided.

On a replicated log another process may own the shard, and have answered more. So a question first waits until it is
certain that this one owned it when it was asked (`shard/owner_at_question.py`).

The wait is limited. After it, and when copying has stopped permanently, the request gets an error on which clients ask
again: the node never reports an end that may be too low. After a failure of the disk a commit may be answered although
its records are not placed until the restart; the coordinator knows for which logs this is so.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from enum import Enum
from typing import Protocol

import trio

from fairlog_types import LogId, Offset, StorageFailure, TxId
from partition.partition import Partition
from shard.owner_at_question import Doubt, MayBeDeposed, OwnerAtQuestion

OWN_WAIT_S = 20.0
"""How long a request waits for this node's own flush and copy, whatever time-out it brings: that one is for waiting on
others. Kafka's clients give a request up after 30 seconds (`request.timeout.ms`)."""

_STEP = 256
"""Logs that are asked for before others get their turn: less than a millisecond's work."""


class LedLogs(Protocol):
    """The logs that are led here."""

    def get(self, log: LogId) -> Partition | None:
        """The leader of `log`; None if it is not here."""
        ...


class Coordinates(Protocol):
    """What the coordinator knows of logs."""

    def lacks_commits(self, log: LogId) -> bool:
        """Whether something is committed in the log that this run will not place there."""
        ...

    def not_placed(self, log: LogId) -> Collection[TxId]:
        """What is committed in the log and not placed: it is due, or waits for what stands before it in its group."""
        ...


class Leads(MayBeDeposed, Protocol):
    """Who leads logs: a shard, and its broker."""

    @property
    def partitions(self) -> LedLogs: ...

    @property
    def coordinator(self) -> Coordinates: ...


class EndRefusal(Enum):
    """Why no end is given. The same question may be asked again."""

    NOT_YET = "what was answered before the question is not copied yet"
    STORAGE = "the disk has failed: what was answered before the question cannot be read until the node is restarted"
    DEPOSED = "another node may own the shard by now, and may have answered more"


_REFUSALS = {Doubt.NOT_YET: EndRefusal.NOT_YET, Doubt.DEPOSED: EndRefusal.DEPOSED}


class AskedEnds:
    """One question for the ends of some logs."""

    def __init__(self, leads: Leads, wait_s: float) -> None:
        """For `ask`."""
        self._leads = leads
        self._ends: dict[LogId, Offset] = {}
        self._awaited: dict[LogId, Collection[TxId]] = {}
        """By log what may be committed, or is, and is not placed."""
        self._deadline = trio.current_time() + wait_s
        self._owner = OwnerAtQuestion(leads)
        self.can_be_read = True
        """Whether no one had to wait, as things stood when the question came in."""

    @classmethod
    async def ask(cls, leads: Leads, logs: Iterable[LogId], *, wait_s: float = OWN_WAIT_S) -> AskedEnds:
        """The question comes in; from now on its copy is waited for so long.

        Logs that are not led here are left out: there is nothing to wait for in them.
        """
        asked = cls(leads, wait_s)
        for at, log in enumerate(logs, 1):
            partition = leads.partitions.get(log)
            if partition is not None:
                end = asked._ends[log] = partition.placed_end.next_offset
                awaited = frozenset((*partition.in_doubt, *leads.coordinator.not_placed(log)))
                if awaited:
                    asked._awaited[log] = awaited
                    asked.can_be_read = False
                asked.can_be_read &= end <= partition.visibility.high_watermark and asked._owner.is_certain
            if at % _STEP == 0:
                await trio.lowlevel.checkpoint()
        return asked

    async def settled(self, log: LogId) -> EndRefusal | None:
        """Wait until `end` has all that was decided when the question came in. None: it has."""
        doubt = await self._owner.doubt(self._deadline)
        if doubt is not None:
            return _REFUSALS[doubt]
        txids = self._awaited.get(log)
        partition = self._leads.partitions.get(log)
        if txids is None or partition is None:
            return None
        with trio.move_on_at(self._deadline):
            if not await partition.decided(txids) or partition.may_lack_commits:
                return EndRefusal.STORAGE
            self._awaited.pop(log, None)
            self._ends[log] = partition.placed_end.next_offset
            return None
        return EndRefusal.NOT_YET

    def end(self, log: LogId) -> Offset | None:
        """The end of all that was placed when the question came in, or `settled`; None if the log was not led here."""
        return self._ends.get(log)

    async def reached(self, log: LogId) -> EndRefusal | None:
        """Wait until the log can be read up to the end that was asked for. None: it can, or it is gone.

        From then on its `visibility` is an answer.
        """
        partition = self._leads.partitions.get(log)
        if self._leads.coordinator.lacks_commits(log) or (partition is not None and partition.may_lack_commits):
            return EndRefusal.STORAGE
        refusal = await self.settled(log)
        if refusal is not None:
            return refusal
        end = self._ends.get(log)
        return None if end is None else await self.reached_offset(log, end)

    async def reached_offset(self, log: LogId, offset: Offset) -> EndRefusal | None:
        """Wait until the log can be read up to an offset that is not after its end. None: it can, or it is gone."""
        partition = self._leads.partitions.get(log)
        if partition is None or partition.visibility.high_watermark >= offset:
            return None
        try:
            with trio.move_on_at(self._deadline):
                await partition.visibility.reach(offset)
                return None
        except StorageFailure:
            return EndRefusal.STORAGE
        return EndRefusal.NOT_YET
