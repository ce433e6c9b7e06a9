"""What a process does for a tool of its data directory, which has proved that it knows the secret: let all shards hold.

    tool      Hold ──────────────▶             ─ begins its read transactions ─   Release ─▶
    process          all hold ─▶ Held(true)                                               Held, or NoCut

The process of `shard.cutting`'s TAKER alone serves tools. Commands and replies are those of shards, with epochs 0, on
one connection (docs/formats/interbroker.md). A hold ends by itself HOLD_S after its answer, and at once when its tool
has gone.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import trio

from fairlog.edge.frames import FrameReader
from fairlog.edge.malformed import Malformed
from fairlog.interbroker.codec import decode_untrusted, encode
from fairlog.interbroker.sealing import TAG_BYTES, Opener, Sealer
from shard.conversation import Command, Reply
from shard.cut_messages import Held, Hold, NoCut, Release

WhileAllHold = Callable[[Callable[[], Awaitable[None]]], Awaitable[bool | NoCut]]
"""See `shard.cutting.Cutting.while_all_hold`."""

_COMMAND_BYTES_MAX = 64
"""Both commands take less than half of it."""


async def serve_tool(
    stream: trio.abc.Stream, *, session_key: bytes, answer_key: bytes, while_all_hold: WhileAllHold
) -> None:
    """Serve a tool, until it closes the connection.

    Raises Malformed if it sends something else than Hold and Release, BrokenResourceError if it has gone in a hold.
    """
    tool = _Tool(stream, Opener(session_key), Sealer(answer_key))
    while (command := await tool.next_command()) is not None:
        match command.body:
            case Hold(number):
                await _hold(tool, command, number, while_all_hold)
            case Release():
                await tool.answer(command, Held(False))  # its hold has ended by itself
            case body:
                raise Malformed(f"{type(body).__name__}, which no tool may ask for")


async def _hold(tool: _Tool, asked: Command, number: int, while_all_hold: WhileAllHold) -> None:
    unanswered = [asked]

    async def until_released() -> None:
        unanswered.clear()
        await tool.answer(asked, Held(True))
        command = await tool.next_command()
        if command is None:
            raise trio.BrokenResourceError("the tool has gone in a hold")
        if command.body != Release(number):
            raise Malformed("something else than the release of the hold")
        unanswered.append(command)

    held = await while_all_hold(until_released)
    for each in unanswered:  # none, if the hold has ended while the tool was silent
        await tool.answer(each, held if isinstance(held, NoCut) else Held(held))


class _Tool:
    """The other end of the connection."""

    def __init__(self, stream: trio.abc.Stream, opener: Opener, sealer: Sealer) -> None:
        self._stream = stream
        self._frames = FrameReader(stream, frame_bytes_max=TAG_BYTES + _COMMAND_BYTES_MAX)
        self._opener = opener
        self._sealer = sealer

    async def next_command(self) -> Command | None:
        """None: the tool has closed the connection. Raises Malformed, BrokenResourceError."""
        frame = await self._frames.next_frame()
        if frame is None:
            return None
        message = decode_untrusted(self._opener.open_untrusted(bytes(frame)))
        if not isinstance(message, Command):
            raise Malformed(f"{type(message).__name__}, where a tool's command should be")
        return message

    async def answer(self, command: Command, body: Held | NoCut) -> None:
        """Raises BrokenResourceError."""
        await self._stream.send_all(self._sealer.seal(encode(Reply(0, 0, command.number, body))))
