"""The golden data log environments: each made once, by one version of the format, and kept.

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
from datalog.control_batch import encode_control_batch
from datalog.environment import LmdbDataLogs
from datalog.interface import AbortedTransaction, Cleaned, Cleaning, DataLogs, Mark, OpenInLog
from datalog.keyed import open_batch, without
from datalog.offset_entries import CommittedOffset, GroupEntry, OffsetEntry, OffsetKey
from fairlog_types import JournalPosition, LeaderEpoch, LogId, Offset, ProducerEpoch, ProducerId, TxId
from tests.datalog.batches import batch, keyed_batch

GOLDEN = Path(__file__).parents[1] / "golden"
DIRECTORY = GOLDEN / "data-log-7"
ENVIRONMENT = DIRECTORY / "data.mdb.gz"
ENVIRONMENT_1 = GOLDEN / "data-log" / "data.mdb.gz"
"""What version 1 has written: the same as version 3, without a compaction and without a log of the marker mode."""
ENVIRONMENT_2 = GOLDEN / "data-log-2" / "data.mdb.gz"
"""What version 2 has written: the same as version 3, without a log of the marker mode."""
ENVIRONMENT_3 = GOLDEN / "data-log-3" / "data.mdb.gz"
"""What version 3 has written: the same, without a cut index."""
ENVIRONMENT_4 = GOLDEN / "data-log-4" / "data.mdb.gz"
"""What version 4 has written: the same, with nothing staged."""
ENVIRONMENT_5 = GOLDEN / "data-log-5" / "data.mdb.gz"
"""What version 5 has written: the same, without a cut over all shards, and without the batch before it."""
ENVIRONMENT_6 = GOLDEN / "data-log-6" / "data.mdb.gz"
"""What version 6 has written: the same, without a group's record."""
DUMP = DIRECTORY / "dump.txt"
MAP_BYTES = 1 << 24

TOPIC_LOG = LogId.of_topic(UUID("00112233-4455-6677-8899-aabbccddeeff"), 2)
OFFSETS_LOG = LogId.of_offsets(5)
TIMESTAMPS = ([1_700_000_000_000, 1_700_000_000_250], [1_700_000_000_100], [1_700_000_001_000])
COMPACTED_LOG = LogId.of_topic(UUID("00112233-4455-6677-8899-aabbccddeeff"), 3)
KEYED_MS = 1_700_000_000_000
MARKED_LOG = LogId.of_topic(UUID("00112233-4455-6677-8899-aabbccddeeff"), 4)
MARKED_MS = 1_700_000_000_000
ABORTED = AbortedTransaction(ProducerId(4000), Offset(0), Offset(3), Offset(2))
OPEN = OpenInLog(TxId(ProducerId(4001), ProducerEpoch(1), 6), LeaderEpoch(1), Offset(2), 1)
CLEANED = Cleaned(Offset(4), 70, None, (Cleaning(Offset(4), 1_700_000_003_000, 1),))
COMMON_CUT = 7
GONE = bytes.fromhex("8664676f6e650468636f6e73756d6572606080")
"""Who is in the group `gone`: its generation was 4, and no one is left (docs/formats/group-membership.md)."""
STAGED_MS = 1_700_000_004_000
COMMITTED = CommittedOffset(Offset(3), 1, "note", 1_700_000_002_000)


def fill(logs: DataLogs) -> None:
    """Write one of everything, last the record of a group."""
    fill_as_version_6(logs)
    with logs.write() as writer:
        writer.put_offsets(OFFSETS_LOG, [GroupEntry("gone", GONE)])


def fill_as_version_6(logs: DataLogs) -> None:
    """What the golden file of version 6 has: a cut over all shards last, which a log has grown behind meanwhile."""
    fill_as_version_5(logs)
    with logs.write() as writer:
        writer.append(COMPACTED_LOG, Offset(5), 1, KEYED_MS, compacted_batch(5, b"e"))
        writer.append(COMPACTED_LOG, Offset(6), 1, KEYED_MS, compacted_batch(6, b"f"))
    with logs.write() as writer:
        writer.put_common_cut(COMMON_CUT, {TOPIC_LOG: Offset(4), COMPACTED_LOG: Offset(6), MARKED_LOG: Offset(2)})


def fill_as_version_5(logs: DataLogs) -> None:
    """What the golden file of version 5 has: a batch last that is staged."""
    fill_as_version_4(logs)
    with logs.write() as writer:
        writer.stage(TOPIC_LOG, Offset(4), 1, STAGED_MS, staged_batch())


def staged_batch() -> bytearray:
    """Of a transaction that is not copied yet."""
    return keyed_batch(4, [(b"d", b"v")], timestamp_ms=STAGED_MS, attributes=0x10, producer=(4002, 0, 0))


def fill_as_version_4(logs: DataLogs) -> None:
    """What the golden file of version 4 has: a cut last."""
    fill_as_version_3(logs)
    with logs.write() as writer:
        writer.put_cut(0.0)


def fill_as_version_3(logs: DataLogs) -> None:
    """What the golden file of version 3 has: a log of the marker mode last."""
    fill_as_version_2(logs)
    first, second, marker = marked_batches()
    with logs.write() as writer:
        writer.create(MARKED_LOG)
        writer.append(MARKED_LOG, Offset(0), 2, MARKED_MS, first)
        aborted = TxId(ABORTED.producer_id, ProducerEpoch(0), 2)
        writer.put_open(MARKED_LOG, OpenInLog(aborted, LeaderEpoch(1), ABORTED.first_offset, 2))
        writer.append(MARKED_LOG, Offset(2), 1, MARKED_MS, second)
        writer.put_open(MARKED_LOG, OPEN)
        writer.delete_open(MARKED_LOG, ProducerId(4000))
        writer.append(MARKED_LOG, Offset(3), 1, MARKED_MS, marker)
        writer.put_aborted(MARKED_LOG, ABORTED)
        writer.put_mark(MARKED_LOG, Mark(JournalPosition(512), JournalPosition(512), Offset(4)))


def marked_batches() -> tuple[bytes, bytes, bytes]:
    """A transaction's batch, another's, and the marker that aborts the first."""
    first = keyed_batch(0, [(b"a", b"v")] * 2, timestamp_ms=MARKED_MS, attributes=0x10, producer=(4000, 0, 0))
    second = keyed_batch(2, [(b"a", b"w")], timestamp_ms=MARKED_MS, attributes=0x10, producer=(4001, 1, 0))
    marker = encode_control_batch(
        Offset(3),
        LeaderEpoch(1),
        ProducerId(4000),
        ProducerEpoch(0),
        committed=False,
        coordinator_epoch=5,
        timestamp_ms=MARKED_MS,
    )
    return bytes(first), bytes(second), marker


def fill_as_version_2(logs: DataLogs) -> None:
    """What the golden file of version 2 has: a compacted log last."""
    fill_as_version_1(logs)
    with logs.write() as writer:
        writer.create(COMPACTED_LOG)
        for offset, keys in ((0, b"ab"), (2, b"aa"), (4, b"c")):
            writer.append(COMPACTED_LOG, Offset(offset), len(keys), KEYED_MS, compacted_batch(offset, keys))
        writer.bind(COMPACTED_LOG, Offset(0), Offset(3))
        writer.put_mark(COMPACTED_LOG, Mark(JournalPosition(512), JournalPosition(512), Offset(5)))
        left = open_batch(bytes(compacted_batch(0, b"ab")))
        writer.replace(COMPACTED_LOG, Offset(1), without(left, left.records[1:]))
        writer.replace(COMPACTED_LOG, Offset(3), None)
        writer.put_cleaned(COMPACTED_LOG, CLEANED)


def compacted_batch(offset: int, keys: bytes) -> bytearray:
    """A transaction's batch with a record for each letter of `keys`, tombstones but for the first."""
    pairs = [(bytes([key]), None if index else b"v") for index, key in enumerate(keys)]
    return keyed_batch(offset, pairs, timestamp_ms=KEYED_MS, attributes=0x10, producer=(4000, 0, offset))


def fill_as_version_1(logs: DataLogs) -> None:
    """What the golden file of version 1 has. An entry of the time index is due after 64 bytes here, not a mebibyte."""
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
