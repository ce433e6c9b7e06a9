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

import trio

from fairlog.kafka.acl_forms import ACLS_PER_TURN, NO_AUTHORIZER, FilterAsked, read_filter, write_resource, write_rule
from fairlog.kafka.api import Answer, Api, Context, Versions
from fairlog.kafka.checks import DESCRIBE_CLUSTER, denied
from fairlog.kafka.errors import ErrorCode
from fairlog.kafka.wire import Reader
from fairlog.security.acls import Acl, BadAcl

SERVED = Versions(1, 3)
FLEXIBLE_FROM = 2


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
        wanted = request.checked()
    except BadAcl as bad:
        return await _encode(context, (), ErrorCode.INVALID_REQUEST, str(bad))
    return await _encode(context, access.found(wanted), ErrorCode.NONE)


def _resource(acl: Acl) -> object:
    return acl.resource_type, acl.resource_name, acl.pattern_type


async def _encode(context: Context, acls: Sequence[Acl], error: ErrorCode, message: str | None = None) -> Answer:
    writer = context.writer()
    by_resource = [list(found) for _, found in itertools.groupby(acls, key=_resource)]
    writer.int32(0)  # throttle time
    writer.int16(error)
    writer.message(message)
    writer.array_length(len(by_resource))
    written = 0
    for found in by_resource:
        write_resource(writer, found[0])
        writer.array_length(len(found))
        for acl in found:
            write_rule(writer, acl)
            written += 1
            if written % ACLS_PER_TURN == 0:
                await trio.lowlevel.checkpoint()
        writer.end_of_fields()
    writer.end_of_fields()
    return writer.parts()


API = Api(29, "DescribeAcls", SERVED, FLEXIBLE_FROM, decode, handle, (DESCRIBE_CLUSTER,))
