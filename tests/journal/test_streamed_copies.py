"""Copies of journals on a replicated log: they take what was accepted, and nothing else."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from crc32c import crc32c

from fairlog_types import CorruptStorage, JournalPosition
from journal.frame import encode_replicated
from journal.journal import JournalKind
from journal.streamed import StreamedJournal
from stream.fold import Fold, Frames
from tests.journal.streamed_shard import EPOCH, NOW_MS, Shard, land, numbers, write
from tests.journal.streamed_shard import shard as shard
from tests.stream.owners import NAME


async def test_copy_that_takes_what_was_accepted_has_the_same_bytes(shard: Shard, tmp_path: Path) -> None:
    """In segments of its own, and as often as it is started; what it has already is passed over."""
    names = ("local/a", "local/b", "group/0")
    journals = {name: await shard.open(name) for name in names}
    for number in range(60):
        journal = journals[names[number % 3]]
        payload = bytes([number]) * (number * 150)
        while not journal.has_room(len(payload)):
            await journal.make_room(len(payload))
        write(journal, number, payload)
        if number % 4 == 0:
            journal.start_flush()
            await land(shard)
    journals["local/a"].start_flush()
    await land(shard)
    for life in range(2):
        copies = shard.replica()
        opened = {name: await copies.open(tmp_path / "copy" / name, JournalKind.LOCAL) for name in names}
        if life == 0:
            assert copies.get("local/a") is opened["local/a"]
        fold = Fold(NAME)
        taken = 0
        for data in shard.stream.entries[: None if life else 9]:
            folded = fold.step(fold.next_position, data)
            for name, frame in folded.frames if isinstance(folded, Frames) else ():
                found = opened[name].take(frame)
                copies.took({name})
                taken += found is not None
                if found is not None:
                    assert (found.kind, found.timestamp_ms, found.leader_epoch) == (5, NOW_MS, EPOCH)
                    assert opened[name].end == opened[name].durable == found.end
        await copies.sync_files()
        assert all(copy._file._synced == copy.durable for copy in opened.values())
        if life:
            assert 0 < taken < 60
            for name, journal in journals.items():
                assert _replicated(opened[name]) == _replicated(journal)
        for copy in opened.values():
            await copy.close()
    for journal in journals.values():
        await journal.close()


def _replicated(journal: StreamedJournal) -> list[bytes]:
    """What is replicated of each frame in the files."""
    parts: list[bytes] = []
    for frame in journal.frames(JournalPosition(0)):
        payload = journal.read_payload(frame.position, frame.end - frame.position)
        fields = {
            "position": frame.position,
            "leader_epoch": frame.leader_epoch,
            "timestamp_ms": frame.timestamp_ms,
            "kind": frame.kind,
            "header": frame.header,
            "payload": [payload],
        }
        parts.append(b"".join(encode_replicated(**fields)))  # type: ignore[arg-type]
    return parts


def _frame(position: int, number: int = 0) -> bytes:
    parts = encode_replicated(
        position=JournalPosition(position), leader_epoch=EPOCH, timestamp_ms=NOW_MS, kind=5, header=[number]
    )
    return b"".join(parts)


def _without_header() -> bytes:
    """A frame that its writer has summed, but whose fields are not a row."""
    part = bytearray(_frame(0))
    assert part[32:] == b"\x81\x00"
    return _summed(part[:32] + b"\xa0\x00")


def _summed(part: bytes) -> bytes:
    return crc32c(part[4:]).to_bytes(4, "little") + bytes(part[4:])


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (_frame(0)[:-1], "has a damaged frame of the journal local/a"),
        (_frame(0)[:-1] + b"?", "has a damaged frame of the journal local/a: its checksum is wrong"),
        (_frame(800), "ends at 0, but the stream goes on at 800"),
        (_without_header(), "not an array"),
    ],
    ids=["short", "changed", "after a hole", "without fields"],
)
async def test_copy_takes_no_frame_that_cannot_be_the_next(shard: Shard, data: bytes, why: str) -> None:
    """It says what is wrong, and its file stays as it was."""
    journal = await shard.open()
    with pytest.raises(CorruptStorage, match=re.escape(why)):
        journal.take(data)
    assert (journal.end, numbers(journal)) == (0, [])
    taken = journal.take(_frame(0))
    assert taken is not None
    assert journal.take(_frame(0)) is None
    await journal.make_room_in_file(1000)
    assert journal.take(_frame(taken.end, 1)) is not None
    assert numbers(journal) == [0, 1]
    await journal.close()


async def test_copy_becomes_the_owner_and_goes_on_where_it_is(shard: Shard) -> None:
    """What it has taken comes before what it appends."""
    journal = await shard.open()
    assert journal.take(_frame(0)) is not None
    write(journal, 1)
    journal.start_flush()
    await land(shard)
    assert (numbers(journal), journal.durable) == ([0, 1], journal.end)
    await journal.close()
