"""Consumer groups under load, and what a power cut has to leave of who is in them.

Three groups of one member each, which take one step after the other and write down each step when they ask for it, and
again when they have been answered:

    turning    the member joins again: a new generation, with a new assignment
    replaced   a static member's next process takes over its place, in the same generation
    deleted    a member joins and is told what it reads; the next step sends it away and deletes the group

Behind a power cut a group is where the last step that was answered by then had left it, or one step further if one
more had been asked for; and whole: its member, generation and assignment are those of one step. A node says where it is
by heartbeats: those of the members of all other steps are refused.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from tests.clients.raw_client import NONE
from tests.clients.raw_member import UNKNOWN_MEMBER_ID, RawMember
from tests.crash.checker import Violation
from tests.crash.recording import Dated

TURNING, REPLACED, DELETED = "turning", "replaced", "deleted"
GROUPS = (TURNING, REPLACED, DELETED)
INSTANCE = "instance"
SESSION_MS = 600_000
"""Nobody's session ends in a recording, nor while an image is looked at, on however busy a machine."""
PAUSE_S = 0.05
ANSWER_S = 60.0
"""An answer takes milliseconds, on a machine that has nothing else to do."""
ILLEGAL_GENERATION = 22

Step = tuple[str, int]
"""A group, and the number of a step that it takes, from 1."""


@dataclass(frozen=True, slots=True)
class Told:
    """What the one member of a group was told: it is in this generation, and reads this."""

    member_id: str
    generation: int
    assignment: bytes


class GroupLoad:
    """The members, and the check. Each group's steps go on in the thread that calls its method, until told to stop."""

    def __init__(self, asked: Dated[Step, None], answered: Dated[Step, Told | None]) -> None:
        """`answered` has what the member was told; None: the group is deleted."""
        self._asked = asked
        self._answered = answered

    def turn(self, address: str, stopping: threading.Event) -> None:
        number = 0
        with RawMember(address, timeout_s=ANSWER_S) as member:
            while not stopping.wait(PAUSE_S):
                number += 1
                self._settle(member, TURNING, number)

    def replace(self, address: str, stopping: threading.Event) -> None:
        with RawMember(address, timeout_s=ANSWER_S) as first:
            told = self._settle(first, REPLACED, 1, instance=INSTANCE)
        number = 1
        while not stopping.wait(PAUSE_S):
            number += 1
            with RawMember(address, timeout_s=ANSWER_S) as member:
                self._asked[REPLACED, number] = None
                _join(member, REPLACED, instance=INSTANCE)
                self._answered[REPLACED, number] = Told(member.member_id, member.generation, told.assignment)
                assert (member.generation, _assignment(member, REPLACED)) == (told.generation, told.assignment)

    def delete(self, address: str, stopping: threading.Event) -> None:
        number = 0
        while not stopping.wait(PAUSE_S):
            number += 2
            with RawMember(address, timeout_s=ANSWER_S) as member:
                self._settle(member, DELETED, number - 1)
                self._asked[DELETED, number] = None
                assert member.leave(DELETED) == NONE
                assert member.delete_group(DELETED) == NONE
                self._answered[DELETED, number] = None

    def _settle(self, member: RawMember, group: str, number: int, *, instance: str | None = None) -> Told:
        """A step: the member joins, and as the leader says what it reads."""
        _join(member, group, instance=instance)
        assignment = b"%s %d" % (group.encode(), number) + b"." * (number * 7919 % 6007)
        self._asked[group, number] = None
        answer = member.sync(group, {member.member_id: assignment})
        assert (answer.error_code, answer.assignment) == (NONE, assignment)
        told = self._answered[group, number] = Told(member.member_id, member.generation, assignment)
        assert member.heartbeat(group) == NONE
        return told

    def answers(self) -> Sequence[int]:
        """The trace's sizes right behind each answer."""
        return [at for at, _, _ in self._answered.made]

    def violations(self, address: str, moment: int) -> Iterator[Violation]:
        """What is not as a node owes it of which so much had been asked and answered when the power was cut."""
        asked, answered = self._asked.as_of(moment), self._answered.as_of(moment)
        for group in GROUPS:
            steps = sum(each == group for each, _ in self._answered)
            told = [None, *(self._answered[group, number] for number in range(1, steps + 1))]
            done, begun = (sum(each == group for each, _ in some) for some in (answered, asked))
            may_be = told[done : begun + 1]
            with RawMember(address, timeout_s=ANSWER_S) as member:
                there = [found for each in told if each is not None and (found := _found(member, group, each))]
            if any(each not in may_be for each in there) or (not there and None not in may_be):
                yield Violation(5, f"group {group} is {_said(there)} where {_said(may_be)} was due")


def _join(member: RawMember, group: str, *, instance: str | None) -> None:
    member.send_join(group, session_ms=SESSION_MS, instance=instance)
    answer = member.receive_join()
    assert answer.error_code == NONE, answer


def _found(member: RawMember, group: str, told: Told) -> Told | None:
    """What the node says of this member in this generation; None if it does not take its heartbeat."""
    member.member_id, member.generation = told.member_id, told.generation
    code = member.heartbeat(group)
    assert code in (NONE, UNKNOWN_MEMBER_ID, ILLEGAL_GENERATION), code
    return replace(told, assignment=_assignment(member, group)) if code == NONE else None


def _assignment(member: RawMember, group: str) -> bytes:
    answer = member.sync(group, {})
    assert answer.error_code == NONE, answer
    return answer.assignment


def _said(states: Sequence[Told | None]) -> str:
    return " or ".join(
        "without members" if told is None else f"{told.member_id} in {told.generation} with {told.assignment[:20]!r}"
        for told in states or (None,)
    )
