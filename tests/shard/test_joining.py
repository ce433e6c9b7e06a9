"""A copy of a replica that goes on meanwhile is what the replica was, and reads on. Real files, a model stream."""

from __future__ import annotations

import itertools
import os
import random
import shutil
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import trio

from datalog.interface import ReadRequest, ReadResult
from fairlog_types import CorruptStorage, Offset, ShardNumber, StorageFailure
from journal.streamed import StreamedJournals
from partition.modes import JOURNAL
from shard import giving, joining
from shard.copy_parts import (
    CopyBegins,
    CopyEnds,
    FileBegins,
    FileBytes,
    FileEnds,
    Part,
)
from shard.directory import FIRST_SHARD, ShardDirectory, belongs_to_copy, draft_of_copy, shard_directory
from shard.giving import Giver, NothingToGive
from shard.joining import BadCopy, Draft, falls_short, remove_copy, remove_leftovers
from shard.partitions import Partitions
from shard.replica import Replica, open_replica, save_mark
from shard.shard import open_storage
from shard.stream_mark import encode_mark
from stream.engine import Stream, StreamPosition
from stream.fold import FoldState
from tests.shard.test_replica import A, B, OwnerInTest, a_stream, take
from tests.stream.members import SETTINGS, NobodyWatches
from tests.stream.model_engine import open_model

SMALL = replace(SETTINGS, segment_bytes_max=2**16, group_segment_bytes_max=2**16)
"""Journals that roll every few frames of these tests."""


@asynccontextmanager
async def replica_in(data_dir: Path, stream: Stream) -> AsyncIterator[Replica]:
    """With all that it needs, and the copier running."""

    async def adopt(_partitions: Partitions, _log: object) -> bool:
        return False

    shard = shard_directory(data_dir, FIRST_SHARD)
    async with (
        open_storage(shard, map_bytes=2**26, watcher=NobodyWatches()) as storage,
        open_replica(shard, storage, SMALL, stream, group_journals=range(2), adopt=adopt, now_ms=lambda: 1) as replica,
        trio.open_nursery() as nursery,
    ):
        await replica.partitions.lead([A, B], JOURNAL)
        nursery.start_soon(replica.partitions.copy)
        yield replica
        nursery.cancel_scope.cancel()


async def give(replica: Replica, data_dir: Path, stream: Stream, send: Callable[[Part], Awaitable[None]]) -> None:
    giver = Giver()
    with giver.gives(
        shard_directory(data_dir, FIRST_SHARD),
        replica.partitions.data_logs,
        replica.journals,
        stream.name,
        lambda: replica.taken,
        lambda: True,
    ):
        await giver.give(stream.name, send)


def batches(replica: Replica) -> list[list[bytes]]:
    answers = replica.partitions.data_logs.read(
        [ReadRequest(log, Offset(0), 1 << 30) for log in (A, B)], bytes_max=1 << 30
    )
    return [[bytes(data) for data in answer.batches] for answer in answers if isinstance(answer, ReadResult)]


def writing(source: random.Random, owner: OwnerInTest, count: int) -> None:
    """Entries with plain batches, and with transactions of which some stay open over other entries."""
    for _ in range(count):
        log = source.choice([A, B])
        owner.append(owner.plain(log, owner.offsets[log], bytes(source.randrange(20_000))))
        owner.offsets[log] += 1


class Writer(OwnerInTest):
    """An owner by hand that counts offsets."""

    def __init__(self) -> None:
        super().__init__()
        self.offsets = dict.fromkeys((A, B), 0)

    def open(self) -> None:
        self.append(self.in_transaction(A, b"a"), self.in_transaction(B, b"b"))

    def commit(self) -> None:
        self.append(self.applied(A, self.offsets[A]), self.applied(B, self.offsets[B]))
        for log in (A, B):
            self.offsets[log] += 1


@pytest.mark.parametrize("seed", range(8))
async def test_copy_of_a_replica_that_goes_on_has_equal_content_once_it_has_read_on(tmp_path: Path, seed: int) -> None:
    """Also of a transaction that is open in the copy, and of journals that roll and delete segments meanwhile."""
    source, owner = random.Random(seed), Writer()
    writing(source, owner, 20)
    owner.open()
    writing(source, owner, 5)
    begun = len(owner.entries)
    writing(source, owner, 30)
    owner.commit()
    writing(source, owner, 5)
    giver, joiner = tmp_path / "giver", tmp_path / "joiner"
    async with a_stream() as stream, replica_in(giver, stream) as replica:
        replica.recover_before(StreamPosition(0))
        await take(replica, owner.entries[:begun])
        draft = Draft(shard_directory(joiner, FIRST_SHARD), stream.name)
        marks: list[StreamPosition] = []

        async def send(part: Part) -> None:
            if isinstance(part, CopyBegins):
                marks.append(part.mark)
            if source.random() < 0.5:
                more = replica.fold.next_position + source.randrange(4)
                await take(replica, owner.entries[:more])
                await replica.partitions.drain()
            await trio.to_thread.run_sync(draft.take, part)

        await give(replica, giver, stream, send)
        draft.install()
        await take(replica, owner.entries)
        await replica.partitions.drain()
        assert marks == [begun - 1]
        async with replica_in(joiner, stream) as copy:
            assert copy.fold.next_position == begun
            copy.recover_before(StreamPosition(len(owner.entries)))
            await take(copy, owner.entries)
            await copy.partitions.drain()
            assert copy.taken == replica.taken
            assert batches(copy) == batches(replica)
            assert sum(map(len, batches(copy))) == 62
    assert not list((giver / "copies").iterdir())


async def parts_of(replica: Replica, data_dir: Path, stream: Stream) -> list[Part]:
    parts: list[Part] = []

    async def send(part: Part) -> None:
        parts.append(part)
        await trio.lowlevel.checkpoint()

    await give(replica, data_dir, stream, send)
    return parts


async def test_close_of_the_givers_journals_meanwhile_is_none_of_the_copys(tmp_path: Path) -> None:
    """A close mark says how far the giver's file was on disk, which is further than the copy goes."""
    owner = Writer()
    writing(random.Random(0), owner, 3)
    giver, joiner = tmp_path / "giver", tmp_path / "joiner"
    async with a_stream() as stream:
        draft = Draft(shard_directory(joiner, FIRST_SHARD), stream.name)
        async with replica_in(giver, stream) as replica:
            replica.recover_before(StreamPosition(0))
            await take(replica, owner.entries)
            writing(random.Random(0), owner, 3)

            async def send(part: Part) -> None:
                if isinstance(part, CopyBegins):
                    await take(replica, owner.entries)
                    for log in (A, B):
                        journal = replica.journals.get(f"local/{log}")
                        assert journal is not None
                        await journal.close()
                draft.take(part)

            await give(replica, giver, stream, send)
        draft.install()
        async with replica_in(joiner, stream) as copy:
            copy.recover_before(StreamPosition(len(owner.entries)))
            await take(copy, owner.entries)
            await copy.partitions.drain()
            assert sum(map(len, batches(copy))) == 6


async def test_segment_that_is_deleted_before_it_is_linked_has_everything_done_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The mark is then that of the second time; if it happens always, there is no copy, and nothing was sent."""
    owner = Writer()
    writing(random.Random(0), owner, 3)
    async with a_stream() as stream, replica_in(tmp_path, stream) as replica:
        replica.recover_before(StreamPosition(0))
        await take(replica, owner.entries)
        writing(random.Random(0), owner, 1)
        real_link, real_sync, gone, syncs = os.link, StreamedJournals.sync_files, 3, 0

        def link(source: Path, target: Path) -> None:
            nonlocal gone
            gone -= 1
            if gone >= 0:
                raise FileNotFoundError(source)
            real_link(source, target)

        async def sync(journals: StreamedJournals) -> None:
            nonlocal syncs
            syncs += 1
            if syncs == 2:
                await take(replica, owner.entries)
            await real_sync(journals)

        monkeypatch.setattr(giving.os, "link", link)
        monkeypatch.setattr(StreamedJournals, "sync_files", sync)
        parts = await parts_of(replica, tmp_path, stream)
        assert syncs == 4
        assert isinstance(parts[0], CopyBegins)
        assert parts[0].mark == len(owner.entries) - 1
        gone = 10**6
        with pytest.raises(NothingToGive, match="faster than they can be linked"):
            await parts_of(replica, tmp_path, stream)
        assert not list((tmp_path / "copies").iterdir())


async def test_segment_that_has_no_name_yet_is_not_sent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Everything through the mark is in others; what is in it comes from the stream."""
    owner = Writer()
    writing(random.Random(0), owner, 3)
    giver, joiner = tmp_path / "giver", tmp_path / "joiner"
    async with a_stream() as stream, replica_in(giver, stream) as replica:
        replica.recover_before(StreamPosition(0))
        await take(replica, owner.entries)
        frames = [owner.plain(A, owner.offsets[A] + number, bytes(30_000)) for number in range(3)]
        owner.append(*frames)
        journal = replica.journals.get(f"local/{A}")
        assert journal is not None
        real_sync = StreamedJournals.sync_files

        async def sync(journals: StreamedJournals) -> None:
            await real_sync(journals)
            patched.setattr(journal._file._flusher, "start", lambda _journal: None)
            for frame in frames:
                journal.take(frame.data)
            assert not journal._file._segments.writing[-1].published

        with monkeypatch.context() as patched:
            patched.setattr(StreamedJournals, "sync_files", sync)
            sent = await parts_of(replica, giver, stream)
        joined(joiner, sent)
        await take(replica, owner.entries)
        await replica.partitions.drain()
        async with replica_in(joiner, stream) as copy:
            copy.recover_before(StreamPosition(len(owner.entries)))
            await take(copy, owner.entries)
            await copy.partitions.drain()
            assert copy.taken == replica.taken
            journal = copy.journals.get(f"local/{A}")
            assert journal is not None
            assert journal.end == replica.journals.get(f"local/{A}").end  # type: ignore[union-attr]


async def test_copy_is_given_when_it_is_complete_of_its_own_stream_and_one_at_a_time(tmp_path: Path) -> None:
    async with a_stream() as stream, replica_in(tmp_path, stream) as replica:
        giver, complete = Giver(), False
        shard, begun, over = shard_directory(tmp_path, FIRST_SHARD), trio.Event(), trio.Event()

        async def waits(_part: Part) -> None:
            begun.set()
            await over.wait()

        with pytest.raises(NothingToGive, match="not complete"):
            await giver.give(stream.name, waits)
        logs = replica.partitions.data_logs
        with giver.gives(shard, logs, replica.journals, stream.name, lambda: replica.taken, lambda: complete):
            with pytest.raises(NothingToGive, match="not complete"):
                await giver.give(stream.name, waits)
            complete = True
            with pytest.raises(NothingToGive, match="not of another"):
                await giver.give("another", waits)
            async with trio.open_nursery() as nursery:
                nursery.start_soon(giver.give, stream.name, waits)
                await begun.wait()
                with pytest.raises(NothingToGive, match="another node"):
                    await giver.give(stream.name, waits)
                over.set()
            await giver.give(stream.name, waits)
        with pytest.raises(NothingToGive, match="not complete"):
            await giver.give(stream.name, waits)


@pytest.mark.parametrize("cancelled", [False, True])
async def test_failure_while_sending_ends_the_copy_and_leaves_no_thread_or_link(
    tmp_path: Path, cancelled: bool
) -> None:
    """At each part: what is raised is what `send` has raised, and not in a group; the next copy is a whole one."""
    owner = Writer()
    writing(random.Random(0), owner, 60)  # data logs that no pipe holds
    async with a_stream() as stream, replica_in(tmp_path, stream) as replica:
        replica.recover_before(StreamPosition(0))
        await take(replica, owner.entries)
        await replica.partitions.drain()
        for failing in itertools.count():
            left, scope, failed = failing, trio.CancelScope(), False

            async def send(_part: Part, scope: trio.CancelScope = scope) -> None:
                nonlocal left
                left -= 1
                if left < 0 and not cancelled:
                    raise trio.BrokenResourceError("gone")
                if left < 0:
                    scope.cancel()
                await trio.lowlevel.checkpoint()

            try:
                with scope:
                    await give(replica, tmp_path, stream, send)
            except trio.BrokenResourceError:
                failed = True
            if not failed and not scope.cancelled_caught:
                break
        assert failing > 30
        assert not list((tmp_path / "copies").iterdir())


async def test_data_logs_that_cannot_be_copied_are_told_in_no_group(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with a_stream() as stream, replica_in(tmp_path, stream) as replica:

        def refuse(_descriptor: int) -> None:
            raise StorageFailure("the disk refuses")

        monkeypatch.setattr(replica.partitions.data_logs, "copy_into", refuse)
        sent: list[Part] = []

        async def send(part: Part) -> None:
            await trio.lowlevel.checkpoint()
            sent.append(part)

        with pytest.raises(StorageFailure, match="the disk refuses"):
            await give(replica, tmp_path, stream, send)
        assert sent[-1] == FileBegins("datalog/data.mdb")  # nobody may take it for a whole file


# --- the side that joins ---


@pytest.fixture
async def parts(tmp_path: Path) -> list[Part]:
    """A small copy, of which the mark is at entry 3."""
    owner = Writer()
    writing(random.Random(0), owner, 3)
    async with a_stream() as stream, replica_in(tmp_path / "giver", stream) as replica:
        replica.recover_before(StreamPosition(0))
        await take(replica, owner.entries)
        await replica.partitions.drain()
        return await parts_of(replica, tmp_path / "giver", stream)


def joined(data_dir: Path, parts: Sequence[Part]) -> ShardDirectory:
    shard = shard_directory(data_dir, FIRST_SHARD)
    draft = Draft(shard, "shard-0")
    for part in parts:
        draft.take(part)
    draft.install()
    return shard


def content(directory: Path) -> dict[str, bytes]:
    return {
        path.relative_to(directory).as_posix(): path.read_bytes() for path in directory.rglob("*") if path.is_file()
    }


async def test_copy_that_is_not_whole_leaves_nothing_after_a_kill(tmp_path: Path, parts: list[Part]) -> None:
    """After each part: what was there is as it was, and the next attempt succeeds."""
    data_dir = tmp_path / "joiner"
    shard = shard_directory(data_dir, FIRST_SHARD)
    shard.path.mkdir(parents=True)
    (shard.path / "stream-mark").write_bytes(b"old")
    for kill_after in range(len(parts)):
        draft = Draft(shard, "shard-0")
        for part in parts[:kill_after]:
            draft.take(part)
        remove_leftovers(data_dir)
        assert content(data_dir) == {"shards/0/stream-mark": b"old"}
    assert set(content(joined(data_dir, parts).path)) == {part.name for part in parts if isinstance(part, FileBegins)}
    assert not list((data_dir / "copies").iterdir())
    remove_leftovers(data_dir)
    remove_leftovers(data_dir)


class Killed(BaseException):
    pass


@pytest.mark.parametrize("was_there", [False, True])
async def test_kill_while_a_copy_is_put_in_place_leaves_all_or_nothing(
    tmp_path: Path, parts: list[Part], monkeypatch: pytest.MonkeyPatch, was_there: bool
) -> None:
    """At each of the system calls with which it is done."""
    whole = content(joined(tmp_path / "whole", parts).path)
    left, outcomes = 0, set[str]()

    def dies(call: Callable[..., Any]) -> Callable[..., Any]:
        def called(*args: Any, **kwargs: Any) -> Any:
            nonlocal left
            left -= 1
            if left < 0:
                raise Killed
            return call(*args, **kwargs)

        return called

    for kill_at in range(100):
        data_dir = tmp_path / str(kill_at)
        shard = shard_directory(data_dir, FIRST_SHARD)
        if was_there:
            shard.path.mkdir(parents=True)
            (shard.path / "stream-mark").write_bytes(b"old")
            (shard.path / "lock").touch()
        draft = Draft(shard, "shard-0")
        for part in parts:
            draft.take(part)
        left = kill_at
        with monkeypatch.context() as patched:
            for name in ("rename", "link", "unlink", "rmdir", "mkdir", "fsync"):
                patched.setattr(os, name, dies(getattr(os, name)))
            try:
                draft.install()
            except Killed:
                killed = True
            else:
                killed = False
        remove_leftovers(data_dir)
        found = content(shard.path) if shard.path.exists() else {}
        had_lock = found.pop("lock", None) is not None
        outcomes.add("new" if found == whole else "old" if found == {"stream-mark": b"old"} else "nothing")
        assert found in (whole, {"stream-mark": b"old"}, {})
        if found == whole:
            assert had_lock is was_there
        if not killed:
            break
    assert not killed
    assert outcomes == ({"old", "nothing", "new"} if was_there else {"nothing", "new"})


async def test_lock_of_the_shard_stays_the_same_file(tmp_path: Path, parts: list[Part]) -> None:
    """Whoever holds the shard holds it afterwards."""
    shard = shard_directory(tmp_path, FIRST_SHARD)
    shard.path.mkdir(parents=True)
    (shard.path / "lock").touch()
    before = (shard.path / "lock").stat().st_ino
    joined(tmp_path, parts)
    assert (shard.path / "lock").stat().st_ino == before


async def test_disk_that_refuses_the_last_step_has_what_was_there(
    tmp_path: Path, parts: list[Part], monkeypatch: pytest.MonkeyPatch
) -> None:
    shard = shard_directory(tmp_path, FIRST_SHARD)
    shard.path.mkdir(parents=True)
    (shard.path / "stream-mark").write_bytes(b"old")
    draft = Draft(shard, "shard-0")
    for part in parts:
        draft.take(part)
    real = os.rename

    def rename(source: Path, target: Path) -> None:
        if Path(source) == draft_of_copy(tmp_path, FIRST_SHARD).path:
            raise OSError(5, "the disk refuses")
        real(source, target)

    monkeypatch.setattr(os, "rename", rename)
    with pytest.raises(OSError, match="refuses"):
        draft.install()
    assert content(shard.path) == {"stream-mark": b"old"}


def changed(parts: Sequence[Part], at: int, *instead: Part) -> list[Part]:
    return [*parts[:at], *instead, *parts[at + 1 :]]


async def test_copy_with_any_part_missing_twice_or_changed_is_refused(tmp_path: Path, parts: list[Part]) -> None:
    for at, part in enumerate(parts):
        wrong = [changed(parts, at), changed(parts, at, part, part)]
        match part:
            case CopyBegins(mark, total_bytes):
                wrong.append(changed(parts, at, CopyBegins(StreamPosition(mark + 1), total_bytes)))
            case FileBegins():
                wrong += [changed(parts, at, FileBegins(name)) for name in ("groups/data.mdb", "lock", "../x", "/x")]
            case FileBytes(data):
                wrong.append(changed(parts, at, FileBytes(bytes((data[0] ^ 1,)) + data[1:])))
            case FileEnds(size, crc):
                wrong += [changed(parts, at, FileEnds(size + 1, crc)), changed(parts, at, FileEnds(size, crc ^ 1))]
            case CopyEnds(files):
                wrong.append(changed(parts, at, CopyEnds(files - 1)))
            case _:
                raise AssertionError(part)
        for each in wrong:
            if each and not any(isinstance(one, CopyEnds) for one in each):
                continue  # it does not come to an end
            if isinstance(part, FileBytes) and each == changed(parts, at, part, part) and not part.data:
                continue
            with pytest.raises(BadCopy):
                joined(tmp_path / "joiner", each)
            assert not shard_directory(tmp_path / "joiner", FIRST_SHARD).path.exists()


async def test_copy_whose_mark_is_of_another_stream_or_no_mark_is_refused(tmp_path: Path, parts: list[Part]) -> None:
    assert parts[1] == FileBegins("stream-mark")
    for data in (encode_mark("other", FoldState(StreamPosition(3))), b"junk"):
        ends = FileEnds(len(data), joining.crc32c(data))
        wrong = [parts[0], parts[1], FileBytes(data), ends, *parts[4:]]
        with pytest.raises(BadCopy, match=r"copy of the stream other|damaged"):
            joined(tmp_path / "joiner", wrong)


async def test_copy_with_a_file_twice_is_refused(tmp_path: Path, parts: list[Part]) -> None:
    with pytest.raises(BadCopy, match="or has already"):
        joined(tmp_path / "joiner", [*parts[:4], *parts[1:4], *parts[4:]])


@pytest.mark.parametrize("without", ["stream-mark", "datalog/data.mdb"])
async def test_copy_without_a_needed_file_is_refused(tmp_path: Path, parts: list[Part], without: str) -> None:
    at = parts.index(FileBegins(without))
    end = next(n for n in range(at, len(parts)) if isinstance(parts[n], FileEnds))
    last = parts[-1]
    assert isinstance(last, CopyEnds)
    with pytest.raises(BadCopy, match="files were sent"):
        joined(tmp_path / "joiner", [*parts[:at], *parts[end + 1 : -1], CopyEnds(last.files - 1)])


def test_names_of_a_copys_files_are_those_of_a_shards() -> None:
    shard = shard_directory(Path("/data"), FIRST_SHARD)
    for path in (
        shard.stream_mark,
        shard.data_logs_file,
        shard.local_journal(A) / f"{7:020}.journal",
        shard.group_journal(12) / f"{7:020}.journal",
    ):
        assert belongs_to_copy(shard.name_in(path))
    for name in (
        "",
        "stream-mark.new",
        "datalog/lock.mdb",
        "journals/local/x/spare-1.new",
        "journals/group/1/x.journal",
    ):
        assert not belongs_to_copy(name)


async def test_directory_falls_short_if_the_stream_begins_after_its_mark(tmp_path: Path) -> None:
    """Or if there is none, and the stream does not begin at its beginning."""
    owner = Writer()
    writing(random.Random(0), owner, 9)
    async with open_model(random.Random(0)) as cluster:
        stream = await cluster.engine("n").open_stream("shard-0")
        for entry in owner.entries:
            cluster.land("shard-0", entry)
        shard = shard_directory(tmp_path, FIRST_SHARD)
        assert not await falls_short(shard, stream)
        await stream.trim(StreamPosition(1))
        assert await falls_short(shard, stream)
        async with replica_in(tmp_path, stream) as replica:
            await take(replica, owner.entries[:6])
            await save_mark(replica.journals, replica.taken, shard.stream_mark, stream.name)
        await stream.trim(StreamPosition(5))
        assert not await falls_short(shard, stream)
        await stream.trim(StreamPosition(6))
        assert await falls_short(shard, stream)
        with pytest.raises(CorruptStorage, match="is a copy of the stream"):
            await falls_short(shard, await cluster.engine("n").open_stream("shard-1"))


def test_copy_is_removed_at_one_moment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A kill in between leaves nothing that looks like a copy, and the next start takes the rest away."""
    directory = shard_directory(tmp_path, FIRST_SHARD)
    directory.data_logs.mkdir(parents=True)
    directory.stream_mark.write_bytes(b"mark")
    kept = shard_directory(tmp_path, ShardNumber(1))
    kept.data_logs.mkdir(parents=True)
    real = shutil.rmtree

    def killed(path: Path, **_: object) -> None:
        if Path(path).exists():
            raise KeyboardInterrupt

    monkeypatch.setattr(shutil, "rmtree", killed)
    with pytest.raises(KeyboardInterrupt):
        remove_copy(directory)
    assert not directory.path.exists()
    monkeypatch.setattr(shutil, "rmtree", real)
    remove_leftovers(tmp_path)
    assert sorted(each.name for each in tmp_path.rglob("*") if each.is_dir()) == ["1", "datalog", "shards"]
    for _ in range(2):  # a copy that was never made goes as well
        remove_copy(kept)
        assert not kept.path.exists()
