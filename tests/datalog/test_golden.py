"""The format on disk does not change by accident: what version 1 wrote is read, and written, as ever."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest

from datalog.environment import LmdbDataLogs
from datalog.interface import Mark, TimestampOffset
from datalog.offset_entries import OffsetKey
from fairlog_types import JournalPosition, Offset, ProducerId
from tests.datalog.batches import batch
from tests.datalog.behaviour import read_one
from tests.datalog.golden_data_log import (
    COMMITTED,
    DUMP,
    ENVIRONMENT,
    MAP_BYTES,
    OFFSETS_LOG,
    TIMESTAMPS,
    TOPIC_LOG,
    dump,
    fill,
)

FORMAT_PAGE = Path(__file__).parents[2] / "docs" / "formats" / "data-log.md"


@pytest.fixture
def golden(tmp_path: Path) -> Path:
    """A copy of the environment that version 1 wrote."""
    (tmp_path / "data.mdb").write_bytes(gzip.decompress(ENVIRONMENT.read_bytes()))
    return tmp_path


def test_environment_written_now_equals_the_golden_one(tmp_path: Path) -> None:
    """The same writes lead to the same keys and values, byte for byte."""
    logs = LmdbDataLogs.open(tmp_path, map_bytes=MAP_BYTES)
    fill(logs)
    logs.close()
    assert dump(tmp_path) == DUMP.read_text()


def test_environment_of_version_1_reads_as_it_was_written(golden: Path) -> None:
    """Everything can still be asked of the file that version 1 left."""
    logs = LmdbDataLogs.open(golden, map_bytes=MAP_BYTES)
    assert logs.logs() == [OFFSETS_LOG, TOPIC_LOG]
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


def test_format_page_shows_the_golden_dump() -> None:
    """The dump that the page explains is the one that is tested."""
    assert DUMP.read_text() in FORMAT_PAGE.read_text()
