"""What an owner appends, and when what it appended is accepted: over a stream whose outcomes the test decides."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager

import pytest
import trio
import trio.testing

from stream.engine import StreamPosition, Unknown
from stream.entry import ENTRY_HEADER_BYTES, EntryKind, JournalFrame, decode_frames_untrusted
from stream.writer import UNDER_WAY_MAX, Ended, StreamWriter
from tests.stream.owners import Writer, fence, owned_fold, owner, payloads, run_fold
from tests.stream.scripted import ScriptedStream

A, B = owner("a"), owner("b")
HEARTBEAT_S = 1.0
GIVES_UP_S = 60.0
Clock = trio.testing.MockClock


class Owner:
    """The owner of epoch 1: its writer, and what it has heard."""

    def __init__(self, entry_bytes_max: int) -> None:
        fold, entries = owned_fold(A)
        self.stream = ScriptedStream(entry_bytes_max=entry_bytes_max)
        self.stream.entries += entries
        self.accepted: list[list[bytes]] = []
        """The frames of each call."""
        self.ended: list[Ended] = []
        self.writer = StreamWriter(
            self.stream,
            fold,
            heartbeat_s=HEARTBEAT_S,
            gives_up_s=GIVES_UP_S,
            accepted=self._accepted,
            ended=self.ended.append,
        )

    def _accepted(self, frames: Sequence[JournalFrame]) -> None:
        assert not self.ended, "nothing is accepted after the end"
        self.accepted.append([bytes(frame.data) for frame in frames])

    def add(self, *data: bytes, journal: str = "local/a") -> None:
        for each in data:
            self.writer.add(JournalFrame(journal, each))

    async def append(self, *data: bytes, journal: str = "local/a") -> None:
        self.add(*data, journal=journal)
        self.writer.flush()
        await trio.testing.wait_all_tasks_blocked()

    @property
    def under_way(self) -> list[list[bytes]]:
        """The frames of the appends that are under way, or their kinds."""
        found: list[list[bytes]] = []
        for appended in self.stream.under_way:
            frames = decode_frames_untrusted(appended.entry.body)
            found.append([bytes(frame.data) for frame in frames])  # type: ignore[union-attr]
        return found

    @property
    def kinds_under_way(self) -> list[EntryKind]:
        return [appended.kind for appended in self.stream.under_way]


@asynccontextmanager
async def running(entry_bytes_max: int = 1000) -> AsyncGenerator[Owner, None]:
    owned = Owner(entry_bytes_max)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(owned.writer.run)
        await trio.testing.wait_all_tasks_blocked()
        yield owned
        nursery.cancel_scope.cancel()


@pytest.fixture
async def owned() -> AsyncGenerator[Owner, None]:
    async with running() as it:
        yield it


async def test_frames_added_in_one_turn_are_one_entry(owned: Owner) -> None:
    """Whoever flushes, all that the turn's tasks have added goes along; and nothing before a flush."""
    owned.add(b"1")
    await trio.testing.wait_all_tasks_blocked()
    assert owned.under_way == []

    async def add(data: bytes) -> None:
        owned.add(data)
        owned.writer.flush()

    async with trio.open_nursery() as nursery:
        for number in range(2, 5):
            nursery.start_soon(add, b"%d" % number)
    await trio.testing.wait_all_tasks_blocked()
    assert [sorted(frames) for frames in owned.under_way] == [[b"1", b"2", b"3", b"4"]]


async def test_frames_are_accepted_when_their_entry_is_and_not_before(owned: Owner) -> None:
    """In the order in which they were added, one call for each entry, whatever order the engine answers in."""
    await owned.append(b"1", b"2")
    await owned.append(b"3", journal="group/0")
    assert owned.accepted == []
    first, second = owned.stream.under_way
    owned.stream.under_way.clear()
    at = [owned.stream.put(each.data) for each in (first, second)]
    second.done(at[1])
    assert owned.accepted == []
    first.done(at[0])
    assert owned.accepted == [[b"1", b"2"], [b"3"]]
    assert (owned.writer.unaccepted_bytes, owned.stream.readers) == (0, 0)
    assert owned.writer.state == run_fold(owned.stream.entries)[0].state


async def test_four_entries_are_under_way_and_what_comes_then_waits_for_the_next(owned: Owner) -> None:
    """The flush that was asked for meanwhile is not lost: it takes all that has come."""
    for number in range(UNDER_WAY_MAX + 3):
        await owned.append(b"%d" % number)
    assert owned.under_way == [[b"0"], [b"1"], [b"2"], [b"3"]]
    assert owned.writer.unaccepted_bytes == 7
    owned.stream.land()
    await trio.testing.wait_all_tasks_blocked()
    assert owned.under_way == [[b"1"], [b"2"], [b"3"], [b"4", b"5", b"6"]]
    owned.stream.land_all()
    assert [data for frames in owned.accepted for data in frames] == [b"%d" % n for n in range(7)]


async def test_flush_lost_to_nothing_open_does_not_flush_what_comes_later(owned: Owner) -> None:
    """Who adds without a flush lets it wait for company."""
    await owned.append(b"1")
    owned.writer.flush()
    await trio.testing.wait_all_tasks_blocked()
    owned.add(b"rests")
    owned.stream.land()
    await trio.testing.wait_all_tasks_blocked()
    assert owned.under_way == []


async def test_large_frames_are_cut_and_accepted_together() -> None:
    """No entry is larger than the engine takes; readers see all or nothing."""
    async with running(entry_bytes_max=ENTRY_HEADER_BYTES + 40) as owned:
        await owned.append(b"x" * 100, b"y" * 10)
        await owned.append(b"z")
        assert [len(each.data) - ENTRY_HEADER_BYTES for each in owned.stream.under_way] == [40, 40, 40, 7, 13]
        assert [each.entry.continued for each in owned.stream.under_way] == [True, True, True, False, False]
        for _ in range(3):
            owned.stream.land()
            assert owned.accepted == []
            assert owned.writer.state.position == 0, "frames that are not whole are read again"
        owned.stream.land_all()
        assert owned.accepted == [[b"x" * 100, b"y" * 10], [b"z"]]
        _, folded = run_fold(owned.stream.entries)
        assert payloads(folded) == [b"x" * 100, b"y" * 10, b"z"]
        assert len(owned.stream.entries) == 1 + 5
        assert owned.writer.unaccepted_bytes == 0


async def test_body_of_just_the_size_of_an_entry_is_not_cut() -> None:
    """The last piece of a body is never empty."""
    async with running(entry_bytes_max=ENTRY_HEADER_BYTES + 40) as owned:
        await owned.append(b"x" * (40 - 5 - len("local/a")))
        assert [each.entry.continued for each in owned.stream.under_way] == [False]
        owned.stream.land_all()
        await owned.append(b"x" * (80 - 5 - len("local/a")))
        assert [each.entry.continued for each in owned.stream.under_way] == [True, False]


# Heartbeats


async def test_heartbeat_is_appended_after_silence_only(owned: Owner, autojump_clock: Clock) -> None:
    """`HEARTBEAT_S` after the last entry, whenever that was; and again after as long."""
    await trio.sleep(HEARTBEAT_S * 0.6)
    await owned.append(b"1")
    owned.stream.land()
    await trio.sleep(HEARTBEAT_S * 0.9)
    assert owned.kinds_under_way == []
    await trio.sleep(HEARTBEAT_S * 0.2)
    assert owned.kinds_under_way == [EntryKind.HEARTBEAT]
    owned.stream.land()
    await trio.sleep(HEARTBEAT_S * 0.8)
    assert owned.kinds_under_way == []
    await trio.sleep(HEARTBEAT_S * 0.2)
    assert owned.kinds_under_way == [EntryKind.HEARTBEAT]
    assert owned.accepted == [[b"1"]]


async def test_frames_that_rest_are_appended_instead_of_a_heartbeat(owned: Owner, autojump_clock: Clock) -> None:
    """They say the same, and more."""
    owned.add(b"rests")
    await trio.sleep(HEARTBEAT_S * 1.1)
    assert owned.under_way == [[b"rests"]]
    assert owned.kinds_under_way == [EntryKind.FRAMES]


async def test_no_heartbeat_while_something_is_under_way(owned: Owner, autojump_clock: Clock) -> None:
    """It would be read after that, and say nothing more; an engine that is away gets no heap of them."""
    await owned.append(b"1")
    await trio.sleep(HEARTBEAT_S * 10)
    assert owned.kinds_under_way == [EntryKind.FRAMES]
    owned.stream.land()
    await trio.sleep(HEARTBEAT_S * 10)
    assert owned.kinds_under_way == [EntryKind.HEARTBEAT]


async def test_owner_that_hears_nothing_of_what_it_has_appended_gives_up(owned: Owner, autojump_clock: Clock) -> None:
    """Its entry has landed behind a gap that nobody can read: clients look for another owner."""
    await owned.append(b"1")
    owned.stream.under_way.pop().done(StreamPosition(100))
    await trio.sleep(GIVES_UP_S * 0.9)
    assert owned.ended == []
    await trio.sleep(GIVES_UP_S * 0.2)
    (ended,) = owned.ended
    assert "nothing was accepted in the-stream for 6" in ended.reason
    assert not ended.deposed
    assert not ended.broken


# What lies in between


async def test_confirmation_takes_an_entry_that_is_appended_afterwards(owned: Owner) -> None:
    """What was under way before the question says nothing; a heartbeat does, or whatever is appended next."""
    await owned.append(b"before")
    confirmed: list[bool] = []

    async def confirm() -> None:
        confirmed.append(await owned.writer.confirm(owned.writer.appended))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(confirm)
        nursery.start_soon(confirm)
        await trio.testing.wait_all_tasks_blocked()
        assert owned.kinds_under_way == [EntryKind.FRAMES, EntryKind.HEARTBEAT]
        owned.stream.land()
        await trio.testing.wait_all_tasks_blocked()
        assert owned.accepted
        assert confirmed == []
        owned.stream.land()
    assert confirmed == [True, True]
    owned.add(b"after")
    async with trio.open_nursery() as nursery:
        nursery.start_soon(confirm)
        await trio.testing.wait_all_tasks_blocked()
        assert owned.under_way == [[b"after"]]
        owned.stream.land()
    assert confirmed[2:] == [True]


async def test_few_entries_are_under_way_however_many_ask_for_confirmation(owned: Owner) -> None:
    """Those who ask when there is no room for another one share the next."""
    confirmed: list[bool] = []

    async def confirm() -> None:
        confirmed.append(await owned.writer.confirm(owned.writer.appended))

    async with trio.open_nursery() as nursery:
        for _ in range(20):
            nursery.start_soon(confirm)
            await trio.testing.wait_all_tasks_blocked()
        assert owned.kinds_under_way == [EntryKind.HEARTBEAT] * UNDER_WAY_MAX
        for _ in range(UNDER_WAY_MAX):
            owned.stream.land()
            await trio.testing.wait_all_tasks_blocked()
        assert len(confirmed) == UNDER_WAY_MAX
        assert owned.kinds_under_way == [EntryKind.HEARTBEAT]
        owned.stream.land()
    assert confirmed == [True] * 20


async def test_deposed_owner_confirms_nothing(owned: Owner) -> None:
    """It finds out by the entry that it appends for the question."""
    owned.stream.put(fence(B, 2))
    async with trio.open_nursery() as nursery:

        async def confirm() -> None:
            assert not await owned.writer.confirm(owned.writer.appended)

        nursery.start_soon(confirm)
        await trio.testing.wait_all_tasks_blocked()
        owned.stream.land()
    assert owned.ended[0].deposed
    assert not await owned.writer.confirm(owned.writer.appended)


async def test_gap_is_read_and_what_follows_it_accepted(owned: Owner) -> None:
    """Somebody else has appended what does not count."""
    owned.stream.put(fence(B, 1))
    await owned.append(b"1")
    owned.stream.land()
    assert owned.accepted == []
    await trio.testing.wait_all_tasks_blocked()
    assert owned.accepted == [[b"1"]]
    await owned.append(b"2")
    owned.stream.land()
    assert owned.accepted == [[b"1"], [b"2"]]
    assert owned.stream.readers == 1


async def test_outcomes_that_come_while_a_gap_is_read_are_not_lost(owned: Owner) -> None:
    """Also if they fill it, and if another gap follows."""
    await owned.append(b"1")
    await owned.append(b"2")
    await owned.append(b"3")
    one, two, three = owned.stream.under_way
    owned.stream.under_way.clear()
    at_1 = owned.stream.put(one.data)
    two.done(owned.stream.put(two.data))
    one.done(at_1)  # before the reader has read anything
    assert owned.accepted == [[b"1"], [b"2"]]
    owned.stream.put(b"")
    three.done(owned.stream.put(three.data))
    await trio.testing.wait_all_tasks_blocked()
    assert owned.accepted == [[b"1"], [b"2"], [b"3"]]
    assert owned.writer.ended is None


async def test_owner_that_reads_the_fence_of_another_has_ended(owned: Owner, autojump_clock: Clock) -> None:
    """What lies behind it is not accepted, what it has is forgotten, and nothing more is appended."""
    await owned.append(b"1")
    await owned.append(b"2")
    owned.stream.land()
    owned.stream.put(fence(B, 2))
    owned.stream.land()
    owned.add(b"3")
    await trio.testing.wait_all_tasks_blocked()
    assert owned.ended == [Ended("b owns the-stream now", deposed=True)]
    assert owned.accepted == [[b"1"]]
    assert owned.writer.unaccepted_bytes == 0
    await trio.sleep(HEARTBEAT_S * 3)
    owned.writer.flush()
    await trio.testing.wait_all_tasks_blocked()
    assert owned.under_way == []
    with pytest.raises(AssertionError):
        owned.add(b"4")


async def test_owner_without_anything_to_say_finds_out_by_its_heartbeat(owned: Owner, autojump_clock: Clock) -> None:
    """It would serve reads for ever otherwise."""
    owned.stream.put(fence(B, 2))
    await trio.sleep(HEARTBEAT_S * 1.1)
    owned.stream.land()
    await trio.testing.wait_all_tasks_blocked()
    assert [ended.deposed for ended in owned.ended] == [True]


async def test_unknown_outcome_ends_the_epoch_once(owned: Owner) -> None:
    """The entry is neither repeated nor accepted, nor are those after it, wherever they land."""
    for number in range(3):
        await owned.append(b"%d" % number)
    owned.stream.land()
    data = owned.stream.leave_unknown()
    owned.stream.put(data)
    owned.stream.leave_unknown()
    await trio.testing.wait_all_tasks_blocked()
    assert owned.accepted == [[b"0"]]
    assert [(each.deposed, each.broken) for each in owned.ended] == [(False, False)]
    assert "unknown: the test says so" in owned.ended[0].reason
    assert owned.under_way == []


@pytest.mark.parametrize("steps", range(8))
async def test_what_is_read_after_the_end_counts_for_nothing(owned: Owner, steps: int) -> None:
    """Regression, of seed changes-4.4: the state went on over frames that no file got, and a mark was made of it."""
    for data in (b"1", b"2", b"3"):
        await owned.append(data)
    one, two, three = owned.stream.under_way
    owned.stream.under_way.clear()
    owned.stream.put(one.data)
    two.done(owned.stream.put(two.data))
    for _ in range(steps):
        await trio.lowlevel.checkpoint()
    three.done(Unknown("the test says so"))  # while the reader reads the gap, before it, or behind it
    await trio.testing.wait_all_tasks_blocked()
    assert len(owned.ended) == 1
    assert owned.writer.state.sequence == len(owned.accepted)


async def test_entry_that_does_not_count_ends_the_epoch(owned: Owner) -> None:
    """The engine says that all landed, but not in their order: nothing after that would ever be accepted."""
    await owned.append(b"1")
    await owned.append(b"2")
    owned.stream.land(1)
    await trio.testing.wait_all_tasks_blocked()
    assert owned.accepted == []
    assert [(each.deposed, each.broken) for each in owned.ended] == [(False, False)]
    assert "entry 2 of epoch 1, but not what was appended before it" in owned.ended[0].reason


async def test_gap_that_contradicts_itself_ends_the_epoch_after_what_was_read_before(owned: Owner) -> None:
    """What is accepted was handed out, wherever the fold is; and the shard is told to stop."""
    await owned.append(b"1")
    await owned.append(b"2")
    one, two = owned.stream.under_way
    owned.stream.under_way.clear()
    owned.stream.put(one.data)
    stranger = Writer(owned.stream.entries[0], 1)
    owned.stream.put([stranger.frames(b"%d" % n) for n in range(9)][-1])
    two.done(owned.stream.put(two.data))
    await trio.testing.wait_all_tasks_blocked()
    assert owned.accepted == [[b"1"]]
    assert (owned.writer.state.sequence, owned.writer.state.position) == (1, 1)
    assert [(each.deposed, each.broken) for each in owned.ended] == [(False, True)]
    assert "its owner has not appended" in owned.ended[0].reason


async def test_epoch_that_ends_for_two_reasons_ends_once(owned: Owner) -> None:
    """Whoever is told puts the shard down, and does not do it again."""
    await owned.append(b"1")
    await owned.append(b"2")
    owned.stream.put(b"")
    two = owned.stream.under_way.pop()
    at = owned.stream.put(two.data)
    stranger = Writer(owned.stream.entries[0], 1)
    owned.stream.put([stranger.frames(b"%d" % n) for n in range(9)][-1])
    two.done(at)
    await trio.testing.wait_all_tasks_blocked()
    owned.stream.leave_unknown()
    assert len(owned.ended) == 1
    assert "entry 2 of epoch 1, but not what was appended before it" in owned.ended[0].reason


async def test_gap_that_was_trimmed_ends_the_epoch(owned: Owner) -> None:
    """Somebody has deleted what has to be read."""
    owned.stream.put(b"")
    await owned.append(b"1")
    owned.stream.first_there = StreamPosition(2)
    owned.stream.land()
    await trio.testing.wait_all_tasks_blocked()
    assert [(each.deposed, each.broken) for each in owned.ended] == [(False, True)]
    assert owned.accepted == []


# The hand-over


async def test_hand_over_comes_after_all_that_was_added(owned: Owner, autojump_clock: Clock) -> None:
    """Nothing is appended after it, not even a heartbeat; and the next owner knows that nothing is missing."""
    handed_over: list[bool] = []

    async def hand_over() -> None:
        handed_over.append(await owned.writer.hand_over("b"))

    for number in range(UNDER_WAY_MAX):
        await owned.append(b"%d" % number)
    owned.add(b"open")
    async with trio.open_nursery() as nursery:
        nursery.start_soon(hand_over)
        await trio.testing.wait_all_tasks_blocked()
        for _ in range(UNDER_WAY_MAX + 1):
            assert EntryKind.HAND_OVER not in owned.kinds_under_way
            owned.stream.land()
            await trio.testing.wait_all_tasks_blocked()
        assert owned.kinds_under_way == [EntryKind.HAND_OVER]
        await trio.sleep(HEARTBEAT_S * 3)
        assert handed_over == []
        owned.stream.land()
        await trio.sleep(HEARTBEAT_S * 3)
    assert handed_over == [True]
    assert owned.kinds_under_way == []
    fold, folded = run_fold(owned.stream.entries)
    assert payloads(folded) == [b"0", b"1", b"2", b"3", b"open"]
    assert owned.writer.state == fold.state
    assert owned.writer.state.handed_over
    with pytest.raises(AssertionError, match="the epoch is over"):
        owned.add(b"too late")


@pytest.mark.parametrize("when", ["before", "after"])
async def test_hand_over_of_a_deposed_owner_is_none(owned: Owner, when: str) -> None:
    """Before its last entry was appended, or after that."""
    answers: list[bool] = []

    async def hand_over() -> None:
        answers.append(await owned.writer.hand_over(None))

    if when == "before":
        await owned.append(b"1")
    async with trio.open_nursery() as nursery:
        nursery.start_soon(hand_over)
        await trio.testing.wait_all_tasks_blocked()
        owned.stream.put(fence(B, 2))
        owned.stream.land()
    assert answers == [False]
    assert owned.under_way == []


async def test_hand_over_with_an_unknown_outcome_is_none(owned: Owner) -> None:
    """It may have taken place or not: the next FENCE tells."""
    answers: list[bool] = []

    async def hand_over() -> None:
        answers.append(await owned.writer.hand_over(None))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(hand_over)
        await trio.testing.wait_all_tasks_blocked()
        owned.stream.leave_unknown()
    assert answers == [False]
    assert len(owned.ended) == 1


async def test_hand_over_cancelled_before_its_entry_leaves_an_owner(owned: Owner, autojump_clock: Clock) -> None:
    """It goes on to be heard, and to append."""
    await owned.append(b"1")
    with trio.move_on_after(HEARTBEAT_S / 2) as waiting:
        await owned.writer.hand_over(None)
    assert waiting.cancelled_caught
    owned.stream.land()
    await trio.sleep(HEARTBEAT_S * 1.1)
    assert owned.kinds_under_way == [EntryKind.HEARTBEAT]
    await owned.append(b"2")
    owned.stream.land_all()
    assert owned.accepted == [[b"1"], [b"2"]]


async def test_writer_that_fails_ends_its_epoch() -> None:
    """Whoever waits for what was appended, shielded, would wait for ever."""
    owned = Owner(1000)

    def append(*_: object) -> None:
        raise RuntimeError("the engine is closed")

    owned.stream.append = append  # type: ignore[method-assign]
    owned.add(b"1")
    owned.writer.flush()
    with pytest.raises(ExceptionGroup):
        await owned.writer.run()
    (ended,) = owned.ended
    assert "has failed" in ended.reason


async def test_who_asks_how_long_nothing_was_accepted_hears_it_also_without_clients(
    owned: Owner, autojump_clock: Clock
) -> None:
    """Heartbeats are under way then. What is accepted begins the count anew, and ends it if nothing else is."""
    assert owned.writer.waits_s == 0
    await trio.sleep(HEARTBEAT_S + 2)
    assert owned.kinds_under_way == [EntryKind.HEARTBEAT]
    assert owned.writer.waits_s == 2
    await owned.append(b"1")
    assert owned.writer.waits_s == 2
    heartbeat, frames = owned.stream.under_way
    owned.stream.under_way.clear()
    heartbeat.done(owned.stream.put(heartbeat.data))
    assert owned.writer.waits_s == 0
    await trio.sleep(0.5)
    assert owned.writer.waits_s == 0.5
    frames.done(owned.stream.put(frames.data))
    assert owned.writer.waits_s == 0
