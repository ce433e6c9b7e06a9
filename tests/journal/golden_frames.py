"""The golden frames: every kind of record once, as its version wrote it, dumped as text that the format pages show.

python -m tests.journal.golden_frames      writes them anew, for a new version of a format only
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path
from uuid import UUID

from coordinator.group_history import PART, SNAPSHOT_BEGIN, SNAPSHOT_END
from coordinator.group_records import (
    AbortedRecord,
    BeginRecord,
    CommittedPart,
    CommittedRecord,
    Expectation,
    ExpiredRecord,
    GroupRecord,
    PrepareAbortRecord,
    PrepareCommitRecord,
    PreparedPart,
    ProducerRecord,
    SinkAbortedRecord,
    SinkCommittedRecord,
    SinkForgottenRecord,
    SinkPrepareCommitRecord,
    SinkRecord,
    encode_group,
)
from fairlog_types import (
    NO_APPLY_NUMBER,
    ApplyNumber,
    EndedEpoch,
    JournalPosition,
    LeaderEpoch,
    LogId,
    Offset,
    Placement,
    ProducerEpoch,
    ProducerId,
    ShardNumber,
    TxId,
)
from journal.frame import encode_frame
from partition.producer_window import AppliedTransaction, ProducerWindow, WindowBatch
from partition.record_codec import encode_local
from partition.records import (
    Apply,
    Discard,
    Fence,
    Forget,
    LocalRecord,
    Marker,
    OpenBatch,
    PlainBatch,
    Prepared,
    Start,
    TransactionalBatch,
)

GOLDEN = Path(__file__).parents[1] / "golden"
FORMATS = Path(__file__).parents[2] / "docs" / "formats"
SALT = 0x5EED5EED
EPOCH = LeaderEpoch(7)

TXID = TxId(ProducerId(4001), ProducerEpoch(3), 12)
ABORTED_TXID = TxId(ProducerId(4001), ProducerEpoch(3), 13)
LOG = LogId.of_topic(UUID("00112233445566778899aabbccddeeff"), 2)
OFFSETS = LogId.of_offsets(5)
NOW_MS = 1_763_632_800_000

LOCAL_RECORDS_3: list[tuple[LocalRecord, bytes]] = [
    (Fence(ProducerId(4001), ProducerEpoch(3)), b""),
    (PlainBatch(Offset(0), 2, NOW_MS, ProducerId(-1), ProducerEpoch(-1), -1), b"a plain batch"),
    (TransactionalBatch(TXID, 3, NOW_MS, 0), b"a transaction's batch"),
    (Apply(TXID, ApplyNumber(900), Offset(2), 3, NOW_MS), b""),
    (Discard(ABORTED_TXID), b""),
    (Forget(ProducerId(4001)), b""),
    (OpenBatch(TXID, Offset(0), 3, NOW_MS, 0), b"an open batch"),
    (Marker(TXID, ApplyNumber(901), Offset(3), True, 7, NOW_MS), b""),
    (Marker(ABORTED_TXID, NO_APPLY_NUMBER, Offset(4), False, 7, NOW_MS), b""),
    (Prepared(TXID, 3, ShardNumber(2)), b""),
]
LOCAL_RECORDS = [*LOCAL_RECORDS_3, (Start(Offset(300)), b"")]

ID = "orders-sink"
PRODUCER = ProducerRecord(ID, ID, ProducerId(4001), ProducerEpoch(3), ProducerEpoch(2), 60_000, 12, False, NOW_MS)
COMMITTED = CommittedRecord(TXID, ID, (Placement(LOG, Offset(2), 3), Placement(OFFSETS, Offset(8), 1)), NOW_MS)
RECORDS_OF_IDS: list[GroupRecord] = [
    PRODUCER,
    BeginRecord(TXID, ID, {LOG: EPOCH, OFFSETS: EPOCH}, NOW_MS),
    PrepareCommitRecord(TXID, ID, {LOG: Expectation(EPOCH, 3), OFFSETS: Expectation(EPOCH, 1)}, NOW_MS, 1),
    COMMITTED,
    PrepareAbortRecord(ABORTED_TXID, ID, (LOG,), NOW_MS),
    AbortedRecord(ABORTED_TXID, ID, NOW_MS),
    ExpiredRecord("a-forgotten-id"),
]

SINK_ID, QUERY = "totals", "0c8f"
GROUP_PREPARED = SinkPrepareCommitRecord(
    SINK_ID,
    QUERY,
    7,
    2,
    (
        PreparedPart(0, TXID, {LOG: Expectation(EPOCH, 3), OFFSETS: Expectation(EPOCH, 1)}),
        PreparedPart(2, ABORTED_TXID, {LOG: Expectation(EPOCH, 2)}),
    ),
    NOW_MS,
)
PLACES, MORE_PLACES = (Placement(LOG, Offset(2), 3), Placement(OFFSETS, Offset(8), 1)), (Placement(LOG, Offset(5), 2),)
RECORDS_OF_SINKS: list[GroupRecord] = [
    GROUP_PREPARED,
    SinkCommittedRecord(
        SINK_ID, 7, (CommittedPart(0, TXID, PLACES), CommittedPart(2, ABORTED_TXID, MORE_PLACES)), NOW_MS
    ),
    SinkAbortedRecord(SINK_ID, 8, NOW_MS),
    SinkForgottenRecord("a-forgotten-sink"),
]
SINK = SinkRecord(SINK_ID, QUERY, 7, (Placement(LOG, Offset(2), 5), Placement(OFFSETS, Offset(8), 1)), NOW_MS)
PLANNED_MS = NOW_MS - 1_234

ENDED = EndedEpoch(ProducerId(4001), ProducerEpoch(3), True)
GRANTED_BY_AN_END = replace(PRODUCER, epoch=ProducerEpoch(4), last_epoch=ProducerEpoch(-1), next_number=0, ended=ENDED)
GRANTED_TO_END = replace(PRODUCER, next_number=0, kept=ABORTED_TXID)
GRANTED_BY_THAT_END = replace(GRANTED_BY_AN_END, ended=ENDED._replace(kept=ABORTED_TXID))
GRANTS: list[GroupRecord] = [GRANTED_BY_AN_END, GRANTED_TO_END, GRANTED_BY_THAT_END]

GROUP_RECORDS = [*RECORDS_OF_IDS, *RECORDS_OF_SINKS, replace(GROUP_PREPARED, planned_ms=PLANNED_MS), *GRANTS]
SNAPSHOT_RECORDS: list[GroupRecord] = [PRODUCER, COMMITTED, SINK, replace(SINK, planned_ms=PLANNED_MS), *GRANTS]

WINDOW = ProducerWindow(
    epoch=ProducerEpoch(3),
    batches=(WindowBatch(0, 1, Offset(0)), WindowBatch(2, 4, None)),
    applied=(AppliedTransaction(ProducerEpoch(3), 12, ApplyNumber(900), Offset(2), 3),),
    last_use_ms=NOW_MS,
    as_of=JournalPosition(264),
)

WINDOW_2 = replace(WINDOW, coordinator_epoch=7)


def _dump(frames: list[tuple[str, int, list[object], bytes]]) -> str:
    """One block of text for each frame; a line shows its position and 16 bytes."""
    lines: list[str] = []
    position = JournalPosition(0)
    for name, kind, header, payload in frames:
        frame = b"".join(
            encode_frame(
                position=position,
                durable=JournalPosition(0),
                leader_epoch=EPOCH,
                timestamp_ms=NOW_MS,
                kind=kind,
                header=header,
                payload=(payload,) if payload else (),
                salt=SALT,
            )
        )
        lines.append(f"{name} at {position}")
        lines += hex_lines(frame, position)
        position = JournalPosition(position + len(frame))
    return "\n".join(lines) + "\n"


def hex_lines(data: bytes, position: int = 0) -> list[str]:
    return [f"{position + at:08x}  {data[at : at + 16].hex(' ')}" for at in range(0, len(data), 16)]


def local_dump(records: list[tuple[LocalRecord, bytes]]) -> str:
    frames: list[tuple[str, int, list[object], bytes]] = []
    for record, payload in records:
        kind, header = encode_local(record)
        frames.append((type(record).__name__, kind, list(header), payload))
    return _dump(frames)


def group_dump(records: list[GroupRecord], snapshot: list[GroupRecord]) -> str:
    frames: list[tuple[str, int, list[object], bytes]] = []
    for record in records:
        kind, header, payload = encode_group(record)
        frames.append((type(record).__name__, kind, header, payload))
    frames.append(("SNAPSHOT_BEGIN", SNAPSHOT_BEGIN, [0, 0], b""))
    for record in snapshot:
        kind, header, payload = encode_group(record)
        frames.append((f"part {type(record).__name__}", PART | kind, header, payload))
    frames.append(("SNAPSHOT_END", SNAPSHOT_END, [len(snapshot)], b""))
    return _dump(frames)


def window_dump(window: ProducerWindow) -> str:
    return "\n".join(hex_lines(window.encode())) + "\n"


DUMPS = {
    "local-journal-frames-3.txt": partial(local_dump, LOCAL_RECORDS_3),
    "local-journal-frames-4.txt": partial(local_dump, LOCAL_RECORDS),
    "group-journal-frames-5.txt": partial(group_dump, GROUP_RECORDS, SNAPSHOT_RECORDS),
    "producer-window-1.txt": partial(window_dump, WINDOW),
    "producer-window-2.txt": partial(window_dump, WINDOW_2),
}


def golden_bytes(name: str) -> bytes:
    """The bytes that a golden dump shows."""
    data = bytearray()
    for line in (GOLDEN / name).read_text().splitlines():
        position, _, shown = line.partition("  ")
        if shown:
            assert int(position, 16) == len(data)
            data += bytes.fromhex(shown)
    return bytes(data)


if __name__ == "__main__":
    for name, dump in DUMPS.items():
        (GOLDEN / name).write_text(dump())
