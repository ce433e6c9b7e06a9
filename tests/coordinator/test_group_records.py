"""The codec of group records, its bounds and its golden bytes."""

from __future__ import annotations

from uuid import UUID

import cbor2
import pytest
from hypothesis import given
from hypothesis import strategies as st

from coordinator.group_history import PART, SNAPSHOT_BEGIN, SNAPSHOT_END
from coordinator.group_records import (
    ABORTED,
    BEGIN,
    COMMITTED,
    EXPIRED,
    LISTED_IN_HEADER,
    PREPARE_COMMIT,
    PRODUCER,
    SINK,
    SINK_ABORTED,
    SINK_COMMITTED,
    SINK_PREPARE_COMMIT,
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
    decode_group,
    encode_group,
    record_bytes_max,
)
from fairlog_types import (
    CorruptStorage,
    EndedEpoch,
    JournalPosition,
    LeaderEpoch,
    LogId,
    Offset,
    Placement,
    ProducerEpoch,
    ProducerId,
    TxId,
)
from journal.frame import CBOR_BYTES_MAX, Frame, decode_frame_untrusted
from tests.journal.golden_frames import (
    GROUP_RECORDS,
    SALT,
    SNAPSHOT_RECORDS,
    golden_bytes,
)

int32 = st.integers(-1, 2**31 - 1)
int64 = st.integers(-1, 2**63 - 1)
texts = st.text(max_size=20)
epochs = st.integers(-1, 32767).map(ProducerEpoch)
txids = st.builds(TxId, int64.map(ProducerId), epochs, st.integers(0, 2**40))
logs = st.one_of(
    st.builds(LogId.of_topic, st.uuids(), st.integers(0, 2**31 - 1)),
    st.builds(LogId.of_offsets, st.integers(0, 2**31 - 1)),
)
placements = st.builds(Placement, logs, int64.map(Offset), int32)
expectations = st.dictionaries(logs, st.builds(Expectation, int32.map(LeaderEpoch), int64))
slots = st.integers(0, 10_000)
records: st.SearchStrategy[GroupRecord] = st.one_of(
    st.builds(
        ProducerRecord,
        texts,
        texts,
        int64.map(ProducerId),
        epochs,
        epochs,
        int32,
        int64,
        st.booleans(),
        int64,
        st.none() | st.builds(EndedEpoch, int64.map(ProducerId), epochs, st.booleans()),
    ),
    st.builds(ExpiredRecord, texts),
    st.builds(BeginRecord, txids, texts, st.dictionaries(logs, int32.map(LeaderEpoch)), int64),
    st.builds(PrepareCommitRecord, txids, texts, expectations, int64, int64),
    st.builds(CommittedRecord, txids, texts, st.lists(placements).map(tuple), int64),
    st.builds(PrepareAbortRecord, txids, texts, st.lists(logs).map(tuple), int64),
    st.builds(AbortedRecord, txids, texts, int64),
    st.builds(SinkRecord, texts, texts, int64, st.lists(placements).map(tuple), int64, st.none() | int64),
    st.builds(SinkForgottenRecord, texts),
    st.builds(
        SinkPrepareCommitRecord,
        texts,
        texts,
        int64,
        int64,
        st.lists(st.builds(PreparedPart, slots, txids, expectations), max_size=5).map(tuple),
        int64,
        st.none() | int64,
    ),
    st.builds(
        SinkCommittedRecord,
        texts,
        int64,
        st.lists(st.builds(CommittedPart, slots, txids, st.lists(placements).map(tuple)), max_size=5).map(tuple),
        int64,
    ),
    st.builds(SinkAbortedRecord, texts, int64, int64),
)

TXID = TxId(ProducerId(2**63 - 1), ProducerEpoch(32767), 2**63)
LONGEST_ID = "\N{SNOWMAN}" * 10_922
"""A transactional id is at most 32,767 bytes of UTF-8 (KIP-482's STRING)."""

LONGEST_SINK, LONGEST_QUERY = "\N{SNOWMAN}" * 333, "\N{SNOWMAN}" * 85
"""Of a sink 1,000 bytes, of a query 256 (coordinator/sinks/sink.py)."""


def largest(count: int) -> list[GroupRecord]:
    """Records with the longest id and `count` logs, all numbers as large as they get."""
    listed = [LogId.of_topic(UUID(int=2**128 - 1 - number), 2**31 - 1) for number in range(count)]
    epoch = LeaderEpoch(2**31 - 1)
    places = tuple(Placement(log, Offset(2**63), 2**63) for log in listed)
    one_log_each = [{log: Expectation(epoch, 2**63)} for log in listed[: count // 2]]
    # A part is an entry, too; with an odd count one part has none of its own.
    one_log_each += [{}] * (count % 2)
    return [
        SinkRecord(LONGEST_SINK, LONGEST_QUERY, 2**63, places, 2**63, 2**63),
        SinkPrepareCommitRecord(
            LONGEST_SINK,
            LONGEST_QUERY,
            2**63,
            2**63,
            tuple(PreparedPart(10_000, TXID, it) for it in one_log_each),
            2**63,
            2**63,
        ),
        SinkCommittedRecord(LONGEST_SINK, 2**63, (CommittedPart(10_000, TXID, places[1:]),), 2**63),
        BeginRecord(TXID, LONGEST_ID, dict.fromkeys(listed, epoch), 2**63),
        PrepareCommitRecord(TXID, LONGEST_ID, dict.fromkeys(listed, Expectation(epoch, 2**63)), 2**63, 2**63),
        CommittedRecord(TXID, LONGEST_ID, places, 2**63),
        PrepareAbortRecord(TXID, LONGEST_ID, tuple(listed), 2**63),
    ]


@given(records)
def test_encode_any_record_reads_back(record: GroupRecord) -> None:
    """Decoding what was encoded gives the same record, within the size that was reckoned."""
    kind, header, payload = encode_group(record)
    assert decode_group(kind, cbor2.loads(cbor2.dumps(header)), payload) == record
    assert len(cbor2.dumps(header)) + len(payload) <= record_bytes_max(record)


@pytest.mark.parametrize("count", [LISTED_IN_HEADER, LISTED_IN_HEADER + 1])
def test_encode_largest_record_fits_a_frame(count: int) -> None:
    """Whatever the id and however many the logs, the header fits a frame; the list moves to the payload."""
    for record in largest(count):
        kind, header, payload = encode_group(record)
        assert len(cbor2.dumps(header)) <= CBOR_BYTES_MAX
        assert bool(payload) == (count > LISTED_IN_HEADER)
        assert decode_group(kind, header, payload) == record
        assert len(cbor2.dumps(header)) + len(payload) <= record_bytes_max(record)


@pytest.mark.parametrize(
    ("kind", "header", "payload"),
    [
        (0, [], b""),
        (13, ["id"], b""),
        (SINK, ["sink", "query", 7, [], 5], b""),
        (SINK, ["sink", "query", 7, 5, [[0, b"short", 0, 7, 1]]], b""),
        (SINK, ["sink", "query", 7, 5, 4, 3, []], b""),
        (SINK, ["sink", "query", 7, 5, "4", []], b""),
        (SINK_COMMITTED, ["sink", 7, 5, 4, []], b""),
        (SINK_PREPARE_COMMIT, ["sink", "query", 7, 5, [[0, 1, 2, 3]]], b""),
        (SINK_PREPARE_COMMIT, ["sink", "query", 7, 5, [[0, 1, 2, 3, [[1, b"", 0, 7]]]]], b""),
        (SINK_PREPARE_COMMIT, ["sink", "query", 7, 5, [[0, 1, 2, 3, [], 4]]], b""),
        (SINK_COMMITTED, ["sink", 7, 5, [[0, 1, 2, 3, None]]], b"\x80"),
        (SINK_ABORTED, ["sink", 7], b""),
        (EXPIRED, [], b""),
        (EXPIRED, ["id", 1], b""),
        (EXPIRED, [b"id"], b""),
        (PRODUCER, ["id", "id", 1, 2, 1, 60000, 0, 0, 5], b""),
        (PRODUCER, ["id", "id", 1, 2, 1, 60000, 0, False, 5, 1, 1], b""),
        (PRODUCER, ["id", "id", 1, 2, 1, 60000, 0, False, 5, 1, 1, 0], b""),
        (PRODUCER, ["id", "id", 1, 2, 1, 60000, 0, False, 5, 1, 1, True, 0], b""),
        (ABORTED, [1, 2, True, "id", 5], b""),
        (BEGIN, [1, 2, 3, "id", 5, {}], b""),
        (BEGIN, [1, 2, 3, "id", 5, [[0, b"short", 0, 7]]], b""),
        (BEGIN, [1, 2, 3, "id", 5, [[1, b"", 0]]], b""),
        (BEGIN, [1, 2, 3, "id", 5, None], b""),
        (BEGIN, [1, 2, 3, "id", 5, None], b"\x82\x01"),
        (PREPARE_COMMIT, [1, 2, 3, "id", 5, [[1, b"", 0, 7]]], b""),
        (COMMITTED, [1, 2, 3, "id", 5, [[2, b"", 0, 7, 1]]], b""),
        (COMMITTED, [1, 2, 3, "id", 5, [7]], b""),
    ],
)
def test_decode_other_headers_are_corrupt(kind: int, header: list[object], payload: bytes) -> None:
    """A header that no version of ours wrote is refused, never guessed."""
    with pytest.raises(CorruptStorage, match=f"of kind {kind}"):
        decode_group(kind, header, payload)


def test_golden_group_frames_read_back() -> None:
    """The golden bytes are frames, one after the other, and hold the records, then a snapshot."""
    records, snapshot = GROUP_RECORDS, SNAPSHOT_RECORDS
    data = golden_bytes("group-journal-frames-5.txt")
    position = JournalPosition(0)
    frames: list[Frame] = []
    while position < len(data):
        frame = decode_frame_untrusted(data, position, salt=SALT, offset=position)
        assert isinstance(frame, Frame)
        frames.append(frame)
        position = frame.end
    count = len(records)
    assert [decode_group(frame.kind, frame.header(), b"") for frame in frames[:count]] == records
    begin, *parts, end = frames[count:]
    assert (begin.kind, begin.header()) == (SNAPSHOT_BEGIN, [0, 0])
    assert [decode_group(frame.kind ^ PART, frame.header(), b"") for frame in parts] == snapshot
    assert (end.kind, end.header()) == (SNAPSHOT_END, [len(snapshot)])
