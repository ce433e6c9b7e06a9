"""Topic names are Kafka's."""

from __future__ import annotations

import pytest

from fairlog.cluster.interface import InvalidTopic
from fairlog.cluster.topic_rules import NAME_CHARACTERS_MAX, PARTITIONS_MAX, check_topic_untrusted


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
