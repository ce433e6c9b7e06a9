"""Carries a handshake (`handshake`) over a connection that was just opened."""

from __future__ import annotations

from contextlib import nullcontext, suppress

import trio

from fairlog.interbroker.handshake import Handshake, Refused

HANDSHAKE_S = 5.0
"""For the connection and the handshake together, which take a millisecond."""


async def shake_hands(stream: trio.abc.Stream, handshake: Handshake) -> None:
    """Raises Refused, trio.BrokenResourceError."""
    await stream.send_all(handshake.begin())
    while handshake.expects:
        heard = await _receive_exactly(stream, handshake.expects)
        refused: Refused | None = None
        try:
            said = handshake.hear(heard)
        except Refused as error:
            refused, said = error, error.last_words
        with suppress(trio.BrokenResourceError) if refused else nullcontext():
            await stream.send_all(said)
        if refused:
            raise refused


async def _receive_exactly(stream: trio.abc.Stream, size: int) -> bytes:
    received = b""
    while len(received) < size:
        more = await stream.receive_some(size - len(received))
        if not more:
            raise trio.BrokenResourceError("the other side has closed the connection within the handshake")
        received += more
    return received
