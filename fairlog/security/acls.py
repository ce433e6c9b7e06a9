"""ACLs as Kafka has them: who may do what, with which resource, from where. Pure.

An ACL allows or denies a principal, or all of them (`User:*`), an operation, or all of them, on resources of a type: on
the one of a name, on those whose names begin so (PREFIXED), or on all (LITERAL with the name `*`); from one address, or
from all (`*`). What several ACLs mean together is in `fairlog.security.authorizer`.

The numbers and words are Kafka's: `AclOperation`, `ResourceType`, `PatternType` and `AclPermissionType`. So are the
rules about what CreateAcls takes (`AclControlManager.validateNewAcl`, `AclApis`). Kafka differs in two: it takes ACLs
on delegation tokens and users, which do not exist here, and a principal without a kind, which then matches nobody.

In the cluster's store an ACL is a name without a value (docs/formats/cluster-store.md): the JSON array of its parts.
"""

from __future__ import annotations

import ipaddress
import json
from collections.abc import Mapping
from dataclasses import dataclass
from enum import IntEnum
from typing import TypeVar

from fairlog.security.access_kind import AccessKind

E = TypeVar("E", bound=IntEnum)

ANYONE = "User:*"
"""The principal of an ACL for everyone."""
ANYTHING = "*"
"""The name of all resources of a type, and the host of all addresses."""
CLUSTER_NAME = "kafka-cluster"
"""The name of the only resource of type CLUSTER."""


class Operation(IntEnum):
    UNKNOWN = 0
    ANY = 1
    """In filters only."""
    ALL = 2
    """In ACLs only: every one of the following."""
    READ = 3
    WRITE = 4
    CREATE = 5
    DELETE = 6
    ALTER = 7
    DESCRIBE = 8
    CLUSTER_ACTION = 9
    DESCRIBE_CONFIGS = 10
    ALTER_CONFIGS = 11
    IDEMPOTENT_WRITE = 12
    CREATE_TOKENS = 13
    DESCRIBE_TOKENS = 14
    TWO_PHASE_COMMIT = 15


class ResourceType(IntEnum):
    UNKNOWN = 0
    ANY = 1
    """In filters only."""
    TOPIC = 2
    GROUP = 3
    CLUSTER = 4
    TRANSACTIONAL_ID = 5
    DELEGATION_TOKEN = 6
    USER = 7


class PatternType(IntEnum):
    UNKNOWN = 0
    ANY = 1
    """In filters only."""
    MATCH = 2
    """In filters only: every pattern that a resource of this name matches."""
    LITERAL = 3
    PREFIXED = 4


class Permission(IntEnum):
    UNKNOWN = 0
    ANY = 1
    """In filters only."""
    DENY = 2
    ALLOW = 3


OPERATIONS: Mapping[ResourceType, tuple[Operation, ...]] = {
    ResourceType.TOPIC: (
        Operation.READ,
        Operation.WRITE,
        Operation.CREATE,
        Operation.DELETE,
        Operation.ALTER,
        Operation.DESCRIBE,
        Operation.DESCRIBE_CONFIGS,
        Operation.ALTER_CONFIGS,
    ),
    ResourceType.GROUP: (
        Operation.READ,
        Operation.DELETE,
        Operation.DESCRIBE,
        Operation.DESCRIBE_CONFIGS,
        Operation.ALTER_CONFIGS,
    ),
    ResourceType.CLUSTER: (
        Operation.CREATE,
        Operation.ALTER,
        Operation.DESCRIBE,
        Operation.CLUSTER_ACTION,
        Operation.DESCRIBE_CONFIGS,
        Operation.ALTER_CONFIGS,
        Operation.IDEMPOTENT_WRITE,
    ),
    ResourceType.TRANSACTIONAL_ID: (Operation.WRITE, Operation.DESCRIBE, Operation.TWO_PHASE_COMMIT),
}
"""What can be done with resources of each type (Kafka's `AclEntry.supportedOperations`)."""


class BadAcl(ValueError):
    """There can be no such ACL, or no such filter; the message says why."""


@dataclass(frozen=True, slots=True)
class Acl:
    """One of them. Make it of a stranger's words with `acl_untrusted`."""

    resource_type: ResourceType
    resource_name: str
    pattern_type: PatternType
    principal: str
    """Such as `User:alice`."""
    host: str
    operation: Operation
    permission: Permission


@dataclass(frozen=True, slots=True)
class AclFilter:
    """Which ACLs are meant; None and ANY mean all. Make it of a stranger's words with `filter_untrusted`."""

    resource_type: ResourceType
    resource_name: str | None
    pattern_type: PatternType
    principal: str | None
    host: str | None
    operation: Operation
    permission: Permission

    def matches(self, acl: Acl) -> bool:
        """Kafka's `AclBindingFilter.matches`."""
        return (
            self.resource_type in (ResourceType.ANY, acl.resource_type)
            and self.principal in (None, acl.principal)
            and self.host in (None, acl.host)
            and self.operation in (Operation.ANY, acl.operation)
            and self.permission in (Permission.ANY, acl.permission)
            and self._matches_pattern(acl)
        )

    def _matches_pattern(self, acl: Acl) -> bool:
        name = self.resource_name
        if self.pattern_type not in (PatternType.ANY, PatternType.MATCH, acl.pattern_type):
            return False
        if name is None or name == acl.resource_name:
            return True
        if self.pattern_type is not PatternType.MATCH:
            return False
        if acl.pattern_type is PatternType.PREFIXED:
            return name.startswith(acl.resource_name)
        return acl.resource_name == ANYTHING


def acl_untrusted(
    resource_type: int,
    resource_name: str,
    pattern_type: int,
    principal: str,
    host: str,
    operation: int,
    permission: int,
) -> Acl:
    """An ACL that a client wants to create. Raises BadAcl."""
    of_type = _known(ResourceType, resource_type, "resource type")
    if of_type not in OPERATIONS:
        raise BadAcl(f"there are no resources of type {of_type.name} here")
    acl = Acl(
        of_type,
        resource_name,
        _known(PatternType, pattern_type, "pattern type"),
        principal,
        host,
        _known(Operation, operation, "operation"),
        _known(Permission, permission, "permission"),
    )
    if acl.pattern_type is PatternType.MATCH:
        raise BadAcl("an ACL has no pattern type MATCH")
    if not resource_name:
        raise BadAcl("the resource's name is empty")
    if of_type is ResourceType.CLUSTER and resource_name != CLUSTER_NAME:
        raise BadAcl(f"the only resource of type CLUSTER is {CLUSTER_NAME}")
    kind, colon, name = principal.partition(":")
    if not (kind and colon and name):
        raise BadAcl("the principal is not KIND:NAME, such as User:alice")
    if not host:
        raise BadAcl(f"the host is empty: an address, or {ANYTHING} for all")
    return acl


def filter_untrusted(
    resource_type: int,
    resource_name: str | None,
    pattern_type: int,
    principal: str | None,
    host: str | None,
    operation: int,
    permission: int,
) -> AclFilter:
    """A filter that a client asks with. Raises BadAcl."""
    return AclFilter(
        _known(ResourceType, resource_type, "resource type", least=1),
        resource_name,
        _known(PatternType, pattern_type, "pattern type", least=1),
        principal,
        host,
        _known(Operation, operation, "operation", least=1),
        _known(Permission, permission, "permission", least=1),
    )


def _known(enum: type[E], number: int, what: str, *, least: int = 2) -> E:
    """The value of a number. UNKNOWN is 0 in each enumeration, and ANY, which filters alone have, is 1."""
    try:
        found = enum(number)
    except ValueError:
        raise BadAcl(f"there is no {what} {number}") from None
    if found < least:
        raise BadAcl(f"the {what} is {found.name}")
    return found


def plain_address(address: str) -> str:
    """An address as it is compared: in its short form, an IPv4 address in IPv6 as IPv4. Other texts as they are."""
    try:
        parsed = ipaddress.ip_address(address)
    except ValueError:
        return address
    mapped = parsed.ipv4_mapped if isinstance(parsed, ipaddress.IPv6Address) else None
    return str(mapped or parsed)


def is_address(text: str) -> bool:
    """Whether it is an IP address."""
    try:
        ipaddress.ip_address(text)
    except ValueError:
        return False
    return True


# --- in the cluster's store -----------------------------------------------------------------------


def name_of(acl: Acl) -> str:
    """Its name in the store: the same for the same ACL, another one for each other."""
    parts = [
        acl.permission.name,
        acl.operation.name,
        acl.resource_type.name,
        acl.pattern_type.name,
        acl.resource_name,
        acl.principal,
        acl.host,
    ]
    return json.dumps(parts, ensure_ascii=False, separators=(",", ":"))


def _encode(acl: Acl) -> object:  # noqa: ARG001 (the name says all)
    return None


def _decode(name: str, value: object) -> Acl:
    try:
        match json.loads(name), value:
            case [[str(permission), str(operation), str(kind), str(pattern), str(resource), str(who), str(host)], None]:
                acl = acl_untrusted(
                    ResourceType[kind],
                    resource,
                    PatternType[pattern],
                    who,
                    host,
                    Operation[operation],
                    Permission[permission],
                )
            case _:
                raise ValueError("it is no array of seven texts, without a value")
    except (KeyError, RecursionError) as error:
        raise ValueError(f"there is no {error}") from error
    if name_of(acl) != name:
        raise ValueError("it is not written in its only form")
    return acl


ACLS: AccessKind[Acl] = AccessKind("acl", _encode, _decode)
"""All ACLs of the cluster."""
