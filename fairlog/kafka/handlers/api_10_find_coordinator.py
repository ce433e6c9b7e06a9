"""FindCoordinator: the broker that coordinates a group or a transactional id.

Behaviour
- Key types 0 (group) and 1 (transactional id) are known; any other is INVALID_REQUEST, also that of share groups (2),
  as in a Kafka without a share coordinator.
- Every broker knows all coordinators (`fairlog.cluster.coordinators`). If one has not started yet, the answer is
  COORDINATOR_NOT_AVAILABLE, on which clients ask again. So is one without the listener that the client came in by, as
  in Kafka.

Version notes
- 0 has groups only; 1 adds the key type, the throttle time and an error message; 3 is flexible; 4 asks for many keys at
  once. 5 is for clients that know TRANSACTION_ABORTABLE, 6 for those that know share groups; neither changes anything
  here.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

from fairlog.cluster.interface import BrokerAddress
from fairlog.kafka.api import Answer, Api, Context, Versions
from fairlog.kafka.checks import DESCRIBE_GROUP, DESCRIBE_TRANSACTIONAL_ID, denied
from fairlog.kafka.errors import ErrorCode
from fairlog.kafka.ownership import NO_NODE
from fairlog.kafka.wire import Reader, Writer

SERVED = Versions(0, 6)
FLEXIBLE_FROM = 3
_MANY_KEYS_FROM = 4

_NOWHERE = BrokerAddress(NO_NODE, "", -1)


class KeyType(IntEnum):
    GROUP = 0
    TRANSACTIONAL_ID = 1


@dataclass(frozen=True, slots=True)
class FindCoordinatorRequest:
    key_type: int
    keys: tuple[str, ...]
    """Exactly one before version 4."""


@dataclass(frozen=True, slots=True)
class _Found:
    address: BrokerAddress
    error: ErrorCode = ErrorCode.NONE
    message: str | None = None


def decode(reader: Reader, version: int) -> FindCoordinatorRequest:
    if version >= _MANY_KEYS_FROM:
        request = FindCoordinatorRequest(reader.int8(), reader.array(reader.string))
    else:
        key = reader.string()
        request = FindCoordinatorRequest(reader.int8() if version >= 1 else 0, (key,))
    reader.end_of_fields()
    return request


async def handle(context: Context, request: FindCoordinatorRequest) -> Answer:
    version, writer = context.version, context.writer()

    def coordinator(key: str) -> None:
        found = _find(context, request.key_type, key)
        writer.string(key)
        _write_place(writer, found)
        writer.int16(found.error)
        writer.message(found.message)
        writer.end_of_fields()

    if version >= 1:
        writer.int32(0)  # throttle time
    if version >= _MANY_KEYS_FROM:
        writer.array(request.keys, coordinator)
    else:
        found = _find(context, request.key_type, request.keys[0])
        writer.int16(found.error)
        if version >= 1:
            writer.message(found.message)
        _write_place(writer, found)
    writer.end_of_fields()
    return writer.parts()


def _find(context: Context, key_type: int, key: str) -> _Found:
    broker, listener = context.broker, context.client.listener.name
    match key_type:
        case KeyType.GROUP:
            refused = denied(context, DESCRIBE_GROUP, key)
            address = broker.coordinator_of_group(key, listener)
        case KeyType.TRANSACTIONAL_ID:
            refused = denied(context, DESCRIBE_TRANSACTIONAL_ID, key)
            address = broker.coordinator_of(key, listener)
        case _:
            return _Found(_NOWHERE, ErrorCode.INVALID_REQUEST, f"there is no coordinator for keys of type {key_type}")
    if refused is not None:
        return _Found(_NOWHERE, refused)
    if address is None:
        return _Found(_NOWHERE, ErrorCode.COORDINATOR_NOT_AVAILABLE, "the coordinator has not started yet: ask again")
    return _Found(address)


def _write_place(writer: Writer, found: _Found) -> None:
    writer.int32(found.address.node_id)
    writer.string(found.address.host)
    writer.int32(found.address.port)


API = Api(10, "FindCoordinator", SERVED, FLEXIBLE_FROM, decode, handle, (DESCRIBE_GROUP, DESCRIBE_TRANSACTIONAL_ID))
