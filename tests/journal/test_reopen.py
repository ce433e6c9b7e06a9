"""What a restart makes of the files that a crash, or damage, left."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from fairlog_types import CorruptStorage, JournalPosition, LeaderEpoch, StorageFailure
from journal import reopen
from journal.flush import open_flusher
from journal.journal import Fsync, Journal, JournalKind, JournalSettings
from journal.segment import SEGMENT_HEADER_BYTES, segment_name

PAYLOAD = b"p" * 100


async def fill(journal: Journal, numbers: range, *, sync: bool = True) -> list[JournalPosition]:
    positions = []
    for number in numbers:
        if not journal.has_room(len(PAYLOAD)):
            await journal.make_room(len(PAYLOAD))
        positions.append(journal.append(5, [number], [PAYLOAD], timestamp_ms=0))
    if sync:
        await journal.sync()
    return positions


def found(journal: Journal) -> list[object]:
    return [frame.header[0] for frame in journal.frames(journal.start)]


def overwrite(path: Path, position: int, data: bytes, *, base: int = 0) -> None:
    with path.open("r+b") as file:
        file.seek(SEGMENT_HEADER_BYTES + position - base)
        file.write(data)


@pytest.fixture
def crash(tmp_path: Path):
    """Copy a journal's files as they lie there now, as journal `crashed`; the process itself goes on."""

    def copy(name: str = "j") -> Path:
        while True:
            try:
                shutil.copytree(tmp_path / name, tmp_path / "crashed")
            except shutil.Error:  # a spare segment got its name between listing and copying: a crash has one moment
                shutil.rmtree(tmp_path / "crashed")
            else:
                return tmp_path / "crashed"

    return copy


@pytest.fixture
async def three_segments(open_journal, tmp_path: Path) -> list[Path]:
    """A cleanly closed journal `j` of three segments with frames 0-9, 10-19 and 20-29."""
    journal = await open_journal()
    for part in range(3):
        await journal.roll()
        await fill(journal, range(part * 10, part * 10 + 10))
    await journal.close()
    return sorted((tmp_path / "j").iterdir())


async def test_reopen_after_a_kill_keeps_everything_in_the_page_cache(open_journal, crash) -> None:
    """A mere kill tears nothing: what was appended is there, synced or not, and is durable then."""
    journal = await open_journal()
    await fill(journal, range(5))
    await fill(journal, range(5, 8), sync=False)
    crash()
    again = await open_journal("crashed")
    assert found(again) == list(range(8))
    assert again.durable == again.end == journal.end


async def test_reopen_writes_again_what_nobody_witnessed(open_journal, crash, disk, monkeypatch) -> None:
    """Frames that may be in memory only, after a write-back that failed, are written before they are synced."""
    journal = await open_journal()
    await fill(journal, range(5))
    witnessed = journal.end
    await fill(journal, range(5, 8), sync=False)
    crash()
    written: list[tuple[int, int]] = []
    write_all = reopen.write_all

    def spy(fd: int, data: bytes, offset: int) -> None:
        assert not any("crashed" in name for name in disk.synced)
        written.append((offset, offset + len(data)))
        write_all(fd, data, offset)

    monkeypatch.setattr(reopen, "write_all", spy)
    again = await open_journal("crashed")
    assert written == [(SEGMENT_HEADER_BYTES + witnessed, SEGMENT_HEADER_BYTES + again.end)]
    assert any("crashed" in name for name in disk.synced)


async def test_reopen_with_a_torn_tail_cuts_it_and_says_so(open_journal, crash) -> None:
    """The tail goes, with one log line; it is zeroed, and the journal goes on where it was cut."""
    journal = await open_journal()
    await fill(journal, range(5))
    torn = await fill(journal, range(5, 9), sync=False)
    segment = crash() / segment_name(JournalPosition(0))
    overwrite(segment, torn[1] + 40, b"torn")
    with capture_logs() as logs:
        again = await open_journal("crashed")
    assert [(line["event"], line["position"], line["frames_cut"]) for line in logs] == [
        ("journal.tail_cut", torn[1], 2)
    ]
    assert not any(segment.read_bytes()[SEGMENT_HEADER_BYTES + torn[1] :])
    assert found(again) == list(range(6))
    await fill(again, range(6, 8))
    await again.close()
    assert found(await open_journal("crashed")) == list(range(8))


async def test_reopen_with_damage_before_witnessed_frames_is_refused(open_journal, crash) -> None:
    """Damage to what was durable names file and byte, and leaves the file as it is."""
    journal = await open_journal()
    positions = await fill(journal, range(5))
    await fill(journal, range(5, 8), sync=False)
    segment = crash() / segment_name(JournalPosition(0))
    overwrite(segment, positions[2] + 40, b"damage")
    before = segment.read_bytes()
    where = rf"{segment.name}: byte {SEGMENT_HEADER_BYTES + positions[2]} \(journal position {positions[2]}\)"
    with pytest.raises(CorruptStorage, match=where):
        await open_journal("crashed")
    assert segment.read_bytes() == before


async def test_reopen_after_a_clean_close_refuses_damage_to_the_last_frame(open_journal, three_segments) -> None:
    """The close mark is the witness of the last record."""
    last = bytearray(three_segments[2].read_bytes())
    at = last.rindex(PAYLOAD)
    last[at] ^= 1
    three_segments[2].write_bytes(last)
    with pytest.raises(CorruptStorage, match="hole with a witness"):
        await open_journal()


@pytest.mark.parametrize("left", [0, 3, 9])
async def test_reopen_after_a_clean_close_refuses_a_journal_that_lost_its_end(
    open_journal, three_segments, left: int
) -> None:
    """Zeros, or nothing at all, where frames were: the close mark tells it from preallocated room."""
    whole = three_segments[2].read_bytes()
    cut = whole.index(PAYLOAD) if left == 0 else [at.start() for at in re.finditer(PAYLOAD, whole)][left]
    for content in (whole[:cut], whole[:cut].ljust(len(whole), b"\0")):
        three_segments[2].write_bytes(content)
        with pytest.raises(CorruptStorage, match=f"{three_segments[2].name}: byte .*hole with a witness.*close mark"):
            await open_journal()
        assert three_segments[2].read_bytes() == content


async def test_reopen_after_a_close_and_a_torn_frame_keeps_what_the_mark_vouches_for(
    open_journal, three_segments
) -> None:
    """The next life's first frame tears, and damage to what was closed is found all the same."""
    journal = await open_journal()
    position = (await fill(journal, range(30, 31), sync=False))[0]
    base = int(three_segments[2].name[:20])
    overwrite(three_segments[2], position + 50, b"torn", base=base)
    again = await open_journal()
    assert found(again) == list(range(30))
    await fill(again, range(30, 31), sync=False)
    overwrite(three_segments[2], position + 50, b"torn", base=base)
    overwrite(three_segments[2], base + 60, b"damage", base=base)
    with pytest.raises(CorruptStorage, match="hole with a witness"):
        await open_journal()


async def test_reopen_without_a_middle_segment_is_refused(open_journal, three_segments) -> None:
    """A gap between two segments is found at the start, not when somebody reads there."""
    three_segments[1].unlink()
    with pytest.raises(CorruptStorage, match="segment missing or short"):
        await open_journal()


async def test_reopen_with_a_shortened_or_lengthened_sealed_segment_is_refused(open_journal, three_segments) -> None:
    """A segment with a successor has exactly the length of its frames."""
    whole = three_segments[0].read_bytes()
    three_segments[0].write_bytes(whole[:-8])
    with pytest.raises(CorruptStorage, match=f"{three_segments[0].name}.*short"):
        await open_journal()
    three_segments[0].write_bytes(whole + bytes(8))
    with pytest.raises(CorruptStorage, match=f"{three_segments[0].name}.*too long"):
        await open_journal()


async def test_reopen_with_a_damaged_sealed_frame_is_refused_when_it_is_read(open_journal, three_segments) -> None:
    """Sealed segments are not scanned at the start; whoever reads finds the damage, named."""
    overwrite(three_segments[1], 100, b"damage")
    journal = await open_journal()
    with pytest.raises(CorruptStorage, match=three_segments[1].name):
        found(journal)


@pytest.mark.parametrize("which", [0, 1, 2])
async def test_reopen_with_an_unreadable_header_is_refused(open_journal, three_segments, which: int) -> None:
    """Without its header a segment that holds something is lost, wherever it stands."""
    overwrite(three_segments[which], -SEGMENT_HEADER_BYTES, b"damage")
    with pytest.raises(CorruptStorage, match=f"{three_segments[which].name}: byte 0: .*header"):
        await open_journal()


async def test_reopen_with_a_headless_empty_last_segment_goes_on_there(open_journal, three_segments) -> None:
    """A last segment without header and frames never held anything; its position stands in its name and is kept."""
    journal = await open_journal()
    end = journal.end
    await journal.close()
    size = three_segments[2].stat().st_size
    frames_end = SEGMENT_HEADER_BYTES + end - int(three_segments[2].name[:20])
    with three_segments[2].open("r+b") as file:
        file.truncate(frames_end)
    for content in (b"", b"FAIR", bytes(4096)):
        path = three_segments[2].with_name(segment_name(end))
        path.write_bytes(content)
        journal = await open_journal()
        assert journal.end == end
        assert found(journal) == list(range(30))
        await fill(journal, range(30, 31))
        assert found(journal) == list(range(31))
        path.unlink()
    assert size > frames_end


async def test_reopen_of_another_kind_or_place_is_refused(open_journal, three_segments, tmp_path) -> None:
    """A group journal is not a local one, and a segment under another name is not the one that is looked for."""
    with pytest.raises(CorruptStorage, match="foreign header"):
        await open_journal(kind=JournalKind.GROUP)
    (tmp_path / "other").mkdir()
    shutil.copy(three_segments[1], tmp_path / "other" / segment_name(JournalPosition(8)))
    with pytest.raises(CorruptStorage, match="foreign header"):
        await open_journal("other")


async def test_reopen_adopts_a_segment_that_had_no_name_yet(open_journal, crash, disk) -> None:
    """With fsync=never what was answered survives a kill, also in a segment that still waited for its name."""
    journal = await open_journal(fsync=Fsync.NEVER)
    await fill(journal, range(5))
    await disk.hold_at_roll(journal)
    await fill(journal, range(5, 10), sync=False)
    files = crash()
    disk.let_go()
    assert any(files.glob("*.new"))
    again = await open_journal("crashed", fsync=Fsync.NEVER)
    assert found(again) == list(range(10))
    assert again.end == journal.end
    assert not any(files.glob("*.new"))
    await again.close()
    assert found(await open_journal("crashed")) == list(range(10))


async def test_reopen_deletes_a_nameless_segment_that_does_not_continue_the_journal(open_journal, crash, disk) -> None:
    """If the tail before it is torn, what follows without a name was not durable either."""
    journal = await open_journal()
    await fill(journal, range(5))
    torn = await fill(journal, range(5, 7), sync=False)
    roll_base = await disk.hold_at_roll(journal)
    journal.append(5, [7], timestamp_ms=0)
    files = crash()
    disk.let_go()
    overwrite(files / segment_name(JournalPosition(0)), torn[1] + 40, b"torn")
    again = await open_journal("crashed")
    assert found(again) == list(range(6))
    assert roll_base > again.end
    assert not any(files.glob("*.new"))


@pytest.mark.parametrize("damage", [b"torn", None])
async def test_reopen_with_a_nameless_segment_that_knew_the_hole_to_be_durable_is_refused(
    open_journal, crash, disk, damage: bytes | None
) -> None:
    """A witness counts wherever it lies: durable frames are not cut, nor its segment deleted, though zeros follow."""
    journal = await open_journal()
    positions = await fill(journal, range(7))
    await disk.hold_at_roll(journal)
    journal.append(5, [7], timestamp_ms=0)
    files = crash()
    disk.let_go()
    segment = files / segment_name(JournalPosition(0))
    overwrite(segment, positions[6], damage or bytes(journal.end - positions[6]))
    before = {path: path.read_bytes() for path in files.iterdir()}
    assert len(before) == 2
    where = rf"{segment.name}: byte {SEGMENT_HEADER_BYTES + positions[6]} .*hole with a witness"
    with pytest.raises(CorruptStorage, match=where):
        await open_journal("crashed")
    assert {path: path.read_bytes() for path in files.iterdir()} == before
    segment.unlink()
    with pytest.raises(CorruptStorage, match="all segments are missing"):
        await open_journal("crashed")


class Watcher:
    """Remembers what it was told, and what a file held at that moment."""

    def __init__(self, file: Path | None = None) -> None:
        self.file = file
        self.seen: list[bytes] = []
        self.interrupted: list[bool] = []
        self.failures = 0

    def tail_cut(self, interrupted: bool) -> None:
        self.interrupted.append(interrupted)
        self.seen.append(self.file.read_bytes() if self.file else b"")

    def failed(self) -> None:
        self.failures += 1


async def test_reopen_tells_of_a_torn_tail_before_it_is_cut(open_journal, crash, tmp_path) -> None:
    """Behind the cut nothing shows that there was a tail; so who wants to note it must hear of it before."""
    journal = await open_journal()
    torn = await fill(journal, range(5), sync=False)
    segment = crash() / segment_name(JournalPosition(0))
    watcher = Watcher(segment)
    reopen_now(segment.parent, watcher)
    assert watcher.seen == []
    overwrite(segment, torn[3] + 40, b"torn")
    before = segment.read_bytes()
    assert reopen_now(segment.parent, watcher) != before
    assert watcher.seen == [before]
    reopen_now(segment.parent, watcher)
    assert watcher.seen == [before]


@pytest.mark.parametrize("interrupted", [True, False])
async def test_reopen_says_whether_the_tail_looks_like_an_interrupted_write(
    open_journal, crash, interrupted: bool
) -> None:
    """A kill in the middle of an append takes that frame only; damage may have taken what was answered."""
    journal = await open_journal()
    await fill(journal, range(5))
    await journal.make_room(10_000)
    position = journal.append(5, [5], [b"y" * 10_000], timestamp_ms=0)
    segment = crash() / segment_name(JournalPosition(0))
    page = -(-(SEGMENT_HEADER_BYTES + position + 1) // 4096) * 4096
    if interrupted:
        overwrite(segment, page - SEGMENT_HEADER_BYTES, bytes(12_000))
    else:
        overwrite(segment, position + 40, b"torn")
    watcher = Watcher()
    reopen_now(segment.parent, watcher)
    assert watcher.interrupted == [interrupted]


def reopen_now(directory: Path, watcher: Watcher) -> bytes:
    """Reopen a local journal; what its first segment holds then."""
    reopen.reopen(directory, kind=JournalKind.LOCAL, fsync=Fsync.COMMIT, sync=lambda _fd: None, on_cut=watcher.tail_cut)
    return (directory / segment_name(JournalPosition(0))).read_bytes()


async def test_journal_that_fails_tells_the_watcher_once(disk, tmp_path) -> None:
    """What such a journal had in memory may be lost, and the next start cannot see that."""
    watcher = Watcher()
    async with open_flusher(threads=1, sync=disk, watcher=watcher) as flusher:
        journal = await Journal.open(
            tmp_path / "j",
            kind=JournalKind.LOCAL,
            settings=JournalSettings(),
            flusher=flusher,
            leader_epoch=LeaderEpoch(1),
        )
        await fill(journal, range(2))
        assert watcher.failures == 0
        disk.fail()
        with pytest.raises(StorageFailure):
            await fill(journal, range(2, 4))
        with pytest.raises(StorageFailure):
            await fill(journal, range(4, 6))
    assert watcher.failures == 1
