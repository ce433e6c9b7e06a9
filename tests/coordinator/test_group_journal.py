"""The group journal: replay, and snapshots that are taken while records are appended and may crash anywhere.

`MemoryJournal` stands in for the journal where every point of a crash is walked through. Its fault model: a crash
comes before any call to it takes effect, or between the deletions of two segments; of the frames that were
not synced by then, any number from the front survive.
"""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable, Iterator, Sequence
from pathlib import Path
from typing import cast

import pytest
import trio

from coordinator.group_history import PART, SNAPSHOT_BEGIN, SNAPSHOT_END
from coordinator.group_journal import GroupJournal, begin_with_snapshot
from coordinator.group_records import (
    PRODUCER,
    BeginRecord,
    ExpiredRecord,
    GroupRecord,
    PrepareCommitRecord,
    ProducerRecord,
    SinkRecord,
    encode_group,
)
from fairlog_types import (
    CorruptStorage,
    JournalPosition,
    LeaderEpoch,
    LogId,
    Offset,
    Placement,
    ProducerEpoch,
    ProducerId,
    TxId,
)
from journal.journal import FrameAt, Fsync, Journal, JournalKind

OpenJournal = Callable[..., Awaitable[Journal]]
EPOCH = ProducerEpoch(0)


class Crash(Exception):
    """The process ends here."""


class MemoryJournal:
    """A journal of segments of frames, in memory, that crashes at the call numbered `crash_at`."""

    failed = None

    def __init__(self, *, crash_at: float = math.inf, meanwhile: Callable[[], object] = lambda: None) -> None:
        self.crash_at = crash_at
        self.calls = 0
        self.meanwhile = meanwhile
        """Runs wherever the journal may let others run."""
        self.segments: list[list[FrameAt]] = [[]]
        self.bases = [JournalPosition(0)]
        self.end = JournalPosition(0)
        self.synced = JournalPosition(0)

    @property
    def start(self) -> JournalPosition:
        return self.bases[0]

    def step(self) -> None:
        self.calls += 1
        if self.calls > self.crash_at:
            raise Crash

    def append(
        self, kind: int, header: Sequence[object], payload: Sequence[bytes] = (), *, timestamp_ms: int = 0
    ) -> JournalPosition:
        self.step()
        position, self.end = self.end, JournalPosition(self.end + 64)
        self.segments[-1].append(
            FrameAt(position, self.end, kind, LeaderEpoch(1), timestamp_ms, list(header), position, 0)
        )
        return position

    def has_room(self, payload_bytes: int) -> bool:
        return self.calls % 3 != 0

    async def make_room(self, payload_bytes: int) -> None:
        self.step()
        self.meanwhile()

    async def roll(self) -> JournalPosition:
        self.step()
        self.meanwhile()
        self.segments.append([])
        self.bases.append(self.end)
        return self.end

    async def sync(self) -> None:
        through = self.end
        self.meanwhile()
        self.step()
        self.synced = through

    async def reclaim(self, before: JournalPosition) -> None:
        while len(self.bases) > 1 and self.bases[1] <= before:
            self.step()
            del self.segments[0], self.bases[0]

    def frames(self, start: JournalPosition) -> Iterator[FrameAt]:
        assert start == self.start
        for segment in self.segments:
            yield from segment

    def survivors(self) -> Iterator[MemoryJournal]:
        """What a restart may find."""
        frames = [frame for segment in self.segments for frame in segment]
        for end in [JournalPosition(64 * number) for number in range(self.synced // 64, self.end // 64 + 1)]:
            if end < self.start:
                continue
            after = MemoryJournal()
            after.bases, after.end, after.synced = list(self.bases[:1]), end, end
            after.segments = [[frame for frame in frames if frame.end <= end]]
            yield after


def group_journal(journal: MemoryJournal) -> GroupJournal:
    return GroupJournal(cast("Journal", journal), lambda: 0)


def producer(name: str, number: int) -> ProducerRecord:
    return ProducerRecord(name, name, ProducerId(1), EPOCH, ProducerEpoch(-1), 1000, number, False, 0)


def state_of(records: Iterator[GroupRecord]) -> dict[str, int]:
    """What a coordinator might make of a replay: each id's next number."""
    state: dict[str, int] = {}
    for record in records:
        if isinstance(record, ExpiredRecord):
            state.pop(record.transactional_id, None)
        elif isinstance(record, ProducerRecord):
            state[record.transactional_id] = record.next_number
    return state


class Writer:
    """Appends records of three ids in turn, one of which expires at times, and keeps the state of every position."""

    def __init__(self, journal: MemoryJournal) -> None:
        self.journal = group_journal(journal)
        self.number = 0
        self.state: dict[str, int] = {}
        self.states: dict[JournalPosition, dict[str, int]] = {JournalPosition(0): {}}
        self.commits = 0
        self.next_commit_numbers: dict[JournalPosition, int] = {JournalPosition(0): 1}

    def write(self) -> None:
        self.number += 1
        name = "abc"[self.number % 3]
        if self.number % 4 == 0:
            txid = TxId(ProducerId(1), EPOCH, self.number)
            end = self.journal.append(PrepareCommitRecord(txid, name, {}, 0, self.journal.next_commit_number))
            self.commits += 1
        elif self.number % 7 == 0:
            end = self.journal.append(ExpiredRecord(name))
            self.state.pop(name, None)
        else:
            end = self.journal.append(producer(name, self.number))
            self.state[name] = self.number
        self.states[end] = dict(self.state)
        self.next_commit_numbers[end] = self.commits + 1

    async def run(self) -> None:
        """Two snapshots, with records before, beside and behind them."""
        for _ in range(5):
            self.write()
        for _ in range(2):
            await self.journal.snapshot(lambda: [producer(name, number) for name, number in self.state.items()])
            for _ in range(3):
                self.write()


async def test_snapshot_crash_at_any_point_replays_what_survived() -> None:
    """Crashed anywhere, and whatever survived: the state, and the number of the next commit, are those that the
    surviving records had led to.
    """
    walked = 0
    while True:
        journal = MemoryJournal(crash_at=walked)
        writer = Writer(journal)
        journal.meanwhile = writer.write
        try:
            await writer.run()
        except Crash:
            crashed = True
        else:
            crashed = False
        for after in journal.survivors():
            last = max(end for end in writer.states if end <= after.end)
            again = group_journal(after)
            assert state_of(again.replay()) == writer.states[last], (walked, after.end)
            assert again.next_commit_number == writer.next_commit_numbers[last], (walked, after.end)
        if not crashed:
            break
        walked += 1
    assert walked > 30
    assert journal.start > 0


async def test_snapshot_after_a_crashed_one_leaves_nothing_of_it() -> None:
    """A restart goes on behind a half snapshot, and the next snapshot replaces all."""
    journal = MemoryJournal(crash_at=10)
    writer = Writer(journal)
    with pytest.raises(Crash):
        await writer.run()
    assert [frame.kind for frame in journal.segments[-1]][:2] == [SNAPSHOT_BEGIN, PART | PRODUCER]
    assert SNAPSHOT_END not in [frame.kind for frame in journal.segments[-1]]
    journal.crash_at = math.inf
    await writer.run()
    assert state_of(group_journal(journal).replay()) == writer.state


async def test_snapshot_takes_the_state_where_its_segment_begins() -> None:
    """What is appended before that is in it; what comes while it is written is replayed after it."""
    journal = MemoryJournal()
    group = group_journal(journal)
    late: list[GroupRecord] = []

    def append_another() -> None:
        late.append(producer("late", len(late)))
        group.append(late[-1])

    group.append(producer("replaced", 1))
    journal.meanwhile = append_another
    parts = [producer(f"id-{number}", number) for number in range(5)]
    taken: list[GroupRecord] = []

    def state() -> list[GroupRecord]:
        taken.extend([*parts, *late])
        return list(taken)

    await group.snapshot(state)
    before = len(taken) - len(parts)
    assert before > 0, "the new segment was waited for"
    assert len(late) > before + 2
    assert list(group_journal(journal).replay()) == [*taken, *late[before:]]
    assert journal.start > 64 * before, "all before it is gone, what came while the segment was made, too"


async def test_snapshot_deletes_what_stands_before_its_state() -> None:
    """Without records beside it, the snapshot's own segment is all that is left."""
    journal = MemoryJournal()
    writer = Writer(journal)
    for _ in range(50):
        writer.write()
    taken_at = journal.end
    await writer.journal.snapshot(lambda: [producer("a", 1)])
    assert journal.start == taken_at
    assert writer.journal.bytes_since_snapshot == 0
    writer.write()
    assert writer.journal.bytes_since_snapshot == 64


def test_replay_beheaded_journal_without_snapshot_is_corrupt() -> None:
    """If the beginning is gone and no complete snapshot stands for it, nothing is made up."""
    journal = MemoryJournal()
    journal.bases = [JournalPosition(640)]
    kind, header, _ = encode_group(producer("a", 1))
    journal.append(kind, header)
    with pytest.raises(CorruptStorage, match="begins at position 640, but no complete snapshot"):
        list(group_journal(journal).replay())


def test_replay_snapshot_without_end_is_passed_over() -> None:
    """The parts of a snapshot that a crash cut short are neither records nor parts of the next snapshot."""
    journal = MemoryJournal()
    kind, half, _ = encode_group(producer("a", 1))
    journal.append(SNAPSHOT_BEGIN, [0, 0])
    journal.append(PART | kind, half)
    assert list(group_journal(journal).replay()) == []
    journal.append(SNAPSHOT_BEGIN, [128, 0])
    journal.append(PART | kind, encode_group(producer("b", 2))[1])
    journal.append(SNAPSHOT_END, [1])
    assert list(group_journal(journal).replay()) == [producer("b", 2)]


def test_replay_older_snapshot_that_lost_its_beginning_is_passed_over() -> None:
    """A snapshot longer than a segment may be half deleted behind the next one; what is left of it is no matter."""
    journal = MemoryJournal()
    journal.bases, journal.end = [JournalPosition(640)], JournalPosition(640)
    kind, old, _ = encode_group(producer("a", 1))
    journal.append(PART | kind, old)
    journal.append(SNAPSHOT_END, [2])
    as_of = journal.append(SNAPSHOT_BEGIN, [768, 0])
    journal.append(PART | kind, encode_group(producer("a", 2))[1])
    journal.append(SNAPSHOT_END, [1])
    assert as_of == 768
    assert list(group_journal(journal).replay()) == [producer("a", 2)]


def test_replay_snapshot_with_a_missing_part_is_corrupt() -> None:
    """END counts the parts."""
    journal = MemoryJournal()
    journal.append(SNAPSHOT_BEGIN, [0, 0])
    journal.append(SNAPSHOT_END, [1])
    with pytest.raises(CorruptStorage, match="at position 64: it ends a snapshot of 1 parts, but 0 stand"):
        list(group_journal(journal).replay())


@pytest.mark.parametrize(("kind", "header"), [(SNAPSHOT_BEGIN, []), (SNAPSHOT_BEGIN, ["0"]), (9, []), (3, [1, 2])])
def test_replay_frame_that_is_no_record_names_its_position(kind: int, header: list[object]) -> None:
    """What does not read is refused by position."""
    journal = MemoryJournal()
    journal.append(1, encode_group(producer("a", 1))[1])
    journal.append(kind, header)
    with pytest.raises(CorruptStorage, match="cannot be read at position 64"):
        list(group_journal(journal).replay())


async def test_journal_on_files_snapshots_and_reopens(open_journal: OpenJournal) -> None:
    """On real segments: records, also such as need a payload, come back after a snapshot and a reopening."""
    journal = await open_journal(kind=JournalKind.GROUP, segment_bytes_max=2**16)
    group = GroupJournal(journal, lambda: 5)
    large = BeginRecord(
        TxId(ProducerId(1), EPOCH, 0), "a", {LogId.of_offsets(n): LeaderEpoch(n) for n in range(2000)}, 5
    )
    small = [producer(f"id-{number}", number) for number in range(1000)]
    for record in [large, *small]:
        while not group.has_room(record):
            await group.make_room(record)
        end = group.append(record)
    await group.flush(end)
    assert list(group.replay()) == [large, *small]

    await group.snapshot(lambda: [large, *small[::2]])
    start, after = journal.start, producer("late", 7)
    assert start > 0
    await group.make_room(after)
    await group.flush(group.append(after))
    await journal.close()

    journal = await open_journal(kind=JournalKind.GROUP, segment_bytes_max=2**16)
    group = GroupJournal(journal, lambda: 5)
    assert journal.start == start
    assert list(group.replay()) == [large, *small[::2], after]
    assert 0 < group.bytes_since_snapshot < 1000
    await journal.close()


async def test_snapshot_cancelled_reads_as_if_not_begun(open_journal: OpenJournal) -> None:
    """A cancelled snapshot changes nothing, and another one may follow."""
    journal = await open_journal(kind=JournalKind.GROUP)
    group = GroupJournal(journal, lambda: 5)
    record = producer("a", 1)
    await group.make_room(record)
    group.append(record)
    with trio.CancelScope() as scope:
        scope.cancel()
        await group.snapshot(lambda: [producer("b", number) for number in range(10)])
    assert list(group.replay()) == [record]
    await group.snapshot(lambda: [producer("c", 3)])
    assert list(group.replay()) == [producer("c", 3)]
    await journal.close()


async def test_journal_that_begins_with_a_snapshot_is_replayed_and_goes_on(
    open_journal: OpenJournal, tmp_path: Path
) -> None:
    """As one that a node has taken; made twice, it is as once. A list that no header holds is the payload."""
    places = tuple(Placement(LogId.of_offsets(shard), Offset(2 * shard), 1) for shard in range(501))
    sinks = [SinkRecord("many", "q", 7, places, 0), SinkRecord("few", "q", 2**40, places[:1], 0)]
    for _ in range(2):
        begin_with_snapshot(tmp_path / "g", Fsync.COMMIT, LeaderEpoch(3), sinks, timestamp_ms=5)
    for expected in ([*sinks], [*sinks, ExpiredRecord("later")]):
        journal = await open_journal("g", kind=JournalKind.GROUP)
        group = GroupJournal(journal, lambda: 5)
        assert list(group.replay()) == expected
        assert {frame.timestamp_ms for frame in journal.frames(journal.start)} == {5}
        record = ExpiredRecord("later")
        await group.make_room(record)
        await group.flush(group.append(record))
        await journal.close()
