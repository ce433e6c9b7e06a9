"""GetTelemetrySubscriptions: which of its own metrics a client should send (KIP-714). Here: none.

Behaviour
- Nothing receives clients' metrics, so this API is not advertised, as in a Kafka without a receiver, and clients do not
  ask. A client that asks all the same gets a subscription to no metrics, as in Kafka.
- The subscription's id is computed from the client's instance id, so the node keeps no state about clients, and no
  client is told to wait (Kafka answers THROTTLING_QUOTA_EXCEEDED to one that asks again on the same connection).

Version notes
- 0 is the only one.
"""

from __future__ import annotations

import uuid
from dataclasses import dataclass
from uuid import UUID

import crc32c

from fairlog.kafka.api import Answer, Api, Context, Versions
from fairlog.kafka.errors import ErrorCode
from fairlog.kafka.wire import Reader

SERVED = Versions(0, 0)
FLEXIBLE_FROM = 0

COMPRESSION_TYPES = {"zstd": 4, "lz4": 3, "gzip": 1, "snappy": 2}
"""The compressions that metrics may have, by Kafka's numbers, best first."""
METRICS_BYTES_MAX = 1 << 20
"""Kafka's telemetry.max.bytes."""
_PUSH_INTERVAL_MS = 300_000
"""Kafka's default."""


@dataclass(frozen=True, slots=True)
class GetTelemetrySubscriptionsRequest:
    client_instance_id: UUID | None
    """None: the client asks for a new one."""


def decode(reader: Reader, version: int) -> GetTelemetrySubscriptionsRequest:  # noqa: ARG001 (there is one version)
    request = GetTelemetrySubscriptionsRequest(reader.uuid())
    reader.end_of_fields()
    return request


def subscription_of(client_instance_id: UUID) -> int:
    """The id of the client's subscription: 32 bits, signed."""
    return int.from_bytes(crc32c.crc32c(client_instance_id.bytes).to_bytes(4, "big"), "big", signed=True)


async def handle(context: Context, request: GetTelemetrySubscriptionsRequest) -> Answer:
    client_instance_id = request.client_instance_id or uuid.uuid4()
    writer = context.writer()
    writer.int32(0)  # throttle time
    writer.int16(ErrorCode.NONE)
    writer.uuid(client_instance_id)
    writer.int32(subscription_of(client_instance_id))
    writer.array(COMPRESSION_TYPES.values(), writer.int8)
    writer.int32(_PUSH_INTERVAL_MS)
    writer.int32(METRICS_BYTES_MAX)
    writer.boolean(True)  # counters as differences
    writer.array_length(0)  # metrics
    writer.end_of_fields()
    return writer.parts()


API = Api(71, "GetTelemetrySubscriptions", SERVED, FLEXIBLE_FROM, decode, handle, (), advertised=False)
