"""What is LMDB's own: formats refused, full maps and disks, leftovers of dropped logs, readers beside the writer."""

from __future__ import annotations

import dataclasses
import resource
import threading
from pathlib import Path
from uuid import UUID

import lmdb
import pytest

from datalog import environment, layout
from datalog.environment import LmdbDataLogs
from datalog.failures import explain
from datalog.interface import LogMissing, OpenInLog, ReadRequest, ReadResult, TooManyLogs, UnknownFormat
from datalog.offset_entries import CommittedOffset, GroupEntry, OffsetEntry, OffsetKey
from datalog.time_index import ENTRY_SPACING_BYTES
from fairlog_types import CorruptStorage, LogId, Offset, ProducerId, StorageFailure
from tests.datalog.batches import batch
from tests.datalog.behaviour import COMMITS, ORDERS, PAYMENTS, OpenLogs, append, mark, read_one
from tests.datalog.transactions_behaviour import append_open

MAP_BYTES = 1 << 30


def put_raw(directory: Path, table: bytes, key: bytes, value: bytes) -> None:
    """Change one value behind Fairlog's back."""
    with lmdb.open(str(directory), map_size=MAP_BYTES, max_dbs=10) as env:
        database = env.open_db(table)
        with env.begin(write=True, db=database) as txn:
            txn.put(key, value)


def names_in(directory: Path) -> set[bytes]:
    """The databases that the environment has."""
    with lmdb.open(str(directory), map_size=MAP_BYTES, max_dbs=10) as env, env.begin() as txn:
        return {key for key, _ in txn.cursor()}


def entries_in(directory: Path, table: bytes) -> int:
    """How many keys a table has."""
    with lmdb.open(str(directory), map_size=MAP_BYTES, max_dbs=10) as env, env.begin() as txn:
        return txn.stat(env.open_db(table, txn=txn, create=False))["entries"]


def last_commit(directory: Path) -> int:
    """LMDB's number of it."""
    with lmdb.open(str(directory), map_size=MAP_BYTES, max_dbs=10) as env:
        return env.info()["last_txnid"]


def fill(logs: LmdbDataLogs, count: int, record_bytes: int) -> None:
    """Append so many batches to ORDERS, one write block each."""
    for _ in range(count):
        base_offset = logs.bounds(ORDERS).next_offset
        with logs.write() as writer:
            writer.append(ORDERS, base_offset, 1, 1, batch(base_offset, [1], value=b"x" * record_bytes))
            writer.put_mark(ORDERS, mark(base_offset + 1, base_offset + 1))


def open_with_orders(directory: Path, map_bytes: int = MAP_BYTES) -> LmdbDataLogs:
    logs = LmdbDataLogs.open(directory, map_bytes=map_bytes)
    with logs.write() as writer:
        writer.create(ORDERS)
    return logs


def test_open_newer_format_is_refused_by_name(tmp_path: Path) -> None:
    """An environment of a later Fairlog is left alone; the message names both versions and the directory."""
    LmdbDataLogs.open(tmp_path, map_bytes=MAP_BYTES).close()
    put_raw(tmp_path, layout.META, layout.FORMAT_KEY, layout.encode_format(8))
    with pytest.raises(UnknownFormat, match=rf"{tmp_path}.*version 8.*knows 7"):
        LmdbDataLogs.open(tmp_path, map_bytes=MAP_BYTES)


def test_open_foreign_environment_is_refused(tmp_path: Path) -> None:
    """Another program's LMDB file is not taken over, be its data in named databases or not."""
    for name, table in (("plain", None), ("named", b"theirs")):
        directory = tmp_path / name
        directory.mkdir()
        with lmdb.open(str(directory), max_dbs=1) as env, env.begin(write=True) as txn:
            txn.put(b"key", b"value", db=env.open_db(table, txn=txn))
        with pytest.raises(UnknownFormat, match="not Fairlog's"):
            LmdbDataLogs.open(directory, map_bytes=MAP_BYTES)


def test_open_damaged_format_record_is_corrupt(tmp_path: Path) -> None:
    """A format record without the magic is damage, not another version."""
    LmdbDataLogs.open(tmp_path, map_bytes=MAP_BYTES).close()
    put_raw(tmp_path, layout.META, layout.FORMAT_KEY, b"LMDBDATA" + bytes(4))
    with pytest.raises(CorruptStorage, match="magic"):
        LmdbDataLogs.open(tmp_path, map_bytes=MAP_BYTES)


def test_open_file_that_is_no_lmdb_is_corrupt(tmp_path: Path) -> None:
    """Bytes that are no LMDB file at all are refused, and the file is named."""
    (tmp_path / "data.mdb").write_bytes(b"not a database" * 1000)
    with pytest.raises(CorruptStorage, match=r"data\.mdb"):
        LmdbDataLogs.open(tmp_path, map_bytes=MAP_BYTES)


def test_open_where_a_file_stands_fails_with_the_path(tmp_path: Path) -> None:
    """A directory that cannot be made is told as such."""
    (tmp_path / "taken").write_text("a file")
    with pytest.raises(StorageFailure, match="taken"):
        LmdbDataLogs.open(tmp_path / "taken", map_bytes=MAP_BYTES)


def test_open_log_without_its_batches_is_corrupt(tmp_path: Path) -> None:
    """A record of a log whose database is gone is not taken for an empty log."""
    open_with_orders(tmp_path).close()
    put_raw(tmp_path, layout.LOGS, str(PAYMENTS).encode(), layout.encode_log_record(layout.LogRecord(9)))
    with pytest.raises(CorruptStorage, match=str(PAYMENTS)):
        LmdbDataLogs.open(tmp_path, map_bytes=MAP_BYTES)


def test_open_with_a_damaged_log_record_is_corrupt(tmp_path: Path) -> None:
    """A record of the wrong size is reported with the file's name."""
    open_with_orders(tmp_path).close()
    put_raw(tmp_path, layout.LOGS, str(ORDERS).encode(), b"short")
    with pytest.raises(CorruptStorage, match=r"data\.mdb"):
        LmdbDataLogs.open(tmp_path, map_bytes=MAP_BYTES)


@pytest.mark.parametrize("field", ["log_start", "next_offset", "max_timestamp_at"])
def test_open_with_a_negative_offset_in_a_log_record_is_corrupt(tmp_path: Path, field: str) -> None:
    """Keys are made of these, which have no sign: it is damage, and no fault of whoever reads it."""
    open_with_orders(tmp_path).close()
    record = dataclasses.replace(layout.LogRecord(1), **{field: Offset(-1)})
    put_raw(tmp_path, layout.LOGS, str(ORDERS).encode(), layout.encode_log_record(record))
    with pytest.raises(CorruptStorage, match=r"data\.mdb.*can be negative"):
        LmdbDataLogs.open(tmp_path, map_bytes=MAP_BYTES)


@pytest.mark.parametrize("name", [b"orders", b"t-orders-0", b"x-orders-0", b"\xff", str(ORDERS).encode() + b"0x"])
def test_open_with_a_record_of_a_log_that_cannot_be_is_corrupt(tmp_path: Path, name: bytes) -> None:
    """Regression: a key of the table of logs that names none was taken for a fault of the node."""
    open_with_orders(tmp_path).close()
    put_raw(tmp_path, layout.LOGS, name, layout.encode_log_record(layout.LogRecord(9)))
    with pytest.raises(CorruptStorage, match=r"data\.mdb.*is the name of no log"):
        LmdbDataLogs.open(tmp_path, map_bytes=MAP_BYTES)


def test_open_after_drop_frees_the_name(open_lmdb: OpenLogs, tmp_path: Path) -> None:
    """A dropped log's empty database is removed when the environment is next opened, and only that one."""
    logs = open_lmdb()
    with logs.write() as writer:
        for log in (ORDERS, PAYMENTS):
            writer.create(log)
    with logs.write() as writer:
        writer.drop(ORDERS)
    open_lmdb()
    logs = open_lmdb()
    logs.close()
    assert names_in(tmp_path / "data") == {*layout.TABLES, str(PAYMENTS).encode()}


def test_drop_leaves_nothing_in_the_tables(open_lmdb: OpenLogs, tmp_path: Path) -> None:
    """What belonged to a dropped log does not stay behind as garbage under its number."""
    tables = (layout.LOGS, layout.TIME_INDEX, layout.PRODUCERS, layout.OFFSETS, layout.GROUPS, layout.CUTS)
    logs = open_lmdb()
    with logs.write() as writer:
        for log in (ORDERS, COMMITS):
            writer.create(log)
            writer.put_producer(log, ProducerId(1), b"state")
        for offset in range(3):
            data = batch(offset, [offset], value=bytes(ENTRY_SPACING_BYTES))
            writer.append(ORDERS, Offset(offset), 1, offset, data)
        value = CommittedOffset(Offset(1), -1, "", 0)
        writer.put_offsets(COMMITS, [OffsetEntry(OffsetKey("g", "t", 0), value), GroupEntry("g", b"who")])
        writer.put_cut(0.0)
    logs.close()
    assert [entries_in(tmp_path / "data", table) for table in tables] == [2, 2, 2, 1, 1, 2]
    logs = open_lmdb()
    with logs.write() as writer:
        writer.drop(ORDERS)
        writer.drop(COMMITS)
    logs.close()
    assert [entries_in(tmp_path / "data", table) for table in tables] == [0, 0, 0, 0, 0, 0]


def test_write_full_map_fails_and_undoes_the_block(tmp_path: Path) -> None:
    """A full map refuses the write by name; what was committed is still read, and a larger map goes on."""
    logs = open_with_orders(tmp_path, map_bytes=1 << 20)
    with pytest.raises(StorageFailure, match="map_bytes"):
        fill(logs, count=1000, record_bytes=10_000)
    end = logs.bounds(ORDERS).next_offset
    assert len(read_one(logs, ORDERS, 0)) == end == logs.bounds(ORDERS).next_offset
    logs.close()
    logs = LmdbDataLogs.open(tmp_path, map_bytes=MAP_BYTES)
    fill(logs, count=100, record_bytes=10_000)
    assert logs.bounds(ORDERS).next_offset == end + 100
    logs.close()


def test_commit_refused_by_the_disk_closes_writing_until_reopened(tmp_path: Path) -> None:
    """After a commit has failed, nothing more is written; reads go on; reopening is enough."""
    logs = open_with_orders(tmp_path)
    fill(logs, count=3, record_bytes=1000)
    before = read_one(logs, ORDERS, 0)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 18, limits[1]))
    try:
        with pytest.raises(StorageFailure, match=r"the file system has \d+ bytes free"):
            fill(logs, count=1, record_bytes=1 << 20)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    with pytest.raises(StorageFailure, match="earlier failure"):
        fill(logs, count=1, record_bytes=1)
    with pytest.raises(StorageFailure, match="earlier failure"):
        logs.sync()
    assert read_one(logs, ORDERS, 0) == before
    logs.close()
    logs = LmdbDataLogs.open(tmp_path, map_bytes=MAP_BYTES)
    assert read_one(logs, ORDERS, 0) == before
    fill(logs, count=1, record_bytes=1)
    logs.close()


@pytest.mark.parametrize(("use", "commits"), [("", 0), ("s", 1), ("ss", 1), ("w", 1), ("ws", 1), ("sws", 2)])
def test_sync_makes_sure_of_what_an_earlier_process_has_left_by_a_commit(
    tmp_path: Path, use: str, commits: int
) -> None:
    """If a sync of that process failed, nothing else brings its last commit to the disk. One is enough."""
    open_with_orders(tmp_path).close()
    before = last_commit(tmp_path)
    logs = LmdbDataLogs.open(tmp_path, map_bytes=MAP_BYTES)
    for step in use:
        if step == "s":
            logs.sync()
        else:
            fill(logs, count=1, record_bytes=1)
    logs.close()
    assert last_commit(tmp_path) - before == commits


def test_write_too_many_logs_is_refused_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """More logs than an environment has names for is a failure that says what to do."""
    monkeypatch.setattr(environment, "DATABASES_MAX", len(layout.TABLES) + 1)
    logs = open_with_orders(tmp_path)
    with pytest.raises(TooManyLogs, match="too many logs"), logs.write() as writer:
        writer.create(PAYMENTS)
    assert logs.logs() == [ORDERS]
    logs.close()


def test_close_waits_for_those_who_still_read(open_lmdb: OpenLogs, monkeypatch: pytest.MonkeyPatch) -> None:
    """The admin listener is up until the last file is closed. Who comes later hears that they are closed."""
    logs = open_lmdb()
    entry = OffsetEntry(OffsetKey("g", "t", 0), CommittedOffset(Offset(7), 0, "", 0))
    with logs.write() as writer:
        writer.create(COMMITS)
        writer.put_offsets(COMMITS, [entry])
    reading, may_go_on = threading.Event(), threading.Event()
    decode = environment.decode_offset_entry

    def decode_slowly(data: memoryview) -> OffsetEntry:
        reading.set()
        assert may_go_on.wait(10)
        return decode(data)

    monkeypatch.setattr(environment, "decode_offset_entry", decode_slowly)
    found: list[object] = []
    reader = threading.Thread(target=lambda: found.extend(logs.offsets(COMMITS)))
    reader.start()
    assert reading.wait(10)
    closing = threading.Thread(target=logs.close)
    closing.start()
    closing.join(0.05)
    assert closing.is_alive()
    may_go_on.set()
    reader.join(10)
    closing.join(10)
    assert found == [(entry.key, entry.value)]
    for ask in (logs.logs, logs.space):
        with pytest.raises(StorageFailure, match="are closed"):
            ask()


def test_read_while_writing_sees_all_of_a_block_or_none(open_lmdb: OpenLogs) -> None:
    """Readers in other threads never see two logs of one write block apart (invariant 7)."""
    logs = open_lmdb()
    with logs.write() as writer:
        for log in (ORDERS, PAYMENTS):
            writer.create(log)
    done = threading.Event()
    torn: list[object] = []
    reads = 0

    def watch() -> None:
        nonlocal reads
        requests = [ReadRequest(log, Offset(0), 1 << 20) for log in (ORDERS, PAYMENTS)]
        while not done.is_set():
            one, other = logs.read(requests, bytes_max=1 << 20)
            assert isinstance(one, ReadResult)
            assert isinstance(other, ReadResult)
            reads += 1
            if one.next_offset != other.next_offset or len(one.batches) != len(other.batches):
                torn.append((one, other))

    watchers = [threading.Thread(target=watch) for _ in range(2)]
    for thread in watchers:
        thread.start()
    for offset in range(100):
        with logs.write() as writer:
            for log in (ORDERS, PAYMENTS):
                append(writer, log, offset, [1])
                writer.put_mark(log, mark(offset + 1, offset + 1))
    done.set()
    for thread in watchers:
        thread.join()
    assert not torn
    assert reads > 0


def test_read_while_logs_come_and_go_finds_them_or_not(open_lmdb: OpenLogs) -> None:
    """A reader of a log that another thread makes, fills and drops gets its batches or LogMissing, nothing else."""
    logs = open_lmdb()
    log = LogId.of_topic(UUID(int=5), 0)
    done = threading.Event()
    strange: list[object] = []

    def watch() -> None:
        while not done.is_set():
            try:
                (answer,) = logs.read([ReadRequest(log, Offset(0), 1000)], bytes_max=1000)
            except Exception as error:  # noqa: BLE001  any exception is what this test looks for
                strange.append(error)
                return
            if not isinstance(answer, LogMissing) and not (isinstance(answer, ReadResult) and len(answer.batches) == 1):
                strange.append(answer)

    watchers = [threading.Thread(target=watch) for _ in range(2)]
    for thread in watchers:
        thread.start()
    for _ in range(100):
        with logs.write() as writer:
            writer.create(log)
            append(writer, log, 0, [1])
        with logs.write() as writer:
            writer.drop(log)
    done.set()
    for thread in watchers:
        thread.join()
    assert not strange


def test_write_from_two_threads_takes_turns(open_lmdb: OpenLogs) -> None:
    """A second writer waits for the first one's commit and sees its result."""
    logs = open_lmdb()
    with logs.write() as writer:
        writer.create(ORDERS)

    def append_some() -> None:
        for _ in range(50):
            with logs.write() as writer:
                base_offset = logs.bounds(ORDERS).next_offset
                append(writer, ORDERS, base_offset, [1])

    threads = [threading.Thread(target=append_some) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert logs.bounds(ORDERS).next_offset == 150


def test_failure_on_a_file_system_that_does_not_answer_is_told_all_the_same(tmp_path: Path) -> None:
    """The hint of how much room there is may be missing; the failure may not."""
    failure = explain(lmdb.Error("Input/output error"), tmp_path / "gone", "committing")
    assert str(failure).endswith("while committing: Input/output error. Check the disk, then restart.")


def test_space_grows_with_the_file_and_names_the_bound(tmp_path: Path) -> None:
    """What an operator watches: how much of the map is used."""
    logs = LmdbDataLogs.open(tmp_path, map_bytes=MAP_BYTES)
    before = logs.space()
    assert before.bytes_max == MAP_BYTES
    with logs.write() as writer:
        writer.create(ORDERS)
    fill(logs, 20, 100_000)
    assert 2_000_000 < logs.space().used_bytes - before.used_bytes < 3_000_000
    assert logs.space().used_bytes <= (tmp_path / "data.mdb").stat().st_size
    logs.close()


def test_end_of_many_open_transactions_does_not_look_at_all_of_them_for_each(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """2,000 that were open in one partition took 4 s to end, the oldest first, and all copying waited."""
    count, looked_at = 200, 0
    decode = layout.decode_open

    def counting(key: bytes | memoryview, data: bytes | memoryview) -> OpenInLog:
        nonlocal looked_at
        looked_at += 1
        return decode(key, data)

    logs = open_with_orders(tmp_path)
    with logs.write() as writer:
        for number in range(count):
            append_open(writer, ORDERS, number, producer_id=count - number)
    monkeypatch.setattr(layout, "decode_open", counting)
    for start in range(0, count, 20):
        with logs.write() as writer:
            for number in range(start, start + 20):
                writer.delete_open(ORDERS, ProducerId(count - number))
                assert writer.last_stable_offset(ORDERS) == number + 1
    logs.close()
    assert looked_at < 5 * count
