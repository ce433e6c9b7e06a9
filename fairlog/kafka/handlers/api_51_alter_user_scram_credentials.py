"""AlterUserScramCredentials: add users, give them passwords, and delete them (KIP-554).

Behaviour
- A client sends a salted password; what is kept tells neither it nor the password (`fairlog.security.users`).
- A user's changes are made together, or refused with the first reason; other users' changes go on. When this is
  answered they are durable, and connections of users who were deleted, or have another password, are being closed:
  Kafka waits until they sign in again. A client that has changed its own user so is answered first.
- An unknown mechanism is UNSUPPORTED_SASL_MECHANISM. To delete what is not there is RESOURCE_NOT_FOUND; to name a
  credential twice DUPLICATE_RESOURCE; a bad name, too few or too many iterations, a salt or a salted password of
  another length UNACCEPTABLE_CREDENTIAL.
- More than CHANGES_MAX changes are refused together with POLICY_VIOLATION, and so is a user more than USERS_MAX. Kafka
  has the same error for more than 10,000 records of one request, and no bound of users.

Version notes
- 0 is flexible.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

import trio

from fairlog.kafka.api import Answer, Api, Context, Versions
from fairlog.kafka.checks import ALTER_CLUSTER, denied
from fairlog.kafka.errors import ErrorCode
from fairlog.kafka.noting import note
from fairlog.kafka.wire import Reader
from fairlog.security.user_changes import Change, WhyNot, is_name
from fairlog.security.users import Credential, ScramMechanism, credential_of
from fairlog.trail import Action
from fairlog.user_accounts import StoreAccounts
from fairlog_types import StorageFailure

SERVED = Versions(0, 0)
FLEXIBLE_FROM = 0

_CODES = {
    WhyNot.UNKNOWN_MECHANISM: ErrorCode.UNSUPPORTED_SASL_MECHANISM,
    WhyNot.NO_SUCH_CREDENTIAL: ErrorCode.RESOURCE_NOT_FOUND,
    WhyNot.NO_SUCH_USER: ErrorCode.RESOURCE_NOT_FOUND,
    WhyNot.EXISTS: ErrorCode.DUPLICATE_RESOURCE,
    WhyNot.TWICE: ErrorCode.DUPLICATE_RESOURCE,
    WhyNot.BAD_NAME: ErrorCode.UNACCEPTABLE_CREDENTIAL,
    WhyNot.BAD_ITERATIONS: ErrorCode.UNACCEPTABLE_CREDENTIAL,
    WhyNot.BAD_SALT: ErrorCode.UNACCEPTABLE_CREDENTIAL,
    WhyNot.BAD_KEYS: ErrorCode.UNACCEPTABLE_CREDENTIAL,
    WhyNot.TOO_MANY_USERS: ErrorCode.POLICY_VIOLATION,
}

CHANGES_MAX = 1000
"""Of one request."""

_STEP = 32
"""So many names are looked at between two times that others run: a long one takes half a millisecond."""


@dataclass(frozen=True, slots=True)
class Upsertion:
    name: str
    mechanism: int
    iterations: int
    salt: bytes = field(repr=False)
    salted_password: bytes = field(repr=False)


@dataclass(frozen=True, slots=True)
class AlterUserScramCredentialsRequest:
    deletions: tuple[tuple[str, int], ...]
    """(name, mechanism)"""
    upsertions: tuple[Upsertion, ...]


def decode(reader: Reader, version: int) -> AlterUserScramCredentialsRequest:  # noqa: ARG001 (there is one version)
    def deletion() -> tuple[str, int]:
        entry = reader.string(), reader.int8()
        reader.end_of_fields()
        return entry

    def upsertion() -> Upsertion:
        name, mechanism, iterations = reader.string(), reader.int8(), reader.int32()
        salt, salted_password = bytes(reader.byte_string()), bytes(reader.byte_string())
        reader.end_of_fields()
        return Upsertion(name, mechanism, iterations, salt, salted_password)

    request = AlterUserScramCredentialsRequest(reader.array(deletion), reader.array(upsertion))
    reader.end_of_fields()
    return request


async def handle(context: Context, request: AlterUserScramCredentialsRequest) -> Answer:
    if context.client.sign_in is not None:
        context.client.sign_in.changes_users()
    names = dict.fromkeys([*(name for name, _ in request.deletions), *(each.name for each in request.upsertions)])
    outcomes = await _outcomes(context, request, names)
    # Of too many, which were refused, the trail has the first.
    deletions, upsertions = request.deletions[:CHANGES_MAX], request.upsertions[:CHANGES_MAX]
    changes = [
        *(Change(name, _mechanism(number), None) for name, number in deletions),
        *(_change(each, with_keys=False) for each in upsertions),
    ]
    for change in changes:
        error, _ = outcomes.get(change.name, (ErrorCode.NONE, None))
        action = Action.DELETE_USER if change.credential is None else Action.ALTER_USER
        mechanism = None if change.mechanism is None else change.mechanism.text
        note(context, action, change.name, error, mechanism=mechanism)
    writer = context.writer()

    writer.int32(0)  # throttle time
    writer.array_length(len(names))
    for number, name in enumerate(names):
        error, message = outcomes.get(name, (ErrorCode.NONE, None))
        writer.string(name)
        writer.int16(error)
        writer.message(message)
        writer.end_of_fields()
        if number % _STEP == _STEP - 1:
            await trio.lowlevel.checkpoint()
    writer.end_of_fields()
    return writer.parts()


async def _outcomes(
    context: Context, request: AlterUserScramCredentialsRequest, names: Collection[str]
) -> Mapping[str, tuple[ErrorCode, str]]:
    """What the change of a user came to, by name; those whose change was made are not there."""
    not_allowed = denied(context, ALTER_CLUSTER)
    if not_allowed is not None:
        return dict.fromkeys(names, (not_allowed, "the client may not alter the cluster"))
    if len(request.deletions) + len(request.upsertions) > CHANGES_MAX:
        return dict.fromkeys(names, (ErrorCode.POLICY_VIOLATION, f"a request has at most {CHANGES_MAX} changes"))
    changes = [Change(name, _mechanism(number), None) for name, number in request.deletions]
    for number, upsertion in enumerate(request.upsertions):
        is_name(upsertion.name)  # so that applying the changes finds it checked
        changes.append(_change(upsertion, with_keys=True))
        if number % _STEP == _STEP - 1:
            await trio.lowlevel.checkpoint()
    accounts = StoreAccounts(context.broker.cluster)
    try:
        refused = (await accounts.change(lambda _: changes, by=str(context.client.principal))).refused
    except StorageFailure as error:
        return dict.fromkeys(names, (ErrorCode.KAFKA_STORAGE_ERROR, str(error)))
    return {name: (_CODES[why_not], why_not.value) for name, why_not in refused.items()}


def _change(it: Upsertion, *, with_keys: bool) -> Change:
    mechanism = _mechanism(it.mechanism)
    if not with_keys or mechanism is None or len(it.salted_password) != mechanism.key_bytes:
        return Change(it.name, mechanism, Credential(it.salt, it.iterations, b"", b""))
    return Change(it.name, mechanism, credential_of(mechanism, it.salted_password, it.salt, it.iterations))


def _mechanism(number: int) -> ScramMechanism | None:
    return next((each for each in ScramMechanism if each.value == number), None)


API = Api(51, "AlterUserScramCredentials", SERVED, FLEXIBLE_FROM, decode, handle, (ALTER_CLUSTER,))
