"""SaslAuthenticate: the messages by which a client signs in.

Behaviour
- Whoever does not show who it is gets SASL_AUTHENTICATION_FAILED, after a tenth of a second, with the same sentence for
  each reason, and the connection is closed. So does a client that signs in again as another user, or by another
  mechanism.
- Without a handshake before it: ILLEGAL_SASL_STATE, and the connection is closed. On a listener that does not ask who a
  client is the connection goes on.

Version notes
- 1 adds how long the session lasts, in milliseconds; 0 for ever (KIP-368). 2 is flexible.
- After SaslHandshake v0 the same messages come without a header, and so does the answer. A failure has no form there:
  the connection is closed.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from fairlog.kafka.api import Answer, Api, Client, Context, HangUp, Versions
from fairlog.kafka.errors import ErrorCode
from fairlog.kafka.wire import Reader
from fairlog.security.sign_in import Answered, OutOfOrder, Rejected

SERVED = Versions(0, 2)
FLEXIBLE_FROM = 2
_LIFETIME_FROM = 1


@dataclass(frozen=True, slots=True)
class SaslAuthenticateRequest:
    message: bytes = field(repr=False)


def decode(reader: Reader, version: int) -> SaslAuthenticateRequest:  # noqa: ARG001 (all versions look alike)
    request = SaslAuthenticateRequest(bytes(reader.byte_string()))
    reader.end_of_fields()
    return request


async def handle(context: Context, request: SaslAuthenticateRequest) -> Answer:
    client = context.client
    if client.sign_in is None:
        return _refusal(context, ErrorCode.ILLEGAL_SASL_STATE, "this listener does not ask who a client is")
    try:
        return _answer(context, await _answered(client, request.message))
    except OutOfOrder:
        return _refusal(context, ErrorCode.ILLEGAL_SASL_STATE, "SaslHandshake comes before SaslAuthenticate")
    except Rejected as rejected:
        return _refusal(context, ErrorCode.SASL_AUTHENTICATION_FAILED, str(rejected))


async def answer_bare(client: Client, message: bytes) -> bytes:
    """The answer to a message without a header. Raises HangUp."""
    try:
        answered = await _answered(client, message)
    except (OutOfOrder, Rejected) as refused:
        raise HangUp(f"SASL without headers: {refused}") from None
    client.sends_bare_tokens = not answered.is_complete
    return answered.message


async def _answered(client: Client, message: bytes) -> Answered:
    assert client.sign_in is not None
    answered = await client.sign_in.authenticate(message)
    client.principal = client.sign_in.principal
    return answered


def _answer(context: Context, answered: Answered) -> Answer:
    writer = context.writer()
    writer.int16(ErrorCode.NONE)
    writer.nullable_string(None)  # error message
    writer.byte_string(answered.message)
    if context.version >= _LIFETIME_FROM:
        writer.int64(answered.lifetime_ms)
    writer.end_of_fields()
    return writer.parts()


def _refusal(context: Context, code: ErrorCode, message: str) -> Answer:
    writer = context.writer()
    writer.int16(code)
    writer.message(message)
    writer.byte_string(b"")
    if context.version >= _LIFETIME_FROM:
        writer.int64(0)
    writer.end_of_fields()
    return writer.parts()


API = Api(36, "SaslAuthenticate", SERVED, FLEXIBLE_FROM, decode, handle, ())
