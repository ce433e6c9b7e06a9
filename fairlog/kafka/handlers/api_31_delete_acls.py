"""DeleteAcls: there is no authorizer, so there are no ACLs.

Behaviour
- Each filter is answered with SECURITY_DISABLED and without matches, as Kafka does without an authorizer.

Version notes
- 1 adds the pattern's type (Kafka 4 does not serve 0); 2 is flexible; 3 adds users as resources.
"""

from __future__ import annotations

from dataclasses import dataclass

from fairlog.kafka.api import Answer, Api, Context, Versions
from fairlog.kafka.errors import ErrorCode
from fairlog.kafka.handlers.api_29_describe_acls import NO_AUTHORIZER, AclFilter, read_filter
from fairlog.kafka.wire import Reader

SERVED = Versions(1, 3)
FLEXIBLE_FROM = 2


@dataclass(frozen=True, slots=True)
class DeleteAclsRequest:
    filters: tuple[AclFilter, ...]


def decode(reader: Reader, version: int) -> DeleteAclsRequest:  # noqa: ARG001 (all versions look alike)
    request = DeleteAclsRequest(reader.array(lambda: read_filter(reader)))
    reader.end_of_fields()
    return request


async def handle(context: Context, request: DeleteAclsRequest) -> Answer:
    writer = context.writer()

    def result(_: AclFilter) -> None:
        writer.int16(ErrorCode.SECURITY_DISABLED)
        writer.message(NO_AUTHORIZER)
        writer.array_length(0)  # ACLs that matched
        writer.end_of_fields()

    writer.int32(0)  # throttle time
    writer.array(request.filters, result)
    writer.end_of_fields()
    return writer.parts()


API = Api(31, "DeleteAcls", SERVED, FLEXIBLE_FROM, decode, handle)
