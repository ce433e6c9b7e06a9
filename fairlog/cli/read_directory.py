"""`consume --data-dir`: records straight from a node's data directory, through the plain reader.

Each chunk is read in a cut of its own, which is over before the chunk is shown: however slowly somebody reads, the
node's file does not grow for it. What is shown is still as of one moment with `--until-end`: the ends are those of the
first cut, and up to there a log does not change.
"""

from __future__ import annotations

import threading
from collections.abc import Generator
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


class DirectoryReading:
    """Records of one data directory; `total` offsets are there to be read when it begins."""

    def __init__(self, reader: LocalReader, selection: Selection) -> None:
        self._reader = reader
        self._selection = selection
        with _sentences(), reader.cut() as cut:
            self._ranges = {
                (topic, partition): each
                for topic in selection.topics
                for partition, each in begin_at(selection, topic, self._held(cut, topic)).items()
            }
        self.total = sum(each.end - each.start for each in self._ranges.values())

    def chunks(self, stop: threading.Event) -> Generator[list[ReadRecord]]:
        """Records as they come, in order within a partition, until all that was asked for is read or `stop` is set."""
        positions = {each: found.start for each, found in self._ranges.items()}
        left = self._selection.count
        seen = None
        while not stop.is_set() and left != 0:
            with _sentences(), self._reader.cut() as cut:
                chunk = [] if cut.number == seen else self._read(cut, positions, left)
                seen = cut.number if not chunk else None
            left = None if left is None else left - len(chunk)
            yield chunk
            if not chunk:
                if self._selection.until_end:
                    return
                stop.wait(_LOOK_AGAIN_S)

    def _read(self, cut: TopicsCut, positions: dict[tuple[str, int], int], records_max: int | None) -> list[ReadRecord]:
        """What comes next, and move `positions` behind it."""
        room = _CHUNK_RECORDS if records_max is None else min(records_max, _CHUNK_RECORDS)
        share = max(1, room // len(positions))  # so that a busy partition does not keep the others waiting
        chunk: list[ReadRecord] = []
        for (topic, partition), position in positions.items():
            records_max = min(share, room - len(chunk))
            end = self._readable_end(cut, topic, partition)
            committed_only = self._selection.committed_only
            records = cut.records(topic, partition, position, before=end, committed_only=committed_only)
            found = [ReadRecord(topic, partition, *record) for record in islice(records, records_max)]
            # The offsets up to the end may all be markers' and aborted records': nobody should look at them again.
            positions[topic, partition] = max(position, end) if len(found) < records_max else _behind(found, position)
            chunk += found
        return chunk

    def _readable_end(self, cut: TopicsCut, topic: str, partition: int) -> int:
        end = _end(cut, topic, partition, self._selection)
        return min(end, self._ranges[topic, partition].end) if self._selection.until_end else end

    def _held(self, cut: TopicsCut, topic: str) -> dict[int, Range]:
        return {
            partition: Range(cut.bounds(topic, partition).log_start, _end(cut, topic, partition, self._selection))
            for partition in cut.partitions(topic)
        }


@contextmanager
def open_directory(data_dir: Path, selection: Selection) -> Generator[DirectoryReading]:
    """Begin to read. Raises ClientError, here and from `chunks`."""
    with _sentences():
        reader = LocalReader.open(data_dir)
    with reader:
        yield DirectoryReading(reader, selection)


def _end(cut: TopicsCut, topic: str, partition: int, selection: Selection) -> int:
    bounds = cut.bounds(topic, partition)
    return bounds.last_stable_offset if selection.committed_only else bounds.next_offset


def _behind(found: list[ReadRecord], position: int) -> int:
    return found[-1].offset + 1 if found else position


@contextmanager
def _sentences() -> Generator[None]:
    try:
        yield
    except _SENTENCES as error:
        raise ClientError(str(error)) from error
