"""A conversation with every op, against a broker in memory.

python -m tests.native.golden_conversation      writes it anew, for what is added to the protocol only
"""

from __future__ import annotations

import textwrap
from pathlib import Path
from typing import Any

import cbor2
import trio
from trio.testing import memory_stream_pair

from fairlog.edge.frame_budget import FrameBudget
from fairlog.edge.log_limiter import LogLimiter
from fairlog.native.protocol import NativeProtocol
from tests.kafka.in_memory import Memory
from tests.native.sinks_in_memory import MemorySinks
from tests.native.talking import Talker, frame

GOLDEN = Path(__file__).resolve().parents[1] / "golden" / "native-protocol-1.txt"

BATCH = {"sink": "totals", "query": "q", "run": "r1", "batch": 0}
REQUESTS: list[tuple[str, dict[str, Any]]] = [
    ("join", BATCH | {"partition": 0, "attempt": 0}),
    ("commit", BATCH | {"winners": [[0, 0, 5]], "offsets": {"group": "spark", "partitions": [["orders", 1, 17]]}}),
    ("commit", BATCH | {"winners": [[0, 0, 5]], "planned_ms": 1_763_632_800_000}),
    ("join", BATCH | {"partition": 0, "attempt": 1}),
    ("join", BATCH | {"query": "other", "partition": 0, "attempt": 0}),
    ("abort", BATCH | {"batch": 1}),
    ("topics", {}),
    ("cut", {"topics": ["orders"]}),
    ("cut", {"partitions": [["totals", 0]], "starts": [["totals", 0, 0]], "limit": 1000}),
    ("sinks", {}),
    ("forget", {"sink": "totals"}),
    ("forget", {"sink": "totals"}),
    ("hello", {}),
]


def new_memory() -> Memory:
    """The broker: two topics, no sinks."""
    memory = Memory(coordinator=MemorySinks())
    memory.topics.create_now("orders", partitions=2)
    memory.topics.create_now("totals")
    memory.coordinator.logs = [memory.log("orders", 0), memory.log("totals", 0)]
    return memory


async def conversation() -> str:
    """What both sides say, in hex; what that is stands above it."""
    ours, theirs = memory_stream_pair()
    connection = NativeProtocol(new_memory().broker).connection(
        ours, b"", ordinal=1, peer="p", budget=FrameBudget(), lines=LogLimiter(trio.current_time)
    )
    async with trio.open_nursery() as nursery:
        nursery.start_soon(connection.serve)
        talker = Talker(theirs)
        told = [*_lines(">", b"FLG1"), *_lines("<", await talker.greet())]
        for number, (op, arguments) in enumerate(REQUESTS, start=1):
            asked = frame(cbor2.dumps([number, op, arguments]))
            await talker.stream.send_all(asked)
            length = await talker.receive(4)
            told += [*_lines(">", asked), *_lines("<", length + await talker.receive(int.from_bytes(length, "big")))]
        nursery.cancel_scope.cancel()
    return "\n".join(told) + "\n"


def _lines(direction: str, data: bytes) -> list[str]:
    said = f"preamble {data.decode()}" if data == b"FLG1" else repr(cbor2.loads(data[4:]))
    return [f"# {said}", *(f"{direction} {line}" for line in textwrap.wrap(data.hex(" "), 3 * 32))]


if __name__ == "__main__":
    GOLDEN.write_text(trio.run(conversation), encoding="utf-8")
