"""What a step has committed is waited for until it can be read."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import cast

import pytest

from pyspark_fairlog.native import CutPartition, Native, Placement, Selection, SinkDescription, Topics
from pyspark_fairlog.pipeline import ends
from pyspark_fairlog.pipeline.ends import wait_until_readable


class CopyingNode:
    """Has committed up to offset 5 of `hours`, and copies a record between two looks."""

    def __init__(self) -> None:
        self.high = 2
        self.copies = 1

    def sinks(self) -> list[SinkDescription]:
        placements = (Placement("hours", 0, 3, 2),)
        return [SinkDescription(name, "q", "r", 7, placements, (), 0) for name in ("flights.hours", "others")]

    def cut(self, selection: Selection) -> list[CutPartition]:
        assert selection == Topics(("hours",))
        self.high += self.copies
        return [CutPartition("hours", 0, 0, self.high, self.high)]


@pytest.fixture
def node(monkeypatch: pytest.MonkeyPatch) -> CopyingNode:
    made = CopyingNode()

    def ask_once(ask: Callable[[Native], bool], bootstrap: str) -> bool:
        return ask(cast("Native", made))

    monkeypatch.setattr(ends, "persistently", ask_once)
    monkeypatch.setattr(ends, "READABLE_POLL_S", 0)
    return made


def test_batch_that_is_being_copied_is_waited_for(node: CopyingNode) -> None:
    """The next step would not see it, and end."""
    wait_until_readable("x", ["flights.hours"], threading.Event())
    assert node.high == 5


def test_step_without_a_sink_is_not_waited_for(node: CopyingNode) -> None:
    """Parquet files are there when they are."""
    wait_until_readable("x", ["flights.files"], threading.Event())
    assert node.high == 2


def test_batch_that_is_not_copied_is_given_up_with_a_sentence_or_at_a_stop(node: CopyingNode) -> None:
    """Not for ever."""
    node.copies = 0
    with pytest.raises(TimeoutError, match=r"flights\.hours has committed cannot be read after 0 s"):
        wait_until_readable("x", ["flights.hours"], threading.Event(), patience_s=0)
    stop = threading.Event()
    stop.set()
    wait_until_readable("x", ["flights.hours"], stop)
