"""ListConfigResources: the names of all resources that have configs.

Behaviour
- Lists topics, this node as a broker, and the consumer groups for which clients have set configs. There are no broker
  loggers and no client metrics.
- An empty list of types means all. If a type does not exist, the request is refused with UNSUPPORTED_VERSION, as in
  Kafka.
- Other clients are served while a long list is written.

Version notes
- 0 was ListClientMetricsResources, and lists only client metrics (KIP-1000); 1 adds the types (KIP-1142).
"""

from __future__ import annotations

from dataclasses import dataclass

import trio

from fairlog.broker import Broker
from fairlog.kafka.api import Answer, Api, Context, Versions
from fairlog.kafka.checks import DESCRIBE_CONFIGS_OF_CLUSTER, denied
from fairlog.kafka.config_resources import ResourceType
from fairlog.kafka.errors import ErrorCode
from fairlog.kafka.wire import Reader

SERVED = Versions(0, 1)
FLEXIBLE_FROM = 0
_TYPES_FROM = 1

_BROKER_LOGGER, _CLIENT_METRICS = 8, 16
_TYPES = frozenset((*ResourceType, _BROKER_LOGGER, _CLIENT_METRICS))

_RESOURCES_PER_TURN = 1_000
"""Written before others run; they take about a millisecond."""


@dataclass(frozen=True, slots=True)
class ListConfigResourcesRequest:
    types: frozenset[int]


def decode(reader: Reader, version: int) -> ListConfigResourcesRequest:
    types = reader.array(reader.int8) if version >= _TYPES_FROM else (_CLIENT_METRICS,)
    reader.end_of_fields()
    return ListConfigResourcesRequest(frozenset(types) or _TYPES)


async def handle(context: Context, request: ListConfigResourcesRequest) -> Answer:
    writer = context.writer()
    refused = denied(context, DESCRIBE_CONFIGS_OF_CLUSTER)
    known = request.types <= _TYPES
    found = _resources(context.broker, request.types) if known and refused is None else []
    writer.int32(0)  # throttle time
    writer.int16(refused or (ErrorCode.NONE if known else ErrorCode.UNSUPPORTED_VERSION))
    writer.array_length(len(found))
    for index, (kind, name) in enumerate(found, 1):
        writer.string(name)
        if context.version >= _TYPES_FROM:
            writer.int8(kind)
        writer.end_of_fields()
        if index % _RESOURCES_PER_TURN == 0:
            await trio.lowlevel.checkpoint()
    writer.end_of_fields()
    return writer.parts()


def _resources(broker: Broker, types: frozenset[int]) -> list[tuple[int, str]]:
    found: list[tuple[int, str]] = []
    if ResourceType.BROKER in types:
        found += [(ResourceType.BROKER, str(node_id)) for node_id in sorted(broker.started)]
    if ResourceType.TOPIC in types:
        found += [(ResourceType.TOPIC, topic.name) for topic in broker.cluster.topics()]
    if ResourceType.GROUP in types:
        found += [(ResourceType.GROUP, group) for group in sorted(broker.cluster.configured_groups())]
    return found


API = Api(74, "ListConfigResources", SERVED, FLEXIBLE_FROM, decode, handle, (DESCRIBE_CONFIGS_OF_CLUSTER,))
