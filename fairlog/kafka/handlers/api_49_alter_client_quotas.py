"""AlterClientQuotas: set and remove the quotas of users, client ids and addresses (KIP-546, KIP-612).

Behaviour
- An entity's changes are made together, or refused with the first reason; other entities' changes go on. When this is
  answered they are durable, and enforced by this broker; by the others when they hear of it.
- No entity, a combination that there is not, a name that is empty or too long, a key that such an entity has not, a
  value that is no whole number above zero, a key twice, an entity twice: INVALID_REQUEST, with a sentence.
- request_percentage and controller_mutation_rate, which Kafka enforces, are refused in the same way.
- To remove what is not there is no error.
- More than ENTRIES_MAX entities in a request, or entities with quotas than QUOTAS_MAX, are POLICY_VIOLATION. Kafka has
  the same error for more than 10,000 records of one request, and no bound of quotas.
- A client that may not alter the cluster's configs is CLUSTER_AUTHORIZATION_FAILED, for each entity.

Version notes
- 1 is flexible.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import trio

from fairlog.kafka.api import Answer, Api, Context, Versions
from fairlog.kafka.checks import ALTER_CONFIGS_OF_CLUSTER, denied
from fairlog.kafka.errors import ErrorCode
from fairlog.kafka.noting import note
from fairlog.kafka.wire import Reader
from fairlog.security.quota_changes import Change, Refusal, change_untrusted
from fairlog.security.quotas import BadQuota, name_of
from fairlog.trail import Action
from fairlog_types import StorageFailure

SERVED = Versions(0, 1)
FLEXIBLE_FROM = 1

ENTRIES_MAX = 1000
"""Of one request."""

_PER_TURN = 50
"""Entities that are looked at before others run."""

_CODES = {Refusal.TWICE: ErrorCode.INVALID_REQUEST, Refusal.TOO_MANY: ErrorCode.POLICY_VIOLATION}

_Outcome = tuple[ErrorCode, str | None]


@dataclass(frozen=True, slots=True)
class Alteration:
    entity: tuple[tuple[str, str | None], ...]
    """(type, name)"""
    ops: tuple[tuple[str, float | None], ...]
    """(key, value); None removes it"""

    def shown(self) -> str:
        """The entity, for people."""
        return ", ".join(f"{of_type} {'<default>' if name is None else name}" for of_type, name in self.entity)

    def shown_ops(self) -> list[str]:
        """What is asked, for the trail; a key alone is to be removed."""
        return [key if value is None else f"{key}={value:.15g}" for key, value in self.ops]


@dataclass(frozen=True, slots=True)
class AlterClientQuotasRequest:
    entries: tuple[Alteration, ...]
    validate_only: bool


def decode(reader: Reader, version: int) -> AlterClientQuotasRequest:  # noqa: ARG001 (all versions look alike)
    def part() -> tuple[str, str | None]:
        entry = reader.string(), reader.nullable_string()
        reader.end_of_fields()
        return entry

    def op() -> tuple[str, float | None]:
        key, value, removes = reader.string(), reader.float64(), reader.boolean()
        reader.end_of_fields()
        return key, None if removes else value

    def entry() -> Alteration:
        found = Alteration(reader.array(part), reader.array(op))
        reader.end_of_fields()
        return found

    request = AlterClientQuotasRequest(reader.array(entry), reader.boolean())
    reader.end_of_fields()
    return request


async def handle(context: Context, request: AlterClientQuotasRequest) -> Answer:
    try:
        outcomes = await _outcomes(context, request)
    except BaseException:
        if not request.validate_only:
            note(context, Action.ALTER_QUOTAS, "", ErrorCode.REQUEST_TIMED_OUT, entities=len(request.entries))
        raise
    if not request.validate_only:
        # Of too many, which were refused, the trail has the first.
        for alteration, (error, _) in zip(request.entries[:ENTRIES_MAX], outcomes, strict=False):
            note(context, Action.ALTER_QUOTAS, alteration.shown(), error, quotas=alteration.shown_ops)
    return await _encode(context, request, outcomes)


async def _outcomes(context: Context, request: AlterClientQuotasRequest) -> Sequence[_Outcome]:
    """What came of each entry."""
    refused = denied(context, ALTER_CONFIGS_OF_CLUSTER)
    if refused is not None:
        return [(refused, "the client may not alter the cluster's configs")] * len(request.entries)
    if len(request.entries) > ENTRIES_MAX:
        too_many = ErrorCode.POLICY_VIOLATION, f"a request has at most {ENTRIES_MAX} entities"
        return [too_many] * len(request.entries)
    changes: list[Change | _Outcome] = []
    for number, alteration in enumerate(request.entries, 1):
        try:
            changes.append(change_untrusted(alteration.entity, alteration.ops))
        except BadQuota as bad:
            changes.append((ErrorCode.INVALID_REQUEST, str(bad)))
        if number % _PER_TURN == 0:
            await trio.lowlevel.checkpoint()
    possible = [change for change in changes if isinstance(change, Change)]
    try:
        outcome = await context.broker.quotas.change(
            possible, validate_only=request.validate_only, by=context.client.principal
        )
    except StorageFailure as failure:
        failed = ErrorCode.KAFKA_STORAGE_ERROR, str(failure)
        return [failed if isinstance(change, Change) else change for change in changes]

    def of(change: Change | _Outcome) -> _Outcome:
        if not isinstance(change, Change):
            return change
        refusal = outcome.refused.get(name_of(change.entity))
        return (ErrorCode.NONE, None) if refusal is None else (_CODES[refusal], refusal.value)

    return [of(change) for change in changes]


async def _encode(context: Context, request: AlterClientQuotasRequest, outcomes: Sequence[_Outcome]) -> Answer:
    writer = context.writer()

    def part(entry: tuple[str, str | None]) -> None:
        of_type, name = entry
        writer.string(of_type)
        writer.nullable_string(name)
        writer.end_of_fields()

    writer.int32(0)  # throttle time
    writer.array_length(len(outcomes))
    for number, (alteration, (error, message)) in enumerate(zip(request.entries, outcomes, strict=True), 1):
        writer.int16(error)
        writer.message(message)
        writer.array(alteration.entity, part)
        writer.end_of_fields()
        if number % _PER_TURN == 0:
            await trio.lowlevel.checkpoint()
    writer.end_of_fields()
    return writer.parts()


API = Api(49, "AlterClientQuotas", SERVED, FLEXIBLE_FROM, decode, handle, (ALTER_CONFIGS_OF_CLUSTER,))
