"""The native protocol of a node that runs several processes: cuts are taken, and what is about sinks is refused."""

from __future__ import annotations

import pytest

from fairlog.native import cuts
from fairlog.native.protocol import OPS
from fairlog_types import Offset
from partition.answers import LogCut
from shard.cut_messages import NoCut
from tests.kafka.example_requests import build_batch
from tests.kafka.in_memory import Memory
from tests.native.talking import Talker


@pytest.fixture
def memory(memory: Memory) -> Memory:
    """One of three brokers. The topic has two records in one of its partitions, which this broker leads."""
    memory.spread(3, 1)
    memory.topics.create_now("spread", partitions=6)
    own = next(log for log in memory.cluster.by_name["spread"].logs() if log in memory.leaders.logs)
    memory.leaders.logs[own].append(build_batch(records=2))
    for log in memory.cluster.by_name["spread"].logs():
        if log not in memory.leaders.logs:
            memory.cutting.of_others[log] = LogCut(Offset(3), Offset(5), Offset(5))
    return memory


@pytest.mark.parametrize("op", sorted(OPS.keys() - {"topics", "cut"}))
async def test_op_of_sinks_is_refused_with_what_to_do(talker: Talker, op: str) -> None:
    """Its arguments do not matter, and the connection goes on."""
    for _ in range(2):
        kind, sentence = await talker.ask(op)
        assert kind == "several-processes"
        assert "start it without --processes" in sentence


async def test_topics_are_those_of_the_whole_node(talker: Talker) -> None:
    """Whoever leads them."""
    assert ["spread", 6] in (await talker.ask("topics"))["topics"]


async def test_cut_has_the_partitions_of_all_processes(talker: Talker, memory: Memory) -> None:
    """One broker is asked, and answers for all."""
    found = await talker.ask("cut", topics=["spread"])
    rows = {partition: row for _, partition, *row in found["partitions"]}
    of_others = {log.partition for log in memory.cutting.of_others}
    assert rows.keys() == set(range(6))
    assert {partition for partition, row in rows.items() if row == [3, 5, 5]} == of_others
    assert max(row for partition, row in rows.items() if partition not in of_others) == [0, 2, 2]
    assert found["topic_ids"] == {"spread": memory.log("spread").topic}
    assert [len(logs) for logs in memory.cutting.asked] == [6]


async def test_cut_lacking_a_partition_is_refused(talker: Talker, memory: Memory) -> None:
    """Nobody leads it at the moment: half a topic is no cut."""
    memory.cutting.of_others.popitem()
    kind, sentence = await talker.ask("cut", topics=["spread"])
    assert (kind, "spread is being created or deleted" in sentence) == ("unknown-topic", True)


async def test_cut_with_a_limit_is_refused(talker: Talker, memory: Memory) -> None:
    """The index of past cuts is each shard's own."""
    kind, sentence = await talker.ask("cut", topics=["spread"], limit=10)
    assert (kind, "leave the limit out" in sentence) == ("several-processes", True)
    assert memory.cutting.asked == []
    assert "partitions" in await talker.ask("cut", topics=["spread"])


async def test_cut_that_cannot_be_taken_says_why_and_may_be_asked_for_again(talker: Talker, memory: Memory) -> None:
    """As on one process when the copy does not come."""
    memory.cutting.answer = NoCut("shard 2 does not answer: its process is down, or just starting")
    kind, sentence = await talker.ask("cut", topics=["spread"])
    assert (kind, sentence) == ("not-copied", "cut: shard 2 does not answer: its process is down, or just starting")
    memory.cutting.answer = None
    assert "partitions" in await talker.ask("cut", topics=["spread"])


async def test_cut_of_more_partitions_than_messages_have_room_for_is_refused(
    talker: Talker, memory: Memory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before any shard is asked."""
    monkeypatch.setattr(cuts, "OVER_SHARDS_MAX", 5)
    kind, sentence = await talker.ask("cut", topics=["spread"])
    assert (kind, "6 partitions; over several processes at most 5" in sentence) == ("too-large", True)
    assert memory.cutting.asked == []
    assert "partitions" in await talker.ask("cut", partitions=[["spread", number] for number in range(5)])


async def test_op_that_there_is_not_is_unknown_all_the_same(talker: Talker) -> None:
    """A client that asks for it hears what is wrong with the question."""
    kind, _ = await talker.ask("fold")
    assert kind == "unknown-op"
