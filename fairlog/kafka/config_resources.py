"""Topics, brokers and groups as the resources whose configs requests describe and alter, by the protocol's numbers.

The three APIs about configs (32, 33, 44) share this module: which resources there are, how a refusal is answered, and
how each resource is altered. `fairlog.topic_config_changes`, `fairlog.broker_config_changes` and
`fairlog.group_configs` compute the new configs.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Generator, Iterable, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from enum import IntEnum

import trio

from fairlog.broker import Broker
from fairlog.cluster.interface import InvalidTopic, UnknownTopic
from fairlog.cluster.topic_rules import check_topic_untrusted
from fairlog.groups.interface import GroupRefusal, is_group_id
from fairlog.kafka.api import Answer, Check, Context
from fairlog.kafka.checks import ALTER_CONFIGS_OF_CLUSTER, ALTER_CONFIGS_OF_GROUP, ALTER_CONFIGS_OF_TOPIC, denied
from fairlog.kafka.errors import ErrorCode
from fairlog.kafka.noting import noting
from fairlog.topic_config_changes import BadChange, BadRequest
from fairlog.trail import Action
from fairlog_types import StorageFailure


class ResourceType(IntEnum):
    """Kafka's numbers; those that are missing (loggers, client metrics) are refused."""

    TOPIC = 2
    BROKER = 4
    GROUP = 32


@dataclass(frozen=True, slots=True)
class Alteration:
    """The change that a request asks for, for one resource."""

    resource_type: int
    resource_name: str
    of_topic: Callable[[Mapping[str, str]], Mapping[str, str]]
    """For a topic: from its own configs to the new ones. Raises BadChange."""
    of_broker: Callable[[Mapping[str, str]], Mapping[str, str]]
    """For a broker, or all brokers: the same, for the configs that clients have set."""
    of_group: Callable[[Mapping[str, str]], Mapping[str, str]]
    """For a consumer group: the same."""


class Refused(Exception):
    """A resource, or the change to it, is refused."""

    def __init__(self, error: ErrorCode, message: str) -> None:
        super().__init__(message)
        self.error = error


def check_broker(broker: Broker, name: str) -> None:
    """Raise Refused unless `name` is this node's, or empty, which means all brokers."""
    if name not in ("", str(broker.node_id)):
        raise Refused(ErrorCode.INVALID_REQUEST, f"broker {name} is not this one, which is {broker.node_id}")


def check_topic_name(name: str) -> None:
    """Raise Refused unless this is a valid topic name, as Kafka does before it checks whether the topic exists."""
    if not name:
        raise Refused(ErrorCode.INVALID_REQUEST, "there are no configs of all topics: name one")
    try:
        check_topic_untrusted(name, 1)
    except InvalidTopic as error:
        raise Refused(ErrorCode.INVALID_TOPIC_EXCEPTION, str(error)) from error


def check_group_name(name: str) -> None:
    """Raise Refused unless this is a valid consumer group id. The group need not exist, as in Kafka."""
    if not name:
        raise Refused(ErrorCode.INVALID_REQUEST, "there are no configs of all groups: name one")
    if not is_group_id(name):
        raise Refused(ErrorCode.INVALID_GROUP_ID, GroupRefusal.INVALID_GROUP_ID.value)


def check_allowed(context: Context, resource_type: int, name: str, checks: Mapping[ResourceType, Check]) -> None:
    """Raise Refused unless the client may do this with the resource: `checks` has it by type. An unknown type is
    nobody's, and is refused later.
    """
    if resource_type not in checks:
        return
    check = checks[ResourceType(resource_type)]
    refused = denied(context, check) if resource_type == ResourceType.BROKER else denied(context, check, name)
    if refused is not None:
        raise Refused(refused, f"the client may not {check.operation.name.lower().replace('_', ' ')} of this resource")


ALTER_CHECKS = {
    ResourceType.TOPIC: ALTER_CONFIGS_OF_TOPIC,
    ResourceType.BROKER: ALTER_CONFIGS_OF_CLUSTER,
    ResourceType.GROUP: ALTER_CONFIGS_OF_GROUP,
}


def unknown_resource(resource_type: int) -> Refused:
    return Refused(ErrorCode.INVALID_REQUEST, f"resources of type {resource_type} have no configs here")


async def alter_all(context: Context, alterations: Iterable[Alteration], *, validate_only: bool) -> Answer:
    """Alter the resources one by one, each as a whole or not at all, and encode the answer (33 and 44 answer alike)."""
    asked = list(alterations)
    times = Counter((each.resource_type, each.resource_name) for each in asked)
    writer = context.writer()
    writer.int32(0)  # throttle time
    writer.array_length(len(times))
    for each in asked:
        resource = each.resource_type, each.resource_name
        if resource not in times:
            continue
        error, message = ErrorCode.NONE, None
        if times.pop(resource) > 1:
            error, message = ErrorCode.INVALID_REQUEST, "the request names this resource more than once"
        else:
            error, message = await _altered(context, each, validate_only=validate_only)
        writer.int16(error)
        writer.message(message)
        writer.int8(each.resource_type)
        writer.string(each.resource_name)
        writer.end_of_fields()
        await trio.lowlevel.checkpoint()
    writer.end_of_fields()
    return writer.parts()


async def _altered(context: Context, wanted: Alteration, *, validate_only: bool) -> tuple[ErrorCode, str | None]:
    if validate_only:
        return await _outcome(context, wanted, validate_only=True)
    kind, name = wanted.resource_type, wanted.resource_name
    with noting(context, Action.ALTER_CONFIGS, name, resource_type=kind) as is_answered:
        error, message = await _outcome(context, wanted, validate_only=False)
        is_answered(error)
    return error, message


async def _outcome(context: Context, wanted: Alteration, *, validate_only: bool) -> tuple[ErrorCode, str | None]:
    try:
        check_allowed(context, wanted.resource_type, wanted.resource_name, ALTER_CHECKS)
        await _alter(context.broker, wanted, validate_only=validate_only)
    except Refused as refused:
        return refused.error, str(refused)
    return ErrorCode.NONE, None


async def _alter(broker: Broker, wanted: Alteration, *, validate_only: bool) -> None:
    match wanted.resource_type:
        case ResourceType.TOPIC:
            await _alter_topic(broker, wanted, validate_only=validate_only)
        case ResourceType.BROKER:
            await _alter_broker(broker, wanted, validate_only=validate_only)
        case ResourceType.GROUP:
            await _alter_group(broker, wanted, validate_only=validate_only)
        case other:
            raise unknown_resource(other)


async def _alter_topic(broker: Broker, wanted: Alteration, *, validate_only: bool) -> None:
    name = wanted.resource_name
    check_topic_name(name)
    topic = broker.cluster.topic(name)
    if topic is None:
        raise Refused(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"there is no topic {name}")
    try:
        with _changing():
            if validate_only:
                wanted.of_topic(topic.configs)
            else:
                await broker.topics.alter_configs(name, wanted.of_topic)
    except UnknownTopic as error:  # it was deleted this very moment
        raise Refused(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, str(error)) from error


async def _alter_group(broker: Broker, wanted: Alteration, *, validate_only: bool) -> None:
    check_group_name(wanted.resource_name)
    with _changing():
        await broker.group_configs.alter(wanted.resource_name, wanted.of_group, validate_only=validate_only)


@contextmanager
def _changing() -> Generator[None]:
    """Turn the failed change of a topic or a group into the refusal that Kafka has, also if the disk has failed."""
    try:
        yield
    except BadRequest as error:
        raise Refused(ErrorCode.INVALID_REQUEST, str(error)) from error
    except BadChange as error:
        raise Refused(ErrorCode.INVALID_CONFIG, str(error)) from error
    except StorageFailure as error:
        raise Refused(ErrorCode.KAFKA_STORAGE_ERROR, str(error)) from error


async def _alter_broker(broker: Broker, wanted: Alteration, *, validate_only: bool) -> None:
    check_broker(broker, wanted.resource_name)
    try:
        await broker.live_settings.alter(wanted.resource_name, wanted.of_broker, validate_only=validate_only)
    except BadChange as error:  # INVALID_REQUEST also for a bad value: Kafka's validation of brokers answers so
        raise Refused(ErrorCode.INVALID_REQUEST, str(error)) from error
    except StorageFailure as error:
        raise Refused(ErrorCode.KAFKA_STORAGE_ERROR, str(error)) from error
