"""The codec of local records, its golden bytes, and a replay through a journal on real files."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairlog_types import (
    ApplyNumber,
    CorruptStorage,
    JournalPosition,
    LeaderEpoch,
    LogId,
    Offset,
    ProducerEpoch,
    ProducerId,
    ShardNumber,
    TxId,
)
from journal.frame import Frame, decode_frame_untrusted
from journal.journal import Journal
from partition.placed import Placed, PlacedBatch, PlacedTransaction
from partition.producer_window import ProducerWindow
from partition.record_codec import FENCE, FORGET, MARKER, PLAIN_BATCH, START, decode_local, encode_local, replay_local
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
from partition.state import PartitionState
from tests.journal.golden_frames import (
    DUMPS,
    EPOCH,
    FORMATS,
    GOLDEN,
    LOCAL_RECORDS,
    LOCAL_RECORDS_3,
    NOW_MS,
    SALT,
    WINDOW,
    WINDOW_2,
    golden_bytes,
)

LOG = LogId("t", "0f" * 16, 0)
OpenJournal = Callable[..., Awaitable[Journal]]

int64 = st.integers(-1, 2**63 - 1)
txids = st.builds(TxId, int64.map(ProducerId), st.integers(0, 32767).map(ProducerEpoch), st.integers(0, 2**40))
records: st.SearchStrategy[LocalRecord] = st.one_of(
    st.builds(Fence, int64.map(ProducerId), st.integers(0, 32767).map(ProducerEpoch)),
    st.builds(
        PlainBatch,
        int64.map(Offset),
        st.integers(0, 2**31 - 1),
        int64,
        int64.map(ProducerId),
        st.integers(-1, 32767).map(ProducerEpoch),
        st.integers(-1, 2**31 - 1),
    ),
    st.builds(TransactionalBatch, txids, st.integers(0, 2**31 - 1), int64, st.integers(-1, 2**31 - 1)),
    st.builds(Apply, txids, st.integers(0, 2**64 - 1).map(ApplyNumber), int64.map(Offset), st.integers(0), int64),
    st.builds(Discard, txids),
    st.builds(Prepared, txids, st.integers(0, 2**31 - 1), st.integers(0, 2**15).map(ShardNumber)),
    st.builds(OpenBatch, txids, int64.map(Offset), st.integers(0, 2**31 - 1), int64, st.integers(0, 2**31 - 1)),
    st.builds(
        Marker,
        txids,
        st.integers(-1, 2**64 - 1).map(ApplyNumber),
        int64.map(Offset),
        st.booleans(),
        st.integers(-1, 2**31 - 1),
        int64,
    ),
    st.builds(Forget, int64.map(ProducerId)),
    st.builds(Start, int64.map(Offset)),
)


@given(records)
def test_encode_any_record_reads_back(record: LocalRecord) -> None:
    """Decoding what was encoded gives the same record."""
    assert decode_local(*encode_local(record)) == record


@pytest.mark.parametrize(
    ("kind", "header", "says"),
    [
        (0, [], "no frames of kind 0"),
        (11, [1, 2], "no frames of kind 11"),
        (FENCE, [1], "must be 2 integers"),
        (FENCE, [1, 2, 3], "must be 2 integers"),
        (FORGET, ["1"], "must be 1 integers"),
        (FORGET, [True], "must be 1 integers"),
        (START, [], "must be 1 integers, not empty"),
        (PLAIN_BATCH, [0, 1, 2, 3, 4, None], "must be 6 integers"),
        (MARKER, [1, 0, 0, 5, 9, True, 1, 0], "must be 8 integers"),
        (MARKER, [1, 0, 0, 5, 9, 2, 1, 0], "outcome must be 0 or 1"),
    ],
)
def test_decode_other_headers_are_corrupt(kind: int, header: list[object], says: str) -> None:
    """A header that no version of ours wrote is refused, never guessed."""
    with pytest.raises(CorruptStorage, match=says):
        decode_local(kind, header)


@pytest.mark.parametrize("name", DUMPS)
def test_golden_dump_is_what_is_written_and_what_the_page_shows(name: str) -> None:
    """Each version is written byte for byte as on the day it was fixed, and its page shows these bytes."""
    golden = (GOLDEN / name).read_text()
    assert DUMPS[name]() == golden
    page = "group-journal.md" if name.startswith("group") else "local-journal.md"
    assert golden in (FORMATS / page).read_text()


@pytest.mark.parametrize(("version", "records"), [(3, LOCAL_RECORDS_3), (4, LOCAL_RECORDS)])
def test_golden_local_frames_read_back(version: int, records: list[tuple[LocalRecord, bytes]]) -> None:
    """The golden bytes are frames, one after the other, and hold the records with their payloads."""
    data = golden_bytes(f"local-journal-frames-{version}.txt")
    position = JournalPosition(0)
    for record, payload in records:
        frame = decode_frame_untrusted(data, position, salt=SALT, offset=position)
        assert isinstance(frame, Frame)
        assert decode_local(frame.kind, frame.header()) == record
        assert bytes(frame.payload) == payload
        assert (frame.leader_epoch, frame.timestamp_ms) == (EPOCH, NOW_MS)
        position = frame.end
    assert position == len(data)


def test_golden_window_reads_back() -> None:
    """A window that a data log keeps is read as it was, of either version."""
    assert ProducerWindow.decode(golden_bytes("producer-window-1.txt")) == WINDOW
    assert ProducerWindow.decode(golden_bytes("producer-window-2.txt")) == WINDOW_2


async def test_replay_journal_on_files_gives_the_live_state(open_journal: OpenJournal) -> None:
    """What was folded live and what a reopened journal replays are the same, and its batches read back."""
    journal = await open_journal()
    live = PartitionState(LOG, journal.leader_epoch)
    placed: list[Placed] = []
    first, second = TxId(ProducerId(1), ProducerEpoch(0), 0), TxId(ProducerId(2), ProducerEpoch(0), 0)
    written: list[tuple[LocalRecord, bytes]] = [
        (Fence(ProducerId(1), ProducerEpoch(0)), b""),
        (TransactionalBatch(first, 1, 0, 0), b"one"),
        (TransactionalBatch(second, 1, 0, 0), b"two"),
        (TransactionalBatch(first, 2, 0, 1), b"three"),
        (Apply(first, ApplyNumber(1), Offset(0), 3, 0), b""),
        (PlainBatch(Offset(3), 1, 0, ProducerId(-1), ProducerEpoch(-1), -1), b"four"),
    ]
    for now_ms, (record, payload) in enumerate(written):
        await journal.make_room(len(payload))
        kind, header = encode_local(record)
        position = journal.append(kind, header, [payload], timestamp_ms=now_ms)
        item = live.fold(record, position, journal.end, leader_epoch=journal.leader_epoch, timestamp_ms=now_ms)
        if item is not None:
            placed.append(item)
    end = journal.end
    await journal.close()

    journal = await open_journal()
    state = PartitionState(LOG, LeaderEpoch(8))
    again = list(replay_local(journal.frames(journal.start), state))
    assert again == placed
    assert state.windows == live.windows
    assert state.open_transactions == live.open_transactions
    assert state.folded_through == end
    transaction, plain = again[1:]
    assert isinstance(transaction, PlacedTransaction)
    assert isinstance(plain, PlacedBatch)
    batches = [*transaction.batches, plain.batch]
    assert [bytes(journal.read_payload(b.position, b.frame_bytes)) for b in batches] == [b"one", b"three", b"four"]
    await journal.close()


async def test_replay_frame_of_unknown_kind_names_log_and_position(open_journal: OpenJournal) -> None:
    """A journal that a newer version wrote is refused by log and position."""
    journal = await open_journal()
    await journal.make_room(0)
    journal.append(FENCE, (1, 0), timestamp_ms=0)
    position = journal.append(99, cast("list[object]", [1]), timestamp_ms=0)
    with pytest.raises(CorruptStorage, match=f"{LOG}, position {position}: a local journal has no frames of kind 99"):
        list(replay_local(journal.frames(journal.start), PartitionState(LOG, LeaderEpoch(1))))
    await journal.close()
