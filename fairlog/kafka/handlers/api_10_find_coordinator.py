"""FindCoordinator: the coordinator of a group or a transactional id, which is always this node.

Behaviour
- Key types 0 (group) and 1 (transactional id) are known; any other is INVALID_REQUEST, also that of share groups (2),
  as in a Kafka without a share coordinator.

Version notes
- 0 has groups only; 1 adds the key type, the throttle time and an error message; 3 is flexible; 4 asks for many keys at
  once. 5 is for clients that know TRANSACTION_ABORTABLE, 6 for those that know share groups; neither changes anything
  here.
"""

from __future__ import annotations

from dataclasses import dataclass

from fairlog.kafka.api import Answer, Api, Context, Versions
from fairlog.kafka.errors import ErrorCode
from fairlog.kafka.wire import Reader

SERVED = Versions(0, 6)
FLEXIBLE_FROM = 3
_MANY_KEYS_FROM = 4

_KEY_TYPES = (0, 1)


@dataclass(frozen=True, slots=True)
class FindCoordinatorRequest:
    key_type: int
    keys: tuple[str, ...]
    """Exactly one before version 4."""


def decode(reader: Reader, version: int) -> FindCoordinatorRequest:
    if version >= _MANY_KEYS_FROM:
        request = FindCoordinatorRequest(reader.int8(), reader.array(reader.string))
    else:
        key = reader.string()
        request = FindCoordinatorRequest(reader.int8() if version >= 1 else 0, (key,))
    reader.end_of_fields()
    return request


async def handle(context: Context, request: FindCoordinatorRequest) -> Answer:
    version, writer, broker = context.version, context.writer(), context.broker
    known = request.key_type in _KEY_TYPES
    error = ErrorCode.NONE if known else ErrorCode.INVALID_REQUEST
    message = None if known else f"there is no coordinator for keys of type {request.key_type}"
    node_id, host, port = (broker.node_id, broker.advertised.host, broker.advertised.port) if known else (-1, "", -1)

    def place() -> None:
        writer.int32(node_id)
        writer.string(host)
        writer.int32(port)

    def coordinator(key: str) -> None:
        writer.string(key)
        place()
        writer.int16(error)
        writer.message(message)
        writer.end_of_fields()

    if version >= 1:
        writer.int32(0)  # throttle time
    if version >= _MANY_KEYS_FROM:
        writer.array(request.keys, coordinator)
    else:
        writer.int16(error)
        if version >= 1:
            writer.message(message)
        place()
    writer.end_of_fields()
    return writer.parts()


API = Api(10, "FindCoordinator", SERVED, FLEXIBLE_FROM, decode, handle)
