"""The native protocol of a node that runs several processes: cuts are taken, and each sink is at one of them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from coordinator.lane_ids import lane_id
from fairlog.native import cuts
from fairlog_types import Offset
from partition.answers import LogCut
from shard.cut_messages import Cuts, NoCut
from shard.offset_messages import OffsetsRefused, WhyNotWritten
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


BATCH: dict[str, object] = {"sink": "totals", "query": "q", "run": "r", "batch": 0}
OPS_OF_SINKS: dict[str, dict[str, object]] = {
    "join": {**BATCH, "partition": 0, "attempt": 0},
    "commit": {**BATCH, "winners": []},
    "abort": BATCH,
    "forget": {"sink": "totals"},
}


def shard_of(memory: Memory, sink: str) -> int:
    """By the rule of transactional ids: that of all its lanes is the same."""
    (there,) = {memory.broker.coordinator_of(lane_id(sink, slot), "PLAINTEXT") for slot in range(20)}
    assert there is not None
    return there.node_id - 7


@pytest.mark.parametrize("op", OPS_OF_SINKS)
async def test_op_about_a_sink_elsewhere_is_refused_with_the_address(talker: Talker, memory: Memory, op: str) -> None:
    """For whoever asks, and in the sentence for people; and the coordinator hears nothing of it."""
    sink = next(name for name in map(str, range(100)) if shard_of(memory, name) == 2)
    for _ in range(2):
        kind, sentence, more = await talker.ask(op, **OPS_OF_SINKS[op] | {"sink": sink})
        assert (kind, more) == ("not-coordinator", {"host": "broker-2.example", "port": 9094})
        assert "broker-2.example:9094" in sentence
    assert memory.coordinator.calls == []


async def test_broker_that_has_not_started_is_refused_as_passing(talker: Talker, memory: Memory) -> None:
    """There is no address to be sent to yet."""
    sink = next(name for name in map(str, range(100)) if shard_of(memory, name) == 2)
    del memory.cluster.addresses[7 + 2]
    kind, sentence = await talker.ask("forget", sink=sink)
    assert (kind, "ask again" in sentence) == ("not-available", True)


async def test_sink_of_this_broker_is_served_whatever_the_separator(talker: Talker, memory: Memory) -> None:
    """A separator in its name does not count for lanes. `sinks` names the other brokers."""
    sink = next(name for name in (f"a::{number}" for number in range(100)) if shard_of(memory, name) == 1)
    memory.settings = replace(memory.settings, transactions=replace(memory.settings.transactions, group_separator="::"))
    assert shard_of(memory, sink) == 1
    assert await talker.ask("join", **BATCH | {"sink": sink}, partition=0, attempt=0) == {
        "transactional_id": lane_id(sink, 0)
    }
    found = await talker.ask("sinks")
    assert [it["sink"] for it in found["sinks"]] == [sink]
    assert found["others"] == [[7, "broker-0.example", 9092], [9, "broker-2.example", 9094]]


async def committed_with_offsets(talker: Talker, memory: Memory, sink: str) -> Any:
    """A batch with offsets of a group that another broker has."""
    group = next(name for name in ("a", "ab", "abc", "abcd") if memory.broker.shard_of_group(name) == 2)
    offsets = {"group": group, "partitions": [["spread", 0, 5], ["spread", 1, 6]]}
    return await talker.ask("commit", **BATCH | {"sink": sink}, winners=[], offsets=offsets)


def own_sink(memory: Memory) -> str:
    return next(name for name in map(str, range(100)) if shard_of(memory, name) == 1)


async def test_offsets_of_a_group_elsewhere_are_written_by_its_broker(talker: Talker, memory: Memory) -> None:
    """Its log joins the lane's transaction, which is named among the winners."""
    sink = own_sink(memory)
    assert (await committed_with_offsets(talker, memory, sink))["already"] is False
    topic = memory.log("spread").topic
    ((shard, _, transactional_id, offsets),) = memory.other_offsets.asked
    assert (shard, transactional_id, offsets) == (2, lane_id(sink, 0), ((topic, 0, 5), (topic, 1, 6)))
    assert [call[0] for call in memory.coordinator.calls] == ["join", "init", "add", "commit"]
    assert memory.offsets.calls == []


@pytest.mark.parametrize(
    ("why", "kind"),
    [
        (WhyNotWritten.GROUP_IN_USE, "group-in-use"),
        (WhyNotWritten.REFUSED, "offsets-refused"),
        (WhyNotWritten.STORAGE, "storage"),
        (WhyNotWritten.STARTED_AGAIN, "not-available"),
    ],
)
async def test_batch_is_not_committed_without_the_offsets(
    talker: Talker, memory: Memory, why: WhyNotWritten, kind: str
) -> None:
    """Their lane is aborted, and the next try has one of its own."""
    memory.other_offsets.refusal = OffsetsRefused(why, "so it is")
    refused, sentence = await committed_with_offsets(talker, memory, own_sink(memory))
    assert (refused, "so it is" in sentence) == (kind, True)
    assert [call[0] for call in memory.coordinator.calls] == ["join", "init", "add", "end"]


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


async def test_cut_with_a_limit_is_looked_up_in_all_processes(talker: Talker, memory: Memory) -> None:
    """No new one is taken; partitions without a start are read from their first offset."""
    cut = LogCut(Offset(1), Offset(3), Offset(9))
    logs = [memory.log("spread", partition) for partition in range(6)]
    memory.past_cuts.answer = Cuts(dict.fromkeys(logs, cut))
    found = await talker.ask("cut", topics=["spread"], starts=[["spread", 4, 2]], limit=10)
    assert found["partitions"] == [["spread", partition, 1, 3, 9] for partition in range(6)]
    assert memory.past_cuts.asked == [({log: 2 if log.partition == 4 else 0 for log in logs}, 10)]
    assert memory.cutting.asked == []


async def test_cut_with_a_limit_that_cannot_be_found_says_why(talker: Talker, memory: Memory) -> None:
    """A process is down: one may ask again."""
    memory.past_cuts.answer = NoCut("shard 2 has not answered in time")
    kind, sentence = await talker.ask("cut", topics=["spread"], limit=10)
    assert (kind, sentence) == ("not-copied", "cut: shard 2 has not answered in time")


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
