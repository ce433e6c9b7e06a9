"""DescribeCluster: the cluster's id, its brokers, and which of them is its controller.

Behaviour
- The same information about the cluster as in Metadata, without topics: the addresses are those of the listener that
  the client came in by.
- Everyone is told this. Only the operations that the client may do are for those who may describe the cluster; others
  are told none, as in Kafka.
- If the request asks for the endpoints of controllers (from version 1 on), the answer is MISMATCHED_ENDPOINT_TYPE, as
  from a broker in Kafka.

Version notes
- 0 is flexible; 1 adds the type of the endpoints; 2 lists fenced brokers: none is shown as fenced.
"""

from __future__ import annotations

from dataclasses import dataclass

from fairlog.cluster.interface import BrokerAddress
from fairlog.kafka.api import Answer, Api, Context, Versions
from fairlog.kafka.checks import DESCRIBE_CLUSTER, NOT_ASKED, operations_on_cluster
from fairlog.kafka.errors import ErrorCode
from fairlog.kafka.ownership import NO_NODE
from fairlog.kafka.wire import Reader

SERVED = Versions(0, 2)
FLEXIBLE_FROM = 0
_FENCED_FROM = 2

_BROKERS, _CONTROLLERS = 1, 2


@dataclass(frozen=True, slots=True)
class DescribeClusterRequest:
    operations: bool
    """Whether authorized operations are asked for."""
    endpoint_type: int


def decode(reader: Reader, version: int) -> DescribeClusterRequest:
    request = DescribeClusterRequest(reader.boolean(), reader.int8() if version >= 1 else _BROKERS)
    if version >= _FENCED_FROM:
        reader.boolean()  # include fenced brokers
    reader.end_of_fields()
    return request


async def handle(context: Context, request: DescribeClusterRequest) -> Answer:
    broker, writer, listener = context.broker, context.writer(), context.client.listener.name
    error, message = _refusal(request.endpoint_type)
    controller = broker.controller(listener)

    def node(address: BrokerAddress) -> None:
        writer.int32(address.node_id)
        writer.string(address.host)
        writer.int32(address.port)
        writer.nullable_string(broker.cluster.rack_of(address.node_id))
        if context.version >= _FENCED_FROM:
            writer.boolean(False)
        writer.end_of_fields()

    writer.int32(0)  # throttle time
    writer.int16(error)
    writer.message(message)
    if context.version >= 1:
        writer.int8(_BROKERS)
    writer.string(broker.cluster.cluster_id)
    writer.int32(NO_NODE if controller is None else controller.node_id)
    writer.array(broker.brokers(listener) if error is ErrorCode.NONE else (), node)
    writer.int32(operations_on_cluster(context) if request.operations else NOT_ASKED)
    writer.end_of_fields()
    return writer.parts()


def _refusal(endpoint_type: int) -> tuple[ErrorCode, str | None]:
    if endpoint_type == _BROKERS:
        return ErrorCode.NONE, None
    if endpoint_type == _CONTROLLERS:
        return ErrorCode.MISMATCHED_ENDPOINT_TYPE, "this is a broker; it describes only brokers (endpoint type 1)"
    return ErrorCode.UNSUPPORTED_ENDPOINT_TYPE, f"there is no endpoint type {endpoint_type}"


API = Api(60, "DescribeCluster", SERVED, FLEXIBLE_FROM, decode, handle, (DESCRIBE_CLUSTER,))
