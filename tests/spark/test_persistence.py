"""What passes is asked again until it has passed; what stays is said at once."""

from __future__ import annotations

from typing import Any, cast

import pytest

from fairlog_client_security import ClientSecurity
from pyspark_fairlog.native import Native, NativeError, NoAnswerYet
from pyspark_fairlog.persistence import ANSWER_MAX_S, PATIENCE_S, WORK_S, persistently


class FakeNode:
    """Answers what the script says: an error is raised, anything else is the answer. Time passes in `sleep`, and while
    an answer does not come."""

    def __init__(self, *script: object) -> None:
        self._script = list(script)
        self.now_s = 0.0
        self.asked = 0
        self.answer_s = 0.0

    def __enter__(self) -> FakeNode:
        return self

    def __exit__(self, *details: object) -> None:
        pass

    def connect(self, bootstrap: str, security: ClientSecurity) -> Native:
        return cast("Native", self)

    def sleep(self, seconds: float) -> None:
        self.now_s += seconds

    def ask(self, native: Native) -> object:
        self.asked += 1
        answer = self._script.pop(0) if len(self._script) > 1 else self._script[0]
        if isinstance(answer, NoAnswerYet):
            self.now_s += self.answer_s
        if isinstance(answer, Exception):
            raise answer
        return answer

    def persist(self, **changed: Any) -> object:
        return persistently(
            self.ask, "here:1", connect=self.connect, clock=lambda: self.now_s, sleep=self.sleep, **changed
        )


@pytest.mark.parametrize(
    "passing", [ConnectionError("gone"), *(NativeError(kind, "") for kind in ("storage", "effect-unknown", "in-use"))]
)
def test_what_passes_is_asked_again(passing: Exception) -> None:
    node = FakeNode(passing, passing, passing, "done")
    assert node.persist() == "done"
    assert node.asked == 4


def test_refusal_that_stays_is_said_at_once() -> None:
    node = FakeNode(NativeError("old-run", "a newer run has taken over"))
    with pytest.raises(NativeError, match="newer run"):
        node.persist()
    assert node.asked == 1


def test_node_that_never_answers_is_given_up_after_the_time() -> None:
    node = FakeNode(ConnectionError("gone"))
    with pytest.raises(ConnectionError, match="gone"):
        node.persist()
    assert PATIENCE_S - 2 <= node.now_s <= PATIENCE_S
    assert node.asked < 50


NOT_YET = NoAnswerYet("commit at here:1: no answer within 10 s")


def test_node_that_is_at_work_is_asked_until_it_answers() -> None:
    """The copy of a large batch takes longer than a restart, and is no reason for a query to fail."""
    node = FakeNode(*[NOT_YET] * 10, ConnectionError("gone"), ConnectionError("gone"), "done")
    assert node.persist(work_s=WORK_S) == "done"
    assert node.now_s > 5 * PATIENCE_S
    assert node.answer_s == ANSWER_MAX_S


def test_node_that_is_at_work_for_ever_is_given_up_in_the_end() -> None:
    """And it is not left with a question for each ten seconds."""
    node = FakeNode(NOT_YET)
    with pytest.raises(NoAnswerYet):
        node.persist(work_s=WORK_S)
    assert WORK_S - ANSWER_MAX_S <= node.now_s <= WORK_S + ANSWER_MAX_S
    assert node.asked < 20


def test_node_that_is_gone_while_it_was_at_work_is_given_up_as_any() -> None:
    """Only while it is there it can be at work."""
    node = FakeNode(*[NOT_YET] * 3, ConnectionError("gone"))
    with pytest.raises(ConnectionError, match="gone"):
        node.persist(work_s=WORK_S)
    assert node.now_s <= 10 + 20 + 40 + PATIENCE_S + 2


def test_question_that_is_no_work_is_not_waited_for() -> None:
    """Unless it is said to be."""
    node = FakeNode(NOT_YET)
    with pytest.raises(NoAnswerYet):
        node.persist()
    assert node.now_s <= 2 * PATIENCE_S
