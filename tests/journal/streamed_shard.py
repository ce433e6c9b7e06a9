"""A shard that this process owns: its journals in real files, and a stream whose outcomes the test decides."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from pathlib import Path

import pytest
import trio
import trio.testing

from fairlog_types import JournalPosition, LeaderEpoch, StorageFailure
from journal.flush import Flusher
from journal.interface import OpenJournal
from journal.journal import JournalKind
from journal.streamed import StreamedJournal, StreamedJournals
from stream.writer import Ended, StreamWriter
from tests.stream.owners import owned_fold, owner
from tests.stream.scripted import ScriptedStream

SEGMENT_BYTES = 16 << 20
EPOCH = LeaderEpoch(1)
NOW_MS = 1000


class Shard:
    """The journals of a shard that this process owns, over files below `directory`."""

    def __init__(self, directory: Path, flusher: Flusher, segment_bytes: int = SEGMENT_BYTES) -> None:
        self.directory = directory
        self._flusher = flusher
        sizes = dict.fromkeys(JournalKind, segment_bytes)
        self.journals = StreamedJournals(flusher, sizes, EPOCH)
        fold, entries = owned_fold(owner("a"))
        self.stream = ScriptedStream(entry_bytes_max=100_000)
        self.stream.entries += entries
        self.ended: list[Ended] = []
        self.writer = StreamWriter(
            self.stream,
            fold,
            heartbeat_s=3600,
            gives_up_s=3600,
            accepted=self.journals.accepted,
            ended=self._has_ended,
        )
        self.journals.append_with(self.writer)

    def _has_ended(self, ended: Ended) -> None:
        self.ended.append(ended)
        self.journals.fail(StorageFailure(ended.reason))

    async def open(self, name: str = "local/a") -> StreamedJournal:
        kind = JournalKind.LOCAL if name.startswith("local") else JournalKind.GROUP
        return await self.journals.open(self.directory / name, kind)

    def replica(self) -> StreamedJournals:
        return StreamedJournals(self._flusher, dict.fromkeys(JournalKind, 100_000), EPOCH)


@pytest.fixture
async def shard(tmp_path: Path, flusher: Flusher) -> AsyncGenerator[Shard, None]:
    async with trio.open_nursery() as nursery:
        opened = Shard(tmp_path / "owner", flusher)
        nursery.start_soon(opened.writer.run)
        yield opened
        nursery.cancel_scope.cancel()


def write(journal: OpenJournal, number: int, payload: bytes = b"payload") -> JournalPosition:
    """Append one more frame; its end."""
    journal.append(5, [number], [payload], timestamp_ms=NOW_MS)
    return journal.end


async def land(shard: Shard) -> None:
    """What was flushed is accepted."""
    await trio.testing.wait_all_tasks_blocked()
    shard.stream.land_all()
    await trio.testing.wait_all_tasks_blocked()


def numbers(journal: OpenJournal, start: int = 0) -> list[object]:
    return [frame.header[0] for frame in journal.frames(JournalPosition(max(start, journal.start)))]
