"""The golden data log environment: made once, by version 1 of the format, and kept.

python -m tests.datalog.golden_data_log      writes it anew, for a new version of the format only
"""

from __future__ import annotations

import gzip
import tempfile
from pathlib import Path
from unittest import mock
from uuid import UUID

import lmdb

from datalog import time_index
from datalog.environment import LmdbDataLogs
from datalog.interface import DataLogs, Mark
from datalog.offset_entries import CommittedOffset, OffsetEntry, OffsetKey
from fairlog_types import JournalPosition, LogId, Offset, ProducerId
from tests.datalog.batches import batch

DIRECTORY = Path(__file__).parents[1] / "golden" / "data-log"
ENVIRONMENT = DIRECTORY / "data.mdb.gz"
DUMP = DIRECTORY / "dump.txt"
MAP_BYTES = 1 << 24

TOPIC_LOG = LogId.of_topic(UUID("00112233-4455-6677-8899-aabbccddeeff"), 2)
OFFSETS_LOG = LogId.of_offsets(5)
TIMESTAMPS = ([1_700_000_000_000, 1_700_000_000_250], [1_700_000_000_100], [1_700_000_001_000])
COMMITTED = CommittedOffset(Offset(3), 1, "note", 1_700_000_002_000)


def fill(logs: DataLogs) -> None:
    """Write one of everything. An entry of the time index is due after 64 bytes here, not after a mebibyte."""
    with mock.patch.object(time_index, "ENTRY_SPACING_BYTES", 64), logs.write() as writer:
        writer.create(TOPIC_LOG)
        writer.create(OFFSETS_LOG)
        offset = 0
        for timestamps in TIMESTAMPS:
            data = batch(offset, timestamps, leader_epoch=1)
            writer.append(TOPIC_LOG, Offset(offset), len(timestamps), max(timestamps), data)
            offset += len(timestamps)
        writer.put_producer(TOPIC_LOG, ProducerId(4000), b"window")
        writer.put_mark(TOPIC_LOG, Mark(JournalPosition(1024), JournalPosition(512), Offset(offset)))
        writer.put_offsets(OFFSETS_LOG, [OffsetEntry(OffsetKey("group", "topic", 2), COMMITTED)])
        writer.put_mark(OFFSETS_LOG, Mark(JournalPosition(128), JournalPosition(128), Offset(1)))


def dump(directory: Path) -> str:
    """Every key and value of every database, in hex, by LMDB alone."""
    lines: list[str] = []
    with lmdb.open(str(directory), map_size=MAP_BYTES, max_dbs=20) as env, env.begin() as txn:
        for name in [bytes(key) for key, _ in txn.cursor()]:
            lines.append(f"[{name.decode()}]")
            database = env.open_db(name, txn=txn, create=False)
            lines += [f"{key.hex()}  {value.hex()}" for key, value in txn.cursor(db=database)]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as scratch:
        made = LmdbDataLogs.open(Path(scratch), map_bytes=MAP_BYTES)
        fill(made)
        made.close()
        DIRECTORY.mkdir(parents=True, exist_ok=True)
        ENVIRONMENT.write_bytes(gzip.compress((Path(scratch) / "data.mdb").read_bytes(), mtime=0))
        DUMP.write_text(dump(Path(scratch)))
