"""Commands of other shards, without a shard."""

from __future__ import annotations

from unittest.mock import Mock

from fairlog_types import ShardNumber
from shard.commands import Commands
from shard.high_watermarks import FindHighWatermarks


def test_commits_that_were_answered_are_placed_before_a_command_begins():
    """The neighbour may ask for a client that has heard of them."""
    order = Mock()
    commands = Commands(order.partitions, Mock(), 1, Mock(), Mock(), Mock(), Mock(), place_due=order.place_due)
    commands.execute(ShardNumber(1), FindHighWatermarks(()))
    assert [name for name, _, _ in order.mock_calls][:2] == ["place_due", "partitions.high_watermarks"]
