"""PushTelemetry: a client's own metrics (KIP-714), which are checked and dropped.

Behaviour
- Not advertised, as in a Kafka without a receiver for metrics. A client that sends metrics all the same is answered as
  in Kafka.
- Without an instance id of the client's own: INVALID_REQUEST. A subscription that GetTelemetrySubscriptions did not
  return: UNKNOWN_SUBSCRIPTION_ID. An unknown compression, and more than a MiB, have errors of their own.

Version notes
- 0 is the only one.
"""

from __future__ import annotations

from dataclasses import dataclass
from uuid import UUID

from fairlog.kafka.api import Answer, Api, Context, Versions
from fairlog.kafka.errors import ErrorCode
from fairlog.kafka.handlers.api_71_get_telemetry_subscriptions import (
    COMPRESSION_TYPES,
    METRICS_BYTES_MAX,
    subscription_of,
)
from fairlog.kafka.wire import Reader

SERVED = Versions(0, 0)
FLEXIBLE_FROM = 0

_NO_COMPRESSION = 0
_RESERVED_IDS = 100
"""The first UUIDs are reserved for Kafka."""


@dataclass(frozen=True, slots=True)
class PushTelemetryRequest:
    client_instance_id: UUID | None
    subscription_id: int
    compression_type: int
    metrics_bytes: int


def decode(reader: Reader, version: int) -> PushTelemetryRequest:  # noqa: ARG001 (there is one version)
    client_instance_id, subscription_id = reader.uuid(), reader.int32()
    reader.boolean()  # whether it is the client's last
    request = PushTelemetryRequest(client_instance_id, subscription_id, reader.int8(), len(reader.byte_string()))
    reader.end_of_fields()
    return request


async def handle(context: Context, request: PushTelemetryRequest) -> Answer:
    writer = context.writer()
    writer.int32(0)  # throttle time
    writer.int16(_error_of(request))
    writer.end_of_fields()
    return writer.parts()


def _error_of(request: PushTelemetryRequest) -> ErrorCode:
    if request.client_instance_id is None or request.client_instance_id.int < _RESERVED_IDS:
        return ErrorCode.INVALID_REQUEST
    if request.subscription_id != subscription_of(request.client_instance_id):
        return ErrorCode.UNKNOWN_SUBSCRIPTION_ID
    if request.compression_type not in (_NO_COMPRESSION, *COMPRESSION_TYPES.values()):
        return ErrorCode.UNSUPPORTED_COMPRESSION_TYPE
    if request.metrics_bytes > METRICS_BYTES_MAX:
        return ErrorCode.TELEMETRY_TOO_LARGE
    return ErrorCode.NONE


API = Api(72, "PushTelemetry", SERVED, FLEXIBLE_FROM, decode, handle, (), advertised=False)
