"""While the engine of several machines is away: what is to be written of a sink is refused at once, the rest is not."""

from __future__ import annotations

import pytest

from tests.kafka.test_engine_away import CutOff
from tests.native.sinks_in_memory import MemorySinks
from tests.native.talking import Talker
from tests.native.test_several_processes import OPS_OF_SINKS


@pytest.fixture
def memory() -> CutOff:
    memory = CutOff(coordinator=MemorySinks())
    memory.topics.create_now("t")
    return memory


@pytest.mark.parametrize("op", OPS_OF_SINKS)
async def test_ops_that_write_are_refused_with_a_kind_on_which_clients_ask_again(
    talker: Talker, memory: CutOff, op: str
) -> None:
    """Nothing is begun: the coordinator is asked for nothing."""
    kind, sentence = await talker.ask(op, **OPS_OF_SINKS[op])
    assert (kind, "ask again" in sentence) == ("not-available", True)
    assert memory.coordinator.calls == []
    memory.is_away = False
    answer = await talker.ask(op, **OPS_OF_SINKS[op])
    assert answer[0] == "unknown-sink" if op == "forget" else isinstance(answer, dict)


async def test_ops_that_read_are_answered(talker: Talker) -> None:
    assert await talker.ask("sinks") == {"sinks": []}
    assert await talker.ask("topics") == {"topics": [["t", 1]]}
    assert [row[:2] for row in (await talker.ask("cut", topics=["t"]))["partitions"]] == [["t", 0]]
