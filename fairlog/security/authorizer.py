"""Who may do what, by the cluster's ACLs. Pure.

    ACLs ──▶ Authorizer: patterns by type and name ──▶ Rights of a principal at an address ──▶ allows(…)

The rules are those of Kafka's StandardAuthorizer. A super user may do everything. For others, all ACLs count whose
pattern the resource matches: that of its name, those of its prefixes, and that of all (`*`). One that denies decides
against all that allow. DESCRIBE is allowed by what allows READ, WRITE, DELETE or ALTER, and DESCRIBE_CONFIGS by
ALTER_CONFIGS; but to deny one of these denies that alone. If no pattern matches at all, nobody may, unless the node was
told `authorizer.allow_everyone_if_no_acl_found`.

How it is fast: a resource's patterns are found by its name and, for prefixes, by one look-up for each length that any
prefix has; in a pattern, ACLs are found by principal. What was decided is kept, for `DECISIONS_MAX` questions, and
costs one look-up when it is asked again. Clients choose the names that they ask about, so long ones are not kept.

An Authorizer never changes: other ACLs are another one (`fairlog.live_access`).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from itertools import count
from typing import NamedTuple

from fairlog.security.acls import (
    ANYONE,
    ANYTHING,
    CLUSTER_NAME,
    OPERATIONS,
    Acl,
    Operation,
    PatternType,
    Permission,
    ResourceType,
    plain_address,
)
from fairlog.security.principal import Principal

DECISIONS_MAX = 50_000
"""Kept at a time; with names as long as topics have them they take 20 MB. When there are more, all are dropped."""
_NAME_CHARACTERS_MAX = 300
"""Decisions about longer names are not kept."""
RIGHTS_MAX = 10_000
"""Principals and addresses whose decisions are shared among connections. When there are more, all begin anew."""

_ALLOWED_BY: dict[Operation, frozenset[Operation]] = {
    operation: frozenset((operation, Operation.ALL)) for operation in Operation
}
_ALLOWED_BY[Operation.DESCRIBE] |= {Operation.READ, Operation.WRITE, Operation.DELETE, Operation.ALTER}
_ALLOWED_BY[Operation.DESCRIBE_CONFIGS] |= {Operation.ALTER_CONFIGS}
"""The operations of ACLs that allow each operation."""

_SOME_NAME = "hardcode"
"""The name that Kafka asks about to find out whether somebody may do everything whatever the ACLs are."""


class _Rule(NamedTuple):
    """An ACL, in the pattern of its principal."""

    host: str
    operation: Operation
    allows: bool


class _Pattern:
    """The ACLs on one pattern of resources, by principal."""

    __slots__ = ("by_principal",)

    def __init__(self) -> None:
        self.by_principal: dict[str, list[_Rule]] = {}

    def of(self, principal: str, address: str) -> Iterator[_Rule]:
        """Those that are about this principal at this address."""
        for who in (principal, ANYONE):
            for rule in self.by_principal.get(who, ()):
                if rule.host in (ANYTHING, address):
                    yield rule


class Authorizer:
    """What everybody may do."""

    def __init__(self, acls: Iterable[Acl], super_users: Collection[str], *, allow_if_no_acl: bool) -> None:
        """`super_users` are principals, as texts."""
        self._super_users = frozenset(super_users)
        self._allow_if_no_acl = allow_if_no_acl
        self._literal: dict[tuple[ResourceType, str], _Pattern] = {}
        self._prefixed: dict[tuple[ResourceType, str], _Pattern] = {}
        lengths: dict[ResourceType, set[int]] = {each: set() for each in OPERATIONS}
        for acl in acls:
            prefixed = acl.pattern_type is PatternType.PREFIXED
            patterns = self._prefixed if prefixed else self._literal
            pattern = patterns.setdefault((acl.resource_type, acl.resource_name), _Pattern())
            rule = _Rule(plain_address(acl.host), acl.operation, acl.permission is Permission.ALLOW)
            pattern.by_principal.setdefault(acl.principal, []).append(rule)
            if prefixed:
                lengths[acl.resource_type].add(len(acl.resource_name))
        self._prefix_lengths = {of: sorted(found) for of, found in lengths.items()}
        self._rights: dict[tuple[Principal, str], Rights] = {}
        self._numbers = count()
        self.decided: dict[tuple[int, Operation, ResourceType, str | None], bool] = {}
        """By the number of the Rights, and what was asked; None instead of a name for any resource."""

    def rights(self, principal: Principal, address: str) -> Rights:
        """What this principal may do from this address."""
        who = principal, plain_address(address)
        found = self._rights.get(who)
        if found is None:
            if len(self._rights) >= RIGHTS_MAX:
                self._rights.clear()
            found = self._rights[who] = Rights(self, next(self._numbers), *who)
        return found

    def decide(self, principal: str, address: str, operation: Operation, of: ResourceType, name: str) -> bool:
        """The decision, by the ACLs alone: nothing is kept."""
        if principal in self._super_users:
            return True
        matched = allowed = False
        for pattern in self._patterns(of, name):
            matched = True
            for rule in pattern.of(principal, address):
                if rule.allows:
                    allowed = allowed or rule.operation in _ALLOWED_BY[operation]
                elif rule.operation in (operation, Operation.ALL):
                    return False
        return allowed if matched else self._allow_if_no_acl

    def _patterns(self, of: ResourceType, name: str) -> Iterator[_Pattern]:
        """Those that a resource matches."""
        for literal in (name, ANYTHING) if name != ANYTHING else (name,):
            pattern = self._literal.get((of, literal))
            if pattern is not None:
                yield pattern
        for length in self._prefix_lengths[of]:
            if length > len(name):
                break
            pattern = self._prefixed.get((of, name[:length]))
            if pattern is not None:
                yield pattern

    def decide_for_any(self, principal: str, address: str, operation: Operation, of: ResourceType) -> bool:
        """Whether there can be a resource of the type with which it is allowed (KIP-679): Kafka's
        `Authorizer.authorizeByResourceType`, which asks for ACLs on the very operation, or on all.
        """
        if self.decide(principal, address, operation, of, _SOME_NAME):
            return True
        relevant = (operation, Operation.ALL)
        denied, allowed = set[tuple[PatternType, str]](), set[tuple[PatternType, str]]()
        for kind, patterns in ((PatternType.LITERAL, self._literal), (PatternType.PREFIXED, self._prefixed)):
            for (of_pattern, name), pattern in patterns.items():
                if of_pattern is of:
                    for rule in pattern.of(principal, address):
                        if rule.operation in relevant:
                            (allowed if rule.allows else denied).add((kind, name))
        if (PatternType.LITERAL, ANYTHING) in denied:
            return False
        return any(not _is_dominated(pattern, denied) for pattern in allowed)


def _is_dominated(pattern: tuple[PatternType, str], denied: Collection[tuple[PatternType, str]]) -> bool:
    """Whether all that a pattern allows is denied by another one. All resources (`*`) are never."""
    kind, name = pattern
    if kind is PatternType.LITERAL:
        if name == ANYTHING:
            return False
        if pattern in denied:
            return True
    return any((PatternType.PREFIXED, name[:length]) in denied for length in range(1, len(name) + 1))


class Rights:
    """What a principal may do from an address. All its connections share one."""

    __slots__ = ("_number", "_who", "address", "authorizer", "principal")

    def __init__(self, authorizer: Authorizer, number: int, principal: Principal, address: str) -> None:
        self.authorizer = authorizer
        self._number = number
        self.principal = principal
        self.address = address
        self._who = str(principal)

    def allows(self, operation: Operation, of: ResourceType, name: str = CLUSTER_NAME) -> bool:
        """Whether the operation is allowed on the resource of this name, which may be any text."""
        found = self.authorizer.decided.get((self._number, operation, of, name))
        if found is None:
            found = self.authorizer.decide(self._who, self.address, operation, of, name)
            if len(name) <= _NAME_CHARACTERS_MAX:
                self._keep(operation, of, name, found)
        return found

    def allows_any(self, operation: Operation, of: ResourceType) -> bool:
        """Whether there can be a resource of the type with which the operation is allowed."""
        found = self.authorizer.decided.get((self._number, operation, of, None))
        if found is None:
            found = self.authorizer.decide_for_any(self._who, self.address, operation, of)
            self._keep(operation, of, None, found)
        return found

    def _keep(self, operation: Operation, of: ResourceType, name: str | None, decision: bool) -> None:
        decided = self.authorizer.decided
        if len(decided) >= DECISIONS_MAX:
            decided.clear()
        decided[self._number, operation, of, name] = decision

    def operations(self, of: ResourceType, name: str = CLUSTER_NAME) -> frozenset[Operation]:
        """All that is allowed on a resource."""
        decide = self.authorizer.decide  # nothing is kept: with many resources it would drop what others have asked
        return frozenset(each for each in OPERATIONS[of] if decide(self._who, self.address, each, of, name))
