"""What is answered for partitions, groups and transactional ids that are another broker's.

The checks cost nothing as long as there is one broker. A client that gets one of these answers asks Metadata or
FindCoordinator, and then the right broker.

An id that no group, or no transaction, can have is nobody's: it is refused where it comes in, for what it is.
"""

from __future__ import annotations

from fairlog.broker import Broker
from fairlog.groups.interface import is_group_id
from fairlog.kafka.errors import ErrorCode
from fairlog.kafka.transactional_ids import is_acceptable
from fairlog_types import LogId

NO_NODE = -1
"""The id of a broker that cannot be told."""


def code_of_unled(broker: Broker) -> ErrorCode:
    """The answer for a partition that exists and is not led here: it is another broker's, or about to be led here.

    If there is no other broker, the partition is about to be led, or its topic is being deleted.
    """
    return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION if broker.is_alone else ErrorCode.NOT_LEADER_OR_FOLLOWER


def may_soon_be_led(broker: Broker, log: LogId) -> bool:
    """Whether another broker leads the partition, or is about to: it hears of a new topic a moment after it is made."""
    return not broker.is_alone and broker.cluster.shard_of(log) is not None


def is_group_elsewhere(broker: Broker, group: str) -> bool:
    """Whether another broker coordinates the group: NOT_COORDINATOR."""
    return not broker.coordinates_group(group) and is_group_id(group)


def is_elsewhere(broker: Broker, transactional_id: str) -> bool:
    """Whether another broker coordinates the transactional id: NOT_COORDINATOR."""
    return not broker.coordinates(transactional_id) and is_acceptable(transactional_id)
