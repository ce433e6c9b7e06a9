"""How far a stream has come: an offset for each partition, and which topics these are offsets of.

It stands in Spark's checkpoint and nowhere else, as JSON (docs/formats/stream-offsets.md):

    {"#version": 2, "#topicIds": {"orders": "0f4c…"}, "orders": {"0": 42, "1": 40}}

A topic that is deleted and made anew has the same name, and may have grown beyond the query's offset since; its id is
another one. Without ids, which is version 1, the form is that of Spark's Kafka connector: so checkpoints from before
are gone on with, and what a node that tells no ids is read by.

Pure.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, cast

from pyspark_fairlog.options import OURS, Offsets, OptionRefused, Partition, offsets_from, offsets_to

if TYPE_CHECKING:
    from pyspark_fairlog.native import CutPartition

VERSION = "#version"
TOPIC_IDS = "#topicIds"

_VERSION = 2
"""With topic ids. What has no version is version 1, and has none."""

Stored = Mapping[str, object]


@dataclass(frozen=True, slots=True)
class Position:
    """Offsets, and the ids of their topics as far as they are known."""

    offsets: Mapping[Partition, int]
    topic_ids: Mapping[str, str] = field(default_factory=dict[str, str])

    def is_of_another(self, each: CutPartition) -> bool:
        """Whether the topic of `each` is known to be another one of that name."""
        known = self.topic_ids.get(each.topic)
        return known is not None and each.topic_id is not None and known != each.topic_id

    def still_there(self, cut: Mapping[Partition, CutPartition]) -> Offsets:
        """The offsets of partitions that are in the cut and not known to be another topic's now."""
        return {
            partition: offset
            for partition, offset in self.offsets.items()
            if partition in cut and not self.is_of_another(cut[partition])
        }


def topic_ids(partitions: Iterable[CutPartition]) -> dict[str, str]:
    """By topic, as far as the node tells them."""
    return {each.topic: each.topic_id for each in partitions if each.topic_id is not None}


def position_to(position: Position) -> dict[str, object]:
    """As Spark keeps it, in one order: Spark compares positions as text to see whether there is news."""
    named = {partition.topic for partition in position.offsets}
    ids = {topic: topic_id for topic, topic_id in sorted(position.topic_ids.items()) if topic in named}
    ours: dict[str, object] = {VERSION: _VERSION, TOPIC_IDS: ids} if ids else {}
    return {**ours, **offsets_to(position.offsets)}


def position_from(stored: Stored) -> Position:
    """What `position_to` has made, of this release or an earlier one, or the connector.

    Raises OptionRefused if it is nothing of the kind, or of a version that is not known here.
    """
    ours = {name: value for name, value in stored.items() if name.startswith(OURS)}
    offsets = offsets_from({name: value for name, value in stored.items() if name not in ours})
    for partition, offset in offsets.items():
        if offset < 0:
            raise OptionRefused(f"the checkpoint has the offset {offset} of {partition}, which is none: it is damaged")
    if not ours:
        return Position(offsets)
    ids = ours.get(TOPIC_IDS)
    if (
        ours.keys() != {VERSION, TOPIC_IDS}
        or ours[VERSION] != _VERSION
        or not isinstance(ids, dict)
        or not all(isinstance(each, str) for each in cast("dict[str, object]", ids).values())
    ):
        raise OptionRefused(
            f"the checkpoint's offsets are of the version {ours.get(VERSION)!r}, or damaged, and {_VERSION} is known: "
            "use the release of Fairlog that has written them, or a later one"
        )
    return Position(offsets, cast("dict[str, str]", ids))
