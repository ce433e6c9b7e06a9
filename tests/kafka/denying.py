"""A broker in memory that has an authorizer, and who asks it."""

from __future__ import annotations

from dataclasses import replace

from fairlog.security.acls import ACLS, Acl, Operation, PatternType, Permission, ResourceType, name_of
from fairlog.security.principal import ANONYMOUS, Principal
from tests.kafka.asking import Asker
from tests.kafka.in_memory import Memory

ADMIN = Principal("User", "admin")


def allow(operation: Operation, of: ResourceType, name: str, principal: Principal = ANONYMOUS) -> Acl:
    return Acl(of, name, PatternType.LITERAL, str(principal), "*", operation, Permission.ALLOW)


def enforce(memory: Memory, *acls: Acl, everyone: bool = False) -> None:
    """Let the broker have these ACLs, and one super user."""
    settings = memory.settings
    memory.settings = replace(
        settings,
        authorizer=replace(
            settings.authorizer, enable=True, super_users=(str(ADMIN),), allow_everyone_if_no_acl_found=everyone
        ),
    )
    memory.cluster.tables[ACLS.name] = {name_of(acl): acl for acl in acls}
    memory.cluster.generation += 1


class AskerAs(Asker):
    """Asks as somebody, on a connection that stays the same."""

    def __init__(self, memory: Memory, principal: Principal) -> None:
        super().__init__(memory)
        self._router = super().router
        self.client.principal = principal

    @property
    def router(self):
        return self._router
