"""What a process does for a node of the cluster that joins, and has proved that it knows the secret: gives it a copy.

    node that joins   AskForCopy ──────▶
    process                             parts (`shard.copy_parts`), as fast as they are taken; or CannotGive

Each part is a sealed frame. Nothing is held but the part that is being sent: a node that is slow slows its own copy,
and one that takes nothing for a while loses it.
"""

from __future__ import annotations

from typing import Protocol

import structlog
import trio

from fairlog.edge.frames import FrameReader
from fairlog.edge.malformed import Malformed
from fairlog.interbroker.sealing import TAG_BYTES, Opener, Sealer
from fairlog_types import CorruptStorage, StorageFailure
from shard.copy_parts import AskForCopy, CannotGive, Part, decode_part_untrusted, encode_part
from shard.giving import NothingToGive, Send

SILENCE_S = 30.0
"""For so long the other side may take nothing, or send nothing."""

_ASK_BYTES_MAX = 1 << 10
"""The name of a stream is shorter."""

log = structlog.get_logger("fairlog.interbroker")


class GivesCopies(Protocol):
    """See `shard.giving.Giver`."""

    async def give(self, stream: str, send: Send) -> None:
        """Send a copy of the shard whose stream this is."""
        ...


async def serve_joining(stream: trio.abc.Stream, *, session_key: bytes, answer_key: bytes, giver: GivesCopies) -> None:
    """Give a copy to the node at the other end.

    Raises Malformed if it asks for something else, BrokenResourceError if it has gone, or takes nothing.
    """
    sealer = Sealer(answer_key)

    async def send(part: Part) -> None:
        with trio.move_on_after(SILENCE_S) as waiting:
            await stream.send_all(sealer.seal(encode_part(part)))
        if waiting.cancelled_caught:
            raise trio.BrokenResourceError(f"the node that joins has taken nothing for {SILENCE_S:g} s")

    frame: object = None
    with trio.move_on_after(SILENCE_S):
        frame = await FrameReader(stream, frame_bytes_max=TAG_BYTES + _ASK_BYTES_MAX).next_frame()
    if frame is None:
        return
    asked = decode_part_untrusted(Opener(session_key).open_untrusted(bytes(frame)))
    if not isinstance(asked, AskForCopy):
        raise Malformed("a node that joins asks for something else than a copy")
    log.info("gives a copy of the shard", stream=asked.stream)
    try:
        await giver.give(asked.stream, send)
    except (NothingToGive, StorageFailure, CorruptStorage) as why:
        log.warning("cannot give a copy of the shard", stream=asked.stream, reason=str(why))
        await send(CannotGive(str(why)))
    else:
        log.info("gave a copy of the shard", stream=asked.stream)
