"""The body of a call, bounded in size and time."""

from __future__ import annotations

from contextlib import aclosing

import trio
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request

BODY_BYTES_MAX = 16 * 1024
"""A transactional id has at most 1 KiB, a password as well."""

BODY_PATIENCE_S = 10


async def body(request: Request) -> bytes:
    """The whole body. Raises HTTPException if it is too long, too slow, or does not end."""
    content = bytearray()
    with trio.move_on_after(BODY_PATIENCE_S) as patience:
        try:
            async with aclosing(request.stream()) as stream:
                async for part in stream:
                    content += part
                    if len(content) > BODY_BYTES_MAX:
                        raise HTTPException(413, f"a body of at most {BODY_BYTES_MAX} bytes is taken")
        except ClientDisconnect:
            raise HTTPException(400, "the connection ended within the body") from None
    if patience.cancelled_caught:
        raise HTTPException(408, f"the body was not here after {BODY_PATIENCE_S} s")
    return bytes(content)
