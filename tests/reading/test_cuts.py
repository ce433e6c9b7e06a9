"""The cut of now waits for the copy; one with a limit does not, and is asked for from the starts."""

from __future__ import annotations

import pytest
import trio

from fairlog.reading import cuts
from fairlog_types import LogId, Offset, StorageFailure
from partition.answers import LogCut
from shard.cut_messages import Cuts, NoCut
from shard.ends import EndRefusal
from tests.kafka.example_requests import build_batch
from tests.kafka.in_memory import Memory


@pytest.fixture
def memory() -> Memory:
    """A topic of two partitions; the first has a batch of two records, which is not copied yet."""
    memory = Memory()
    memory.topics.create_now("t", partitions=2)
    memory.leaders.logs[memory.log("t")].append(build_batch(records=2))
    memory.leaders.copy_through(memory.log("t"), Offset(0))
    return memory


def logs_of(memory: Memory) -> list[LogId]:
    return list(memory.cluster.by_name["t"].logs())


async def test_cut_of_now_has_what_was_answered_before_the_question(
    memory: Memory, nursery: trio.Nursery, autojump_clock: trio.abc.Clock
) -> None:
    """It waits for the copy of that (invariant 13); a log that is not led here is left out."""
    first, second = logs_of(memory)
    del memory.leaders.logs[second]

    @nursery.start_soon
    async def copy_later() -> None:
        await trio.sleep(0.2)
        memory.leaders.release()

    assert await cuts.cut_now(memory.broker, [first, second]) == {first: LogCut(Offset(0), Offset(2), Offset(2))}


async def test_cut_of_now_is_refused_when_the_copy_does_not_come(memory: Memory) -> None:
    """An end that may lack what was answered is not given out."""
    memory.leaders.failure = StorageFailure("the disk has failed")
    assert await cuts.cut_now(memory.broker, logs_of(memory)) == NoCut(EndRefusal.STORAGE.value)


@pytest.mark.parametrize("found", [Cuts({}), NoCut("shard 1 does not answer")])
async def test_cut_over_shards_is_that_of_all_of_them(memory: Memory, found: Cuts | NoCut) -> None:
    """Nothing is asked of this broker's own logs: they take part in it."""
    memory.spread(2, 0)
    memory.cutting.answer = found
    memory.leaders.failure = StorageFailure("the disk has failed")
    expected = {} if isinstance(found, Cuts) else found
    assert await cuts.cut_now(memory.broker, logs_of(memory)) == expected
    assert memory.cutting.asked == [tuple(logs_of(memory))]


async def test_cut_with_a_limit_begins_at_the_starts(memory: Memory, monkeypatch: pytest.MonkeyPatch) -> None:
    """It lies in the past, and so waits for no copy."""
    first, second = logs_of(memory)
    asked: list[object] = []

    async def cut_within(starts: dict[LogId, Offset], *, records_max: int) -> dict[LogId, LogCut]:
        asked.append((starts, records_max))
        return {}

    monkeypatch.setattr(memory.leaders, "cut_within", cut_within)
    assert await cuts.cut_within(memory.broker, [first, second], {first: Offset(1)}, records_max=10) == {}
    assert asked == [({first: 1, second: 0}, 10)]


PAST = LogCut(Offset(0), Offset(1), Offset(2))


@pytest.mark.parametrize("found", [Cuts({}), NoCut("shard 1 does not answer")])
async def test_cut_with_a_limit_over_shards_comes_from_all_of_them(memory: Memory, found: Cuts | NoCut) -> None:
    """It is looked up, and no new one is taken."""
    memory.spread(2, 0)
    memory.past_cuts.answer = found
    first, second = logs_of(memory)
    expected = {} if isinstance(found, Cuts) else found
    assert await cuts.cut_within(memory.broker, [first, second], {first: Offset(1)}, records_max=10) == expected
    assert memory.past_cuts.asked == [({first: 1, second: 0}, 10)]
    assert memory.cutting.asked == []


async def test_cut_with_a_limit_over_shards_is_that_of_now_if_no_older_one_will_do(memory: Memory) -> None:
    """As for a reader who is not far behind."""
    memory.spread(2, 0)
    first, second = logs_of(memory)
    memory.cutting.answer = Cuts({first: PAST})
    assert await cuts.cut_within(memory.broker, [first, second], {}, records_max=10) == {first: PAST}
    assert memory.cutting.asked == [(first, second)]
