"""ACLs for a client of the benchmark, among those of others."""

from __future__ import annotations

from confluent_kafka.admin import (
    AclBinding,  # pyright: ignore[reportPrivateImportUsage]
    AclOperation,  # pyright: ignore[reportPrivateImportUsage]
    AclPermissionType,  # pyright: ignore[reportPrivateImportUsage]
    AdminClient,  # pyright: ignore[reportPrivateImportUsage]
    ResourcePatternType,  # pyright: ignore[reportPrivateImportUsage]
    ResourceType,  # pyright: ignore[reportPrivateImportUsage]
)

OTHERS = 200
"""ACLs of other users, on topics of theirs: with the client's alone an authorizer would have little to look through."""
WAIT_S = 120.0


def allow(address: str, principal: str) -> None:
    """Let the principal read, write and see all topics, groups and transactional ids. For who is an operator there."""
    read, write = AclOperation.READ, AclOperation.WRITE
    bindings = [
        _binding(kind, "*", ResourcePatternType.LITERAL, principal, operation)
        for kind, *operations in (
            (ResourceType.TOPIC, read, write),
            (ResourceType.GROUP, read),
            (ResourceType.TRANSACTIONAL_ID, write),
        )
        for operation in operations
    ]
    bindings += [
        _binding(ResourceType.TOPIC, f"of-{number}-", ResourcePatternType.PREFIXED, f"User:user-{number}", read)
        for number in range(OTHERS)
    ]
    client = AdminClient({"bootstrap.servers": address, "log_level": 0})
    for future in client.create_acls(bindings).values():
        future.result(WAIT_S)


def _binding(
    kind: ResourceType, name: str, pattern: ResourcePatternType, principal: str, operation: AclOperation
) -> AclBinding:
    return AclBinding(kind, name, pattern, principal, "*", operation, AclPermissionType.ALLOW)
