"""Which shard leads a log, and which has a group journal. Pure; the same in every process, now and later.

With N shards at the first start, numbered from 0:

    partition p of a topic    (first + p) mod N, where `first` follows from the topic's id
                              or `first` itself for all of them, if the topic asks for it (`fairlog.placement=together`)
    offsets log n             n mod N
    group journal n           n mod N; there it is the (n div N)-th

Shards may be added later. They get no group journals and no offsets logs, so none of these ever moves. A topic is
spread over the shards that there were when it was made: for a later one, N is that number, which its record keeps.
So no log ever moves, and the partitions added to a topic follow its own number.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from crc32c import crc32c

from fairlog_types import LogId, LogKind, ShardNumber


@dataclass(frozen=True, slots=True)
class Placement:
    """The placement over so many shards."""

    shards: int
    """At least 1."""
    first_shards: int | None = None
    """How many there were at the first start; None if none was added since."""

    @property
    def at_first(self) -> int:
        """How many there were at the first start."""
        return self.shards if self.first_shards is None else self.first_shards

    def shard_of(self, log: LogId, *, together: bool, over: int | None = None) -> ShardNumber:
        """Who leads the log.

        `together` and `over`, how many shards it is spread over, are asked of its topic, and do not count for an
        offsets log. None stands for the shards of the first start.
        """
        if self.shards == 1:
            return ShardNumber(0)
        if log.kind == LogKind.OFFSETS.value:
            return ShardNumber(log.partition % self.at_first)
        first = crc32c(bytes.fromhex(log.topic))
        return ShardNumber((first + (0 if together else log.partition)) % (over or self.at_first))

    def shard_of_group_journal(self, number: int) -> ShardNumber:
        """Who has the group journal with this number, and with it the coordinator of what is written there."""
        return ShardNumber(number % self.at_first)

    def others(self, shard: ShardNumber) -> Sequence[ShardNumber]:
        """All shards but this one."""
        return [ShardNumber(other) for other in range(self.shards) if other != shard]

    def group_journals(self, shard: ShardNumber, count: int) -> Sequence[int]:
        """The numbers of the group journals that the shard has, of `count` in all."""
        return range(shard, count, self.at_first) if shard < self.at_first else range(0)

    def offsets_logs(self, shard: ShardNumber, count: int) -> Sequence[LogId]:
        """The offsets logs that the shard leads, of `count` in all."""
        return [LogId.of_offsets(number) for number in self.group_journals(shard, count)]
