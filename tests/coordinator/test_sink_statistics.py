"""What the coordinator shows of its sinks: counts, and for how long a batch has been written."""

from __future__ import annotations

import trio

from coordinator.sinks.messages import SinkStatistics

from .sinks import commit, join, lane, write_batch


async def test_statistics_count_sinks_lanes_and_batches_once(running, logs, autojump_clock):
    """A batch that is committed again is not counted again, and neither is one that was refused."""
    coordinator = running.coordinator
    assert coordinator.sink_statistics() == SinkStatistics(0, 0, 0)
    winners = await write_batch(running, logs)
    assert coordinator.sink_statistics() == SinkStatistics(1, 3, 0)
    await coordinator.commit_batch(commit(*winners))
    await coordinator.commit_batch(commit(*winners))
    await coordinator.commit_batch(commit((9, 9, 9), batch=1))
    assert coordinator.sink_statistics() == SinkStatistics(1, 0, 1)


async def test_batch_has_been_written_since_its_oldest_open_lane_has_joined(running, autojump_clock):
    """None while nothing is open."""
    for partition in (0, 1):
        await join(running, lane(partition))
        await trio.sleep(2)
    (sink,) = running.coordinator.sinks()
    assert sink.writing_s == 4
    await running.coordinator.abort_batch("s", "q", "r1", 0)
    assert [sink.writing_s for sink in running.coordinator.sinks()] in ([], [None])
