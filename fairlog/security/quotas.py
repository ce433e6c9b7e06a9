"""Quotas as Kafka has them: how much a user, a client id or an address may ask of each broker. Pure.

A quota belongs to an *entity*: a user, a client id, both together, or an address; each by its name, or as the default
of all that have none of their own (None). For a client the first of these counts that has the quota asked for (KIP-55):

    1  user, client id            4  default user, client id             7  client id
    2  user, default client id    5  default user, default client id     8  default client id
    3  user                       6  default user

What is counted together follows from the one that counts: with 3 and 6 all connections of a user, with 7 and 8 all that
have the client id, otherwise those of the user that have the client id. For addresses it is the address, or the default
one (KIP-612).

In the cluster's store an entity is a name, and its quotas are the value (docs/formats/cluster-store.md).
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple, cast

from fairlog.security.access_kind import AccessKind
from fairlog.security.acls import is_address, plain_address

QUOTAS_MAX = 20_000
"""Entities that have quotas. All are in memory, in each process."""

NAME_CHARACTERS_MAX = 255
"""Of a user or a client id. More are not kept of a client's id."""

ENTITY_BYTES_MAX = 1900
"""Of an entity as text: two of them fit a page of the store."""


class EntityType(StrEnum):
    """What an entity is made of, in Kafka's words; in the order in which they stand in it."""

    USER = "user"
    CLIENT_ID = "client-id"
    IP = "ip"


class QuotaKey(StrEnum):
    """What is limited, in Kafka's words."""

    PRODUCER = "producer_byte_rate"
    CONSUMER = "consumer_byte_rate"
    CONNECTIONS = "connection_creation_rate"


RATES_MAX: Mapping[QuotaKey, int] = {
    QuotaKey.PRODUCER: 2**53,
    QuotaKey.CONSUMER: 2**53,
    QuotaKey.CONNECTIONS: 2**31 - 1,
}
"""The largest quotas: whole numbers, which travel as doubles."""


class BadQuota(ValueError):
    """There can be no such quota, or no such entity; the message says why."""


Entity = tuple[tuple[EntityType, str | None], ...]
"""Types and names, in the order of the types; None is the default. Make it of a stranger's words with
`entity_untrusted`."""


@dataclass(frozen=True, slots=True)
class Quotas:
    """What an entity may ask."""

    entity: Entity
    rates: Mapping[QuotaKey, int]
    """At least one: bytes or connections a second."""


def entity_untrusted(parts: Mapping[str, str | None]) -> Entity:
    """The entity that has these names, by type. Raises BadQuota."""
    unknown = next((of_type for of_type in parts if of_type not in list(EntityType)), None)
    if unknown is not None:
        raise BadQuota(f"there are no quotas of {unknown[:NAME_CHARACTERS_MAX]!r}, only of user, client-id and ip")
    if not parts:
        raise BadQuota("a quota is for a user, a client-id, both, or an ip")
    if EntityType.IP in parts and len(parts) > 1:
        raise BadQuota("a quota of an ip is for no user and no client-id")
    for of_type, name in parts.items():
        if name is not None and not 0 < len(name) <= NAME_CHARACTERS_MAX:
            raise BadQuota(f"the name of a {of_type} has 1 to {NAME_CHARACTERS_MAX} characters")
    entity = tuple((of_type, _plain(of_type, parts[of_type])) for of_type in EntityType if of_type in parts)
    if len(name_of(entity).encode(errors="replace")) > ENTITY_BYTES_MAX:
        raise BadQuota(f"the names together have more than {ENTITY_BYTES_MAX} bytes")
    return entity


def _plain(of_type: EntityType, name: str | None) -> str | None:
    """An address in its short form, so that each has one spelling. Raises BadQuota."""
    if of_type is not EntityType.IP or name is None:
        return name
    plain = plain_address(name)
    if not is_address(plain):
        raise BadQuota(f"{name!r} is no IP address")
    return plain


def keys_of(entity: Entity) -> tuple[QuotaKey, ...]:
    """The quotas that such an entity can have."""
    if entity[0][0] is EntityType.IP:
        return (QuotaKey.CONNECTIONS,)
    return QuotaKey.PRODUCER, QuotaKey.CONSUMER


def rate_untrusted(key: QuotaKey, value: float) -> int:
    """A quota of this size. Raises BadQuota."""
    if not (math.isfinite(value) and value == int(value) and 0 < value <= RATES_MAX[key]):
        raise BadQuota(f"{key} is a whole number from 1 to {RATES_MAX[key]}")
    return int(value)


# --- which one counts -----------------------------------------------------------------------------


class Limit(NamedTuple):
    """The quota that counts for somebody."""

    rate: int
    """Units a second, at each broker."""
    entity: Entity
    """That has the quota."""
    counted: tuple[str | None, str | None]
    """Whose use is added up: user and client id, or None; or the address, and None."""


class Limits:
    """All quotas of one key."""

    def __init__(self, quotas: Iterable[Quotas], key: QuotaKey) -> None:
        self._rates = {each.entity: each.rates[key] for each in quotas if key in each.rates}

    def __bool__(self) -> bool:
        return bool(self._rates)

    def of_client(self, user: str, client_id: str) -> Limit | None:
        """The quota that counts for a client, by the order in the module's head; None if none does."""
        for user_part in (((EntityType.USER, user),), ((EntityType.USER, None),)):
            for client_part in (((EntityType.CLIENT_ID, client_id),), ((EntityType.CLIENT_ID, None),), ()):
                entity = user_part + client_part
                if (rate := self._rates.get(entity)) is not None:
                    return Limit(rate, entity, (user, client_id if client_part else None))
        for name in (client_id, None):
            entity = ((EntityType.CLIENT_ID, name),)
            if (rate := self._rates.get(entity)) is not None:
                return Limit(rate, entity, (None, client_id))
        return None

    def of_address(self, address: str) -> Limit | None:
        """The quota that counts for an address, in its short form."""
        for name in (address, None):
            entity = ((EntityType.IP, name),)
            if (rate := self._rates.get(entity)) is not None:
                return Limit(rate, entity, (address, None))
        return None


# --- in the cluster's store -----------------------------------------------------------------------


def name_of(entity: Entity) -> str:
    """Its name in the store: the same for the same entity, another one for each other."""
    return json.dumps([[of_type.value, name] for of_type, name in entity], ensure_ascii=False, separators=(",", ":"))


def _entity_of(name: str) -> Entity:
    """The entity that has this name in the store. Raises ValueError."""
    try:
        pairs = cast("object", json.loads(name))
    except RecursionError as error:
        raise ValueError("it is nested") from error
    found: dict[str, str | None] = {}
    for pair in cast("list[object]", pairs) if isinstance(pairs, list) else ():
        match pair:
            case [str(of_type), str() | None as part_name]:
                found[of_type] = part_name
            case _:
                raise ValueError("it is no array of types and names")
    entity = entity_untrusted(found)
    if name_of(entity) != name:
        raise ValueError("it is not written in its only form")
    return entity


def _encode(quotas: Quotas) -> object:
    return {key.value: rate for key, rate in quotas.rates.items()}


def _decode(name: str, value: object) -> Quotas:
    entity = _entity_of(name)
    found = cast("dict[object, object]", value) if isinstance(value, dict) else {}
    rates: dict[QuotaKey, int] = {}
    for key, rate in found.items():
        if key not in list(keys_of(entity)) or not isinstance(rate, int) or isinstance(rate, bool):
            raise ValueError(f"it has other quotas than {' and '.join(keys_of(entity))}")
        known = QuotaKey(cast("str", key))
        rates[known] = rate_untrusted(known, rate)
    if not rates:
        raise ValueError("it has no quota")
    return Quotas(entity, rates)


QUOTAS: AccessKind[Quotas] = AccessKind("quota", _encode, _decode)
"""The quotas of each entity that has some."""
