"""DeleteAcls: delete the ACLs that filters match.

Behaviour
- Without an authorizer (`authorizer.enable`) each filter is answered with SECURITY_DISABLED and without matches, as in
  Kafka.
- What all valid filters match is deleted together, durably, and each answer lists what its filter matched. A filter
  with a number that Kafka does not have, or with UNKNOWN, is INVALID_REQUEST.
- A client that may not alter the cluster is CLUSTER_AUTHORIZATION_FAILED for each filter.
- Other clients are served while a long list is written.

Version notes
- 1 adds the pattern's type (Kafka 4 does not serve 0); 2 is flexible; 3 adds users as resources: there are none.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import trio

from fairlog import trail
from fairlog.kafka.acl_forms import ACLS_PER_TURN, NO_AUTHORIZER, FilterAsked, read_filter, write_resource, write_rule
from fairlog.kafka.api import Answer, Api, Context, Versions
from fairlog.kafka.checks import ALTER_CLUSTER, denied
from fairlog.kafka.errors import ErrorCode
from fairlog.kafka.noting import note
from fairlog.kafka.wire import Reader
from fairlog.live_access import LiveAccess
from fairlog.security.acls import Acl, AclFilter, BadAcl, name_of
from fairlog.trail import Action
from fairlog_types import StorageFailure

SERVED = Versions(1, 3)
FLEXIBLE_FROM = 2


@dataclass(frozen=True, slots=True)
class DeleteAclsRequest:
    filters: tuple[FilterAsked, ...]


class _Outcome(NamedTuple):
    error: ErrorCode
    message: str | None = None
    matched: Sequence[Acl] = ()


def decode(reader: Reader, version: int) -> DeleteAclsRequest:  # noqa: ARG001 (all versions look alike)
    request = DeleteAclsRequest(reader.array(lambda: read_filter(reader)))
    reader.end_of_fields()
    return request


async def handle(context: Context, request: DeleteAclsRequest) -> Answer:
    try:
        outcomes = await _outcomes(context, request)
    except BaseException:
        note(context, Action.DELETE_ACL, "", ErrorCode.REQUEST_TIMED_OUT, filters=len(request.filters))
        raise
    for number, (asked, outcome) in enumerate(zip(request.filters, outcomes, strict=True)):
        deleted = functools.partial(_names, outcome.matched)
        note(context, Action.DELETE_ACL, asked.resource_name or "", outcome.error, deleted=deleted)
        if number % ACLS_PER_TURN == 0:
            await trio.lowlevel.checkpoint()
    return await _encode(context, outcomes)


def _names(acls: Sequence[Acl]) -> list[str]:
    return [name_of(acl) for acl in acls[: trail.ITEMS_MAX + 1]]


async def _outcomes(context: Context, request: DeleteAclsRequest) -> list[_Outcome]:
    access, count = context.broker.access, len(request.filters)
    if access is None:
        return [_Outcome(ErrorCode.SECURITY_DISABLED, NO_AUTHORIZER)] * count
    refused = denied(context, ALTER_CLUSTER)
    return [_Outcome(refused)] * count if refused is not None else await _delete(context, access, request)


async def _delete(context: Context, access: LiveAccess, request: DeleteAclsRequest) -> list[_Outcome]:
    filters: list[AclFilter] = []
    outcomes: list[_Outcome | None] = []
    for asked in request.filters:
        try:
            filters.append(asked.checked())
            outcomes.append(None)
        except BadAcl as bad:
            outcomes.append(_Outcome(ErrorCode.INVALID_REQUEST, str(bad)))
    try:
        deleted = [
            _Outcome(ErrorCode.NONE, None, found) for found in await access.delete(filters, context.client.principal)
        ]
    except StorageFailure as failure:
        deleted = [_Outcome(ErrorCode.KAFKA_STORAGE_ERROR, str(failure))] * len(filters)
    of_valid = iter(deleted)
    return [outcome or next(of_valid) for outcome in outcomes]


async def _encode(context: Context, outcomes: Sequence[_Outcome]) -> Answer:
    writer = context.writer()
    writer.int32(0)  # throttle time
    writer.array_length(len(outcomes))
    written = 0
    for outcome in outcomes:
        writer.int16(outcome.error)
        writer.message(outcome.message)
        writer.array_length(len(outcome.matched))
        for acl in outcome.matched:
            writer.int16(ErrorCode.NONE)
            writer.nullable_string(None)
            write_resource(writer, acl)
            write_rule(writer, acl)
            written += 1
            if written % ACLS_PER_TURN == 0:
                await trio.lowlevel.checkpoint()
        writer.end_of_fields()
    writer.end_of_fields()
    return writer.parts()


API = Api(31, "DeleteAcls", SERVED, FLEXIBLE_FROM, decode, handle, (ALTER_CLUSTER,))
