"""What was appended a moment ago is read from memory, once, within a bound; all else from the file."""

from __future__ import annotations

import tracemalloc
from pathlib import Path

import pytest

from fairlog_types import CorruptStorage, JournalPosition, LeaderEpoch
from journal.flush import Flusher
from journal.journal import Journal, JournalKind, JournalSettings
from journal.on_files import JournalsOnFiles
from journal.recent import BYTES_MAX, PAYLOAD_BYTES_MAX, RecentPayloads
from tests.journals_on_files import append

PAYLOAD = bytes(range(256)) * 4
AT = JournalPosition(8)


def test_payload_is_taken_once_and_is_a_copy() -> None:
    recent = RecentPayloads()
    received = bytearray(b"received")
    recent.keep("a", AT, (received,))
    recent.keep("b", AT, (b"in ", memoryview(b"parts")))
    received[:] = b"new data"
    assert recent.take("a", AT) == b"received"
    assert recent.take("a", AT) is None
    assert recent.take("b", AT) == b"in parts"
    assert recent.take("b", JournalPosition(16)) is None


def test_who_peeks_leaves_it_there() -> None:
    recent = RecentPayloads()
    recent.keep("a", AT, (b"payload",))
    assert recent.peek("a", AT) == recent.peek("a", AT) == b"payload"
    assert recent.take("a", AT) == b"payload"
    assert recent.peek("a", AT) is None


def are_kept(recent: RecentPayloads, numbers: range) -> list[bool]:
    """Which of the payloads at these positions are there; they are taken."""
    return [recent.take("j", JournalPosition(number)) is not None for number in numbers]


def test_oldest_goes_first_and_what_was_taken_does_not_count() -> None:
    recent = RecentPayloads()
    eighth = bytes(BYTES_MAX // 8 - 1024)
    for number in range(8):
        recent.keep("j", JournalPosition(number), (eighth,))
    assert recent.take("j", JournalPosition(1)) is not None
    recent.keep("j", JournalPosition(8), (eighth,))
    assert are_kept(recent, range(9)) == [True, False, *[True] * 7]
    for number in range(10):
        recent.keep("j", JournalPosition(number), (eighth,))
    assert are_kept(recent, range(10)) == [False, False, *[True] * 8]


def test_memory_is_bounded_however_small_the_payloads_are() -> None:
    recent = RecentPayloads()
    tracemalloc.start()
    for number in range(100_000):
        recent.keep("j", JournalPosition(number), (b"small",))
    held, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert BYTES_MAX // 8 < held < BYTES_MAX


def test_large_payload_is_not_copied_and_pushes_nothing_out() -> None:
    recent = RecentPayloads()
    recent.keep("j", JournalPosition(0), (b"small",))
    large = memoryview(bytes(PAYLOAD_BYTES_MAX // 2 + 1))
    tracemalloc.start()
    recent.keep("j", JournalPosition(1), (large, large))
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert most < PAYLOAD_BYTES_MAX // 2
    assert are_kept(recent, range(2)) == [True, False]


@pytest.fixture
def journals(flusher: Flusher) -> JournalsOnFiles:
    settings = dict.fromkeys(JournalKind, JournalSettings())
    return JournalsOnFiles(flusher, settings, LeaderEpoch(7))


def damage(journal: Journal) -> tuple[Path, bytes]:
    """Turn the payload round in the journal's file; the file, and what was in it."""
    ((path, _),) = journal.named_segments()
    data = path.read_bytes()
    path.write_bytes(data.replace(PAYLOAD, PAYLOAD[::-1]))
    return path, data


async def test_what_the_reader_changes_is_not_in_the_file(journals: JournalsOnFiles, tmp_path: Path) -> None:
    journal = await journals.open(tmp_path / "j", JournalKind.LOCAL)
    at = await append(journal, 1, PAYLOAD)
    journal.read_payload(*at)[:] = bytes(len(PAYLOAD))
    assert journal.read_payload(*at) == PAYLOAD
    await journal.close()


async def test_file_is_read_after_memory(journals: JournalsOnFiles, tmp_path: Path) -> None:
    """Damage in the file does not matter to the first who reads, and is found by the next."""
    journal = await journals.open(tmp_path / "j", JournalKind.LOCAL)
    at = await append(journal, 1, PAYLOAD)
    await journal.sync()
    path, data = damage(journal)
    assert journal.read_payload(*at) == PAYLOAD
    with pytest.raises(CorruptStorage, match="damaged frame"):
        journal.read_payload(*at)
    path.write_bytes(data)
    assert journal.read_payload(*at) == PAYLOAD
    await journal.close()


async def test_journal_that_was_opened_again_reads_the_file(journals: JournalsOnFiles, tmp_path: Path) -> None:
    """What the earlier one has kept is not its own, though the positions are the same."""
    journal = await journals.open(tmp_path / "j", JournalKind.LOCAL)
    at = await append(journal, 1, PAYLOAD)
    await journal.close()
    again = await journals.open(tmp_path / "j", JournalKind.LOCAL)
    damage(again)
    with pytest.raises(CorruptStorage, match="damaged frame"):
        again.read_payload(*at)
    await again.close()


async def test_group_journals_keep_nothing(journals: JournalsOnFiles, tmp_path: Path) -> None:
    journal = await journals.open(tmp_path / "g", JournalKind.GROUP)
    at = await append(journal, 1, PAYLOAD)
    await journal.sync()
    damage(journal)
    with pytest.raises(CorruptStorage, match="damaged frame"):
        journal.read_payload(*at)
    await journal.close()


async def test_journals_with_the_same_positions_are_told_apart(journals: JournalsOnFiles, tmp_path: Path) -> None:
    one = await journals.open(tmp_path / "one", JournalKind.LOCAL)
    other = await journals.open(tmp_path / "other", JournalKind.LOCAL)
    at = await append(one, 1, PAYLOAD)
    assert await append(other, 1, PAYLOAD[::-1]) == at
    assert other.read_payload(*at) == PAYLOAD[::-1]
    assert one.read_payload(*at) == PAYLOAD
    await one.close()
    await other.close()
