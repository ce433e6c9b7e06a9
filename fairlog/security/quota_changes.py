"""How quotas are changed, and which ones are asked for: what AlterClientQuotas and DescribeClientQuotas may say. Pure.

The rules are those of Kafka's `ClientQuotaControlManager` and `ClientQuotasImage`. Each entity's changes are made
together, or refused with the first reason; other entities' changes go on. To remove what is not there is no error.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum, IntEnum

from fairlog.security.quotas import (
    QUOTAS_MAX,
    BadQuota,
    Entity,
    EntityType,
    QuotaKey,
    Quotas,
    entity_untrusted,
    keys_of,
    name_of,
    rate_untrusted,
)

NOT_ENFORCED = ("request_percentage", "controller_mutation_rate")
"""Quotas that Kafka has and this node has not: it takes none that it would not enforce."""


@dataclass(frozen=True, slots=True)
class Change:
    """What becomes of an entity's quotas. Make it of a stranger's words with `change_untrusted`."""

    entity: Entity
    rates: Mapping[QuotaKey, int | None]
    """None: the quota goes."""


class Refusal(Enum):
    """Why an entity's quotas are not changed as they are."""

    TWICE = "the request has this entity twice"
    TOO_MANY = f"{QUOTAS_MAX} entities have quotas already, which is the maximum: delete some"


@dataclass(frozen=True, slots=True)
class Outcome:
    """What comes of changes."""

    changed: Mapping[str, Quotas | None]
    """By the entity's name in the store; None for one that has no quotas any more."""
    refused: Mapping[str, Refusal]
    """By the same."""


def change_untrusted(parts: Sequence[tuple[str, str | None]], rates: Sequence[tuple[str, float | None]]) -> Change:
    """A change that a client asks for: an entity's types and names, and keys with values, None to remove one.

    Raises BadQuota.
    """
    if len(dict(parts)) < len(parts):
        raise BadQuota("the entity has a type twice")
    entity = entity_untrusted(dict(parts))
    keys = keys_of(entity)
    found: dict[QuotaKey, int | None] = {}
    for word, value in rates:
        if word in NOT_ENFORCED and value is not None:
            raise BadQuota(f"{word} is not enforced here, so it cannot be set")
        if word in NOT_ENFORCED:
            continue
        if word not in list(keys):
            kinds = " and ".join(of_type.value for of_type, _ in entity)
            raise BadQuota(f"{word[:100]!r} is no quota of a {kinds}, only {' and '.join(keys)}")
        key = QuotaKey(word)
        if key in found:
            raise BadQuota(f"{key} is named twice")
        found[key] = None if value is None else rate_untrusted(key, value)
    return Change(entity, found)


def apply(quotas: Mapping[str, Quotas], changes: Sequence[Change]) -> Outcome:
    """What the changes make of the table."""
    changed: dict[str, Quotas | None] = {}
    refused: dict[str, Refusal] = {}
    names = [name_of(change.entity) for change in changes]
    twice = {name for name, times in Counter(names).items() if times > 1}
    count = len(quotas)
    for name, change in zip(names, changes, strict=True):
        before = quotas.get(name)
        merged = {**(before.rates if before else {}), **change.rates}
        rates = {key: rate for key, rate in merged.items() if rate is not None}
        if name in twice:
            refused[name] = Refusal.TWICE
        elif rates and before is None and count >= QUOTAS_MAX:
            refused[name] = Refusal.TOO_MANY
        else:
            count += bool(rates) - (before is not None)
            if rates != (before.rates if before else {}):
                changed[name] = Quotas(change.entity, rates) if rates else None
    return Outcome(changed, refused)


# --- filters --------------------------------------------------------------------------------------


class Match(IntEnum):
    """How a part of a filter matches names. Kafka's numbers."""

    EXACT = 0
    DEFAULT = 1
    ANY = 2
    """Each name, and the default."""


class UnknownEntityType(BadQuota):
    """There are no such entities."""


@dataclass(frozen=True, slots=True)
class QuotaFilter:
    """Which entities are meant. Make it of a stranger's words with `filter_untrusted`."""

    names: Mapping[EntityType, str | None]
    """Entities that have these, None for the default,"""
    types: frozenset[EntityType]
    """and these with any name;"""
    strict: bool
    """and, if so, nothing else."""

    def matches(self, entity: Entity) -> bool:
        parts = dict(entity)
        return (
            all(of_type in parts and parts[of_type] == name for of_type, name in self.names.items())
            and all(of_type in parts for of_type in self.types)
            and not (self.strict and len(parts) > len(self.names) + len(self.types))
        )


def filter_untrusted(components: Sequence[tuple[str, int, str | None]], *, strict: bool) -> QuotaFilter:
    """A filter of types, numbers of `Match`, and names. Raises BadQuota; UnknownEntityType."""
    names: dict[EntityType, str | None] = {}
    types: set[EntityType] = set()
    for word, number, name in components:
        if not word:
            raise BadQuota("a part of the filter has no entity type")
        if word not in list(EntityType):
            raise UnknownEntityType(f"there are no quotas of {word[:100]!r}, only of user, client-id and ip")
        of_type = EntityType(word)
        if of_type in names or of_type in types:
            raise BadQuota(f"the filter has {of_type} twice")
        if number not in list(Match):
            raise BadQuota(f"there is no match type {number}")
        if (number == Match.EXACT) != (name is not None):
            raise BadQuota("an exact match has a name, and the others have none")
        if number == Match.ANY:
            types.add(of_type)
        else:
            names[of_type] = _as_kept(of_type, name)
    asked = names.keys() | types
    if EntityType.IP in asked and len(asked) > 1:
        raise BadQuota("a filter for an ip is for no user and no client-id")
    return QuotaFilter(names, frozenset(types), strict)


def _as_kept(of_type: EntityType, name: str | None) -> str | None:
    """A name as an entity has it; one that no entity has stays as it is."""
    try:
        return dict(entity_untrusted({of_type: name}))[of_type]
    except BadQuota:
        return name


def found(quotas: Mapping[str, Quotas], wanted: QuotaFilter) -> list[Quotas]:
    """Those of the entities that match, in the order of their names in the store."""
    return [each for _, each in sorted(quotas.items()) if wanted.matches(each.entity)]
