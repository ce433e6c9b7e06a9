"""The op `sign-in`: the messages by which a client shows who it is, on a listener that asks.

The first one names the mechanism; each has the exchange's next message, as SASL says what it is. A client that has
signed in may do so again. The state, and what ends a session, are those of Kafka's protocol
(`fairlog.security.sign_in`).
"""

from __future__ import annotations

from fairlog.native.messages import Arguments, Refused, Result
from fairlog.security.sign_in import Choice, OutOfOrder, Rejected, SignIn

_MESSAGE_CHARACTERS_MAX = 65_536
"""A token has thousands."""


async def step(sign_in: SignIn | None, arguments: Arguments) -> Result:
    """Raises Refused; the connection is to be closed if `sign_in` is over then."""
    mechanism = arguments.text("mechanism") if arguments.has("mechanism") else None
    message = arguments.long_text("message", most=_MESSAGE_CHARACTERS_MAX)
    arguments.end()
    if sign_in is None:
        raise Refused("not-asked", "this listener does not ask who a client is")
    if mechanism is not None:
        match sign_in.choose(mechanism):
            case Choice.NOT_OFFERED:
                offered = ", ".join(sign_in.offered)
                raise Refused("unknown-mechanism", f"the listener offers {offered}, and not {mechanism[:60]!r}")
            case Choice.OUT_OF_ORDER:
                raise Refused("out-of-order", "a mechanism is named once, and again a second later at the soonest")
            case Choice.TAKEN:
                pass
    try:
        answered = await sign_in.authenticate(message.encode())
        text = answered.message.decode()
    except OutOfOrder:
        raise Refused("out-of-order", "the first message names the mechanism") from None
    except Rejected as rejected:
        raise Refused("sign-in-failed", str(rejected)) from None
    return {"message": text, "complete": answered.is_complete, "lifetime_ms": answered.lifetime_ms}
