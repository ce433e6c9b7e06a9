"""A client of the native protocol on a stream, written after the page, with cbor2: it shares no code with the node."""

from __future__ import annotations

import struct
from typing import Any

import cbor2
import trio


def frame(body: bytes) -> bytes:
    return struct.pack(">I", len(body)) + body


class Talker:
    """Asks one thing after the other, and can send whatever else a test likes."""

    def __init__(self, stream: trio.abc.Stream) -> None:
        self.stream = stream
        self._rest = b""
        self._id = 0

    async def greet(self, preamble: bytes = b"FLG1") -> bytes:
        await self.stream.send_all(preamble)
        return await self.receive(4)

    async def ask(self, op: str, **arguments: Any) -> Any:
        """The result, or (kind, sentence); with what a refusal has besides, (kind, sentence, more)."""
        await self.send(op, **arguments)
        answered, kind, content, *more = await self.answer()
        assert answered == self._id
        return content if kind == "ok" else (kind, content, *more)

    async def send(self, op: str, **arguments: Any) -> None:
        """A request, whose answer is not waited for."""
        self._id += 1
        await self.stream.send_all(frame(cbor2.dumps([self._id, op, arguments])))

    async def answer(self) -> Any:
        (length,) = struct.unpack(">I", await self.receive(4))
        return cbor2.loads(await self.receive(length))

    async def receive(self, count: int) -> bytes:
        """So many bytes, or fewer at the end of the stream."""
        with trio.fail_after(10):
            while len(self._rest) < count and (more := await self.stream.receive_some()):
                self._rest += more
        found, self._rest = self._rest[:count], self._rest[count:]
        return found

    async def is_closed(self) -> bool:
        """Whether the other end closes, and says nothing before."""
        try:
            return await self.receive(1) == b""
        except trio.BrokenResourceError:
            return True
