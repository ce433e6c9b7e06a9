"""The mark of a stream in readable form: through which entry a copy of a shard has everything on disk."""

from __future__ import annotations

from fairlog.inspection.lines import Line
from shard.stream_mark import decode_mark_untrusted


def show_stream_mark(data: bytes) -> Line:
    """The content of the file."""
    found = decode_mark_untrusted(data)
    if found is None:
        return Line("mark of a stream", {"bytes": len(data)}, "byte 0: it is not what was written")
    stream, state = found
    return Line(
        "mark of a stream",
        {
            "stream": stream,
            "position": state.position,
            "epoch": state.epoch,
            "owner": None if state.owner is None else state.owner.node,
            "sequence": state.sequence,
            "chain": f"{state.chain:08x}",
            "handed_over": state.handed_over,
        },
    )
