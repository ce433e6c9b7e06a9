"""Where the broker is that coordinates a group or a transactional id, and a connection to it."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager

from kio.schema.find_coordinator.v4.request import FindCoordinatorRequest
from kio.schema.find_coordinator.v4.response import FindCoordinatorResponse
from kio.static.primitive import i8

from fairlog.cli.client import Connection, check, connect
from fairlog.config_values import Address

_GROUP_KEY, _TRANSACTION_KEY = i8(0), i8(1)
"""FindCoordinator's key types."""


@contextmanager
def group_coordinator(bootstrap: Address, group: str) -> Generator[Connection]:
    """A connection to the broker that coordinates the group; the first one if it is that itself."""
    with _coordinator(bootstrap, _GROUP_KEY, group) as connection:
        yield connection


@contextmanager
def transaction_coordinator(bootstrap: Address, transactional_id: str) -> Generator[Connection]:
    """A connection to the broker that coordinates the transactional id; the first one if it is that itself."""
    with _coordinator(bootstrap, _TRANSACTION_KEY, transactional_id) as connection:
        yield connection


@contextmanager
def _coordinator(bootstrap: Address, key_type: i8, key: str) -> Generator[Connection]:
    with connect(bootstrap) as connection:
        request = FindCoordinatorRequest(key_type=key_type, coordinator_keys=(key,))
        (found,) = connection.request(request, FindCoordinatorResponse).coordinators
        check(f"finding the coordinator of {key}", found.error_code, found.error_message)
        address = Address(found.host, int(found.port))
        if address == bootstrap:
            yield connection
            return
    with connect(address) as connection:
        yield connection
