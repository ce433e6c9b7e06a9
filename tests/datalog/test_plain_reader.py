"""Reading data logs beside a writer in another process. The reader is here, the writer is the other one.

What a running node does to a reader under load, tests/node tests.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Generator, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import lmdb
import pytest

from datalog import decompress, layout
from datalog.decompress import UnreadableRecords
from datalog.interface import Bounds, UnknownFormat, UnknownLog
from datalog.plain_reader import Cut, DataLogReader, OffsetOutsideLog
from fairlog_types import CorruptStorage, LogId, Offset, StorageFailure
from tests.datalog.steered_writer import SteeredWriter, log_of

pytestmark = pytest.mark.slow

A, B, C = log_of(1), log_of(2), log_of(3)
NOBODY = 65534


@pytest.fixture
def directory() -> Iterator[Path]:
    """Where the data logs are; unlike tmp_path, other users can get there."""
    with tempfile.TemporaryDirectory() as made:
        Path(made).chmod(0o755)
        yield Path(made) / "datalog"


@pytest.fixture
def writer(directory: Path) -> Iterator[SteeredWriter]:
    """A writer with the logs A and B, four records in each."""
    with SteeredWriter(directory) as started:
        started.tell("create(1, 2)")
        started.tell("append(1, 2, times=2)")
        yield started


def offsets(cut: Cut, log: LogId, from_offset: int = 0, before: int | None = None) -> list[int]:
    return [record.offset for record in cut.records(log, from_offset, before=before)]


def test_cut_stays_as_it_is_while_the_writer_goes_on(directory: Path, writer: SteeredWriter) -> None:
    """What is written after a cut began is not in it, however late it is read; the next cut has it."""
    with DataLogReader.open(directory) as reader:
        with reader.cut() as cut:
            assert cut.logs() == [A, B]
            writer.tell("append(1, 2, times=50)")
            writer.tell("delete_before(1, 40)")
            writer.tell("sync()")
            assert cut.bounds(A) == cut.bounds(B) == Bounds(Offset(0), Offset(4), 2 * 77, Offset(4))
            assert offsets(cut, A) == offsets(cut, B) == [0, 1, 2, 3]
        with reader.cut() as later:
            assert later.number > cut.number
            assert offsets(later, A, 40) == list(range(40, 104))
            assert offsets(later, B) == list(range(104))


def test_records_are_cut_out_of_their_batches(directory: Path, writer: SteeredWriter) -> None:
    """Any range of offsets, whatever batches they are in; at the end there is nothing, outside is an error."""
    with DataLogReader.open(directory) as reader, reader.cut() as cut:
        assert offsets(cut, A, 1) == [1, 2, 3]
        assert offsets(cut, A, 1, 3) == [1, 2]
        assert offsets(cut, A, 0, 99) == [0, 1, 2, 3]
        assert offsets(cut, A, 2, 2) == offsets(cut, A, 4) == []
        for outside in (-1, 5):
            with pytest.raises(OffsetOutsideLog, match=f"has the offsets from 0 to 4, not {outside}"):
                offsets(cut, A, outside)
        with pytest.raises(UnknownLog):
            offsets(cut, C)


def test_log_deleted_while_it_is_read_is_whole_in_its_cut(directory: Path, writer: SteeredWriter) -> None:
    """A topic that goes away in the midst of a cut is read to its end; the next cut does not know it."""
    with DataLogReader.open(directory) as reader:
        with reader.cut() as cut:
            found = cut.records(A, 0)
            assert next(found).offset == 0
            writer.tell("drop(1)")
            writer.tell("append(2, value=b'x' * 3000, times=50)")
            assert [record.offset for record in found] == [1, 2, 3]
        with reader.cut() as later:
            assert later.logs() == [B]
            with pytest.raises(UnknownLog):
                later.bounds(A)


def test_log_made_while_the_reader_is_open_is_seen_by_the_next_cut(directory: Path, writer: SteeredWriter) -> None:
    """New topics are there without opening anew, also those made after a restart of the node took old names away."""
    with DataLogReader.open(directory) as reader:
        with reader.cut() as cut:
            writer.tell("create(3)")
            writer.tell("append(3)")
            assert cut.logs() == [A, B]
        with reader.cut() as later:
            assert offsets(later, C) == [0, 1]
            writer.tell("drop(1)")
            writer.tell("restart()")
            writer.tell("create(1, 4)")
            writer.tell("append(1, 4)")
            assert offsets(later, A) == [0, 1, 2, 3]
        with reader.cut() as last:
            assert last.logs() == [A, B, C, log_of(4)]
            assert offsets(last, A) == offsets(last, log_of(4)) == [0, 1]


def test_cuts_at_the_same_time_each_keep_their_own(directory: Path, writer: SteeredWriter) -> None:
    """Several cuts of one reader may be open, begun before and after topics were made."""
    with DataLogReader.open(directory) as reader, reader.cut() as first:
        writer.tell("create(3)")
        writer.tell("append(3)")
        with reader.cut() as second:
            assert (first.logs(), second.logs()) == ([A, B], [A, B, C])
            assert offsets(second, C) == [0, 1]
            with pytest.raises(UnknownLog):
                first.bounds(C)
        assert offsets(first, A) == [0, 1, 2, 3]


def test_cut_that_has_ended_is_not_read(directory: Path, writer: SteeredWriter) -> None:
    """Keeping a cut's records for later is a mistake, and says so."""
    with DataLogReader.open(directory) as reader:
        with reader.cut() as cut:
            found = cut.records(A, 0)
            next(found)
            next(found)
        with pytest.raises(AssertionError, match="has ended"):
            next(found)


def test_file_that_outgrows_the_readers_map_is_mapped_anew(directory: Path) -> None:
    """The node may be restarted with a larger map while a reader is open; a cut that is open then is not disturbed."""
    with SteeredWriter(directory, map_bytes=1 << 20) as writer:
        writer.tell("create(1)")
        writer.tell("append(1)")
        with DataLogReader.open(directory) as reader:
            with reader.cut() as cut:
                writer.tell("restart(1 << 24)")
                writer.tell("append(1, value=b'x' * 100_000, times=40)")
                with pytest.raises(StorageFailure, match="end its other cuts"), reader.cut():
                    pass
                assert offsets(cut, A) == [0, 1]
            with reader.cut() as larger:
                assert offsets(larger, A) == list(range(82))


def test_reader_killed_in_a_cut_is_forgotten_at_the_next_sync(directory: Path, writer: SteeredWriter) -> None:
    """A killed reader's entry would keep pages from being reused for ever; the node takes it away when it syncs."""
    program = f"""
from pathlib import Path
from datalog.plain_reader import DataLogReader
with DataLogReader.open(Path({str(directory)!r})) as reader, reader.cut() as cut:
    print(cut.number, flush=True)
    input()
"""
    killed = subprocess.Popen(
        [sys.executable, "-c", program],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        cwd=Path(__file__).parents[2],
    )
    assert killed.stdout is not None
    assert killed.stdout.readline()
    assert writer.tell("readers()") == [killed.pid]
    writer.tell("sync()")
    assert writer.tell("readers()") == [killed.pid]
    killed.kill()
    killed.communicate()
    assert killed.returncode == -signal.SIGKILL
    writer.tell("append(1, 2)")
    assert writer.tell("readers()") == [killed.pid]
    writer.tell("sync()")
    assert writer.tell("readers()") == []


def test_reader_leaves_nothing_behind(directory: Path, writer: SteeredWriter) -> None:
    """No entry in the reader table, and no file in the directory."""
    before = sorted(os.listdir(directory))
    with DataLogReader.open(directory) as reader, reader.cut() as cut:
        assert offsets(cut, A) == [0, 1, 2, 3]
        assert writer.tell("readers()") == [os.getpid()]
    assert writer.tell("readers()") == []
    assert sorted(os.listdir(directory)) == before


@contextmanager
def read_only(directory: Path, *, lock_writable: bool) -> Generator[None]:
    """Within the block this process may write nothing in `directory`, but for LMDB's lock file if it is said so."""
    (directory / "lock.mdb").chmod(0o666 if lock_writable else 0o444)
    (directory / "data.mdb").chmod(0o444)
    directory.chmod(0o555)
    is_root = os.geteuid() == 0
    try:
        if is_root:
            os.seteuid(NOBODY)  # root may write anything
        yield
    finally:
        if is_root:
            os.seteuid(0)
        directory.chmod(0o755)
        (directory / "data.mdb").chmod(0o644)
        (directory / "lock.mdb").chmod(0o644)


def test_reader_that_may_write_the_lock_file_alone_is_known_to_the_writer(
    directory: Path, writer: SteeredWriter
) -> None:
    """Nothing else needs to be writable beside a running node."""
    with read_only(directory, lock_writable=True), DataLogReader.open(directory) as reader, reader.cut() as cut:
        assert writer.tell("readers()") == [os.getpid()]
        writer.tell("append(1, 2, times=100)")
        assert offsets(cut, A) == [0, 1, 2, 3]


def test_reader_that_may_not_write_the_lock_file_is_refused_beside_a_running_node(
    directory: Path, writer: SteeredWriter
) -> None:
    """The node could overwrite pages under such a reader: it is told which file it has to be able to write."""
    with (
        read_only(directory, lock_writable=False),
        pytest.raises(StorageFailure, match=rf"open in process {writer.pid}\. Let this user write to .*lock\.mdb"),
    ):
        DataLogReader.open(directory)


def test_reader_that_may_not_write_the_lock_file_reads_what_is_stopped(directory: Path, writer: SteeredWriter) -> None:
    """A stopped node's directory, or a backup, needs no right but to read; nothing is made there."""
    writer.end()
    with read_only(directory, lock_writable=False), DataLogReader.open(directory) as reader, reader.cut() as cut:
        assert offsets(cut, B) == [0, 1, 2, 3]
    (directory / "lock.mdb").unlink()
    with DataLogReader.open(directory) as reader, reader.cut() as cut:
        assert offsets(cut, B) == [0, 1, 2, 3]
    assert os.listdir(directory) == ["data.mdb"]
    (directory / "lock.mdb").touch()  # for the fixture's clean-up


def test_reader_without_the_lock_file_notices_a_node_that_starts(directory: Path, writer: SteeredWriter) -> None:
    """Before pages can be overwritten under it, it refuses: in the cut at the first commit, and any further cut."""
    writer.end()
    with ExitStack() as stack:
        with read_only(directory, lock_writable=False):
            reader = stack.enter_context(DataLogReader.open(directory))
            found = stack.enter_context(reader.cut()).records(A, 0)
            assert next(found).offset == 0
        with SteeredWriter(directory) as again:
            again.tell("append(2)")
            with pytest.raises(StorageFailure, match="has been written to while it was read"):
                list(found)
            with pytest.raises(StorageFailure, match="is open in process"), reader.cut():
                pass
        with reader.cut() as later:
            assert offsets(later, B) == [0, 1, 2, 3, 4, 5]


def test_compressed_batch_without_its_codec_names_the_batch(
    directory: Path, writer: SteeredWriter, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Gzip is always read; others need a package, and the message says which."""
    writer.tell("create(3, 4)")
    writer.tell("append_compressed(3, 1)")
    writer.tell("append_compressed(4, 4)")

    def missing(name: str) -> None:
        raise ImportError(name)

    monkeypatch.setattr(decompress, "import_module", missing)
    with DataLogReader.open(directory) as reader, reader.cut() as cut:
        assert offsets(cut, C) == [0, 1]
        with pytest.raises(UnreadableRecords, match=r"data log .*, the batch at offset 0: zstd: the package cramjam"):
            offsets(cut, log_of(4))


def test_damaged_batch_is_refused(directory: Path, writer: SteeredWriter) -> None:
    """Unlike a consumer's client, nobody else would check the CRC."""
    writer.tell("create(3)")
    writer.tell("append_damaged(3)")
    with DataLogReader.open(directory) as reader, reader.cut() as cut, pytest.raises(CorruptStorage, match="bad CRC"):
        offsets(cut, C)


def test_directory_without_data_logs_is_refused(tmp_path: Path) -> None:
    """Nothing there, and nothing is made there."""
    with pytest.raises(StorageFailure, match=r"data\.mdb cannot be read: it is not there"):
        DataLogReader.open(tmp_path)
    assert not list(tmp_path.iterdir())


def test_environment_of_another_program_is_refused(tmp_path: Path) -> None:
    """An LMDB file without our format record is not ours."""
    with lmdb.open(str(tmp_path), lib_version=0) as other, other.begin(write=True) as txn:
        txn.put(b"key", b"value")
    with pytest.raises(UnknownFormat, match="not Fairlog's data logs"):
        DataLogReader.open(tmp_path)


def test_environment_of_a_newer_version_is_refused(tmp_path: Path) -> None:
    """A reader of today does not guess at tomorrow's format."""
    with SteeredWriter(tmp_path) as writer:
        writer.tell("create(1)")
    with lmdb.open(str(tmp_path), max_dbs=8, lib_version=0) as env:
        meta = env.open_db(layout.META)
        with env.begin(write=True, db=meta) as txn:
            txn.put(layout.FORMAT_KEY, layout.encode_format(9))
    with pytest.raises(UnknownFormat, match="have the format version 9; this Fairlog knows 7"):
        DataLogReader.open(tmp_path)


def test_file_that_was_cut_is_refused(tmp_path: Path) -> None:
    """LMDB would die of it without a word."""
    with SteeredWriter(tmp_path) as writer:
        writer.tell("create(1)")
        writer.tell("append(1, value=b'x' * 3000, times=20)")
    data = tmp_path / "data.mdb"
    os.truncate(data, data.stat().st_size // 2)
    with pytest.raises(CorruptStorage, match="it was cut"):
        DataLogReader.open(tmp_path)
