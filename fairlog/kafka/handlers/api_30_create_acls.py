"""CreateAcls: allow or deny something to somebody.

Behaviour
- Without an authorizer (`authorizer.enable`) each creation is answered with SECURITY_DISABLED, as in Kafka. Nothing is
  stored: an ACL that is stored but not enforced would be worse than none.
- What there cannot be (`fairlog.security.acls`) is INVALID_REQUEST, with a message that says why; the others are
  created, all together. One that exists already is created without an error.
- When this is answered, the ACLs are durable, and hold for each request that this broker gets from then on; other
  brokers hear of them a moment later.
- A client that may not alter the cluster is CLUSTER_AUTHORIZATION_FAILED for each.

Version notes
- 1 adds the pattern's type (Kafka 4 does not serve 0); 2 is flexible; 3 adds users as resources: there are none.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass

import trio

from fairlog.kafka.acl_forms import NO_AUTHORIZER
from fairlog.kafka.api import Answer, Api, Context, Versions
from fairlog.kafka.checks import ALTER_CLUSTER, denied
from fairlog.kafka.errors import ErrorCode
from fairlog.kafka.noting import note
from fairlog.kafka.wire import Reader
from fairlog.live_access import LiveAccess, check_length
from fairlog.security.acls import (
    Acl,
    BadAcl,
    Operation,
    PatternType,
    Permission,
    ResourceType,
    acl_untrusted,
)
from fairlog.trail import Action
from fairlog_types import StorageFailure

SERVED = Versions(1, 3)
FLEXIBLE_FROM = 2


@dataclass(frozen=True, slots=True)
class AclAsked:
    """An ACL as the client says it. The numbers are Kafka's."""

    resource_type: int
    resource_name: str
    pattern_type: int
    principal: str
    host: str
    operation: int
    permission: int


@dataclass(frozen=True, slots=True)
class CreateAclsRequest:
    creations: tuple[AclAsked, ...]


_NOTES_PER_TURN = 100
"""Lines of the audit trail before others run."""

_Outcome = tuple[ErrorCode, str | None]


def decode(reader: Reader, version: int) -> CreateAclsRequest:  # noqa: ARG001 (all versions look alike)
    def creation() -> AclAsked:
        entry = AclAsked(
            resource_type=reader.int8(),
            resource_name=reader.string(),
            pattern_type=reader.int8(),
            principal=reader.string(),
            host=reader.string(),
            operation=reader.int8(),
            permission=reader.int8(),
        )
        reader.end_of_fields()
        return entry

    request = CreateAclsRequest(reader.array(creation))
    reader.end_of_fields()
    return request


async def handle(context: Context, request: CreateAclsRequest) -> Answer:
    try:
        outcomes = await _outcomes(context, request)
    except BaseException:
        note(context, Action.CREATE_ACL, "", ErrorCode.REQUEST_TIMED_OUT, acls=len(request.creations))
        raise
    for number, (creation, (error, _)) in enumerate(zip(request.creations, outcomes, strict=True)):
        note(context, Action.CREATE_ACL, creation.resource_name, error, acl=functools.partial(_shown, creation))
        if number % _NOTES_PER_TURN == 0:
            await trio.lowlevel.checkpoint()
    return _encode(context, outcomes)


async def _outcomes(context: Context, request: CreateAclsRequest) -> list[_Outcome]:
    access, count = context.broker.access, len(request.creations)
    if access is None:
        return [(ErrorCode.SECURITY_DISABLED, NO_AUTHORIZER)] * count
    refused = denied(context, ALTER_CLUSTER)
    return [(refused, None)] * count if refused is not None else await _create(context, access, request)


def _shown(asked: AclAsked) -> list[str]:
    """The parts of an ACL that is asked for, which there need not be, in Kafka's words as far as it has them."""
    parts = (
        (Permission, asked.permission),
        (Operation, asked.operation),
        (ResourceType, asked.resource_type),
        (PatternType, asked.pattern_type),
    )
    words = [enum(number).name if number in list(enum) else str(number) for enum, number in parts]
    return [*words, asked.resource_name, asked.principal, asked.host]


async def _create(context: Context, access: LiveAccess, request: CreateAclsRequest) -> list[_Outcome]:
    acls: list[Acl] = []
    outcomes: list[_Outcome | None] = []
    for asked in request.creations:
        try:
            acl = acl_untrusted(
                asked.resource_type,
                asked.resource_name,
                asked.pattern_type,
                asked.principal,
                asked.host,
                asked.operation,
                asked.permission,
            )
            check_length(acl)
            acls.append(acl)
            outcomes.append(None)
        except BadAcl as bad:
            outcomes.append((ErrorCode.INVALID_REQUEST, str(bad)))
    of_others: _Outcome = ErrorCode.NONE, None
    try:
        await access.create(acls, context.client.principal)
    except BadAcl as bad:
        of_others = ErrorCode.INVALID_REQUEST, str(bad)
    except StorageFailure as failure:
        of_others = ErrorCode.KAFKA_STORAGE_ERROR, str(failure)
    return [outcome or of_others for outcome in outcomes]


def _encode(context: Context, outcomes: Sequence[_Outcome]) -> Answer:
    writer = context.writer()

    def result(outcome: _Outcome) -> None:
        error, message = outcome
        writer.int16(error)
        writer.message(message)
        writer.end_of_fields()

    writer.int32(0)  # throttle time
    writer.array(outcomes, result)
    writer.end_of_fields()
    return writer.parts()


API = Api(30, "CreateAcls", SERVED, FLEXIBLE_FROM, decode, handle, (ALTER_CLUSTER,))
