"""What clients may do, by the ACLs that the cluster's store has now.

    ClusterStore.access(ACLS) ──▶ Authorizer, made anew when ACLs have changed ──▶ Rights of a client

The store's generation says when to look. It grows with every change of the metadata, so the ACLs are compared before
another Authorizer is made; that costs 0.1 ms for thousands of them. A changed ACL holds from the next request on, at
each broker that has heard of it.

A node without an authorizer (`authorizer.enable`) has no LiveAccess: then everyone may do everything.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence

import structlog

from fairlog.cluster.interface import ClusterStore
from fairlog.security.acls import ACLS, Acl, AclFilter, BadAcl, name_of
from fairlog.security.authorizer import Authorizer, Rights
from fairlog.security.principal import Principal
from fairlog.security_settings import AuthorizerSettings

log = structlog.get_logger()

ACLS_MAX = 50_000
"""So many there may be. With the longest names they take less than half of the cluster store's map."""
ACL_BYTES_MAX = 1900
"""Of an ACL as text: two of them fit a page of the store."""


class LiveAccess:
    """The authorizer of one broker."""

    def __init__(self, settings: AuthorizerSettings, cluster: ClusterStore) -> None:
        self._settings = settings
        self._cluster = cluster
        self._generation = cluster.generation
        self._acls = dict(cluster.access(ACLS))
        self._authorizer = self._make()
        if not (self._acls or settings.super_users or settings.allow_everyone_if_no_acl_found):
            log.warning("nobody may do anything here: set authorizer.super_users, then add ACLs")

    def rights(self, principal: Principal, host: str, before: Rights | None = None) -> Rights:
        """What this principal may do now from this address. `before` is what was answered for the same connection."""
        if self._cluster.generation != self._generation:
            self._look()
        authorizer = self._authorizer
        if before is not None and before.authorizer is authorizer and before.principal == principal:
            return before
        return authorizer.rights(principal, host)

    def _look(self) -> None:
        self._generation = self._cluster.generation
        acls = self._cluster.access(ACLS)
        if acls != self._acls:
            self._acls = dict(acls)
            self._authorizer = self._make()

    def _make(self) -> Authorizer:
        settings = self._settings
        return Authorizer(
            self._acls.values(), settings.super_users, allow_if_no_acl=settings.allow_everyone_if_no_acl_found
        )

    # --- the ACLs themselves ---

    def found(self, wanted: AclFilter) -> list[Acl]:
        """The ACLs that a filter matches, by resource."""
        return _sorted(acl for acl in self._cluster.access(ACLS).values() if wanted.matches(acl))

    async def create(self, acls: Collection[Acl], by: Principal) -> None:
        """Add ACLs, all or none; those that exist already stay. Raises BadAcl if there are too many; StorageFailure."""
        new = {name_of(acl): acl for acl in acls}

        def change(known: Mapping[str, Acl]) -> Mapping[str, Acl | None]:
            if len(known.keys() | new.keys()) > ACLS_MAX:
                raise BadAcl(f"there are {len(known)} ACLs, and {ACLS_MAX} is the maximum")
            return {name: acl for name, acl in new.items() if name not in known}

        if await self._cluster.alter_access(ACLS, change):
            log.info("ACLs created", asked_for=len(new), by=str(by))

    async def delete(self, filters: Sequence[AclFilter], by: Principal) -> list[list[Acl]]:
        """Delete all ACLs that a filter matches; those that each of them matched. Raises StorageFailure."""
        matched: list[list[Acl]] = []

        def change(known: Mapping[str, Acl]) -> Mapping[str, Acl | None]:
            matched[:] = [_sorted(acl for acl in known.values() if wanted.matches(acl)) for wanted in filters]
            return {name_of(acl): None for found in matched for acl in found}

        if await self._cluster.alter_access(ACLS, change):
            log.info("ACLs deleted", deleted=len({name_of(acl) for found in matched for acl in found}), by=str(by))
        return matched


def check_length(acl: Acl) -> None:
    """Raise BadAcl if it is longer than the store takes it."""
    if len(name_of(acl).encode()) > ACL_BYTES_MAX:
        raise BadAcl(f"an ACL may have {ACL_BYTES_MAX} bytes; this one has {len(name_of(acl).encode())}")


def _sorted(acls: Iterable[Acl]) -> list[Acl]:
    """By resource, so that those of one stand together."""
    return sorted(
        acls,
        key=lambda acl: (
            acl.resource_type,
            acl.resource_name,
            acl.pattern_type,
            acl.principal,
            acl.host,
            acl.operation,
            acl.permission,
        ),
    )


def live_access(settings: AuthorizerSettings, cluster: ClusterStore) -> LiveAccess | None:
    """None if the node has no authorizer."""
    return LiveAccess(settings, cluster) if settings.enable else None
