"""DescribeUserScramCredentials: which users there are, and by which mechanisms they can sign in (KIP-554).

Behaviour
- Answers mechanisms and iterations; never a salt or a key. No users, or null, means all of them.
- A user without credentials is RESOURCE_NOT_FOUND; one that is asked for twice DUPLICATE_RESOURCE.

Version notes
- 0 is flexible.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

import trio

from fairlog.kafka.api import Answer, Api, Context, Versions
from fairlog.kafka.checks import DESCRIBE_CLUSTER, denied
from fairlog.kafka.errors import ErrorCode
from fairlog.kafka.wire import Reader
from fairlog.security.users import USERS, Credential, ScramMechanism

SERVED = Versions(0, 0)
FLEXIBLE_FROM = 0


@dataclass(frozen=True, slots=True)
class DescribeUserScramCredentialsRequest:
    users: tuple[str, ...]
    """Empty: all."""


def decode(reader: Reader, version: int) -> DescribeUserScramCredentialsRequest:  # noqa: ARG001 (there is one version)
    def user() -> str:
        name = reader.string()
        reader.end_of_fields()
        return name

    request = DescribeUserScramCredentialsRequest(reader.nullable_array(user) or ())
    reader.end_of_fields()
    return request


async def handle(context: Context, request: DescribeUserScramCredentialsRequest) -> Answer:
    refused = denied(context, DESCRIBE_CLUSTER)
    users, writer = context.broker.cluster.access(USERS), context.writer()

    def credential(entry: tuple[ScramMechanism, Credential]) -> None:
        writer.int8(entry[0].value)
        writer.int32(entry[1].iterations)
        writer.end_of_fields()

    counts = Counter(request.users) or Counter(sorted(users))
    if refused is not None:
        counts.clear()
    writer.int32(0)  # throttle time
    writer.int16(refused or ErrorCode.NONE)
    writer.message(None if refused is None else "the client may not describe the cluster")
    writer.array_length(len(counts))
    for name, count in counts.items():
        user = users.get(name)
        error, message = ErrorCode.NONE, None
        if count > 1:
            error, message = ErrorCode.DUPLICATE_RESOURCE, "the user is asked for twice"
        elif user is None:
            error, message = ErrorCode.RESOURCE_NOT_FOUND, "there is no such user"
        writer.string(name)
        writer.int16(error)
        writer.message(message)
        writer.array(() if user is None or error is not ErrorCode.NONE else user.credentials.items(), credential)
        writer.end_of_fields()
        await trio.lowlevel.checkpoint()
    writer.end_of_fields()
    return writer.parts()


API = Api(50, "DescribeUserScramCredentials", SERVED, FLEXIBLE_FROM, decode, handle, (DESCRIBE_CLUSTER,))
