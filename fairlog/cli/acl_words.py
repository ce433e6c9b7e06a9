"""From the options of `fairlog acl` to ACLs and filters, with the words of Kafka's kafka-acls. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from fairlog.security.acls import (
    ANYTHING,
    CLUSTER_NAME,
    OPERATIONS,
    Acl,
    AclFilter,
    BadAcl,
    Operation,
    PatternType,
    Permission,
    ResourceType,
    acl_untrusted,
)

_PRODUCER = {
    ResourceType.TOPIC: (Operation.WRITE, Operation.DESCRIBE, Operation.CREATE),
    ResourceType.TRANSACTIONAL_ID: (Operation.WRITE, Operation.DESCRIBE),
}
_CONSUMER = {
    ResourceType.TOPIC: (Operation.READ, Operation.DESCRIBE),
    ResourceType.GROUP: (Operation.READ,),
}
"""What kafka-acls gives a producer and a consumer."""


@dataclass(frozen=True, slots=True)
class Resources:
    """What the options name."""

    topics: Sequence[str] = ()
    groups: Sequence[str] = ()
    transactional_ids: Sequence[str] = ()
    cluster: bool = False

    def __iter__(self) -> Iterator[tuple[ResourceType, str]]:
        yield from ((ResourceType.TOPIC, name) for name in self.topics)
        yield from ((ResourceType.GROUP, name) for name in self.groups)
        yield from ((ResourceType.TRANSACTIONAL_ID, name) for name in self.transactional_ids)
        if self.cluster:
            yield ResourceType.CLUSTER, CLUSTER_NAME


@dataclass(frozen=True, slots=True)
class Who:
    """Principals, and the addresses from where."""

    permission: Permission
    principals: Sequence[str]
    hosts: Sequence[str]


def operation_of(word: str) -> Operation:
    """The operation that a word means, in any case, with or without underscores: `DescribeConfigs`. Raises BadAcl."""
    plain = word.replace("_", "").replace("-", "").lower()
    for operation in Operation:
        if operation >= Operation.ALL and operation.name.replace("_", "").lower() == plain:
            return operation
    known = ", ".join(each.name for each in Operation if each >= Operation.ALL)
    raise BadAcl(f"there is no operation {word!r}; there are {known}")


def _operations_on(
    of: ResourceType, operations: Sequence[Operation], *, producer: bool, consumer: bool
) -> Sequence[Operation]:
    """What is given on a resource of this type."""
    if not (producer or consumer):
        for operation in operations:
            if operation is not Operation.ALL and operation not in OPERATIONS[of]:
                words = ", ".join(each.name for each in OPERATIONS[of])
                raise BadAcl(f"{operation.name} is no operation on a {of.name}; those are {words}")
        return operations or (Operation.ALL,)
    found = (*(_PRODUCER.get(of, ()) if producer else ()), *(_CONSUMER.get(of, ()) if consumer else ()))
    return tuple(dict.fromkeys(found))


def acls_of(
    resources: Resources,
    pattern: PatternType,
    who: Sequence[Who],
    operations: Sequence[Operation],
    *,
    producer: bool = False,
    consumer: bool = False,
    idempotent: bool = False,
) -> list[Acl]:
    """The ACLs that are meant. Raises BadAcl if there is none, or one that there cannot be."""
    if (producer or consumer) and operations:
        raise BadAcl("--producer and --consumer say which operations: leave --operation out")
    if producer and not resources.topics:
        raise BadAcl("--producer needs --topic")
    if consumer and not (resources.topics and resources.groups):
        raise BadAcl("--consumer needs --topic and --group")
    if not any(each.principals for each in who):
        raise BadAcl("name somebody with --allow-principal or --deny-principal")
    named = [(of, name, _operations_on(of, operations, producer=producer, consumer=consumer)) for of, name in resources]
    if idempotent:
        named.append((ResourceType.CLUSTER, CLUSTER_NAME, (Operation.IDEMPOTENT_WRITE,)))
    acls = [
        acl_untrusted(
            of,
            name,
            PatternType.LITERAL if of is ResourceType.CLUSTER else pattern,
            principal,
            host,
            operation,
            each.permission,
        )
        for of, name, given in named
        for each in who
        for principal in each.principals
        for host in each.hosts or (ANYTHING,)
        for operation in given
    ]
    if not acls:
        raise BadAcl("name a resource: --topic, --group, --transactional-id or --cluster")
    return list(dict.fromkeys(acls))


def filter_of(acl: Acl) -> AclFilter:
    """The filter that this one ACL matches, and no other."""
    return AclFilter(
        acl.resource_type, acl.resource_name, acl.pattern_type, acl.principal, acl.host, acl.operation, acl.permission
    )


def filters_of(
    resources: Resources, pattern: PatternType, principal: str | None = None, *, needs_some: bool = False
) -> list[AclFilter]:
    """The filters of all ACLs on these resources, or on all if none is named. Raises BadAcl if it `needs_some`."""
    everything = AclFilter(ResourceType.ANY, None, pattern, principal, None, Operation.ANY, Permission.ANY)
    named = [
        replace(
            everything,
            resource_type=of,
            resource_name=name,
            pattern_type=PatternType.ANY if of is ResourceType.CLUSTER else pattern,
        )
        for of, name in resources
    ]
    if needs_some and not named:
        raise BadAcl("name a resource: --topic, --group, --transactional-id or --cluster")
    return named or [everything]


def forbid_more(who: Sequence[Who], operations: Sequence[str] | None, convenience: bool) -> None:
    """Raise BadAcl if something is said besides resources."""
    if any(each.principals or each.hosts for each in who) or operations or convenience:
        raise BadAcl("--all removes every ACL on the resources: name nothing but them")
