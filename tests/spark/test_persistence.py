"""What passes is asked again until it has passed; what stays is said at once."""

from __future__ import annotations

from typing import Any, cast

import pytest

from pyspark_fairlog.native import Native, NativeError
from pyspark_fairlog.persistence import PATIENCE_S, persistently


class FakeNode:
    """Answers what the script says: an error is raised, anything else is the answer. Time passes in `sleep` alone."""

    def __init__(self, *script: object) -> None:
        self._script = list(script)
        self.now_s = 0.0
        self.asked = 0

    def __enter__(self) -> FakeNode:
        return self

    def __exit__(self, *details: object) -> None:
        pass

    def connect(self, bootstrap: str) -> Native:
        return cast("Native", self)

    def sleep(self, seconds: float) -> None:
        self.now_s += seconds

    def ask(self, native: Native) -> object:
        self.asked += 1
        answer = self._script.pop(0) if len(self._script) > 1 else self._script[0]
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
