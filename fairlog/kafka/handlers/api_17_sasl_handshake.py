"""SaslHandshake: choose the mechanism by which the client signs in.

Behaviour
- A mechanism that the listener does not offer is UNSUPPORTED_SASL_MECHANISM, with those that it does, and the
  connection is closed.
- On a listener that does not ask who a client is: ILLEGAL_SASL_STATE, and the connection goes on. A second handshake
  within an exchange: ILLEGAL_SASL_STATE, and the connection is closed (Kafka closes as well).
- A client that has signed in begins to sign in again by it (KIP-368), once a second at most; sooner is
  ILLEGAL_SASL_STATE.

Version notes
- After version 1 the messages of the exchange come in SaslAuthenticate. After version 0 they come without a header, as
  frames of their own: librdkafka has not sent it for years, and kafka-python up to 2.0 sends no other.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from fairlog.kafka.api import Answer, Api, Context, Versions
from fairlog.kafka.errors import ErrorCode
from fairlog.kafka.wire import Reader
from fairlog.security.sign_in import Choice

SERVED = Versions(0, 1)
FLEXIBLE_FROM = 2

_CODES = {
    Choice.TAKEN: ErrorCode.NONE,
    Choice.NOT_OFFERED: ErrorCode.UNSUPPORTED_SASL_MECHANISM,
    Choice.OUT_OF_ORDER: ErrorCode.ILLEGAL_SASL_STATE,
}


@dataclass(frozen=True, slots=True)
class SaslHandshakeRequest:
    mechanism: str


def decode(reader: Reader, version: int) -> SaslHandshakeRequest:  # noqa: ARG001 (both look alike)
    return SaslHandshakeRequest(reader.string())


async def handle(context: Context, request: SaslHandshakeRequest) -> Answer:
    client = context.client
    if client.sign_in is None:
        return _answer(context, ErrorCode.ILLEGAL_SASL_STATE, ())
    choice = client.sign_in.choose(request.mechanism)
    client.sends_bare_tokens = choice is Choice.TAKEN and context.version == 0
    return _answer(context, _CODES[choice], client.sign_in.offered)


def _answer(context: Context, code: ErrorCode, mechanisms: Sequence[str]) -> Answer:
    writer = context.writer()
    writer.int16(code)
    writer.array(mechanisms, writer.string)
    return writer.parts()


API = Api(17, "SaslHandshake", SERVED, FLEXIBLE_FROM, decode, handle, ())
