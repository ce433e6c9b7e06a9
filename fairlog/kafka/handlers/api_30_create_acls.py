"""CreateAcls: refused, since no authorizer would enforce an ACL.

Behaviour
- Each creation is answered with SECURITY_DISABLED, as Kafka does without an authorizer. Nothing is stored: an ACL that
  is stored but not enforced would be worse than none.

Version notes
- 1 adds the pattern's type (Kafka 4 does not serve 0); 2 is flexible; 3 adds users as resources.
"""

from __future__ import annotations

from dataclasses import dataclass

from fairlog.kafka.api import Answer, Api, Context, Versions
from fairlog.kafka.errors import ErrorCode
from fairlog.kafka.handlers.api_29_describe_acls import NO_AUTHORIZER
from fairlog.kafka.wire import Reader

SERVED = Versions(1, 3)
FLEXIBLE_FROM = 2


@dataclass(frozen=True, slots=True)
class AclCreation:
    """One ACL. The numbers are Kafka's."""

    resource_type: int
    resource_name: str
    pattern_type: int
    principal: str
    host: str
    operation: int
    permission_type: int


@dataclass(frozen=True, slots=True)
class CreateAclsRequest:
    creations: tuple[AclCreation, ...]


def decode(reader: Reader, version: int) -> CreateAclsRequest:  # noqa: ARG001 (all versions look alike)
    def creation() -> AclCreation:
        entry = AclCreation(
            resource_type=reader.int8(),
            resource_name=reader.string(),
            pattern_type=reader.int8(),
            principal=reader.string(),
            host=reader.string(),
            operation=reader.int8(),
            permission_type=reader.int8(),
        )
        reader.end_of_fields()
        return entry

    request = CreateAclsRequest(reader.array(creation))
    reader.end_of_fields()
    return request


async def handle(context: Context, request: CreateAclsRequest) -> Answer:
    writer = context.writer()

    def result(_: AclCreation) -> None:
        writer.int16(ErrorCode.SECURITY_DISABLED)
        writer.message(NO_AUTHORIZER)
        writer.end_of_fields()

    writer.int32(0)  # throttle time
    writer.array(request.creations, result)
    writer.end_of_fields()
    return writer.parts()


API = Api(30, "CreateAcls", SERVED, FLEXIBLE_FROM, decode, handle)
