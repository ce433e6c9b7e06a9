"""What is about to be copied, given to those who wait for it (`partition.newest`): they read it while it is copied.

    copier ─▶ on_durable(chunk) ─▶ group by group ─▶ `Visibility.read_ahead` of its logs ─▶ the watchers are told

Only what the journals still have in memory: to read it back would take longer than the copy. A group is read ahead as a
whole, in all of its logs that somebody waits at the end of. Where one cannot be, the rest of the chunk waits for its
copy as well, so nobody sees a later decision without an earlier one. Not in logs with markers, where what is placed may
still be aborted; and no more than the event loop can do beside its work.

The batches are copies, for the copier's thread changes the originals while these are being sent.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import NamedTuple

from copier.plan import Group, batches_at
from datalog.batch import placed_at
from datalog.interface import Batch
from fairlog_types import LogId, LogKind, Offset
from partition.partition import Partition
from partition.placed import PlacedBatch, PlacedMarker, PlacedTransaction
from partition.visibility import Visibility

AHEAD_BYTES_MAX = 1 << 20
AHEAD_BATCHES_MAX = 256
"""Of one chunk: together about a millisecond's work."""


class _Part(NamedTuple):
    """What is placed in one log that somebody waits at the end of."""

    partition: Partition
    item: PlacedBatch | PlacedTransaction


def read_ahead(groups: Iterable[Group], partition_of: Callable[[LogId], Partition | None]) -> None:
    """Let those who wait for records of these groups, which are on disk, read them from now on."""
    bytes_left, batches_left = AHEAD_BYTES_MAX, AHEAD_BATCHES_MAX
    moved: dict[LogId, Visibility] = {}
    for group in groups:
        parts = _waited_for(group, partition_of)
        refs = [ref for _, item in parts for _, ref in batches_at(item)]
        bytes_left -= sum(ref.frame_bytes for ref in refs)
        batches_left -= len(refs)
        if min(bytes_left, batches_left) < 0 or (parts and any(isinstance(item, PlacedMarker) for item in group)):
            break
        found = [batches for part in parts if (batches := _in_memory(part)) is not None]
        if len(found) < len(parts):
            break
        for (partition, item), batches in zip(parts, found, strict=True):
            visibility = moved[item.log] = partition.visibility
            visibility.read_ahead(item.base_offset, batches)
    for visibility in moved.values():
        visibility.wake()


def _waited_for(group: Group, partition_of: Callable[[LogId], Partition | None]) -> list[_Part]:
    """The group's parts in logs that somebody waits at the end of, and that can be read ahead of their data logs."""
    parts: list[_Part] = []
    for item in group:
        partition = partition_of(item.log)
        if (
            partition is not None
            and isinstance(item, PlacedBatch | PlacedTransaction)
            and item.log.kind == LogKind.TOPIC.value
            and partition.visibility.is_watched
            and not partition.mode.has_markers
        ):
            parts.append(_Part(partition, item))
    return parts


def _in_memory(part: _Part) -> list[tuple[Offset, Batch]] | None:
    """The batches as the data log will have them, each with the offset behind it; None if one is missing."""
    found: list[tuple[Offset, Batch]] = []
    for base_offset, ref in batches_at(part.item):
        payload = part.partition.journal.recent_payload(ref.position)
        if payload is None:
            return None
        found.append((Offset(base_offset + ref.record_count), placed_at(payload, base_offset, part.item.leader_epoch)))
    return found
