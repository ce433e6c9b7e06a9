"""The native protocol at a broker whose shard another node owns: it knows the topics, and where the rest is."""

from __future__ import annotations

import pytest

from coordinator.lane_ids import lane_id
from fairlog_types import ShardNumber
from tests.kafka.in_memory import Memory
from tests.kafka.test_bystander import Bystander
from tests.native.sinks_in_memory import MemorySinks
from tests.native.talking import Talker
from tests.native.test_several_processes import OPS_OF_SINKS


@pytest.fixture
def memory(request: pytest.FixtureRequest) -> Bystander:
    """Of shard 1 of three, with a topic; "first": of shard 0; "door": at a node's first port."""
    which = getattr(request, "param", "second")
    memory = Bystander(coordinator=MemorySinks(), is_door=which == "door")
    memory.spread(3, 0 if which == "first" else 1)
    memory.topics.create_now("spread", partitions=6)
    return memory


async def test_topics_are_told(talker: Talker) -> None:
    assert await talker.ask("topics") == {"topics": [["spread", 6]]}


@pytest.mark.parametrize("more", [{}, {"limit": 10}], ids=["newest", "limited"])
async def test_cuts_are_taken_by_an_owner(talker: Talker, memory: Memory, more: dict[str, object]) -> None:
    """That of the first shard, as long as there is one."""
    kind, sentence, there = await talker.ask("cut", topics=["spread"], **more)
    assert (kind, there) == ("not-coordinator", {"host": "broker-0.example", "port": 9092})
    assert "broker-0.example:9092" in sentence
    del memory.cluster.addresses[memory.cluster.broker_of(ShardNumber(0))]
    kind, sentence = await talker.ask("cut", topics=["spread"], **more)
    assert (kind, "ask again" in sentence) == ("not-copied", True)


async def test_wrong_cut_is_refused_here(talker: Talker) -> None:
    """With the sentence that an owner has for it."""
    assert (await talker.ask("cut", topics=["nowhere"]))[0] == "unknown-topic"


async def kinds(talker: Talker, op: str) -> set[str]:
    """What is answered of sinks of all shards."""
    answers = [await talker.ask(op, **OPS_OF_SINKS[op] | {"sink": str(number)}) for number in range(100)]
    return {kind for kind, *_ in answers}


@pytest.mark.parametrize("op", OPS_OF_SINKS)
async def test_sinks_are_elsewhere(talker: Talker, op: str) -> None:
    """Those of this broker's shard come here: it is known as the owner already, and does not serve them yet."""
    assert await kinds(talker, op) == {"not-coordinator", "not-available"}
    answer = await talker.ask("sinks")
    assert answer == {"sinks": [], "others": [[7, "broker-0.example", 9092], [9, "broker-2.example", 9094]]}


@pytest.mark.parametrize("memory", ["first"], indirect=True)
@pytest.mark.parametrize("op", [*OPS_OF_SINKS, "cut"])
async def test_who_knows_of_no_other_owner_hangs_up(talker: Talker, memory: Bystander, op: str) -> None:
    """As in Kafka's protocol: it may be none any more. Not so who has become the owner, or hears the engine."""
    own = next(name for name in map(str, range(100)) if memory.broker.shard_of(lane_id(name, 0)) == 0)
    arguments = {"topics": ["spread"]} if op == "cut" else OPS_OF_SINKS[op] | {"sink": own}
    for memory.engine_is_silent, memory.opens in ((False, False), (True, True)):
        assert (await talker.ask(op, **arguments))[0] == ("not-copied" if op == "cut" else "not-available")
    memory.opens = False
    await talker.send(op, **arguments)
    assert await talker.is_closed()


@pytest.mark.parametrize("op", OPS_OF_SINKS)
async def test_who_knows_of_another_owner_names_it(talker: Talker, memory: Bystander, op: str) -> None:
    """Though the engine is silent: it may be the right one."""
    memory.engine_is_silent = True
    other = next(name for name in map(str, range(100)) if memory.broker.shard_of(lane_id(name, 0)) == 2)
    assert (await talker.ask(op, **OPS_OF_SINKS[op] | {"sink": other}))[0] == "not-coordinator"


@pytest.mark.parametrize("memory", ["door"], indirect=True)
async def test_first_port_of_a_node_is_no_shards(talker: Talker) -> None:
    """Though it has the id of a broker, whose shard this node may own at another port."""
    assert await kinds(talker, "join") == {"not-coordinator"}
    assert [node_id for node_id, *_ in (await talker.ask("sinks"))["others"]] == [7, 8, 9]
