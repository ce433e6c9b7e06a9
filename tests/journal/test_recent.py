"""What was appended a moment ago is read from memory, once, within a bound; all else from the file."""

from __future__ import annotations

import tracemalloc
from pathlib import Path

import pytest

from fairlog_types import CorruptStorage, JournalPosition, LeaderEpoch
from journal.flush import Flusher
from journal.journal import JournalKind, JournalSettings
from journal.on_files import JournalsOnFiles
from journal.recent import BYTES_MAX, RecentPayloads
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


def test_oldest_goes_first_and_what_was_taken_does_not_count() -> None:
    recent = RecentPayloads()
    third = bytes(BYTES_MAX // 3)
    for number in range(3):
        recent.keep("j", JournalPosition(number), (third,))
    assert recent.take("j", JournalPosition(1)) is not None
    recent.keep("j", JournalPosition(3), (third,))
    assert [recent.take("j", JournalPosition(number)) is not None for number in range(4)] == [True, False, True, True]
    for number in range(5):
        recent.keep("j", JournalPosition(number), (third,))
    kept = [recent.take("j", JournalPosition(number)) is not None for number in range(5)]
    assert kept == [False, False, True, True, True]


def test_payload_above_the_bound_is_not_held() -> None:
    recent = RecentPayloads()
    recent.keep("j", AT, (b"small",))
    large = bytes(BYTES_MAX + 1)
    tracemalloc.start()
    recent.keep("j", JournalPosition(16), (large,))
    held, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert held < BYTES_MAX
    assert recent.take("j", JournalPosition(16)) is None


@pytest.fixture
def journals(flusher: Flusher) -> JournalsOnFiles:
    settings = dict.fromkeys(JournalKind, JournalSettings())
    return JournalsOnFiles(flusher, settings, LeaderEpoch(7))


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
    ((path, _),) = journal.named_segments()
    data = path.read_bytes()
    path.write_bytes(data.replace(PAYLOAD, PAYLOAD[::-1]))
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
    ((path, _),) = again.named_segments()
    path.write_bytes(path.read_bytes().replace(PAYLOAD, PAYLOAD[::-1]))
    with pytest.raises(CorruptStorage, match="damaged frame"):
        again.read_payload(*at)
    await again.close()


async def test_group_journals_keep_nothing(journals: JournalsOnFiles, tmp_path: Path) -> None:
    journal = await journals.open(tmp_path / "g", JournalKind.GROUP)
    at = await append(journal, 1, PAYLOAD)
    await journal.sync()
    ((path, _),) = journal.named_segments()
    path.write_bytes(path.read_bytes().replace(PAYLOAD, PAYLOAD[::-1]))
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
