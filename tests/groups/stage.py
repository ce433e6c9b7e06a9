"""A group with a clock that tests turn, members who say what tests let them say, and doubles of groups' offsets."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Any

import trio

from fairlog.groups.interface import GroupRefusal
from fairlog.groups.machine import Group
from fairlog.groups.messages import Answer, Joined, Joining, JoinRefused, Leaving, Synced, Syncing, Ticket
from fairlog.groups.persisted_group import GroupWrite, PersistedClassicGroup
from fairlog.groups.settings import GroupSettings

SESSION_MS = 10_000
REBALANCE_MS = 60_000


def wish(*topics: str) -> bytes:
    """A consumer's metadata: it wants to read these topics."""
    names = b"".join(struct.pack(">h", len(name)) + name for name in (topic.encode() for topic in topics))
    return struct.pack(">hi", 1, len(topics)) + names + struct.pack(">i", -1)


def joining(member_id: str = "", **fields: Any) -> Joining:
    """A JoinGroup as a plain consumer sends it, for the topic t."""
    values: dict[str, Any] = {
        "member_id": member_id,
        "instance_id": None,
        "new_member_id": "unnamed",
        "id_required": False,
        "knows_skipping": False,
        "client_id": "client",
        "client_host": "/host",
        "session_timeout_ms": SESSION_MS,
        "rebalance_timeout_ms": REBALANCE_MS,
        "protocol_type": "consumer",
        "protocols": (("range", wish("t")),),
    }
    return Joining(**values | fields)


class Offsets:
    """The groups that have offsets; their deletion takes `deletion_s`, and `refusal` is its answer."""

    def __init__(self) -> None:
        self.of: set[str] = set()
        self.refusal: GroupRefusal | None = None
        self.left: dict[str, int] = {}
        self.deletion_s = 0

    def groups(self) -> set[str]:
        return self.of

    def members_left(self, group: str, at_ms: int) -> None:
        self.left[group] = at_ms

    async def delete(self, group: str) -> GroupRefusal | None:
        await trio.sleep(self.deletion_s)
        if self.refusal is None:
            self.of.discard(group)
        return self.refusal


class Stage:
    """One group; tickets count up, answers are collected by ticket, each at most once.

    What is to be kept is kept at once, unless the disk is `slow`: then `disk` says when it is.
    """

    def __init__(self, *, slow: bool = False, **settings: int) -> None:
        self.settings = GroupSettings(**{"initial_rebalance_delay_ms": 0, **settings})
        self.group = Group("g", self.settings, 0)
        self.now_ms = 0
        self.answers: dict[Ticket, Any] = {}
        self.slow = slow
        self.to_persist: GroupWrite | None = None
        """What the disk has yet to keep."""
        self.kept: PersistedClassicGroup | None = None
        """What a restart would find."""
        self._tickets = 0

    def ticket(self) -> Ticket:
        self._tickets += 1
        return Ticket(self._tickets)

    def collect(self, answers: Any) -> None:
        for answer in answers:
            assert isinstance(answer, Answer)
            assert answer.ticket not in self.answers, "answered twice"
            self.answers[answer.ticket] = answer.what
        write = self.group.take_write()
        if write is not None:
            self.to_persist = write
            if not self.slow:
                self.disk()

    def disk(self, *, refuses: bool = False) -> None:
        """Keep what is to be kept, or refuse."""
        write, self.to_persist = self.to_persist, None
        assert write is not None, "there is nothing to keep"
        if refuses:
            self.collect(self.group.not_kept(write.number, self.now_ms))
        else:
            self.kept = write.group
            self.collect(self.group.kept(write.number, self.now_ms))

    def restart(self) -> None:
        """The node is killed, and starts after a while; nothing that waits is ever answered."""
        self.now_ms += 1_000
        self.to_persist = None
        self.group = (
            Group("g", self.settings, self.now_ms)
            if self.kept is None
            else Group.resumed("g", self.kept, self.settings, self.now_ms)
        )

    def join(self, name: str, *, known: bool = False, **fields: Any) -> Ticket:
        """`name` joins: for the first time, or again if it is `known`."""
        ticket = self.ticket()
        request = joining(name if known else "", new_member_id=name, **fields)
        self.collect(self.group.join(ticket, request, self.now_ms))
        return ticket

    def sync(self, name: str, *, generation: int | None = None, instance: str | None = None, **said: Any) -> Ticket:
        """`name` asks for its assignment; `to` maps members to what the leader gives them."""
        ticket = self.ticket()
        generation = self.group.generation if generation is None else generation
        request = Syncing(
            name, instance, generation, said.get("protocol_type"), said.get("protocol"), said.get("to", {})
        )
        self.collect(self.group.sync(ticket, request, self.now_ms))
        return ticket

    def heartbeat(self, name: str, *, generation: int | None = None, instance: str | None = None) -> Any:
        generation = self.group.generation if generation is None else generation
        return self.group.heartbeat(name, instance, generation, self.now_ms)

    def leave(self, *who: str | Leaving) -> Any:
        leaving = [Leaving(each, None) if isinstance(each, str) else each for each in who]
        outcome, answers = self.group.leave(leaving, self.now_ms)
        self.collect(answers)
        return list(outcome)

    def commit(self, name: str, *, generation: int | None = None, transactional: bool = False, **fields: Any) -> Any:
        generation = self.group.generation if generation is None else generation
        instance = fields.get("instance")
        return self.group.may_commit(name, instance, generation, transactional=transactional, now_ms=self.now_ms)

    def hang_up(self, ticket: Ticket) -> None:
        self.collect(self.group.hang_up(ticket, self.now_ms))

    def wait(self, ms: float) -> None:
        """Let time pass; the group is ticked when it says that it is due."""
        for _ in self.ticks(ms):
            pass

    def ticks(self, ms: float) -> Iterator[None]:
        """The same, with a look at the group after each tick."""
        until_ms = self.now_ms + ms
        while self.group.due_ms <= until_ms:
            self.now_ms = max(self.now_ms, self.group.due_ms)
            self.collect(self.group.tick(self.now_ms))
            assert self.group.due_ms > self.now_ms, "a group that is due at once again does not get on"
            yield
        self.now_ms = until_ms

    def live(self, ms: int, *names: str) -> None:
        """Let time pass while these send heartbeats, ten to a session."""
        for _ in range(0, ms, SESSION_MS // 10):
            self.wait(SESSION_MS // 10)
            for name in names:
                self.heartbeat(name)

    def settle(self, *names: str, **fields: Any) -> None:
        """These join an empty group, the first leads; each gets its own name as assignment."""
        for name in names:
            self.join(name, known=name in self.members, **fields)
            for other in names:
                if other in self.members and other != name:
                    self.join(other, known=True, **fields)
        self.assign()
        assert self.state == "Stable"

    def assign(self) -> dict[str, Any]:
        """All sync, and are given their own names, in bytes; their answers by name."""
        leader = self.group.leader_id
        tickets = {name: self.sync(name) for name in self.members if name != leader}
        assert leader is not None
        tickets[leader] = self.sync(leader, to={name: name.encode() for name in self.members})
        return {name: self.answers[ticket] for name, ticket in tickets.items()}

    @property
    def members(self) -> list[str]:
        return [member.member_id for member in self.group.describe().members]

    @property
    def state(self) -> str:
        return self.group.state.value

    def parked(self, ticket: Ticket) -> bool:
        return ticket not in self.answers

    def joined(self, ticket: Ticket) -> Joined:
        answer = self.answers[ticket]
        assert isinstance(answer, Joined), answer
        return answer

    def refused(self, ticket: Ticket) -> GroupRefusal:
        answer = self.answers[ticket]
        return answer.refusal if isinstance(answer, JoinRefused) else answer

    def synced(self, ticket: Ticket) -> bytes:
        answer = self.answers[ticket]
        assert isinstance(answer, Synced), answer
        return answer.assignment
