"""DescribeClientQuotas: the quotas of users, client ids and addresses that a filter matches (KIP-546).

Behaviour
- An entity is a user, a client id, both, or an ip; the name null is the default. A filter has at most one part of each
  type: a name, the default, or any of both. A strict one matches entities that have no other types.
- A filter that there cannot be is INVALID_REQUEST; one for another type of entity UNSUPPORTED_VERSION, as in Kafka. An
  address is found in each of its spellings.
- A client that may not describe the cluster's configs is CLUSTER_AUTHORIZATION_FAILED.
- Entities are sorted. Other clients are served while a long list is written, but not while it is searched: that takes
  some 20 ms for 20,000 entities.

Version notes
- 1 is flexible.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import trio

from fairlog.kafka.api import Answer, Api, Context, Versions
from fairlog.kafka.checks import DESCRIBE_CONFIGS_OF_CLUSTER, denied
from fairlog.kafka.errors import ErrorCode
from fairlog.kafka.wire import Reader
from fairlog.security.quota_changes import UnknownEntityType, filter_untrusted
from fairlog.security.quotas import BadQuota, EntityType, QuotaKey, Quotas

SERVED = Versions(0, 1)
FLEXIBLE_FROM = 1

_PER_TURN = 500
"""Entities that are written before others run."""


@dataclass(frozen=True, slots=True)
class DescribeClientQuotasRequest:
    components: tuple[tuple[str, int, str | None], ...]
    """(entity type, match type, name)"""
    strict: bool


def decode(reader: Reader, version: int) -> DescribeClientQuotasRequest:  # noqa: ARG001 (all versions look alike)
    def component() -> tuple[str, int, str | None]:
        entry = reader.string(), reader.int8(), reader.nullable_string()
        reader.end_of_fields()
        return entry

    request = DescribeClientQuotasRequest(reader.array(component), reader.boolean())
    reader.end_of_fields()
    return request


async def handle(context: Context, request: DescribeClientQuotasRequest) -> Answer:
    refused = denied(context, DESCRIBE_CONFIGS_OF_CLUSTER)
    if refused is not None:
        return await _encode(context, None, refused)
    try:
        wanted = filter_untrusted(request.components, strict=request.strict)
    except UnknownEntityType as unknown:
        return await _encode(context, None, ErrorCode.UNSUPPORTED_VERSION, str(unknown))
    except BadQuota as bad:
        return await _encode(context, None, ErrorCode.INVALID_REQUEST, str(bad))
    return await _encode(context, context.broker.quotas.found(wanted), ErrorCode.NONE)


async def _encode(
    context: Context, found: Sequence[Quotas] | None, error: ErrorCode, message: str | None = None
) -> Answer:
    writer = context.writer()

    def part(entry: tuple[EntityType, str | None]) -> None:
        of_type, name = entry
        writer.string(of_type)
        writer.nullable_string(name)
        writer.end_of_fields()

    def value(entry: tuple[QuotaKey, int]) -> None:
        key, rate = entry
        writer.string(key)
        writer.float64(rate)
        writer.end_of_fields()

    writer.int32(0)  # throttle time
    writer.int16(error)
    writer.message(message)
    if found is None:
        writer.null_array()
    else:
        writer.array_length(len(found))
        for number, quotas in enumerate(found, 1):
            writer.array(quotas.entity, part)
            writer.array(quotas.rates.items(), value)
            writer.end_of_fields()
            if number % _PER_TURN == 0:
                await trio.lowlevel.checkpoint()
    writer.end_of_fields()
    return writer.parts()


API = Api(48, "DescribeClientQuotas", SERVED, FLEXIBLE_FROM, decode, handle, (DESCRIBE_CONFIGS_OF_CLUSTER,))
