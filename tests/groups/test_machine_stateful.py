"""The state machine of one group, driven by members who do and say anything.

Members join with and without ids, static or not, change their minds, sync in whatever generation they like, go,
hang up and die; ids that were taken from them go on asking; and the node is killed, and starts with what was kept.
After every step the promises in the head of `fairlog/groups/machine.py` are compared with what was answered. In the
end nothing happens any more but time: then every request that still waits must be answered, and the group must be
forgotten.
"""

from __future__ import annotations

from dataclasses import dataclass

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from fairlog.groups.interface import GroupRefusal
from fairlog.groups.machine import GROUP_BYTES
from fairlog.groups.member import MEMBER_BYTES
from fairlog.groups.messages import Joined, JoinRefused, Leaving, Synced
from fairlog.groups.states import GroupState
from fairlog.groups.waiting import IDLE_MS_MAX, NEW_MEMBER_JOIN_MS
from tests.groups.stage import Stage, wish

INSTANCES = (None, None, "S", "T")
SESSIONS = st.sampled_from([6_000, 20_000])
REBALANCES = st.sampled_from([0, 5_000, 60_000])
PROTOCOLS = st.sampled_from(
    [
        (("range", wish("t")),),
        (("range", wish("t", "u")), ("sticky", wish("t"))),
        (("sticky", wish("u")), ("range", wish("u"))),
        (("sticky", b"\0"),),
        (),
    ]
)
CHANGES = st.booleans()


@dataclass
class Request:
    """What waits for an answer."""

    kind: str
    member_id: str
    generation: int
    """That the request names; -1 for a JoinGroup."""


class Members(RuleBasedStateMachine):
    @initialize(delay_ms=st.sampled_from([0, 200]), members_max=st.sampled_from([2, 5]))
    def start(self, delay_ms, members_max):
        self.stage = Stage(initial_rebalance_delay_ms=delay_ms, members_max=members_max)
        self.group = self.stage.group
        self.members_max = members_max
        self.waiting: dict[int, Request] = {}
        self.seen_answers = 0
        self.ids: dict[str, str | None] = {}
        """Every id that was ever given, with its instance id."""
        self.said: dict[str, tuple] = {}
        self.gone: set[str] = set()
        """Ids that were members once and are not any more."""
        self.members: set[str] = set()
        self.generation = 0
        self.assigned: dict[int, dict[str, bytes]] = {}
        """What the leader had for those who were members then, by generation."""
        self.told = 0
        """The last generation in which somebody was told what it reads."""

    # ------------------------------------------------------------------------------- looking at what came

    def look(self):
        """Compare all new answers with what is true now."""
        now_members = set(self.stage.members)
        self.gone |= self.members - now_members
        self.members = now_members
        assert not self.gone & now_members, "an id came back that had gone"
        assert self.group.generation >= self.generation, "a generation came back"
        self.generation = self.group.generation
        answers = list(self.stage.answers.items())[self.seen_answers :]
        self.seen_answers += len(answers)
        for ticket, answer in answers:
            request = self.waiting.pop(ticket)
            match answer:
                case Joined():
                    assert request.kind == "join"
                    assert answer.generation == self.generation
                    assert answer.member_id in now_members
                    if answer.leader_id not in now_members:
                        assert answer.leader_id in self.gone, "an old leader's id stands for a static one that is back"
                        assert self.ids[answer.member_id] == self.ids[answer.leader_id] is not None
                    leads = answer.leader_id == answer.member_id
                    assert leads == bool(answer.members)
                    assert not leads or {each.member_id for each in answer.members} == now_members
                    self.ids.setdefault(answer.member_id, None)
                case JoinRefused():
                    assert request.kind == "join"
                case Synced():
                    assert request.kind == "sync"
                    assert request.member_id in now_members, "a stale member got an assignment"
                    assert request.generation == self.generation, "an assignment of another generation"
                    assert answer.assignment == self.heir(request.member_id)
                    self.told = self.generation
                case GroupRefusal():
                    assert request.kind == "sync"

    def heir(self, member_id):
        """What the leader gave this member, or the one whose place it has taken."""
        given = self.assigned[self.generation]
        instance = self.ids[member_id]
        names = [each for each, its in self.ids.items() if each == member_id or (instance and its == instance)]
        return next((given[name] for name in reversed(names) if name in given), b"")

    def ask(self, kind, member_id, generation, act):
        """`act` sends a request, which is answered now or later."""
        expected = self.stage._tickets + 1
        self.waiting[expected] = Request(kind, member_id, generation)
        ticket = act()
        assert ticket == expected
        self.look()
        return ticket

    def known_id(self, data):
        return data.draw(st.sampled_from(sorted(self.ids) or ["stranger"]), "member id")

    # ------------------------------------------------------------------------------- what members do

    @rule(
        instance=st.sampled_from(INSTANCES),
        id_required=st.booleans(),
        session=SESSIONS,
        rebalance=REBALANCES,
        protocols=PROTOCOLS,
        skips=st.booleans(),
    )
    def join(self, instance, id_required, session, rebalance, protocols, skips):
        name = f"m{len(self.ids)}"
        self.ids[name] = instance
        fields = {
            "instance_id": instance,
            "id_required": id_required,
            "session_timeout_ms": session,
            "rebalance_timeout_ms": rebalance,
            "protocols": protocols,
            "knows_skipping": skips,
        }
        self.said[name] = protocols
        self.ask("join", name, -1, lambda: self.stage.join(name, **fields))

    @rule(data=st.data(), changes=CHANGES, says_instance=st.booleans(), session=SESSIONS, protocols=PROTOCOLS)
    def join_again(self, data, changes, says_instance, session, protocols):
        name = self.known_id(data)
        if changes:
            self.said[name] = protocols
        fields = {
            "instance_id": self.ids.get(name) if says_instance else None,
            "session_timeout_ms": session,
            "protocols": self.said.get(name, protocols),
        }
        ticket = self.ask("join", name, -1, lambda: self.stage.join(name, known=True, **fields))
        if name in self.gone:
            assert isinstance(self.stage.answers[ticket], JoinRefused)

    @rule(data=st.data(), behind=st.sampled_from([0, 0, 0, 1, 100]))
    def sync(self, data, behind):
        name = self.known_id(data)
        generation = self.group.generation - behind
        to = {each: f"{each} in {generation}".encode() for each in self.ids if not each.endswith("3")}
        if self.group.state is GroupState.COMPLETING_REBALANCE and name == self.group.leader_id and behind == 0:
            self.assigned[generation] = {each: to.get(each, b"") for each in self.members}
        current = name in self.members and behind == 0
        ticket = self.ask("sync", name, generation, lambda: self.stage.sync(name, generation=generation, to=to))
        if not current:
            assert isinstance(self.stage.answers[ticket], GroupRefusal)

    @rule(data=st.data(), behind=st.sampled_from([0, 0, 1]))
    def heartbeat(self, data, behind):
        name = self.known_id(data)
        refusal = self.stage.heartbeat(name, generation=self.group.generation - behind)
        current = name in self.members and behind == 0
        preparing = self.group.state is GroupState.PREPARING_REBALANCE
        assert (refusal is None) == (current and not preparing)
        assert (refusal is GroupRefusal.REBALANCE_IN_PROGRESS) == (current and preparing)
        self.look()

    @rule(data=st.data(), behind=st.sampled_from([0, 0, 1]), transactional=st.booleans())
    def commit(self, data, behind, transactional):
        name = self.known_id(data)
        generation = self.group.generation - behind
        refusal = self.stage.commit(name, generation=generation, transactional=transactional)
        if generation >= 0 and (name not in self.members or behind):
            assert refusal is not None, "offsets of a stale member were taken"
        self.look()

    @rule(data=st.data(), by_instance=st.booleans())
    def leave(self, data, by_instance):
        name = self.known_id(data)
        instance = self.ids.get(name) if by_instance else None
        self.stage.leave(Leaving("" if instance else name, instance))
        self.look()

    @precondition(lambda self: self.waiting)
    @rule(data=st.data())
    def hang_up(self, data):
        ticket = data.draw(st.sampled_from(sorted(self.waiting)), "ticket")
        del self.waiting[ticket]
        self.stage.hang_up(ticket)
        self.look()

    @rule(ms=st.sampled_from([1, 200, 1_000, 5_000, 20_000, 60_000]))
    def wait(self, ms):
        if self.group.state is not GroupState.DEAD:
            self.pass_time(ms)

    @precondition(lambda self: self.waiting or self.members)
    @rule()
    def gather(self):
        """Everybody does what is right, so that stable groups are seen more often than by chance."""
        for name in sorted(self.members):
            if self.group.state is GroupState.PREPARING_REBALANCE and name in self.members:
                protocols = self.said.get(name) or PROTOCOLS.elements[0]
                self.ask("join", name, -1, lambda n=name, p=protocols: self.stage.join(n, known=True, protocols=p))
        leader = self.group.leader_id
        if self.group.state is GroupState.COMPLETING_REBALANCE:
            to = {name: f"{name} gathered".encode() for name in self.members}
            self.assigned[self.generation] = to
            for name in sorted(self.members - {leader}):
                self.ask("sync", name, self.generation, lambda n=name: self.stage.sync(n))
            self.ask("sync", leader, self.generation, lambda: self.stage.sync(leader, to=to))
            assert self.group.state is GroupState.STABLE

    @precondition(lambda self: self.group.state is not GroupState.DEAD)
    @rule()
    def restart(self):
        """What is not kept is undone, but nothing that anybody was told."""
        members = set(self.stage.members)
        self.stage.restart()
        self.group = self.stage.group
        self.waiting.clear()
        self.members = set(self.stage.members)
        self.gone = (self.gone | members) - self.members
        assert self.group.generation >= self.told
        assert self.group.state in (GroupState.EMPTY, GroupState.STABLE)
        self.generation = self.group.generation
        for member in self.group.describe().members:
            assert member.assignment == self.heir(member.member_id)

    def pass_time(self, ms):
        for _ in self.stage.ticks(ms):
            self.look()
            self.nobody_is_late()

    # ------------------------------------------------------------------------------- what always holds

    def nobody_is_late(self):
        now_ms = self.stage.now_ms
        roster = self.group._roster
        assert all(member.deadline_ms > now_ms for member in roster.members.values())
        assert all(until_ms > now_ms for until_ms in roster.pending.values())
        assert self.group._waiting.until_ms > now_ms

    @invariant()
    def shell_is_told_in_time(self):
        """It sleeps until `due_ms`."""
        assert self.group.due_ms <= self.group._waiting.soonest_ms()

    @invariant()
    def leader_is_a_member(self):
        settled = (GroupState.COMPLETING_REBALANCE, GroupState.STABLE)
        assert self.group.state not in settled or self.group.leader_id in self.members
        assert (self.group.state in (GroupState.EMPTY, GroupState.DEAD)) == (not self.members)
        assert len(self.members) <= self.members_max

    @invariant()
    def who_waits_is_a_member(self):
        roster = self.group._roster.members.values()
        joins = {member.join_ticket for member in roster} - {None}
        syncs = {member.sync_ticket for member in roster} - {None}
        assert joins | syncs == set(self.waiting)
        assert not joins or self.group.state is GroupState.PREPARING_REBALANCE
        assert not syncs or self.group.state is GroupState.COMPLETING_REBALANCE

    @invariant()
    def size_is_counted(self):
        roster = self.group._roster
        members = sum(member.size_bytes for member in roster.members.values())
        assert self.group.size_bytes == GROUP_BYTES + members + MEMBER_BYTES * len(roster.pending)

    def teardown(self):
        if not hasattr(self, "stage") or self.group.state is GroupState.DEAD:
            return
        self.pass_time(2 * NEW_MEMBER_JOIN_MS)
        assert not self.waiting, "somebody waits for ever"
        assert self.group.is_empty
        self.pass_time(IDLE_MS_MAX)
        assert self.group.state is GroupState.DEAD


@pytest.mark.slow
class TestMembers(Members.TestCase):
    """Whatever members do, every promise of the machine holds."""

    settings = settings(max_examples=150, stateful_step_count=40, deadline=None)
