"""What clients must be allowed, as Kafka has it: operation, type of resource, and the code for those who may not.

    handler ──▶ denied(context, READ_TOPIC, "orders") ──▶ the client's Rights ──▶ None, or TOPIC_AUTHORIZATION_FAILED

Each `Api` lists the checks that its handler makes, and docs/authorization.md says on which resources, and where the
answer has the code; tests hold the three together. The rules are those of Kafka's KafkaApis and ControllerApis. Where
Kafka does not even say that something exists, a handler asks with `may`, which is silent, and leaves it out.

A lane of a sink (`coordinator/lane_ids.py`) stands for its sink: its transactional id is checked as `fairlog.sink.` and
the sink's name, so that a writer needs one ACL and not one for each lane
(docs/decisions/0075-sinks-in-acls.md).

If everyone may do everything, a check costs one look at the client.
"""

from __future__ import annotations

from collections.abc import Iterable

import structlog

from coordinator.lane_ids import slot_and_sink
from fairlog.kafka.api import Check, Client, Context
from fairlog.kafka.errors import ErrorCode
from fairlog.security.acls import CLUSTER_NAME, OPERATIONS, Operation, ResourceType
from fairlog.security.sinks import resource_of_sink

log = structlog.get_logger()

_CODES = {
    ResourceType.TOPIC: ErrorCode.TOPIC_AUTHORIZATION_FAILED,
    ResourceType.GROUP: ErrorCode.GROUP_AUTHORIZATION_FAILED,
    ResourceType.CLUSTER: ErrorCode.CLUSTER_AUTHORIZATION_FAILED,
    ResourceType.TRANSACTIONAL_ID: ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
}


def _check(operation: Operation, of: ResourceType) -> Check:
    return Check(operation, of, _CODES[of])


READ_TOPIC = _check(Operation.READ, ResourceType.TOPIC)
WRITE_TOPIC = _check(Operation.WRITE, ResourceType.TOPIC)
CREATE_TOPIC = _check(Operation.CREATE, ResourceType.TOPIC)
DELETE_TOPIC = _check(Operation.DELETE, ResourceType.TOPIC)
ALTER_TOPIC = _check(Operation.ALTER, ResourceType.TOPIC)
DESCRIBE_TOPIC = _check(Operation.DESCRIBE, ResourceType.TOPIC)
DESCRIBE_CONFIGS_OF_TOPIC = _check(Operation.DESCRIBE_CONFIGS, ResourceType.TOPIC)
ALTER_CONFIGS_OF_TOPIC = _check(Operation.ALTER_CONFIGS, ResourceType.TOPIC)

READ_GROUP = _check(Operation.READ, ResourceType.GROUP)
DELETE_GROUP = _check(Operation.DELETE, ResourceType.GROUP)
DESCRIBE_GROUP = _check(Operation.DESCRIBE, ResourceType.GROUP)
DESCRIBE_CONFIGS_OF_GROUP = _check(Operation.DESCRIBE_CONFIGS, ResourceType.GROUP)
ALTER_CONFIGS_OF_GROUP = _check(Operation.ALTER_CONFIGS, ResourceType.GROUP)

CREATE_IN_CLUSTER = _check(Operation.CREATE, ResourceType.CLUSTER)
DELETE_IN_CLUSTER = _check(Operation.DELETE, ResourceType.CLUSTER)
ALTER_CLUSTER = _check(Operation.ALTER, ResourceType.CLUSTER)
DESCRIBE_CLUSTER = _check(Operation.DESCRIBE, ResourceType.CLUSTER)
ACT_AS_BROKER = _check(Operation.CLUSTER_ACTION, ResourceType.CLUSTER)
DESCRIBE_CONFIGS_OF_CLUSTER = _check(Operation.DESCRIBE_CONFIGS, ResourceType.CLUSTER)
ALTER_CONFIGS_OF_CLUSTER = _check(Operation.ALTER_CONFIGS, ResourceType.CLUSTER)
WRITE_IDEMPOTENTLY = _check(Operation.IDEMPOTENT_WRITE, ResourceType.CLUSTER)

WRITE_TRANSACTIONAL_ID = _check(Operation.WRITE, ResourceType.TRANSACTIONAL_ID)
DESCRIBE_TRANSACTIONAL_ID = _check(Operation.DESCRIBE, ResourceType.TRANSACTIONAL_ID)
COMMIT_IN_TWO_PHASES = _check(Operation.TWO_PHASE_COMMIT, ResourceType.TRANSACTIONAL_ID)


def may(context: Context, check: Check, name: str = CLUSTER_NAME) -> bool:
    """Whether the client may do this with the resource of this name. No line is written if not."""
    rights = context.client.rights
    if rights is None:
        return True
    if check.of is ResourceType.TRANSACTIONAL_ID:
        name = _resource_of(name)
    return rights.allows(check.operation, check.of, name)


def denied(context: Context, check: Check, name: str = CLUSTER_NAME) -> ErrorCode | None:
    """The code to answer if the client may not do this with the resource of this name, which a line says; or None."""
    if context.client.rights is None or may(context, check, name):
        return None
    return refuse(context, check, name)


def may_with_any(context: Context, check: Check) -> bool:
    """Whether the client may do this with at least one resource that there could be (KIP-679)."""
    rights = context.client.rights
    return rights is None or rights.allows_any(check.operation, check.of)


def refuse(context: Context, check: Check, name: str = CLUSTER_NAME) -> ErrorCode:
    """Write the line about an operation that is denied; the code to answer."""
    say_denied(context.client, check.operation, check.of, name)
    return ErrorCode(check.code)


def say_denied(client: Client, operation: Operation, of: ResourceType, name: str) -> None:
    event = "access denied"
    more = client.admit_line(event)
    if more is not None:
        resource = f"{of.name}:{name[:_SHOWN_CHARACTERS]}"
        log.info(
            event,
            principal=str(client.principal),
            host=client.address,
            operation=operation.name,
            resource=resource,
            client_id=client.client_id,
            **more,
        )


_SHOWN_CHARACTERS = 250
"""Of a resource's name, in a line."""


def _bits(allowed: Iterable[Operation]) -> int:
    return sum(1 << operation for operation in allowed)


_ALL = {of: _bits(found) for of, found in OPERATIONS.items()}

NOT_ASKED = -(1 << 31)
"""The field of authorized operations, when the request did not ask for them (KIP-430)."""


def operations(context: Context, of: ResourceType, name: str = CLUSTER_NAME) -> int:
    """The operations that the client may do with a resource: one bit for each, as Kafka's answers have them (KIP-430).

    If everyone may do everything, these are all that such a resource has, as in Kafka.
    """
    rights = context.client.rights
    return _ALL[of] if rights is None else _bits(rights.operations(of, name))


def operations_on_cluster(context: Context) -> int:
    """The same for the cluster: 0 for a client that may not describe it."""
    return operations(context, ResourceType.CLUSTER) if denied(context, DESCRIBE_CLUSTER) is None else 0


def _resource_of(transactional_id: str) -> str:
    lane = slot_and_sink(transactional_id)
    return transactional_id if lane is None else resource_of_sink(lane[1])
