"""Which shard leads a log, and which has a group journal. Pure; the same in every process, now and later.

With N shards, numbered from 0:

    partition p of a topic    (first + p) mod N, where `first` follows from the topic's id
                              or `first` itself for all of them, if the topic asks for it (`fairlog.placement=together`)
    offsets log n             n mod N
    group journal n           n mod N; there it is the (n div N)-th

N is fixed at the first start of a data directory, so nothing of this needs to be written down.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from uuid import UUID

from crc32c import crc32c

from fairlog_types import LogId, LogKind, ShardNumber


@dataclass(frozen=True, slots=True)
class Placement:
    """The placement over so many shards."""

    shards: int
    """At least 1."""

    def shard_of(self, log: LogId, *, together: bool) -> ShardNumber:
        """Who leads the log. `together` is asked of its topic, and does not count for an offsets log."""
        if self.shards == 1:
            return ShardNumber(0)
        if log.kind == LogKind.OFFSETS.value:
            return ShardNumber(log.partition % self.shards)
        first = crc32c(UUID(hex=log.topic).bytes)
        return ShardNumber((first + (0 if together else log.partition)) % self.shards)

    def shard_of_group_journal(self, number: int) -> ShardNumber:
        """Who has the group journal with this number, and with it the coordinator of what is written there."""
        return ShardNumber(number % self.shards)

    def others(self, shard: ShardNumber) -> Sequence[ShardNumber]:
        """All shards but this one."""
        return [ShardNumber(other) for other in range(self.shards) if other != shard]

    def group_journals(self, shard: ShardNumber, count: int) -> Sequence[int]:
        """The numbers of the group journals that the shard has, of `count` in all."""
        return range(shard, count, self.shards)

    def offsets_logs(self, shard: ShardNumber, count: int) -> Sequence[LogId]:
        """The offsets logs that the shard leads, of `count` in all."""
        return [LogId.of_offsets(number) for number in range(shard, count, self.shards)]
