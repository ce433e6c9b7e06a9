"""DescribeAcls: the ACLs that a filter matches.

Behaviour
- Without an authorizer (`authorizer.enable`) every request is answered with SECURITY_DISABLED, as in Kafka: admin tools
  interpret it as "ACLs are not in use here", whereas a closed connection would look like a fault.
- The ACLs are grouped by resource, and sorted.
- A filter with a number that Kafka does not have, or with UNKNOWN, is INVALID_REQUEST. Kafka closes the connection.
- A client that may not describe the cluster is CLUSTER_AUTHORIZATION_FAILED.
- Other clients are served while a long list is written.

Version notes
- 1 adds the pattern's type (Kafka 4 does not serve 0); 2 is flexible; 3 adds users as resources: there are none.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import trio

from fairlog.kafka.api import Answer, Api, Context, Versions
from fairlog.kafka.checks import DESCRIBE_CLUSTER, denied
from fairlog.kafka.errors import ErrorCode
from fairlog.kafka.wire import Reader
from fairlog.security.acls import Acl, BadAcl, filter_untrusted

SERVED = Versions(1, 3)
FLEXIBLE_FROM = 2

NO_AUTHORIZER = "no authorizer is configured on this broker"

_ACLS_PER_TURN = 500
"""Written before others run."""


@dataclass(frozen=True, slots=True)
class FilterAsked:
    """Which ACLs are meant, as the client says it; None matches any. The numbers are Kafka's."""

    resource_type: int
    resource_name: str | None
    pattern_type: int
    principal: str | None
    host: str | None
    operation: int
    permission: int


def read_filter(reader: Reader) -> FilterAsked:
    """The fields of a filter, which are those of this request and of each entry of DeleteAcls."""
    acl_filter = FilterAsked(
        resource_type=reader.int8(),
        resource_name=reader.nullable_string(),
        pattern_type=reader.int8(),
        principal=reader.nullable_string(),
        host=reader.nullable_string(),
        operation=reader.int8(),
        permission=reader.int8(),
    )
    reader.end_of_fields()
    return acl_filter


def decode(reader: Reader, version: int) -> FilterAsked:  # noqa: ARG001 (all versions look alike)
    return read_filter(reader)


async def handle(context: Context, request: FilterAsked) -> Answer:
    access = context.broker.access
    if access is None:
        return await _encode(context, (), ErrorCode.SECURITY_DISABLED, NO_AUTHORIZER)
    refused = denied(context, DESCRIBE_CLUSTER)
    if refused is not None:
        return await _encode(context, (), refused)
    try:
        wanted = filter_untrusted(
            request.resource_type,
            request.resource_name,
            request.pattern_type,
            request.principal,
            request.host,
            request.operation,
            request.permission,
        )
    except BadAcl as bad:
        return await _encode(context, (), ErrorCode.INVALID_REQUEST, str(bad))
    return await _encode(context, access.found(wanted), ErrorCode.NONE)


async def _encode(context: Context, acls: Sequence[Acl], error: ErrorCode, message: str | None = None) -> Answer:
    writer = context.writer()
    by_resource = [
        (resource, list(found))
        for resource, found in itertools.groupby(
            acls, key=lambda acl: (acl.resource_type, acl.resource_name, acl.pattern_type)
        )
    ]
    writer.int32(0)  # throttle time
    writer.int16(error)
    writer.message(message)
    writer.array_length(len(by_resource))
    written = 0
    for (resource_type, name, pattern_type), found in by_resource:
        writer.int8(resource_type)
        writer.string(name)
        writer.int8(pattern_type)
        writer.array_length(len(found))
        for acl in found:
            writer.string(acl.principal)
            writer.string(acl.host)
            writer.int8(acl.operation)
            writer.int8(acl.permission)
            writer.end_of_fields()
            written += 1
            if written % _ACLS_PER_TURN == 0:
                await trio.lowlevel.checkpoint()
        writer.end_of_fields()
    writer.end_of_fields()
    return writer.parts()


API = Api(29, "DescribeAcls", SERVED, FLEXIBLE_FROM, decode, handle, (DESCRIBE_CLUSTER,))
