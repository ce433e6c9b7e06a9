"""Topic names are Kafka's."""

from __future__ import annotations

from uuid import UUID

import pytest

from fairlog.cluster.interface import InvalidPartitions, InvalidTopic, Topic
from fairlog.cluster.topic_rules import (
    NAME_CHARACTERS_MAX,
    PARTITIONS_MAX,
    check_topic_untrusted,
    check_total_untrusted,
)


@pytest.mark.parametrize("name", ["a", "orders", "A.b_c-9", "...", "x" * NAME_CHARACTERS_MAX])
def test_topic_name_within_kafkas_rules_is_accepted(name: str) -> None:
    """Whatever Kafka accepts as a name is accepted."""
    check_topic_untrusted(name, 1)


@pytest.mark.parametrize(
    "name", ["", ".", "..", "a/b", "a b", "ä", "a\n", "x" * (NAME_CHARACTERS_MAX + 1), "../escape", "\0"]
)
def test_topic_name_outside_kafkas_rules_is_refused(name: str) -> None:
    """Whatever Kafka refuses as a name is refused; nothing gets near a path."""
    with pytest.raises(InvalidTopic):
        check_topic_untrusted(name, 1)


@pytest.mark.parametrize("partitions", [-1, 0, PARTITIONS_MAX + 1])
def test_partition_count_out_of_bounds_is_refused(partitions: int) -> None:
    """A topic has at least one partition, and a slip of the finger does not open a million files."""
    with pytest.raises(InvalidTopic, match="partitions"):
        check_topic_untrusted("orders", partitions)


def test_partitions_of_a_topic_can_only_grow_up_to_the_same_bound() -> None:
    """The refusal says how many there are."""
    topic = Topic("orders", UUID(int=1), 3, {}, 0)
    check_total_untrusted(topic, 4)
    check_total_untrusted(topic, PARTITIONS_MAX)
    for total in (-1, 0, 2, 3):
        with pytest.raises(InvalidPartitions, match=f"orders has 3 partitions already.* {total} is no more"):
            check_total_untrusted(topic, total)
    with pytest.raises(InvalidPartitions, match="1 to 100000 partitions, not 100001"):
        check_total_untrusted(topic, PARTITIONS_MAX + 1)
