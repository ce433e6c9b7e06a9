"""The native protocol of a node that runs several processes: refused, whatever is asked."""

from __future__ import annotations

import pytest

from fairlog.native.protocol import OPS
from tests.kafka.in_memory import Memory
from tests.native.talking import Talker


@pytest.fixture
def memory(memory: Memory) -> Memory:
    memory.spread(3, 1)
    return memory


@pytest.mark.parametrize("op", OPS)
async def test_op_of_several_processes_is_refused_with_what_to_do(talker: Talker, op: str) -> None:
    """Its arguments do not matter, and the connection goes on."""
    for _ in range(2):
        kind, sentence = await talker.ask(op)
        assert kind == "several-processes"
        assert "start it without --processes" in sentence


async def test_op_that_there_is_not_is_unknown_all_the_same(talker: Talker) -> None:
    """A client that asks for it hears what is wrong with the question."""
    kind, _ = await talker.ask("fold")
    assert kind == "unknown-op"
