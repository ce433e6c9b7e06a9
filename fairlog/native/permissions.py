"""What clients of the native protocol must be allowed. docs/authorization.md has the table.

A sink is a transactional id in ACLs (`fairlog.security.sinks`): who may write it may join, commit and abort its
batches, and forget it. What is in a batch was written by Kafka's protocol, which asks for each topic.

An op that names what the client may not use is refused (`not-authorized`), whether it exists or not. Lists leave it
out.
"""

from __future__ import annotations

import structlog

from fairlog.native.calls import Call, Check
from fairlog.native.messages import Refused
from fairlog.security.acls import Operation, ResourceType
from fairlog.security.sinks import resource_of_sink

log = structlog.get_logger()

DESCRIBE_TOPIC = Check(Operation.DESCRIBE, ResourceType.TOPIC)
READ_TOPIC = Check(Operation.READ, ResourceType.TOPIC)
READ_GROUP = Check(Operation.READ, ResourceType.GROUP)
WRITE_SINK = Check(Operation.WRITE, ResourceType.TRANSACTIONAL_ID)
DESCRIBE_SINK = Check(Operation.DESCRIBE, ResourceType.TRANSACTIONAL_ID)


def may(call: Call, check: Check, name: str) -> bool:
    """Whether the client may do this with the topic, group or sink of this name. No line is written if not."""
    rights = call.client.rights
    if rights is None:
        return True
    if check.of is ResourceType.TRANSACTIONAL_ID:
        name = resource_of_sink(name)
    return rights.allows(check.operation, check.of, name)


def require(call: Call, check: Check, name: str) -> None:
    """Raises Refused, and writes a line, unless the client may do this with the topic, group or sink of this name."""
    if may(call, check, name):
        return
    client, event = call.client, "access denied"
    operation = check.operation.name
    what = "SINK" if check.of is ResourceType.TRANSACTIONAL_ID else check.of.name
    more = client.admit_line(event)
    if more is not None:
        log.info(
            event,
            principal=str(client.principal),
            host=client.address,
            operation=operation,
            resource=f"{what}:{name}",
            protocol="native",
            **more,
        )
    raise Refused("not-authorized", f"{client.principal} may not {operation} the {what.lower()} {name}")
