"""`consume --data-dir`: records straight from a node's data directory, through the plain reader.

Each chunk is read in a cut of its own, which is over before the chunk is shown: however slowly somebody reads, the
node's file does not grow for it. What is shown of a shard is still as of one moment with `--until-end`: the ends are
those of the first cut, and up to there a log does not change.

Several shards are read in turns. A node of several machines may keep copies of some shards only: then a part of a
topic's partitions is not here, and stderr says which.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from itertools import islice
from pathlib import Path

from datalog.decompress import UnreadableRecords
from datalog.interface import UnknownLog
from datalog.plain_reader import OffsetOutsideLog
from fairlog.cli.errors import ClientError
from fairlog.cli.record_forms import ReadRecord
from fairlog.cli.selection import Range, Selection, begin_at
from fairlog.cluster.embedded import StoreMismatch
from fairlog.cluster.interface import UnknownTopic
from fairlog.local_reader import LocalReader, TopicsCut, UnknownPartition
from fairlog_types import CorruptStorage, StorageFailure

_CHUNK_RECORDS = 10_000
"""A cut is held for as long as it takes to decode these: some 30 ms."""

_LOOK_AGAIN_S = 0.1

_SENTENCES = (
    StorageFailure,
    CorruptStorage,
    StoreMismatch,
    UnreadableRecords,
    OffsetOutsideLog,
    UnknownLog,
    UnknownTopic,
    UnknownPartition,
)
"""Errors whose message is already the sentence for the user."""


_Partition = tuple[str, int]
"""A topic's name, and a partition of it."""


class DirectoryReading:
    """Records of one data directory; `total` offsets are there to be read when it begins."""

    def __init__(self, reader: LocalReader, selection: Selection) -> None:
        self._reader = reader
        self._selection = selection
        self._ranges: dict[int, dict[_Partition, Range]] = {}
        """By shard."""
        with _sentences():
            held = self._held()
            placed = reader.placed()
            for topic in selection.topics:
                self._require_topic(topic, placed, held.get(topic, {}))
                ranges = begin_at(selection, topic, {each: found for each, (_, found) in held[topic].items()})
                for partition, found in ranges.items():
                    self._ranges.setdefault(held[topic][partition][0], {})[topic, partition] = found
        self.total = sum(each.end - each.start for ranges in self._ranges.values() for each in ranges.values())

    def elsewhere(self) -> Sequence[str]:
        """What was asked for and is not in the directory: a sentence for each topic."""
        with _sentences():
            placed = self._reader.placed()
        sentences: list[str] = []
        for topic in self._selection.topics:
            missing = self._not_here(placed.get(topic, ()))
            if missing and self._selection.partitions is None:
                shards = sorted({placed[topic][partition] for partition in missing})
                sentences.append(
                    f"{topic} is not whole here: of partition{_s(missing)} {_listed(missing)} there is nothing, "
                    f"because there is no copy of shard{_s(shards)} {_listed(shards)}"
                )
        return sentences

    def chunks(self, stop: threading.Event) -> Generator[list[ReadRecord]]:
        """Records as they come, in order within a partition, until all that was asked for is read or `stop` is set."""
        positions = {
            shard: {each: found.start for each, found in ranges.items()} for shard, ranges in self._ranges.items()
        }
        left = self._selection.count
        seen: dict[int, int | None] = {}
        while not stop.is_set() and left != 0:
            is_idle = True
            for shard, of_shard in positions.items():
                with _sentences(), self._reader.cut(shard) as cut:
                    chunk = [] if cut.number == seen.get(shard) else self._read(cut, shard, of_shard, left)
                    seen[shard] = cut.number if not chunk else None
                left = None if left is None else left - len(chunk)
                is_idle = is_idle and not chunk
                yield chunk
            if is_idle:
                if self._selection.until_end:
                    return
                stop.wait(_LOOK_AGAIN_S)

    def _read(
        self, cut: TopicsCut, shard: int, positions: dict[_Partition, int], records_max: int | None
    ) -> list[ReadRecord]:
        """What comes next, and move `positions` behind it."""
        room = _CHUNK_RECORDS if records_max is None else min(records_max, _CHUNK_RECORDS)
        share = max(1, room // len(positions))  # so that a busy partition does not keep the others waiting
        chunk: list[ReadRecord] = []
        for (topic, partition), position in positions.items():
            records_max = min(share, room - len(chunk))
            end = self._readable_end(cut, shard, topic, partition)
            committed_only = self._selection.committed_only
            records = cut.records(topic, partition, position, before=end, committed_only=committed_only)
            found = [ReadRecord(topic, partition, *record) for record in islice(records, records_max)]
            # The offsets up to the end may all be markers' and aborted records': nobody should look at them again.
            positions[topic, partition] = max(position, end) if len(found) < records_max else _behind(found, position)
            chunk += found
        return chunk

    def _readable_end(self, cut: TopicsCut, shard: int, topic: str, partition: int) -> int:
        end = _end(cut, topic, partition, self._selection)
        return min(end, self._ranges[shard][topic, partition].end) if self._selection.until_end else end

    def _held(self) -> dict[str, dict[int, tuple[int, Range]]]:
        """What is here of each topic that was asked for: by partition its shard, and what it holds."""
        held: dict[str, dict[int, tuple[int, Range]]] = {}
        for shard in self._reader.shards:
            with self._reader.cut(shard) as cut:
                for topic in {*self._selection.topics} & {*cut.topics()}:
                    for partition in cut.partitions(topic):
                        start = cut.bounds(topic, partition).log_start
                        end = _end(cut, topic, partition, self._selection)
                        held.setdefault(topic, {})[partition] = shard, Range(start, end)
        return held

    def _require_topic(self, topic: str, placed: Mapping[str, Sequence[int]], held: Mapping[int, object]) -> None:
        """Raises UnknownTopic; ClientError if what was asked for is in shards that are not here."""
        if topic not in placed:
            raise UnknownTopic(f"there is no topic {topic}")
        unknown = sorted(each for each in self._selection.partitions or () if each >= len(placed[topic]))
        if unknown:
            raise ClientError(f"topic {topic} has no partition {unknown[0]}; it has {len(placed[topic])}, from 0")
        missing = self._not_here(placed[topic])
        asked = sorted({*missing} & (self._selection.partitions or set()))
        if asked or (not held and missing):
            partition = (asked or missing)[0]
            raise ClientError(
                f"partition {partition} of {topic} is in shard {placed[topic][partition]}, and there are copies of "
                f"shard{_s(self._reader.shards)} {_listed(self._reader.shards)} here: read it on a node that keeps one"
            )
        if not held:
            raise UnknownTopic(f"there is no topic {topic}")  # it was just made, or is just going

    def _not_here(self, placed: Sequence[int]) -> list[int]:
        """The partitions that are in shards of which there is nothing here."""
        return [partition for partition, shard in enumerate(placed) if shard not in self._reader.shards]


@contextmanager
def open_directory(data_dir: Path, selection: Selection) -> Generator[DirectoryReading]:
    """Begin to read. Raises ClientError, here and from `chunks`."""
    with _sentences():
        reader = LocalReader.open(data_dir)
    with reader:
        reading = DirectoryReading(reader, selection)
        for sentence in reading.elsewhere():
            sys.stderr.write(f"fairlog: {sentence}\n")
        yield reading


def _end(cut: TopicsCut, topic: str, partition: int, selection: Selection) -> int:
    bounds = cut.bounds(topic, partition)
    return bounds.last_stable_offset if selection.committed_only else bounds.next_offset


def _s(several: Sequence[object]) -> str:
    return "s" if len(several) > 1 else ""


def _listed(numbers: Sequence[int]) -> str:
    return ", ".join(map(str, numbers))


def _behind(found: list[ReadRecord], position: int) -> int:
    return found[-1].offset + 1 if found else position


@contextmanager
def _sentences() -> Generator[None]:
    try:
        yield
    except _SENTENCES as error:
        raise ClientError(str(error)) from error
