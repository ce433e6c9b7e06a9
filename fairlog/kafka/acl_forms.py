"""What the requests about ACLs share: how a filter is read and checked, and how an ACL is written."""

from __future__ import annotations

from dataclasses import dataclass

from fairlog.kafka.wire import Reader, Writer
from fairlog.security.acls import Acl, AclFilter, filter_untrusted

NO_AUTHORIZER = "no authorizer is configured on this broker"

ACLS_PER_TURN = 500
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

    def checked(self) -> AclFilter:
        """The filter that is meant. Raises BadAcl."""
        return filter_untrusted(
            self.resource_type,
            self.resource_name,
            self.pattern_type,
            self.principal,
            self.host,
            self.operation,
            self.permission,
        )


def read_filter(reader: Reader) -> FilterAsked:
    """The fields of a filter: those of DescribeAcls, and of each entry of DeleteAcls."""
    asked = FilterAsked(
        resource_type=reader.int8(),
        resource_name=reader.nullable_string(),
        pattern_type=reader.int8(),
        principal=reader.nullable_string(),
        host=reader.nullable_string(),
        operation=reader.int8(),
        permission=reader.int8(),
    )
    reader.end_of_fields()
    return asked


def write_resource(writer: Writer, acl: Acl) -> None:
    """Which resources it is about."""
    writer.int8(acl.resource_type)
    writer.string(acl.resource_name)
    writer.int8(acl.pattern_type)


def write_rule(writer: Writer, acl: Acl) -> None:
    """Who may do what from where, or may not."""
    writer.string(acl.principal)
    writer.string(acl.host)
    writer.int8(acl.operation)
    writer.int8(acl.permission)
    writer.end_of_fields()
