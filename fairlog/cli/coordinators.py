"""Where the broker is that coordinates a group or a transactional id, and the connection to it."""

from __future__ import annotations

from kio.schema.find_coordinator.v4.request import FindCoordinatorRequest
from kio.schema.find_coordinator.v4.response import FindCoordinatorResponse
from kio.static.primitive import i8

from fairlog.cli.brokers import Brokers
from fairlog.cli.client import Connection, NoAnswer, check
from fairlog.config_values import Address

_GROUP_KEY, _TRANSACTION_KEY = i8(0), i8(1)
"""FindCoordinator's key types."""


def group_coordinator(brokers: Brokers, group: str) -> Connection:
    """The connection to the broker that coordinates the group. Raises ClientError."""
    return _coordinator(brokers, _GROUP_KEY, group)


def transaction_coordinator(brokers: Brokers, transactional_id: str) -> Connection:
    """The connection to the broker that coordinates the transactional id. Raises ClientError."""
    return _coordinator(brokers, _TRANSACTION_KEY, transactional_id)


def _coordinator(brokers: Brokers, key_type: i8, key: str) -> Connection:
    request = FindCoordinatorRequest(key_type=key_type, coordinator_keys=(key,))
    (found,) = brokers.first.request(request, FindCoordinatorResponse).coordinators
    check(f"finding the coordinator of {key}", found.error_code, found.error_message)
    try:
        return brokers.at(Address(found.host, int(found.port)))
    except NoAnswer as error:
        raise NoAnswer(f"broker {found.node_id}, which coordinates {key}, does not answer ({error})") from error
