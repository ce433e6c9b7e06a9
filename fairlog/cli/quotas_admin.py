"""What the `quota` commands ask a broker, in their own words: requests and answers of kio stay in here."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from kio.schema.alter_client_quotas.v1.request import AlterClientQuotasRequest, EntityData, EntryData, OpData
from kio.schema.alter_client_quotas.v1.response import AlterClientQuotasResponse
from kio.schema.describe_client_quotas.v1.request import ComponentData, DescribeClientQuotasRequest
from kio.schema.describe_client_quotas.v1.response import DescribeClientQuotasResponse
from kio.static.primitive import f64, i8

from fairlog.cli.client import Connection, check
from fairlog.security.quota_changes import Match
from fairlog.security.quotas import Entity, QuotaKey, entity_untrusted


@dataclass(frozen=True, slots=True)
class Listed:
    """The quotas of an entity, as a broker tells them: it may have others than this program knows."""

    entity: Mapping[str, str | None]
    rates: Mapping[str, float]


def describe_quotas(connection: Connection, wanted: Entity) -> list[Listed]:
    """The quotas of this entity; of all if it has no parts."""
    components = tuple(
        ComponentData(
            entity_type=of_type.value, match_type=i8(Match.DEFAULT if name is None else Match.EXACT), match=name
        )
        for of_type, name in wanted
    )
    answer = connection.request(
        DescribeClientQuotasRequest(components=components, strict=bool(components)), DescribeClientQuotasResponse
    )
    check("listing quotas", answer.error_code, answer.error_message)
    return [
        Listed(
            {part.entity_type: part.entity_name for part in entry.entity},
            {value.key: float(value.value) for value in entry.values},
        )
        for entry in answer.entries or ()
    ]


def alter_quotas(connection: Connection, entity: Entity, rates: Mapping[QuotaKey, int | None]) -> None:
    """Set these quotas of an entity; None removes one."""
    ops = tuple(OpData(key=key.value, value=f64(float(rate or 0)), remove=rate is None) for key, rate in rates.items())
    parts = tuple(EntityData(entity_type=of_type.value, entity_name=name) for of_type, name in entity)
    answer = connection.request(
        AlterClientQuotasRequest(entries=(EntryData(entity=parts, ops=ops),), validate_only=False),
        AlterClientQuotasResponse,
    )
    for entry in answer.entries:
        check(f"changing quotas of {shown(entity)}", entry.error_code, entry.error_message)


def shown(entity: Entity) -> str:
    """An entity in words."""
    return " and ".join(f"the default {of_type}" if name is None else f"{of_type} {name}" for of_type, name in entity)


def entity_of(names: Mapping[str, str | None]) -> Entity:
    """The entity that has these names, by type. Raises BadQuota; without names it is all of them."""
    return entity_untrusted(names) if names else ()
