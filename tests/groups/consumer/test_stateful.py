"""A consumer group under everything that can happen to it, against clients of both
protocols that do what is asked of them.

Answers are lost, requests come late, clients die, come back and change their minds, topics come and go, the disk is
slow or refuses, and the node restarts at any moment. What must hold, always:

* what a member reads is its own in the node's books, so no two members read the same partition;
* the epochs that a member is told only grow, until it begins again;
* when all is quiet, every member reads its target, and the targets are even.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from datalog.offset_entries import name_digest
from fairlog.groups import persisted_group
from fairlog.groups.consumer import classic_members
from fairlog.groups.consumer.embedded_protocol import decode_assignment_untrusted
from fairlog.groups.consumer.machine import ConsumerGroup
from fairlog.groups.consumer.settings import ConsumerGroupSettings
from fairlog.groups.consumer.states import ConsumerGroupState
from fairlog.groups.consumer.values import AWAY, JOINING, LEAVING, NOTHING, Beaten
from fairlog.groups.interface import GroupRefusal
from fairlog.groups.messages import Joined, Joining, JoinRefused, Leaving, Synced, Syncing
from tests.groups.consumer.board import Board, beat, subscription

pytestmark = pytest.mark.slow

TOPICS = ["t", "u", "v"]
SETTINGS = ConsumerGroupSettings(session_timeout_ms=10_000, members_max=6)
BEGIN_AGAIN = {GroupRefusal.UNKNOWN_MEMBER, GroupRefusal.FENCED_MEMBER_EPOCH}


@dataclass
class Client:
    """A consumer."""

    member_id: str
    instance_id: str | None
    names: frozenset[str]
    regex: str | None
    assignor: str | None
    epoch: int = JOINING
    reading: frozenset = NOTHING
    assignment: frozenset = NOTHING
    """What it was told to read; it gives up at once, and takes with its next step."""
    connection: int = 1
    said: frozenset = NOTHING
    """What it has said last that it reads."""
    says_all: bool = True
    is_over: bool = False
    """It was fenced for good, or has left."""
    classic: str | None = None
    """The strategy of one that speaks the classic protocol: `cooperative` keeps what it reads while it joins."""
    has_joined: bool = False
    has_synced: bool = False
    was_removed: bool = False
    """It joins with what it read before it was removed, and has not heard yet that it is not its own any more."""
    late: list = field(default_factory=list)
    """Heartbeats of earlier connections that may still arrive."""


class Groups(RuleBasedStateMachine):
    @initialize()
    def begin(self):
        self.board = Board()
        self.board.make("t", 3)
        self.now_ms = 0
        self.clients: list[Client] = []
        self.born = 0
        self.connections = 1
        self.disk: persisted_group.PersistedGroup | None = None
        self.to_write: persisted_group.GroupWrite | None = None
        self.waiting: list[tuple[int, Client, object]] = []
        self.group: ConsumerGroup | None = None

    # --- the node ------------------------------------------------------------------------------

    def ask(self, client, request):
        """A heartbeat reaches the node."""
        if self.group is None:
            if request.epoch != JOINING:
                return self.hear(client, request, GroupRefusal.UNKNOWN_MEMBER)
            self.group = ConsumerGroup("g", SETTINGS, self.board, self.now_ms)
        answer = self.group.beat(request, self.now_ms)
        self.settle()
        if self.group is None:
            return self.hear(client, request, answer.refusal)
        if not isinstance(answer, Beaten):
            return self.hear(client, request, answer.refusal)
        if self.group.answer_number is None:
            return self.hear(client, request, answer)
        self.waiting.append((self.group.answer_number, client, request, answer))
        return None

    def settle(self):
        write = self.group.take_write()
        if write is not None:
            self.to_write = write
        if self.group.is_forgotten or self.group.epoch == 0:
            self.group = None
            self.waiting = []

    @rule(refused=st.booleans())
    @precondition(lambda self: self.to_write is not None)
    def the_disk_has_written(self, refused=False):
        write, self.to_write = self.to_write, None
        if not refused:
            self.disk = write.group
            if write.group is not None:  # as it would be read back
                digest = name_digest("g")
                assert persisted_group.decode_group(digest, persisted_group.encode_group("g", write.group)) == (
                    "g",
                    write.group,
                )
        if self.group is None:
            return
        if refused:
            if self.group.not_kept(write.number, self.now_ms):
                self.waiting = []
                self.settle()
            return
        self.group.kept(write.number)
        due = [each for each in self.waiting if each[0] <= write.number]
        self.waiting = [each for each in self.waiting if each[0] > write.number]
        for _, client, request, answer in due:
            self.hear(client, request, answer)

    @rule()
    def the_node_restarts(self):
        """What is not on disk is lost; connections break."""
        self.waiting, self.to_write, self.group = [], None, None
        if self.disk is not None:
            self.group = ConsumerGroup.resumed("g", self.disk, SETTINGS, self.board, self.now_ms)
        for client in self.clients:
            client.late.clear()
            client.says_all = True

    @rule(pass_ms=st.sampled_from([100, 4_000, 11_000, 700_000]))
    def time_passes(self, pass_ms):
        self.now_ms += pass_ms
        if self.group is not None and self.group.due_ms <= self.now_ms:
            self.group.tick(self.now_ms)
            self.settle()

    # --- topics --------------------------------------------------------------------------------

    @rule(name=st.sampled_from(TOPICS), size=st.integers(1, 7))
    def a_topic_comes_or_grows(self, name, size):
        self.board.make(name, max(size, self.board.sizes.get(name, 0)))

    @rule(name=st.sampled_from(TOPICS))
    def a_topic_goes(self, name):
        if name in self.board.sizes:
            self.board.delete(name)

    # --- clients -------------------------------------------------------------------------------

    @rule(
        names=st.frozensets(st.sampled_from(TOPICS)),
        regex=st.sampled_from([None, None, "[uv]", ".*"]),
        assignor=st.sampled_from([None, "uniform", "range"]),
        instance_id=st.sampled_from([None, None, "S", "T"]),
    )
    def a_client_comes(self, names, regex, assignor, instance_id):
        self.born += 1
        client = Client(f"m{self.born}", instance_id, names, regex, assignor)
        client.connection = self.new_connection()
        self.clients.append(client)
        self.send(client)

    @rule(names=st.frozensets(st.sampled_from(TOPICS), min_size=1), strategy=st.sampled_from(["cooperative", "eager"]))
    def a_classic_client_comes(self, names, strategy):
        self.born += 1
        if any(client.classic not in (None, strategy) for client in self.clients):
            return
        self.clients.append(Client(f"c{self.born}", None, names, None, None, classic=strategy))
        self.send(self.clients[-1])

    def new_connection(self):
        self.connections += 1
        return self.connections

    def request(self, client, epoch=None):
        everything = client.says_all or client.epoch == JOINING
        return beat(
            client.member_id,
            client.epoch if epoch is None else epoch,
            client.reading if everything or client.reading != client.said else None,
            instance_id=client.instance_id,
            connection=client.connection,
            rebalance_timeout_ms=8_000 if everything else None,
            topic_names=client.names if everything else None,
            topic_regex=(client.regex or "") if everything else None,
            assignor=client.assignor if everything else None,
        )

    def send(self, client):
        """The client does what it was told, and says so; it has one request under way on a connection."""
        if client.classic is not None:
            self.send_classic(client)
            return
        if any(each is client and request.connection == client.connection for _, each, request, _ in self.waiting):
            return
        client.reading = client.assignment if client.epoch != JOINING else NOTHING
        request = self.request(client)
        client.said = client.reading
        self.ask(client, request)

    def send_classic(self, client):
        """The next request of a client of the classic protocol."""
        if any(each is client for _, each, _, _ in self.waiting):
            return
        if not client.has_joined:
            if client.classic == "eager":
                client.reading = NOTHING
            if self.group is None:
                self.group = ConsumerGroup("g", SETTINGS, self.board, self.now_ms)
            client.was_removed |= client.member_id not in self.group.members
            # Topics that are gone cannot be named.
            client.reading = frozenset(each for each in client.reading if self.board.name_of(each[0]) is not None)
            metadata = subscription(*client.names, owned=[(self.board.name_of(t), i) for t, i in client.reading])
            request = Joining(
                *(client.member_id, None, client.member_id),
                id_required=False,
                knows_skipping=True,
                client_id="client",
                client_host="/127.0.0.1",
                session_timeout_ms=10_000,
                rebalance_timeout_ms=8_000,
                protocol_type="consumer",
                protocols=((client.classic, metadata),),
            )
            answer = classic_members.join(self.group, request, self.now_ms)
        elif self.group is None:
            answer = GroupRefusal.UNKNOWN_MEMBER
        elif not client.has_synced:
            request = Syncing(client.member_id, None, client.epoch, None, None, {})
            answer = classic_members.sync(self.group, request, self.now_ms)
        else:
            answer = classic_members.heartbeat(self.group, client.member_id, None, client.epoch, self.now_ms)
        if self.group is None:
            self.hear_classic(client, answer)
            return
        self.settle()
        if self.group is None or self.group.answer_number is None:
            self.hear_classic(client, answer)
        else:
            self.waiting.append((self.group.answer_number, client, None, answer))

    def hear_classic(self, client, answer):
        match answer:
            case Joined():
                client.epoch, client.has_joined, client.has_synced = answer.generation, True, False
            case Synced():
                told = decode_assignment_untrusted(answer.assignment)
                client.reading = frozenset(
                    (topic[0], index) for name, index in told if (topic := self.board.find(name)) is not None
                )
                client.has_synced, client.was_removed = True, False
            case GroupRefusal.REBALANCE_IN_PROGRESS:
                client.has_joined = False
            case GroupRefusal.UNKNOWN_MEMBER | GroupRefusal.ILLEGAL_GENERATION:
                client.has_joined, client.reading, client.epoch = False, NOTHING, JOINING
            case JoinRefused():
                client.is_over, client.reading = True, NOTHING
            case _:
                assert answer is None, answer

    def hear(self, client, request, answer):
        """An answer arrives, unless the client asks on another connection by now."""
        if client.classic is not None:
            if not client.is_over:
                self.hear_classic(client, answer)
            return
        if isinstance(answer, Beaten):
            assert answer.epoch <= (0 if self.disk is None else self.disk.group_epoch), "told before it is kept"
        if client.is_over or request.connection != client.connection or request.epoch != client.epoch:
            return
        if isinstance(answer, Beaten):
            assert answer.epoch >= client.epoch, "an epoch went backwards"
            client.epoch, client.says_all = answer.epoch, False
            if answer.assignment is not None:
                client.assignment = answer.assignment
                client.reading &= answer.assignment
        elif answer in BEGIN_AGAIN:
            client.epoch, client.reading, client.assignment = JOINING, NOTHING, NOTHING
        elif answer in (GroupRefusal.FENCED_INSTANCE, GroupRefusal.UNRELEASED_INSTANCE, GroupRefusal.GROUP_MAX_SIZE):
            client.is_over, client.reading = True, NOTHING
        else:
            assert answer is GroupRefusal.LATE, answer

    def pick(self, number):
        alive = [client for client in self.clients if not client.is_over]
        return alive[number % len(alive)] if alive else None

    @rule(number=st.integers(0, 20))
    def a_client_sends_a_heartbeat(self, number):
        client = self.pick(number)
        if client is not None:
            self.send(client)

    @rule()
    def all_clients_send_heartbeats(self):
        for client in [client for client in self.clients if not client.is_over]:
            self.send(client)

    @rule(rounds=st.integers(1, 3))
    def all_goes_well_for_a_while(self, rounds):
        for _ in range(rounds):
            if self.to_write is not None:
                self.the_disk_has_written(refused=False)
            for client in [client for client in self.clients if not client.is_over]:
                self.send(client)
                self.members_read_what_is_theirs()

    @rule(number=st.integers(0, 20), arrives=st.booleans())
    def a_connection_breaks(self, number, arrives):
        """The request that was on its way may still arrive, now or later; its answer does not."""
        client = self.pick(number)
        if client is None or client.classic is not None:
            return
        request = self.request(client)
        client.connection, client.says_all = self.new_connection(), True
        if arrives:
            self.ask(client, request)
        else:
            client.late.append(request)
        self.send(client)

    @rule()
    @precondition(lambda self: any(client.late for client in self.clients))
    def a_late_request_arrives(self):
        client = next(client for client in self.clients if client.late)
        self.ask(client, client.late.pop(0))

    @rule(number=st.integers(0, 20))
    def a_client_begins_late(self, number):
        """Its first request is on its way for long; the client gives it up, and sends another one."""
        client = self.pick(number)
        if client is not None and client.epoch == JOINING:
            self.a_connection_breaks(number, arrives=False)

    @rule(number=st.integers(0, 20), names=st.frozensets(st.sampled_from(TOPICS)))
    def a_client_changes_its_mind(self, number, names):
        client = self.pick(number)
        if client is not None:
            client.names, client.says_all, client.has_joined = names, True, False
            self.send(client)

    @rule(number=st.integers(0, 20), for_good=st.booleans())
    def a_client_leaves(self, number, for_good):
        client = self.pick(number)
        if client is None or client.epoch == JOINING:
            return
        client.reading = NOTHING
        if client.classic is not None:
            client.is_over = True
            if self.group is not None:
                classic_members.leave(self.group, [Leaving(client.member_id, None)], self.now_ms)
                self.settle()
            return
        epoch = LEAVING if for_good or client.instance_id is None else AWAY
        self.ask(client, self.request(client, epoch))
        client.is_over = True

    @rule(number=st.integers(0, 20))
    def a_client_dies(self, number):
        client = self.pick(number)
        if client is not None:
            client.is_over, client.reading = True, NOTHING

    # --- what must hold ------------------------------------------------------------------------

    @invariant()
    def members_read_what_is_theirs(self):
        """Those whom the node has removed read on until they hear of it; that is what epochs are for."""
        if getattr(self, "group", None) is None:
            return
        for client in self.clients:
            member = self.group.members.get(client.member_id)
            if member is not None and not client.is_over and not client.was_removed:
                assert client.reading <= member.owned, client
        owned = [place for member in self.group.members.values() for place in member.owned]
        assert len(owned) == len(set(owned))

    @rule()
    def all_becomes_quiet(self):
        """Who is dead is removed, who lives reads its target, and all that is subscribed is read, evenly."""
        for _ in range(40):
            while self.to_write is not None:
                self.the_disk_has_written(refused=False)
            self.now_ms += 400
            if self.group is not None:
                self.group.tick(self.now_ms)
                self.settle()
            self.all_clients_send_heartbeats()
        while self.to_write is not None:
            self.the_disk_has_written(refused=False)
        self.all_clients_send_heartbeats()
        if self.group is None or self.group.is_empty:
            assert all(client.is_over for client in self.clients)
            return
        group = self.group
        if classic_members.can_go_back(group):
            return  # the service makes it a classic group
        assert group.state is ConsumerGroupState.STABLE
        alive = {client.member_id: client for client in self.clients if not client.is_over}
        assert set(alive) == set(group.members)
        for view in group.snapshot().members:
            assert view.member.assigned == view.target == alive[view.member.member_id].reading
        names = {each: group._names_of(group.members[each]) & set(self.board.sizes) for each in alive}
        everything = self.board.all(*set().union(*names.values()))
        assert frozenset().union(*(client.reading for client in alive.values())) == everything
        if all(client.assignor != "range" for client in self.clients):
            for each, client in alive.items():
                for name in names[each]:
                    if client.reading & self.board.all(name):
                        others = (len(alive[other].reading) for other in alive if name in names[other])
                        assert len(client.reading) - min(others) <= 1


TestGroups = Groups.TestCase
TestGroups.settings = settings(max_examples=200, stateful_step_count=60, deadline=None)
