"""The format on disk does not change by accident: what any version wrote is read, and this one is written as ever."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest

from datalog.cuts import Cut, EndsAtCut, LogCuts
from datalog.environment import LmdbDataLogs
from datalog.interface import Cleaned, Mark, ReadRequest, ReadResult, TimestampOffset, Unit
from datalog.keyed import open_batch
from datalog.offset_entries import OffsetKey, name_digest
from datalog.plain_reader import DataLogReader
from fairlog_types import JournalPosition, Offset, ProducerId
from tests.datalog.batches import batch
from tests.datalog.behaviour import append, read_one
from tests.datalog.golden_data_log import (
    ABORTED,
    CLEANED,
    COMMITTED,
    COMMON_CUT,
    COMPACTED_LOG,
    DUMP,
    ENVIRONMENT,
    ENVIRONMENT_1,
    ENVIRONMENT_2,
    ENVIRONMENT_3,
    ENVIRONMENT_4,
    ENVIRONMENT_5,
    ENVIRONMENT_6,
    GONE,
    KEYED_MS,
    MAP_BYTES,
    MARKED_LOG,
    OFFSETS_LOG,
    OPEN,
    STAGED_MS,
    TIMESTAMPS,
    TOPIC_LOG,
    compacted_batch,
    dump,
    fill,
    marked_batches,
    staged_batch,
)

FORMAT_PAGE = Path(__file__).parents[2] / "docs" / "formats" / "data-log.md"


OLDER = {
    "version 1": ENVIRONMENT_1,
    "version 2": ENVIRONMENT_2,
    "version 3": ENVIRONMENT_3,
    "version 4": ENVIRONMENT_4,
    "version 5": ENVIRONMENT_5,
    "version 6": ENVIRONMENT_6,
}


@pytest.fixture(params=[*OLDER.values(), ENVIRONMENT], ids=[*OLDER, "version 7"])
def golden(tmp_path: Path, request: pytest.FixtureRequest) -> Path:
    """A copy of the environment that a version wrote."""
    (tmp_path / "data.mdb").write_bytes(gzip.decompress(request.param.read_bytes()))
    return tmp_path


def test_environment_written_now_equals_the_golden_one(tmp_path: Path) -> None:
    """The same writes lead to the same keys and values, byte for byte."""
    logs = LmdbDataLogs.open(tmp_path, map_bytes=MAP_BYTES)
    fill(logs)
    logs.close()
    assert dump(tmp_path) == DUMP.read_text()


def test_environment_of_any_version_reads_as_it_was_written(golden: Path) -> None:
    """Everything can still be asked of the file that an earlier version left."""
    logs = LmdbDataLogs.open(golden, map_bytes=MAP_BYTES)
    assert [log for log in logs.logs() if log not in (COMPACTED_LOG, MARKED_LOG)] == [OFFSETS_LOG, TOPIC_LOG]
    assert logs.bounds(TOPIC_LOG).last_stable_offset == Offset(4)
    assert logs.mark(TOPIC_LOG) == Mark(JournalPosition(1024), JournalPosition(512), Offset(4))
    assert logs.mark(OFFSETS_LOG) == Mark(JournalPosition(128), JournalPosition(128), Offset(1))
    offsets = (0, 2, 3)
    expected = [bytes(batch(at, times, leader_epoch=1)) for at, times in zip(offsets, TIMESTAMPS, strict=True)]
    assert read_one(logs, TOPIC_LOG, 0) == expected
    assert logs.producers(TOPIC_LOG) == [(ProducerId(4000), b"window")]
    assert logs.offsets(OFFSETS_LOG) == [(OffsetKey("group", "topic", 2), COMMITTED)]
    assert logs.offset_for_timestamp(TOPIC_LOG, 1_700_000_000_101) == TimestampOffset(Offset(1), 1_700_000_000_250)
    assert logs.offset_for_timestamp(TOPIC_LOG, 1_700_000_000_251) == TimestampOffset(Offset(3), 1_700_000_001_000)
    logs.close()


@pytest.mark.parametrize("older", OLDER.values(), ids=OLDER)
def test_environment_of_an_older_version_becomes_this_one(tmp_path: Path, older: Path) -> None:
    """Opened once for writing, it has the new version's number and tables, and takes the new version's writes."""
    (tmp_path / "data.mdb").write_bytes(gzip.decompress(older.read_bytes()))
    logs = LmdbDataLogs.open(tmp_path, map_bytes=MAP_BYTES)
    assert logs.cleaned(TOPIC_LOG) == Cleaned(Offset(0), 0, None, ())
    with logs.write() as writer:
        assert writer.replace(TOPIC_LOG, Offset(2), None)
        writer.put_cleaned(TOPIC_LOG, CLEANED)
        writer.put_open(TOPIC_LOG, OPEN)
    assert logs.cleaned(TOPIC_LOG) == CLEANED
    assert logs.open_transactions(TOPIC_LOG) == [OPEN]
    assert logs.bounds(TOPIC_LOG).last_stable_offset == OPEN.first_offset
    logs.close()
    assert "666f726d6174  46414952444c4f4700000007" in dump(tmp_path)


def test_compacted_log_reads_as_it_was_written(tmp_path: Path) -> None:
    """What version 2 has added can be asked of the file that it left."""
    (tmp_path / "data.mdb").write_bytes(gzip.decompress(ENVIRONMENT_2.read_bytes()))
    logs = LmdbDataLogs.open(tmp_path, map_bytes=MAP_BYTES)
    assert logs.cleaned(COMPACTED_LOG) == CLEANED
    left, last = read_one(logs, COMPACTED_LOG, 0)
    assert [record.key for record in open_batch(left).records] == [b"b"]
    assert last == compacted_batch(4, b"c")
    assert logs.units(COMPACTED_LOG, Offset(0), batches_max=1) == [Unit(Offset(0), Offset(3), 1, len(left), KEYED_MS)]
    logs.close()


def test_log_with_markers_reads_as_it_was_written(tmp_path: Path) -> None:
    """What version 3 has added can be asked of the file that it left."""
    (tmp_path / "data.mdb").write_bytes(gzip.decompress(ENVIRONMENT_3.read_bytes()))
    logs = LmdbDataLogs.open(tmp_path, map_bytes=MAP_BYTES)
    assert logs.open_transactions(MARKED_LOG) == [OPEN]
    request = ReadRequest(MARKED_LOG, Offset(0), 1 << 20, committed_only=True)
    first, *_ = marked_batches()
    expected = ReadResult(MARKED_LOG, [first], Offset(4), Offset(0), Offset(2), (ABORTED,))
    assert logs.read([request], bytes_max=1 << 20) == [expected]
    logs.close()


def test_environment_without_a_cut_index_gets_one(tmp_path: Path) -> None:
    """An older environment's cuts begin with the first one kept: there is none before it to stop at."""
    (tmp_path / "data.mdb").write_bytes(gzip.decompress(ENVIRONMENT_3.read_bytes()))
    logs = LmdbDataLogs.open(tmp_path, map_bytes=MAP_BYTES)
    starts = {TOPIC_LOG: Offset(0), COMPACTED_LOG: Offset(0)}
    oldest = {TOPIC_LOG: Offset(4), COMPACTED_LOG: Offset(5)}
    assert logs.cut_within(starts, records_max=1) == oldest
    for now_s, offset in enumerate((4, 5)):
        with logs.write() as writer:
            append(writer, TOPIC_LOG, offset, [1])
            writer.put_cut(now_s)
    first_kept = {TOPIC_LOG: Offset(5), COMPACTED_LOG: Offset(5)}
    assert logs.cut_within(starts, records_max=1) == first_kept
    assert logs.cut_within(oldest, records_max=1) == first_kept
    assert logs.cut_within(oldest, records_max=2) == {TOPIC_LOG: Offset(6), COMPACTED_LOG: Offset(5)}
    logs.close()


def test_cuts_read_as_they_were_written(tmp_path: Path) -> None:
    """What version 4 has added can be asked of the file that it left: a cut, up to where each log was stable."""
    (tmp_path / "data.mdb").write_bytes(gzip.decompress(ENVIRONMENT_4.read_bytes()))
    logs = LmdbDataLogs.open(tmp_path, map_bytes=MAP_BYTES)
    with logs.write() as writer:
        append(writer, TOPIC_LOG, 4, [1])
    starts = dict.fromkeys((TOPIC_LOG, COMPACTED_LOG, MARKED_LOG), Offset(0))
    ends = {TOPIC_LOG: Offset(4), COMPACTED_LOG: Offset(5), MARKED_LOG: Offset(2)}
    assert logs.cut_within(starts, records_max=11) == ends
    logs.close()


def test_staged_batch_is_there_for_nobody_and_gone_once_the_file_is_opened(tmp_path: Path) -> None:
    """What version 5 has added: a reader beside a node stops before it, and a node begins without it."""
    (tmp_path / "data.mdb").write_bytes(gzip.decompress(ENVIRONMENT.read_bytes()))
    key, staged = "0000000000000004", staged_batch().hex()
    assert f"{key}  {staged}" in dump(tmp_path)
    with DataLogReader.open(tmp_path) as reader, reader.cut() as cut:
        assert [record.offset for record in cut.records(TOPIC_LOG, 0)] == [0, 1, 2, 3]
    logs = LmdbDataLogs.open(tmp_path, map_bytes=MAP_BYTES)
    assert logs.offset_for_timestamp(TOPIC_LOG, STAGED_MS) is None
    logs.close()
    assert staged not in dump(tmp_path)


def test_common_cut_reads_as_it_was_written(tmp_path: Path) -> None:
    """What version 6 has added: a cut over all shards, told from the one before it that was taken alone."""
    (tmp_path / "data.mdb").write_bytes(gzip.decompress(ENVIRONMENT.read_bytes()))
    logs = LmdbDataLogs.open(tmp_path, map_bytes=MAP_BYTES)
    assert logs.newest_cut == COMMON_CUT
    known = logs.known_cuts(dict.fromkeys((TOPIC_LOG, COMPACTED_LOG), Offset(4)))
    assert (known.oldest_common, known.newest, known.newest_own) == (COMMON_CUT, COMMON_CUT, 1)
    assert known.at_oldest_common == {TOPIC_LOG: 4, COMPACTED_LOG: 6}
    assert known.by_log[COMPACTED_LOG] == LogCuts(Offset(4), Offset(7), Cut(0, Offset(0)), Cut(COMMON_CUT, Offset(6)))
    own, common = {COMPACTED_LOG: Offset(5)}, {COMPACTED_LOG: Offset(6)}
    assert logs.ends_at(1, [COMPACTED_LOG], common=False) == EndsAtCut(1, own)
    assert logs.ends_at(COMMON_CUT, [COMPACTED_LOG], common=True) == EndsAtCut(COMMON_CUT, common)
    assert logs.ends_at(COMMON_CUT + 1, [COMPACTED_LOG], common=True) == EndsAtCut(COMMON_CUT, common)
    assert logs.ends_at(COMMON_CUT - 1, [COMPACTED_LOG], common=True).number == 0
    logs.close()


def test_group_reads_as_it_was_written(tmp_path: Path) -> None:
    """What version 7 has added: who is in a group."""
    (tmp_path / "data.mdb").write_bytes(gzip.decompress(ENVIRONMENT.read_bytes()))
    logs = LmdbDataLogs.open(tmp_path, map_bytes=MAP_BYTES)
    assert logs.groups(OFFSETS_LOG) == [(name_digest("gone"), GONE)]
    logs.close()


def test_format_page_shows_the_golden_dump() -> None:
    """The dump that the page explains is the one that is tested."""
    assert DUMP.read_text() in FORMAT_PAGE.read_text()
