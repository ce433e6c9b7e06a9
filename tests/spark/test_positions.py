"""Positions of a stream as they stand in checkpoints."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from pyspark_fairlog.options import OptionRefused, Partition
from pyspark_fairlog.positions import Position, position_from, position_to

GOLDEN = Path(__file__).resolve().parents[1] / "golden" / "stream-offsets-2.json"
PAGE = Path(__file__).resolve().parents[2] / "docs" / "formats" / "stream-offsets.md"
OFFSETS = {Partition("payments", 0): 7, Partition("orders", 1): 40, Partition("orders", 0): 42}
POSITION = Position(OFFSETS, {"orders": "0f4c3f0b7a6e4d0c9a7d1f2b3c4d5e6f"})


def test_position_is_written_as_the_golden_file_and_the_page_have_it_and_read_back() -> None:
    text = GOLDEN.read_text(encoding="utf-8")
    assert json.dumps(position_to(POSITION)) + "\n" == text
    assert text in PAGE.read_text(encoding="utf-8")
    assert position_from(json.loads(text)) == POSITION


def test_position_of_version_1_has_offsets_alone() -> None:
    """As the connector writes it; so is one of which no id is known."""
    stored = {"orders": {"0": 42, "1": 40}, "payments": {"0": 7}}
    assert position_from(stored) == Position(OFFSETS)
    assert position_to(Position(OFFSETS)) == stored


def test_ids_of_topics_without_an_offset_are_left_out() -> None:
    """A topic that joins later has no place in this position."""
    assert position_to(Position({}, {"orders": "x"})) == {}


@pytest.mark.parametrize(
    "wrong",
    [
        {"#version": 3},
        {"#version": 2},
        {"#topicIds": {}},
        {"#version": 2, "#topicIds": []},
        {"#version": 2, "#topicIds": {"orders": 1}},
        {"#version": 2, "#topicIds": {}, "#more": 1},
    ],
)
def test_position_of_another_version_is_refused(wrong: dict[str, Any]) -> None:
    """It may mean something else."""
    with pytest.raises(OptionRefused, match="use the release of Fairlog that has written them"):
        position_from({"orders": {"0": 42}, **wrong})


def test_offset_below_0_in_a_checkpoint_is_refused() -> None:
    """It is damaged: to begin there would be told as a loss of records that never were."""
    with pytest.raises(OptionRefused, match=r"offset -5 of orders-0.*damaged"):
        position_from({"orders": {"0": -5}})
