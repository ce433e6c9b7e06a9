"""What is answered for partitions, groups and transactional ids that are another broker's, or that none can write now.

The checks cost nothing as long as there is one broker. A client that gets one of these answers asks Metadata or
FindCoordinator, and then the right broker.

While the engine of several machines is away, what would have to be written is refused at once, with codes on which all
clients ask again (docs/decisions/0072-refused-while-the-engine-is-away.md). What only reads is not, but for
what the next owner may answer otherwise (`is_still_owned`).

A node that has given up a shard while the engine is away knows of no other owner, and would send clients back to
itself. librdkafka asks the broker that it has used last, and so would never hear of another one. So it hangs up: then
clients ask the others.

An id that no group, or no transaction, can have is nobody's: it is refused where it comes in, for what it is.
"""

from __future__ import annotations

import trio

from fairlog.broker import Broker
from fairlog.groups.interface import GroupRefusal, is_group_id
from fairlog.kafka.api import HangUp
from fairlog.kafka.errors import ErrorCode
from fairlog.kafka.transactional_ids import is_acceptable
from fairlog_types import LogId, ShardNumber
from shard.owner_at_question import CERTAIN_S, OwnerAtQuestion

NO_NODE = -1
"""The id of a broker that cannot be told."""


def code_of_unled(broker: Broker) -> ErrorCode:
    """The answer for a partition that exists and is not led here: it is another broker's, or about to be led here.

    If there is no other broker, the partition is about to be led, or its topic is being deleted. Raises HangUp.
    """
    if broker.is_alone:
        return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    _have_others_asked(broker)
    return ErrorCode.NOT_LEADER_OR_FOLLOWER


def may_soon_be_led(broker: Broker, log: LogId) -> bool:
    """Whether another broker leads the partition, or is about to: it hears of a new topic a moment after it is made."""
    return not broker.is_alone and broker.cluster.shard_of(log) is not None


def code_of_group_elsewhere(broker: Broker, group: str) -> ErrorCode:
    """The answer for a group that is not coordinated here, or not yet. Raises HangUp."""
    return _code(broker, broker.shard_of_group(group))


def refusal_of_group_elsewhere(broker: Broker, group: str) -> GroupRefusal:
    """The same in the words of the groups."""
    loads = code_of_group_elsewhere(broker, group) is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    return GroupRefusal.LOADING if loads else GroupRefusal.ELSEWHERE


def code_of_id_elsewhere(broker: Broker, transactional_id: str) -> ErrorCode:
    """The answer for a transactional id that is not coordinated here, or not yet. Raises HangUp."""
    return _code(broker, broker.shard_of(transactional_id))


def _code(broker: Broker, shard: ShardNumber) -> ErrorCode:
    if broker.opens() and shard == broker.cluster.shard:
        return ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    if shard == broker.cluster.shard:
        _have_others_asked(broker)
    return ErrorCode.NOT_COORDINATOR


def _have_others_asked(broker: Broker) -> None:
    if broker.may_be_told_of_itself:
        raise HangUp("the node does not know who owns the shard, for the replicated log does not answer")


async def is_still_owned(broker: Broker) -> bool:
    """Whether it is certain, after a while, that no other node owns the shard, which would answer otherwise."""
    return await OwnerAtQuestion(broker).doubt(trio.current_time() + CERTAIN_S) is None


def why_no_write_of_group(broker: Broker, group: str) -> ErrorCode | None:
    """The answer to a request that would write offsets of a group, if it cannot be served here now."""
    if is_group_elsewhere(broker, group):
        return code_of_group_elsewhere(broker, group)
    return ErrorCode.COORDINATOR_NOT_AVAILABLE if broker.appends_wait() else None


def why_no_write_of_id(broker: Broker, transactional_id: str) -> ErrorCode | None:
    """The answer to a request that would write for a transactional id, if it cannot be served here now."""
    if is_elsewhere(broker, transactional_id):
        return code_of_id_elsewhere(broker, transactional_id)
    return ErrorCode.COORDINATOR_NOT_AVAILABLE if broker.appends_wait() else None


def is_group_elsewhere(broker: Broker, group: str) -> bool:
    """Whether another broker coordinates the group: NOT_COORDINATOR."""
    return not broker.coordinates_group(group) and is_group_id(group)


def is_elsewhere(broker: Broker, transactional_id: str) -> bool:
    """Whether another broker coordinates the transactional id: NOT_COORDINATOR."""
    return not broker.coordinates(transactional_id) and is_acceptable(transactional_id)
