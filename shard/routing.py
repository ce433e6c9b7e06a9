"""The participants of a coordinator, wherever they are: each message goes to the shards that lead its logs.

    own shard      called directly: it says what it knows in the step of the call
    other shards   told by `shard.links`: they say what they know in their answers

A transaction that has all its logs in the coordinator's shard costs what it costs without other shards.

    prepare ─┬─ own logs: counted at once ─▶ PREPARE_COMMIT ─▶ flush of the group journal ─┬─▶ answer, apply
             ├─ flush of the own logs ─────────────────────────────────────────────────────┤
             └─ other shards: count, PREPARED, flush ──────────────────────────────────────┘

PREPARE_COMMIT says UNCOUNTED for a log that another shard leads; its PREPARED has the count. The commands to one shard
take effect in the order in which they were given, so its logs get each group's transactions in commit order. Other
shards are told first, and work while this shard does its own part.

A shard whose disk has failed prepares nothing, and the transaction is aborted. Transactions that are already decided
wait for that shard: they become COMMITTED only when all of them can be read, and so *apply* is sent again when either
shard is started.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeVar

import trio

from coordinator.messages import (
    UNCOUNTED,
    Application,
    Applied,
    ApplyCommit,
    Begin,
    Begun,
    DiscardTransaction,
    Expected,
    Participants,
    Preparation,
    Prepare,
    Prepared,
    Resume,
    Resumed,
    Undecided,
)
from fairlog_types import LeaderEpoch, LogId, Placement, ShardNumber, TxId
from journal.failpoints import reach
from shard.commands import ApplyAll, Failed, PrepareAll, SaidAll
from shard.holding import Commits
from shard.links import Asked, Links

_Value = TypeVar("_Value")

OWN = None
"""Stands for the coordinator's own shard."""


class RoutedParticipants:
    """All participants of one coordinator. Implements `coordinator.messages.Participants`."""

    def __init__(
        self,
        own: Participants,
        links: Links,
        shard_of: Callable[[LogId], ShardNumber | None],
        commits: Commits,
    ) -> None:
        """`shard_of` names the shard that leads a log; None if it is this one, or if the log has no leader."""
        self._own = own
        self._commits = commits
        self._links = links
        self._shard_of = shard_of
        self._undecided: Callable[[], Mapping[TxId, Undecided]] | None = None
        """Asks the coordinator, once it has recovered."""

    def begin_to_tell(self, undecided: Callable[[], Mapping[TxId, Undecided]]) -> None:
        """The coordinator has recovered, and said again what it had decided.

        Tell each other shard what is undecided, now and whenever it is `welcomed` again.
        """
        self._undecided = undecided
        for shard in self._links.others:
            self.welcomed(shard)

    def welcomed(self, shard: ShardNumber) -> None:
        """That shard is heard of in a new epoch: see `Links.run`.

        What is not named to it, it aborts, even if it is PREPARED. A coordinator that was deposed before that epoch
        began, and does not know it, does not know either what the present one has there: so it is said as owner.
        """
        epoch, undecided = self._links.epoch_of(shard), self._undecided
        if epoch is None or undecided is None:
            return

        def say() -> None:
            if self._links.epoch_of(shard) == epoch:
                self._links.ask(shard, self._said_all(shard, epoch, undecided()))

        self._links.say_as_owner(say)

    def _said_all(self, shard: ShardNumber, epoch: int, undecided: Mapping[TxId, Undecided]) -> SaidAll:
        there = {
            txid: each._replace(logs=_of(self._by_shard(each.logs).get(shard, ()), each.logs))
            for txid, each in undecided.items()
        }
        return SaidAll(epoch, {txid: each for txid, each in there.items() if each.logs})

    async def begin(self, message: Begin) -> Begun:
        """See `Participants.begin`. Raises StorageFailure if the own shard refuses writes; others refuse their logs.

        A shard that is in a later epoch when all have answered is asked again: its owner may know nothing of what the
        last one has begun, and was told what is undecided before the coordinator had this written down.
        """
        logs = self._by_shard(message.logs)
        asked = self._ask({shard: Begin(message.txid, tuple(of)) for shard, of in logs.items() if shard is not None})
        begun: dict[ShardNumber, Begun | Failed] = {}
        epochs: dict[LogId, LeaderEpoch] = {}
        refused: dict[LogId, str] = {}
        failed: list[LogId] = []
        if OWN in logs:
            own = await self._own.begin(Begin(message.txid, tuple(logs[OWN])))
            epochs, refused = dict(own.leader_epochs), dict(own.refused)
        answered: dict[ShardNumber, Asked] = {}
        while asked:
            for shard, answer in asked.items():
                begun[shard] = await answer.answer()
            answered |= asked
            again = [shard for shard, answer in answered.items() if answer.epoch != self._links.epoch_of(shard)]
            asked = self._ask({shard: Begin(message.txid, tuple(logs[shard])) for shard in again})
        for shard, its in begun.items():
            if isinstance(its, Failed):
                refused |= dict.fromkeys(logs[shard], its.reason)
                failed += logs[shard]
            else:
                epochs |= its.leader_epochs
                refused |= its.refused
        return Begun(epochs, refused, failed)

    async def resume(self, message: Resume) -> Resumed:
        """See `Participants.resume`. All shards are asked, because a log that was just being added may be in any.

        A shard that refuses writes has lost its part.
        """
        logs = self._by_shard(message.logs)
        asked = self._ask(
            {shard: Resume(message.txid, _of(logs.get(shard, ()), message.logs)) for shard in self._links.others}
        )
        resumed = await self._own.resume(Resume(message.txid, _of(logs.get(OWN, ()), message.logs)))
        epochs, lost = dict(resumed.leader_epochs), dict(resumed.lost)
        for shard, answer in asked.items():
            resumed = await answer.answer()
            if isinstance(resumed, Failed):
                lost |= dict.fromkeys(logs.get(shard, ()), resumed.reason)
            else:
                epochs |= resumed.leader_epochs
                lost |= resumed.lost
        return Resumed(epochs, lost)

    async def admit(self) -> None:
        """See `Participants.admit`."""
        with trio.CancelScope(shield=True):
            await self._commits.admit()

    def prepare(self, messages: Sequence[Prepare]) -> Preparation:
        """See `Participants.prepare`."""
        self._commits.began(message.txid for message in messages if not message.only_closes)
        own: list[Prepare] = []
        others: dict[ShardNumber, list[Prepare]] = {}
        for message in messages:
            by_shard = self._by_shard(message.logs) or {OWN: []}  # a message without logs needs an answer, too
            for shard, logs in by_shard.items():
                part = replace(
                    message,
                    logs=_of(logs, message.logs),
                    expected=None if message.expected is None else _of(logs, message.expected),
                )
                (own if shard is None else others.setdefault(shard, [])).append(part)
        asked = self._ask({shard: PrepareAll(tuple(parts)) for shard, parts in others.items()})
        preparation = self._own.prepare(own)
        if not others:
            return preparation
        return _RoutedPreparation(preparation, others, asked)

    def are_awaited(self, logs: Iterable[LogId]) -> bool:
        """See `Participants.are_awaited`."""
        by_shard = self._by_shard(logs)
        return any(shard is not OWN for shard in by_shard) or self._own.are_awaited(by_shard.get(OWN, ()))

    def apply(self, messages: Sequence[ApplyCommit]) -> Application:
        """See `Participants.apply`."""
        self._commits.began(message.txid for message in messages)  # after a restart nothing came before this
        own: list[ApplyCommit] = []
        others: dict[ShardNumber, list[ApplyCommit]] = {}
        for message in messages:
            for shard, logs in self._by_shard(message.logs).items():
                part = ApplyCommit(message.txid, tuple(logs), message.timestamp_ms, message.group)
                (own if shard is None else others.setdefault(shard, [])).append(part)
        asked = self._ask({shard: ApplyAll(tuple(parts)) for shard, parts in others.items()})
        application = self._own.apply(own)
        return _RoutedApplication(application, messages, own, others, asked, self._commits)

    def discard(self, message: DiscardTransaction) -> None:
        """See `Participants.discard`. If a shard cannot write it, its next start aborts the transaction."""
        self._commits.ended((message.txid,))
        logs = self._by_shard(message.logs)
        self._ask(
            {shard: DiscardTransaction(message.txid, tuple(of)) for shard, of in logs.items() if shard is not None}
        )
        if OWN in logs:
            self._own.discard(DiscardTransaction(message.txid, tuple(logs[OWN])))

    def _by_shard(self, logs: Iterable[LogId]) -> Mapping[ShardNumber | None, list[LogId]]:
        found: dict[ShardNumber | None, list[LogId]] = {}
        for log in logs:
            found.setdefault(self._shard_of(log), []).append(log)
        return found

    def _ask(self, commands: Mapping[ShardNumber, Any]) -> Mapping[ShardNumber, Asked]:
        return {shard: self._links.ask(shard, body) for shard, body in commands.items()}


class _RoutedPreparation:
    """A `Preparation` in which other shards take part."""

    def __init__(
        self, own: Preparation, others: Mapping[ShardNumber, Sequence[Prepare]], asked: Mapping[ShardNumber, Asked]
    ) -> None:
        self._own = own
        self._others = others
        self._asked = asked
        self.expected: dict[TxId, dict[LogId, Expected]] = {txid: dict(of) for txid, of in own.expected.items()}
        for parts in others.values():
            for part in parts:
                uncounted = {log: Expected(epoch, UNCOUNTED) for log, epoch in part.logs.items()}
                self.expected.setdefault(part.txid, {}).update(uncounted)

    async def outcome(self) -> Prepared:
        """See `Preparation.outcome`. All shards prepare side by side."""
        own = await self._own.outcome()
        refused, gone, counts = dict(own.refused), dict(own.gone), {txid: dict(of) for txid, of in own.counts.items()}
        for shard, asked in self._asked.items():
            prepared = await asked.answer()
            if isinstance(prepared, Failed):
                refused |= {log: prepared.reason for part in self._others[shard] for log in part.logs}
                continue
            refused |= prepared.refused
            gone |= prepared.gone
            for txid, of in prepared.counts.items():
                counts.setdefault(txid, {}).update(of)
        reach("coordinator.prepared_elsewhere")
        return Prepared(refused, gone, counts)


class _RoutedApplication:
    """An `Application` in which other shards may take part."""

    def __init__(
        self,
        own: Application,
        messages: Sequence[ApplyCommit],
        own_parts: Sequence[ApplyCommit],
        others: Mapping[ShardNumber, Sequence[ApplyCommit]],
        asked: Mapping[ShardNumber, Asked],
        commits: Commits,
    ) -> None:
        self._own = own
        self._commits = commits
        self._messages = messages
        self._own_parts = own_parts
        self._others = others
        self._asked = asked

    async def visible(self) -> Sequence[Applied]:
        """See `Application.visible`. If a shard refuses writes, this waits until it is restarted."""
        places: dict[TxId, list[Placement]] = {message.txid: [] for message in self._messages}
        for part, applied in zip(self._own_parts, await self._own.visible(), strict=True):
            places[part.txid] += applied.placements
        for shard, asked in self._asked.items():
            for part, applied in zip(self._others[shard], await asked.answer(), strict=True):
                places[part.txid] += applied.placements
        if self._asked:
            reach("coordinator.visible_everywhere")
        self._commits.ended(places)
        return [Applied(tuple(places[message.txid])) for message in self._messages]


def _of(logs: Iterable[LogId], all_logs: Mapping[LogId, _Value]) -> Mapping[LogId, _Value]:
    return {log: all_logs[log] for log in logs}
