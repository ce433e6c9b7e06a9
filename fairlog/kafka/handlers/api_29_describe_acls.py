"""DescribeAcls: there is no authorizer, so there are no ACLs.

Behaviour
- Every request is answered with SECURITY_DISABLED, as Kafka does without an authorizer: admin tools interpret it as
  "ACLs are not in use here", whereas a closed connection would look like a fault.

Version notes
- 1 adds the pattern's type (Kafka 4 does not serve 0); 2 is flexible; 3 adds users as resources.
"""

from __future__ import annotations

from dataclasses import dataclass

from fairlog.kafka.api import Answer, Api, Context, Versions
from fairlog.kafka.errors import ErrorCode
from fairlog.kafka.wire import Reader

SERVED = Versions(1, 3)
FLEXIBLE_FROM = 2

NO_AUTHORIZER = "no authorizer is configured on this broker"


@dataclass(frozen=True, slots=True)
class AclFilter:
    """Which ACLs are meant; None matches any. The numbers are Kafka's, and are ignored: there are no ACLs."""

    resource_type: int
    resource_name: str | None
    pattern_type: int
    principal: str | None
    host: str | None
    operation: int
    permission_type: int


def read_filter(reader: Reader) -> AclFilter:
    """The fields of a filter, which are those of this request and of each entry of DeleteAcls."""
    acl_filter = AclFilter(
        resource_type=reader.int8(),
        resource_name=reader.nullable_string(),
        pattern_type=reader.int8(),
        principal=reader.nullable_string(),
        host=reader.nullable_string(),
        operation=reader.int8(),
        permission_type=reader.int8(),
    )
    reader.end_of_fields()
    return acl_filter


def decode(reader: Reader, version: int) -> AclFilter:  # noqa: ARG001 (all versions look alike)
    return read_filter(reader)


async def handle(context: Context, request: AclFilter) -> Answer:  # noqa: ARG001 (there is nothing to find)
    writer = context.writer()
    writer.int32(0)  # throttle time
    writer.int16(ErrorCode.SECURITY_DISABLED)
    writer.message(NO_AUTHORIZER)
    writer.array_length(0)
    writer.end_of_fields()
    return writer.parts()


API = Api(29, "DescribeAcls", SERVED, FLEXIBLE_FROM, decode, handle)
