"""The pure machine, its order and its recovery, driven together: clients, zombies, late requests, crashes.

Clients of transaction version 2 (KIP-890) are among them: an epoch for each transaction, and no connections.

The world below is one node without time or I/O. A *piece* is one produced record, a number that is never
used twice. Each client keeps what a client library would: it aborts after an abortable error, repeats EndTxn
when the answer was lost, and does not go on after a fatal one. What it was answered is written into the
ledger, and the ledger is compared with what is visible.

A client whose transaction is open goes on with it after a kill, as if nothing had been.

Fault model: a *kill* keeps all that was appended, at any effect; a *loss of power* also takes any suffix of
what was not flushed: of the group journal, of each transaction's records, and of each log's APPLYs.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from coordinator import events as ev
from coordinator.answers import Granted, Refusal
from coordinator.ending import DECIDED_MAX
from coordinator.group_records import PrepareCommitRecord
from coordinator.id_records import prepare_commit_record
from coordinator.machine import step
from coordinator.messages import ApplyCommit, Expected
from coordinator.order import CommitOrder
from coordinator.producer import Producer
from coordinator.replay import in_doubt, replay, snapshot_records
from coordinator.settings import CoordinatorSettings
from coordinator.states import IdState
from coordinator.transaction_groups import group_of
from fairlog_types import (
    NO_PRODUCER_EPOCH,
    NO_PRODUCER_ID,
    ApplyNumber,
    LeaderEpoch,
    LogId,
    ProducerEpoch,
    ProducerId,
    TxId,
)
from shard.place_order import SaidAgain, place_order

NAMES = ("t", "g::u", "g::v")
"""Two of them are members of one group."""

LOGS = tuple(LogId("t", "ab" * 16, partition) for partition in range(3))
DELETED = LogId("t", "cd" * 16, 0)
EPOCH = LeaderEpoch(1)
SETTINGS = CoordinatorSettings()


class Crash(Exception):
    """The fuse has burnt down in the middle of a step."""


class Pending:
    """The answer comes when the participants have prepared."""


PENDING = Pending()


@dataclass
class Attempt:
    """One transaction as its client sees it."""

    pieces: list[tuple[LogId, int]] = field(default_factory=list)
    outcome: str = "open"
    """"committed" and "no effect" are promises; "unknown" is none."""


@dataclass
class Client:
    name: str
    granted: Granted
    connection: int
    state: str = "idle"
    """idle, in transaction, ending (EndTxn sent, no answer yet), must abort, dead."""
    logs: set[LogId] = field(default_factory=set)
    attempt: Attempt = field(default_factory=Attempt)
    asked_commit: bool = True
    speaks_up: bool = True
    """Whether it says EndTxn(abort) for a transaction whose first AddPartitions was refused."""
    repeated: bool = False
    by_epoch: bool = False
    """It speaks transaction version 2."""

    @property
    def known_by(self) -> int | None:
        """The connection of its requests, if that is what tells late ones."""
        return None if self.by_epoch else self.connection


def _unknown(name: str) -> Producer:
    group = group_of(name, "::")
    return Producer(name, member_of="" if group == name else group)


class Transactions(RuleBasedStateMachine):
    @initialize()
    def start(self):
        self.connections = 0
        self.next_piece = 0
        self.next_producer_id = 100
        self.ledger: list[Attempt] = []
        self.records = []
        self.durable = 0
        self.commit_number = self.snapshot_number = 0
        self.producers = {name: _unknown(name) for name in NAMES}
        self.order = CommitOrder()
        self.held: dict[TxId, dict[LogId, list[int]]] = {}
        self.durably_held: set[TxId] = set()
        self.discarded: list[tuple[TxId, LogId, list[int]]] = []
        self.sealed: set[TxId] = set()
        self.used: set[TxId] = set()
        self.placed: dict[LogId, list[tuple[TxId, int]]] = {log: [] for log in LOGS}
        self.placed_durably = dict.fromkeys(LOGS, 0)
        self.apply_number = 0
        self.visible: dict[LogId, list[int]] = {log: [] for log in LOGS}
        self.visible_transactions: dict[LogId, list[TxId]] = {log: [] for log in LOGS}
        self.commit_order: list[TxId] = []
        self.groups: dict[TxId, str] = {}
        self.pending: dict[str, Client] = {}
        self.clients: dict[str, Client] = {}
        self.zombies: list[Client] = []
        self.fuse: int | None = None
        self.ended_since_crash = 0
        for name in NAMES:
            event = ev.Init(60_000, NO_PRODUCER_ID, NO_PRODUCER_EPOCH, self.connect(), SETTINGS, 0)
            self.clients[name] = Client(name, self.run(name, event), event.connection)

    # ---------------------------------------------------------------------------------- running effects

    def connect(self) -> int:
        self.connections += 1
        return self.connections

    def burn(self):
        if self.fuse is not None:
            self.fuse -= 1
            if self.fuse < 0:
                raise Crash

    def run(self, name, event):
        """The answer, PENDING, a Wait effect, or None."""
        following = event
        while following is not None:
            event, following = following, None
            before = self.producers[name]
            self.producers[name], effects = step(before, event)
            for effect in effects:
                self.burn()
                match effect:
                    case ev.Append(record):
                        self.records.append(record)
                        if isinstance(record, PrepareCommitRecord):
                            self.commit_order.append(record.txid)
                            self.groups[record.txid] = self.producers[name].group
                    case ev.Flush():
                        self.durable = len(self.records)
                    case ev.AnswerWith(answer):
                        return answer
                    case ev.AskBegin(message, requested):
                        if before.transaction is None:
                            assert message.txid not in self.used, "a TxId is used twice"
                        begun = [log for log in message.logs if log in LOGS]
                        for log in begun:
                            self.held.setdefault(message.txid, {}).setdefault(log, [])
                        following = ev.LogsBegun(requested, dict.fromkeys(begun, EPOCH), 0)
                    case ev.AskResume(message):
                        held = self.held.setdefault(message.txid, {})
                        logs = dict.fromkeys((*message.logs, *(log for log in held if held[log])), EPOCH)
                        for log in logs:
                            held.setdefault(log, [])
                        following = ev.Resumed(logs, {}, 0)
                    case ev.AskPrepare(message):
                        self.sealed.add(message.txid)
                        counts = {log: Expected(EPOCH, len(self.held[message.txid][log])) for log in message.logs}
                        self.commit_number += 1
                        following = ev.Sealed(counts, 0, self.commit_number)
                    case ev.EnterOrder(txid):
                        self.order.enter(self.producers[name].group, txid)
                    case ev.AskPrepared():
                        self.pending[name] = self.clients[name]
                        return PENDING
                    case ev.Apply(message):
                        self.order.decide(message)
                        self.place_due()
                    case ev.LeaveOrder(txid):
                        self.order.leave(self.producers[name].group, txid)
                        self.place_due()
                    case ev.Discard(message, record):
                        self.discard(message)
                        self.records.append(record)
                    case ev.AwaitCopied():
                        self.copy_all(name)
                    case ev.AskProducerId():
                        self.next_producer_id += 1
                        following = replace(event, fresh_id=ProducerId(self.next_producer_id))
                    case ev.WaitForCopy() | ev.WaitForDecision():
                        return effect
        return None

    def place_due(self):
        while (message := self.order.next_due()) is not None:
            self.place(message)

    def place(self, message: ApplyCommit):
        """Idempotent: a log that has placed the transaction does not place it again."""
        numbers = [number for log in message.logs for txid, number in self.placed[log] if txid == message.txid]
        self.apply_number += 1
        number = numbers[0] if numbers else self.apply_number
        for log in message.logs:
            self.burn()
            if all(txid != message.txid for txid, _ in self.placed[log]):
                self.placed[log].append((message.txid, number))

    def discard(self, message):
        """A DISCARD is not flushed either: a loss of power may bring the records back."""
        for log in message.logs:
            pieces = self.held.get(message.txid, {}).pop(log, None)
            if pieces is not None:
                self.discarded.append((message.txid, log, pieces))

    def copy_all(self, name):
        """What the id has committed becomes visible; what its group has committed before it is decided for that."""
        for other in sorted(self.pending):
            if self.producers[other].group == self.producers[name].group:
                del self.pending[other]  # its client does not hear of it, and may ask again
                self.durable = len(self.records)
                self.durably_held.add(self.producers[other].txid)
                self.run(other, ev.Prepared(0))
        while self.producers[name].decided:
            self.copy(name, 0)

    def copy(self, name, last):
        """The id's copies up to this one are there, in order; of the last one its coordinator hears first.

        All placed before them in their logs is durable and copied as well.
        """
        for decided in self.producers[name].decided[: last + 1]:
            for log in decided.expected:
                index = next(i for i, (txid, _) in enumerate(self.placed[log]) if txid == decided.txid)
                self.placed_durably[log] = max(self.placed_durably[log], index + 1)
                for txid, _ in self.placed[log][: index + 1]:
                    if txid not in self.visible_transactions[log]:
                        self.visible_transactions[log].append(txid)
                        self.visible[log] += self.held[txid][log]
        self.run(name, ev.Copied(self.producers[name].decided[last].txid, (), 0))

    # ------------------------------------------------------------------------------------------ clients

    def able(self, *states: str) -> list[Client]:
        """Clients in these states whose EndTxn is not being decided."""
        return [it for it in self.clients.values() if it.state in states and it.name not in self.pending]

    def send(self, data, name, event):
        """The answer; PENDING also when the node has crashed over it."""
        if data.draw(st.integers(0, 9), label="burns") == 9:
            self.fuse = data.draw(st.integers(0, 5), label="fuse")
        try:
            return self.run(name, event)
        except Crash:
            self.crash(data)
            return PENDING
        finally:
            self.fuse = None

    @rule(data=st.data(), name=st.sampled_from(NAMES))
    def new_instance(self, data, name):
        """Whoever had the name becomes a zombie; it may not know."""
        event = ev.Init(60_000, NO_PRODUCER_ID, NO_PRODUCER_EPOCH, self.connect(), SETTINGS, 0)
        if name in self.pending:
            assert isinstance(self.run(name, event), ev.WaitForDecision)
            return
        old = self.clients.get(name)
        newcomer = Client(name, Granted(NO_PRODUCER_ID, NO_PRODUCER_EPOCH), event.connection)
        newcomer.speaks_up = data.draw(st.booleans(), label="speaks up")
        newcomer.by_epoch = data.draw(st.booleans(), label="version 2")
        answer = self.send(data, name, event)
        if not isinstance(answer, Granted):
            return
        newcomer.granted = answer
        self.clients[name] = newcomer
        if old is not None:
            assert answer != old.granted
            self.zombies.append(old)

    @precondition(lambda self: self.able("idle", "in transaction"))
    @rule(data=st.data(), log=st.sampled_from(LOGS), records=st.integers(0, 2))
    def write(self, data, log, records):
        """AddPartitions if need be, then Produce."""
        self.write_to(data, data.draw(st.sampled_from(self.able("idle", "in transaction"))), log, records)

    def write_to(self, data, client, log, records):
        if client.state == "idle" or log not in client.logs:
            answer = self.send(data, client.name, ev.Add(*self.who(client), (log,), client.known_by, 0))
            if answer is PENDING:
                return
            if client.state == "idle":
                client.attempt, client.logs = Attempt(), set()
                self.ledger.append(client.attempt)
            if answer != {log: None}:
                self.refused(client, answer)
                return
            client.state = "in transaction"
            client.logs.add(log)
        for _ in range(records):
            self.next_piece += 1
            if not self.leader_takes(client, log):
                client.state = "must abort"
                return
            client.attempt.pieces.append((log, self.next_piece))

    @precondition(lambda self: self.able("idle"))
    @rule(data=st.data())
    def write_in_vain(self, data):
        """A transaction whose first AddPartitions is refused; librdkafka aborts it all the same."""
        client = data.draw(st.sampled_from(self.able("idle")))
        answer = self.send(data, client.name, ev.Add(*self.who(client), (DELETED,), client.known_by, 0))
        if answer is PENDING:
            return
        client.attempt, client.logs = Attempt(), set()
        if answer == {DELETED: Refusal.UNKNOWN_LOG}:
            client.state = "must abort"
        else:
            self.refused(client, answer)

    def who(self, client):
        return client.granted.producer_id, client.granted.epoch

    def refused(self, client, answer):
        if answer is Refusal.MUST_ABORT:
            # Java aborts without a word if nothing of the transaction was ever acknowledged: it is told so that it asks
            # for a new epoch, which the next instance stands for here.
            client.state = "must abort" if client.state != "idle" or client.speaks_up else "dead"
        elif answer in (Refusal.FENCED, Refusal.UNKNOWN_PRODUCER_ID_MAPPING):
            self.fatal(client)
        else:
            raise AssertionError(f"a client that behaves was answered {answer}")

    def fatal(self, client):
        client.state = "dead"

    def leader_takes(self, client, log) -> bool:
        """Whether a batch is accepted: its producer's transaction is open in this log."""
        for txid, logs in self.held.items():
            mine = (txid.producer_id, txid.epoch) == self.who(client)
            if mine and log in logs and txid not in self.sealed:
                logs[log].append(self.next_piece)
                self.used.add(txid)
                return True
        return False

    @precondition(lambda self: self.able("idle", "in transaction"))
    @rule(data=st.data(), logs=st.lists(st.sampled_from(LOGS), min_size=1, max_size=3))
    def commit_whole(self, data, logs):
        """The usual life, so that the unusual happens in the midst of it."""
        client = data.draw(st.sampled_from(self.able("idle", "in transaction")))
        for log in logs:
            if client.state in ("idle", "in transaction") and client.name not in self.pending:
                self.write_to(data, client, log, 1)
        if client.state == "in transaction":
            self.end_of(data, client, commit=True, at_once=True)

    @precondition(lambda self: self.able("in transaction", "must abort"))
    @rule(data=st.data(), commit=st.sampled_from([True, True, True, False]), at_once=st.booleans())
    def end(self, data, commit, at_once):
        self.end_of(data, data.draw(st.sampled_from(self.able("in transaction", "must abort"))), commit, at_once)

    def end_of(self, data, client, commit, at_once):
        client.asked_commit = commit and client.state == "in transaction"
        client.repeated = False
        self.ended_since_crash += 1
        self.late_end(data, client)
        self.ask_end(data, client)
        if at_once and client.name in self.pending:
            self.conclude(data, client.name, all_prepare=True)

    @precondition(lambda self: any(it.state == "ending" for it in self.clients.values()))
    @rule(data=st.data())
    def repeat_end(self, data):
        """The answer was lost, or did not come: the client asks for the same on a new connection."""
        client = data.draw(st.sampled_from([it for it in self.clients.values() if it.state == "ending"]))
        client.connection, client.repeated = self.connect(), True
        if client.name in self.pending:
            event = ev.End(*self.who(client), client.asked_commit, client.known_by, 0)
            assert isinstance(self.run(client.name, event), ev.WaitForDecision)
            return
        self.ask_end(data, client)

    def ask_end(self, data, client):
        client.state = "ending"
        event = ev.End(*self.who(client), client.asked_commit, client.known_by, 0)
        answer = self.send(data, client.name, event)
        if isinstance(answer, ev.WaitForCopy):
            producer = self.producers[client.name]
            ended = (*producer.committed, *producer.decided)
            assert sum(it.txid >= producer.decided[0].txid for it in ended) == DECIDED_MAX
            client.state = "in transaction"
        elif answer is not PENDING:
            self.hear_end(data, client, answer)

    def hear_end(self, data, client, answer):
        """What the client makes of the answer, if it gets it."""
        if data.draw(st.integers(0, 3), label="answer lost") == 3:
            client.connection = self.connect()
            return
        if answer is None or isinstance(answer, Granted):
            assert isinstance(answer, Granted) == client.by_epoch
            client.attempt.outcome = "committed" if client.asked_commit else "no effect"
            client.state = "idle"
            client.granted = answer or client.granted
        elif answer is Refusal.OUTCOME_LOST:
            client.attempt.outcome = "unknown"
            self.fatal(client)
        else:
            if answer is Refusal.MUST_ABORT or not client.repeated:
                client.attempt.outcome = "no effect"
            self.refused(client, answer)

    @precondition(lambda self: self.pending)
    @rule(data=st.data(), all_prepare=st.booleans())
    def decide(self, data, all_prepare):
        self.conclude(data, data.draw(st.sampled_from(sorted(self.pending))), all_prepare=all_prepare)

    def conclude(self, data, name, *, all_prepare):
        client, producer = self.pending.pop(name), self.producers[name]
        all_prepare = all_prepare or not producer.transaction.expected
        if all_prepare:
            self.durable = len(self.records)
            self.durably_held.add(producer.txid)
        event = ev.Prepared(0) if all_prepare else ev.Refused(0)
        answer = self.send(data, client.name, event)
        if answer is not PENDING and client.state == "ending":
            self.hear_end(data, client, answer)

    def late_end(self, data, client):
        """Invariant 10: an EndTxn on a connection before the last one ends nothing, and none of an earlier epoch."""
        before = self.producers[client.name]
        if client.by_epoch and client.granted.epoch:
            earlier = ProducerEpoch(client.granted.epoch - 1)
            commit = data.draw(st.booleans(), label="late commit")
            self.run(client.name, ev.End(client.granted.producer_id, earlier, commit, None, 0))
            assert self.producers[client.name] == before
        elif before.connection > 0:
            connection = data.draw(st.integers(0, before.connection - 1), label="late connection")
            event = ev.End(*self.who(client), data.draw(st.booleans(), label="late commit"), connection, 0)
            self.run(client.name, event)
            assert self.producers[client.name] == before

    @precondition(lambda self: self.zombies)
    @rule(data=st.data(), log=st.sampled_from(LOGS))
    def zombie(self, data, log):
        """Invariant 9: an older instance gets nothing in, on any log."""
        client = data.draw(st.sampled_from(self.zombies))
        before = self.producers[client.name]
        self.next_piece += 1
        assert not self.leader_takes(client, log)
        requests = [
            ev.Add(*self.who(client), (log,), client.known_by, 0),
            ev.End(*self.who(client), True, client.known_by, 0),
            ev.End(*self.who(client), False, client.known_by, 0),
        ]
        assert self.run(client.name, data.draw(st.sampled_from(requests))) is Refusal.FENCED
        assert self.producers[client.name] == before

    # --------------------------------------------------------------------------- time, copies and crashes

    @precondition(lambda self: any(it.state is IdState.OPEN for it in self.producers.values()))
    @rule(data=st.data(), fence=st.booleans())
    def time_out(self, data, fence):
        able = [name for name in NAMES if self.producers[name].state is IdState.OPEN]
        self.send(data, data.draw(st.sampled_from(able)), ev.TimedOut(fence, 0))

    def placed_of(self, name) -> int:
        """So many of the id's decided transactions are placed; others wait for those before them in their group."""
        decided = self.producers[name].decided
        return sum(all(any(it.txid == txid for txid, _ in self.placed[log]) for log in it.expected) for it in decided)

    @precondition(lambda self: any(self.placed_of(name) for name in NAMES))
    @rule(data=st.data())
    def copies_end(self, data):
        name = data.draw(st.sampled_from([name for name in NAMES if self.placed_of(name)]))
        self.copy(name, data.draw(st.integers(0, self.placed_of(name) - 1)))

    @rule()
    def snapshot(self):
        self.records = list(snapshot_records(self.producers.values()))
        self.snapshot_number = self.commit_number
        self.durable = len(self.records)

    @precondition(lambda self: self.ended_since_crash >= 2)
    @rule(data=st.data())
    def any_crash(self, data):
        self.crash(data)

    def crash(self, data):
        self.ended_since_crash = 0
        power_lost = data.draw(st.booleans(), label="power lost")
        if power_lost:
            self.lose_power(data)
        self.fuse = None
        self.pending.clear()
        self.order = CommitOrder()
        self.connections = 0
        for client in (*self.zombies, *self.clients.values()):
            client.connection = self.connect()
        self.recover(tail_kept=not power_lost)

    def lose_power(self, data):
        del self.records[data.draw(st.integers(self.durable, len(self.records)), label="records kept") :]
        for txid, log, pieces in self.discarded:
            if data.draw(st.booleans(), label=f"{txid} comes back in {log.partition}"):
                self.held.setdefault(txid, {})[log] = pieces
        for txid, logs in self.held.items():
            if txid not in self.durably_held:
                for log, pieces in logs.items():
                    del pieces[data.draw(st.integers(0, len(pieces)), label=f"kept of {txid} in {log.partition}") :]
        for log, placed in self.placed.items():
            kept = data.draw(st.integers(self.placed_durably[log], len(placed)), label=f"applies in {log.partition}")
            del placed[kept:]

    def recover(self, *, tail_kept):
        found = replay(self.records)
        numbers = (it.commit_number for it in self.records if isinstance(it, PrepareCommitRecord))
        self.commit_number = max((self.snapshot_number, *numbers))
        self.producers = {name: found.producers.get(name, _unknown(name)) for name in NAMES}
        for record in found.half_aborted.values():
            self.discard(record)
        doubtful = in_doubt([found])
        for name in NAMES:
            if self.producers[name].state is not IdState.UNKNOWN:
                self.run(name, ev.Restarted(tail_kept, True, 0))
        self.records += [prepare_commit_record(one.transactional_id, one.decided) for one in doubtful]
        self.durable = len(self.records)
        survivors = []
        for one in doubtful:
            held = self.held.get(one.decided.txid, {})
            whole = all(len(held.get(log, ())) == it.records for log, it in one.decided.expected.items())
            if whole:
                self.durably_held.add(one.decided.txid)
                survivors.append(one)
            else:
                self.run(one.transactional_id, ev.Withdrawn(one.decided.txid, 0))
        numbers = {txid: ApplyNumber(number) for log in LOGS for txid, number in self.placed[log]}
        going_on = {it.txid for it in self.producers.values() if it.state is IdState.OPEN}
        known = {one.decided.txid for one in survivors} | going_on | self.durably_held
        self.held = {txid: logs for txid, logs in self.held.items() if txid in known}
        self.sealed = set(self.held) - going_on
        self.discarded.clear()
        said = [SaidAgain(one.group, numbers.get(one.decided.txid)) for one in survivors]
        for index in place_order(said):
            self.place(survivors[index].decided.apply(survivors[index].group))
        self.durable = len(self.records)

    # ------------------------------------------------------------------------------------------ invariants

    @invariant()
    def what_is_remembered_stands_in_commit_order(self):
        for producer in self.producers.values():
            for several in (producer.committed, producer.decided):
                numbers = [it.txid for it in several]
                assert numbers == sorted(numbers)

    @invariant()
    def promised_absence_holds(self):
        """Invariant 5: what was answered "no effect" is neither visible nor on its way."""
        shown = {piece for pieces in self.visible.values() for piece in pieces}
        coming = {
            piece
            for producer in self.producers.values()
            for decided in producer.decided
            for log in decided.expected
            for piece in self.held[decided.txid][log]
        }
        for attempt in self.ledger:
            pieces = {piece for _, piece in attempt.pieces}
            if attempt.outcome == "no effect":
                assert not pieces & (shown | coming)
            if attempt.outcome == "committed":
                assert pieces <= shown | coming

    @invariant()
    def order_is_the_order_of_prepare_commits(self):
        """Invariant 6, in every log, of what is visible and of what is placed."""
        rank = {txid: index for index, txid in reversed(list(enumerate(self.commit_order)))}
        for log in LOGS:
            for transactions in (self.visible_transactions[log], [txid for txid, _ in self.placed[log]]):
                for group in {self.groups[txid] for txid in transactions}:
                    ranks = [rank[txid] for txid in transactions if self.groups[txid] == group]
                    assert ranks == sorted(set(ranks))

    def teardown(self):
        """Invariants 5 and 6 at the end of all copies: each attempt is there as a whole, once, or not at all."""
        if not hasattr(self, "producers"):
            return
        for name in NAMES:
            self.copy_all(name)
        shown = [(log, piece) for log, pieces in self.visible.items() for piece in pieces]
        assert len(set(shown)) == len(shown)
        for attempt in self.ledger:
            there = [piece in shown for piece in attempt.pieces]
            assert all(there) or not any(there), "half a transaction is visible"
            if attempt.outcome == "committed":
                assert all(there)
            if attempt.outcome == "no effect":
                assert not any(there)
        assert {piece for _, piece in shown} <= {piece for it in self.ledger for _, piece in it.pieces}


TestTransactions = pytest.mark.slow(Transactions.TestCase)
TestTransactions.settings = settings(max_examples=60, stateful_step_count=60, deadline=None)
