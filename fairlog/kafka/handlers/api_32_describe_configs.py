"""DescribeConfigs: the configs of topics, this broker and groups, with values, sources, types and documentation.

Behaviour
- A topic shows every config of `fairlog.topic_configs`; the broker every one of `fairlog.broker_configs`, read-only
  except those that can be changed at run time. A broker without a name means all brokers, and shows what clients have
  set for all.
- A consumer group shows every config of `fairlog.group_configs`, whether the group exists or not, as in Kafka.
- If the request names configs, only these are shown (an empty list, or null, means all); unknown names are left out, as
  in Kafka.
- A value that the node's setting fixed when a topic was created (`fairlog.transactions`) is shown as the node's, not as
  an override, as long as the setting is the same. On a node of marker mode, a client that named the default at creation
  cannot be distinguished from one that named nothing.
- Synonyms are the possible sources of a value, strongest first: the topic or the group, what clients have set for this
  broker, what they have set for all, the node's setting, the default.
- A resource that is named more than once is answered once, with all requested configs. Other clients are served in
  between.

Version notes
- 1 adds sources (0 had only "is default", which is why it is not served) and synonyms; 3 types and documentation; 4 is
  flexible.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from enum import IntEnum

import trio

from fairlog.broker import Broker
from fairlog.broker_configs import BROKER_CONFIGS, BrokerConfig
from fairlog.cluster.interface import Topic
from fairlog.group_configs import GROUP_CONFIGS, GroupConfig
from fairlog.kafka.api import Answer, Api, Context, Versions
from fairlog.kafka.checks import DESCRIBE_CONFIGS_OF_CLUSTER, DESCRIBE_CONFIGS_OF_GROUP, DESCRIBE_CONFIGS_OF_TOPIC
from fairlog.kafka.config_resources import (
    Refused,
    ResourceType,
    check_allowed,
    check_broker,
    check_group_name,
    check_topic_name,
    unknown_resource,
)
from fairlog.kafka.errors import ErrorCode
from fairlog.kafka.wire import Reader, Writer
from fairlog.live_settings import ALL_BROKERS
from fairlog.topic_configs import TOPIC_CONFIGS, ConfigType, TopicConfig, default_value

SERVED = Versions(1, 4)
FLEXIBLE_FROM = 4


_CHECKS = {
    ResourceType.TOPIC: DESCRIBE_CONFIGS_OF_TOPIC,
    ResourceType.BROKER: DESCRIBE_CONFIGS_OF_CLUSTER,
    ResourceType.GROUP: DESCRIBE_CONFIGS_OF_GROUP,
}


class _Source(IntEnum):
    """Kafka's numbers for the source of a value."""

    TOPIC = 1
    BROKER = 2
    ALL_BROKERS = 3
    BROKER_SETTING = 4
    DEFAULT = 5
    GROUP = 8


_TYPES = {
    ConfigType.BOOLEAN: 1,
    ConfigType.STRING: 2,
    ConfigType.INT: 3,
    ConfigType.LONG: 5,
    ConfigType.DOUBLE: 6,
    ConfigType.LIST: 7,
}
"""Kafka's numbers for the type of a value."""


@dataclass(frozen=True, slots=True)
class DescribeConfigsRequest:
    resources: tuple[tuple[int, str, tuple[str, ...] | None], ...]
    """(type, name, configs); no configs, or None, for all."""
    synonyms: bool
    documentation: bool


@dataclass(frozen=True, slots=True)
class _Value:
    """A value, its source, and its name there."""

    name: str
    value: str | None
    source: _Source


@dataclass(frozen=True, slots=True)
class _Config:
    name: str
    type: ConfigType
    doc: str
    read_only: bool
    values: Sequence[_Value]
    """Strongest first; at least one."""


def decode(reader: Reader, version: int) -> DescribeConfigsRequest:
    def resource() -> tuple[int, str, tuple[str, ...] | None]:
        entry = reader.int8(), reader.string(), reader.nullable_array(reader.string)
        reader.end_of_fields()
        return entry

    resources, synonyms = reader.array(resource), reader.boolean()
    request = DescribeConfigsRequest(resources, synonyms, reader.boolean() if version >= 3 else False)
    reader.end_of_fields()
    return request


async def handle(context: Context, request: DescribeConfigsRequest) -> Answer:
    asked: dict[tuple[int, str], set[str] | None] = {}
    for kind, name, configs in request.resources:
        before = asked.get((kind, name), set[str]())
        asked[kind, name] = None if before is None or not configs else before | set(configs)
    writer = context.writer()
    writer.int32(0)  # throttle time
    writer.array_length(len(asked))
    for (kind, name), configs in asked.items():
        error, message, shown = ErrorCode.NONE, None, list[_Config]()
        try:
            check_allowed(context, kind, name, _CHECKS)
            shown = _describe(context.broker, kind, name, configs)
        except Refused as refused:
            error, message = refused.error, str(refused)
        writer.int16(error)
        writer.message(message)
        writer.int8(kind)
        writer.string(name)
        writer.array_length(len(shown))
        for config in shown:
            _write_config(writer, context.version, request, config)
        writer.end_of_fields()
        await trio.lowlevel.checkpoint()
    writer.end_of_fields()
    return writer.parts()


def _describe(broker: Broker, kind: int, name: str, wanted: Collection[str] | None) -> list[_Config]:
    match kind:
        case ResourceType.TOPIC:
            check_topic_name(name)
            topic = broker.cluster.topic(name)
            if topic is None:
                raise Refused(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"there is no topic {name}")
            return [
                _topic_config(broker, topic, row)
                for row in TOPIC_CONFIGS.values()
                if wanted is None or row.name in wanted
            ]
        case ResourceType.BROKER:
            check_broker(broker, name)
            return [
                _Config(row.name, row.type, row.doc, not row.dynamic, values)
                for row in BROKER_CONFIGS.values()
                if (wanted is None or row.name in wanted)
                and (values := _broker_values(broker, row) if name else _values_of_all(broker, row))
            ]
        case ResourceType.GROUP:
            check_group_name(name)
            return [
                _group_config(broker, name, row)
                for row in GROUP_CONFIGS.values()
                if wanted is None or row.name in wanted
            ]
        case other:
            raise unknown_resource(other)


def _topic_config(broker: Broker, topic: Topic, row: TopicConfig) -> _Config:
    settings, values = broker.settings, list[_Value]()
    own = topic.configs.get(row.name)
    if own is not None:
        by_setting = row.fixed and own != row.default and own == BROKER_CONFIGS[row.name].value(settings)
        values.append(_Value(row.name, own, _Source.BROKER_SETTING if by_setting else _Source.TOPIC))
    if row.broker_name is None:
        values.append(_Value(row.name, default_value(row, settings), _Source.DEFAULT))
    else:
        values += _broker_values(broker, BROKER_CONFIGS[row.broker_name])
    return _Config(row.name, row.values.type, row.doc, row.fixed, values)


def _group_config(broker: Broker, group: str, row: GroupConfig) -> _Config:
    own = broker.group_configs.of(group).get(row.name)
    values = [] if own is None else [_Value(row.name, own, _Source.GROUP)]
    values += _broker_values(broker, BROKER_CONFIGS[row.broker_name])
    return _Config(row.name, ConfigType.INT, row.doc, read_only=False, values=values)


def _broker_values(broker: Broker, row: BrokerConfig) -> list[_Value]:
    live = broker.live_settings
    own = live.changed_for(str(broker.node_id)).get(row.name)
    values = [] if own is None else [_Value(row.name, own, _Source.BROKER)]
    values += _values_of_all(broker, row)
    of_start, default = row.value(live.of_start), row.default
    if of_start != default:
        values.append(_Value(row.name, of_start, _Source.BROKER_SETTING))
    return [*values, _Value(row.name, default, _Source.DEFAULT)]


def _values_of_all(broker: Broker, row: BrokerConfig) -> list[_Value]:
    value = broker.live_settings.changed_for(ALL_BROKERS).get(row.name)
    return [] if value is None else [_Value(row.name, value, _Source.ALL_BROKERS)]


def _write_config(writer: Writer, version: int, request: DescribeConfigsRequest, config: _Config) -> None:
    def synonym(value: _Value) -> None:
        writer.string(value.name)
        writer.nullable_string(value.value)
        writer.int8(value.source)
        writer.end_of_fields()

    strongest = config.values[0]
    writer.string(config.name)
    writer.nullable_string(strongest.value)
    writer.boolean(config.read_only)
    writer.int8(strongest.source)
    writer.boolean(False)  # sensitive
    writer.array(config.values if request.synonyms else (), synonym)
    if version >= 3:
        writer.int8(_TYPES[config.type])
        writer.nullable_string(config.doc if request.documentation else None)
    writer.end_of_fields()


API = Api(
    32,
    "DescribeConfigs",
    SERVED,
    FLEXIBLE_FROM,
    decode,
    handle,
    (DESCRIBE_CONFIGS_OF_TOPIC, DESCRIBE_CONFIGS_OF_CLUSTER, DESCRIBE_CONFIGS_OF_GROUP),
)
