"""Where a commit, an abort or a copy meets trouble: participants that refuse, disks that fail or are full.

What the client is told to be without effect has none, durably; all else is told as of unknown effect, and may not be
taken back.
"""

from __future__ import annotations

from functools import partial

import pytest
import trio
import trio.testing

from coordinator.answers import Refusal
from coordinator.ending import DECIDED_MAX
from coordinator.group_records import AbortedRecord, CommittedRecord, PrepareAbortRecord, ProducerRecord
from fairlog_types import StorageFailure
from tests.coordinator.transactions import kinds, settle, txid


async def test_commit_that_a_participant_refuses_is_aborted_durably(running, logs, autojump_clock):
    """The producer hears an abortable error only when PREPARE_ABORT is on disk; EndTxn(abort) clears it."""
    granted = await running.init()
    running.participants.refusing[logs[0]] = "lost"
    assert await running.transaction(granted, logs[0]) is Refusal.MUST_ABORT
    records = running.journal.records[: running.journal.durable]
    assert any(isinstance(record, PrepareAbortRecord) for record in records)
    assert running.participants.placings == []
    assert running.participants.discarded == [txid(0)]
    running.participants.refusing.clear()
    assert await running.end(granted) is Refusal.MUST_ABORT
    assert await running.end(granted, commit=False) is None
    assert await running.transaction(granted, logs[0]) is None


async def test_commit_whose_participant_fails_is_aborted(running, logs, autojump_clock):
    """A local journal that cannot be flushed turns the commit into an abort: certainly no effect."""
    granted = await running.init()
    running.participants.prepare_fails = True
    assert await running.transaction(granted, logs[0]) is Refusal.MUST_ABORT
    assert kinds(running.journal)[-3:] == [PrepareAbortRecord, ProducerRecord, AbortedRecord]


async def test_commit_whose_group_journal_fails_is_of_unknown_effect(running, logs, autojump_clock):
    """After a failed flush of PREPARE_COMMIT nobody can tell; the group is refused from then on."""
    granted = await running.init()
    await running.add(granted, logs[0])
    running.produce(logs[0])
    running.journal.flush_fails = True
    assert await running.end(granted) is Refusal.STORAGE_EFFECT_UNKNOWN
    assert running.participants.placings == []
    assert await running.init(connection=2) is Refusal.STORAGE
    assert await running.end(granted, commit=False) is Refusal.STORAGE


async def test_repeated_commit_of_unknown_effect_never_hears_that_it_had_none(running, logs, nursery, autojump_clock):
    """Invariant 5: a restart commits it, so whoever repeats it, or waits for the decision, hears "effect unknown"."""
    granted = await running.init()
    await running.add(granted, logs[0])
    running.produce(logs[0])
    running.journal.flush_fails, running.journal.flush_s = True, 1.0
    answers = []

    async def end(connection):
        answers.append(await running.end(granted, connection=connection))

    nursery.start_soon(end, 1)
    await settle()
    nursery.start_soon(end, 2)
    await trio.sleep(2)
    assert answers == [Refusal.STORAGE_EFFECT_UNKNOWN] * 2
    assert await running.end(granted, connection=3) is Refusal.STORAGE_EFFECT_UNKNOWN
    after = running.restarted()
    await after.coordinator.recover(tail_kept=True)
    assert after.participants.placings == [txid(0)]


async def test_repeated_commit_whose_abort_could_not_be_written_is_of_unknown_effect(running, logs, autojump_clock):
    """A restart might prepare it with more luck: "no effect" waits for PREPARE_ABORT to be on disk."""
    granted = await running.init()
    running.participants.refusing[logs[0]] = "lost"
    running.journal.flush_fails = True
    assert await running.transaction(granted, logs[0]) is Refusal.STORAGE_EFFECT_UNKNOWN
    assert await running.end(granted, connection=2) is Refusal.STORAGE_EFFECT_UNKNOWN


async def test_first_commit_of_an_open_transaction_on_a_failed_journal_has_no_effect(running, logs, autojump_clock):
    """Nothing of it was prepared, and what a disk has failed to keep cannot be trusted: a restart aborts it."""
    granted = await running.init()
    await running.add(granted, logs[0])
    running.journal.failed = StorageFailure("fdatasync failed")
    assert await running.add(granted, logs[1]) is Refusal.STORAGE
    assert await running.end(granted) is Refusal.STORAGE
    after = running.restarted()
    await after.coordinator.recover(tail_kept=False)
    assert after.participants.placings == []
    assert await after.end(granted) is Refusal.MUST_ABORT


async def test_commit_whose_placing_fails_is_committed_and_stops_all_placing(running, logs, autojump_clock):
    """The decision stands; it is placed after a restart, and nothing overtakes it."""
    granted, other = await running.init(), await running.init(name="u", connection=2)
    await running.add(other, logs[1], name="u", connection=2)
    running.participants.place_fails = True
    assert await running.transaction(granted, logs[0]) is None
    await settle()
    running.participants.place_fails = False
    assert await running.end(granted, connection=3) is None, "the repetition hears what the first one heard"
    assert await running.end(other, name="u", connection=2) is Refusal.STORAGE
    assert running.participants.placings == []

    after = running.restarted()
    await after.coordinator.recover(tail_kept=True)
    assert after.participants.placings == [txid(0)]


async def test_commit_whose_placing_fails_is_lacked_by_its_logs(running, logs, autojump_clock):
    """Whoever asks where they end must not be told without it (invariant 13); after a restart it is placed."""
    granted = await running.init()
    assert await running.transaction(granted, logs[0]) is None
    await settle()
    running.participants.place_fails = True
    await running.transaction(granted, logs[1])
    await settle()
    assert [running.coordinator.lacks_commits(log) for log in logs[:3]] == [False, True, False]
    running.participants.place_fails = False
    after = running.restarted()
    await after.coordinator.recover(tail_kept=True)
    assert not any(map(after.coordinator.lacks_commits, logs))


async def test_commit_decided_after_another_has_failed_to_be_placed_is_lacked_too(running, logs, autojump_clock):
    """It was being prepared when placing stopped, and is answered as committed."""
    granted, other = await running.init(), await running.init(name="u", connection=2)
    await running.add(granted, logs[0])
    await running.add(other, logs[1], name="u", connection=2)
    running.participants.prepare_s, running.participants.place_fails = 1, True
    answers = []

    async def end(granted, **of):
        answers.append(await running.end(granted, **of))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(end, granted)
        nursery.start_soon(partial(end, other, name="u", connection=2))
    assert answers == [None, None]
    await settle()
    assert [running.coordinator.lacks_commits(log) for log in logs[:2]] == [True, True]


class Fault(Exception):
    """Of the program. No AssertionError, lest one of the test's own be taken for it."""


async def test_fault_in_the_middle_of_a_turn_stops_the_node(world, logs, monkeypatch, autojump_clock):
    """Memory is ahead of the journal then: nothing more is served or written, and `run` raises."""
    with pytest.RaisesGroup(Fault, flatten_subgroups=True):
        async with trio.open_nursery() as nursery:
            await nursery.start(world.run)
            granted = await world.init()
            written = list(world.journal.records)
            with monkeypatch.context() as patch:
                patch.setattr(world.journal, "append", _raise_fault)
                with pytest.raises(Fault):
                    await world.add(granted, logs[0])
            assert await world.add(granted, logs[0]) is Refusal.STORAGE
            assert world.journal.records == written
            await trio.sleep_forever()


async def test_fault_while_a_commit_is_placed_stops_the_node(world, logs, monkeypatch, autojump_clock):
    """Some logs may have the decision: from that step on nothing is written, and nobody hears an end without it."""
    with pytest.RaisesGroup(Fault, flatten_subgroups=True):
        async with trio.open_nursery() as nursery:
            await nursery.start(world.run)
            granted = await world.init()
            monkeypatch.setattr(world.participants, "apply", _raise_fault)
            assert await world.transaction(granted, logs[0]) is None
            with pytest.raises(Fault):
                world.coordinator.place_due()  # as another client's request does
            assert world.coordinator.lacks_commits(logs[0])
            written = list(world.journal.records)
            assert await world.add(granted, logs[1]) is Refusal.STORAGE
            assert world.journal.records == written
            await trio.sleep_forever()


async def test_transaction_does_not_begin_if_its_producers_last_one_cannot_be_placed(running, logs, autojump_clock):
    """Its own disk has failed in that very step; the logs that it names may be another shard's."""
    granted = await running.init()
    running.participants.place_fails = True
    assert await running.transaction(granted, logs[0]) is None
    written = list(running.journal.records)
    assert await running.add(granted, logs[1]) is Refusal.STORAGE
    assert running.journal.records == written


def _raise_fault(given):
    raise Fault(given)


async def test_journal_without_room_is_given_room_in_the_middle_of_a_turn(running, logs, autojump_clock):
    """Records wait for room; nothing fails because a segment is full."""
    granted = await running.init()
    for _ in range(3):
        running.journal.room = 1
        assert await running.transaction(granted, logs[0]) is None


async def test_full_disk_refuses_without_effect_until_the_commit_is_written(running, logs, autojump_clock):
    """A disk that is full when a transaction begins leaves nothing behind."""
    granted = await running.init()
    running.journal.room, running.journal.disk_is_full = 0, True
    assert await running.add(granted, logs[0]) is Refusal.STORAGE


async def test_full_disk_before_the_commit_is_written_is_without_effect(running, logs, autojump_clock):
    """Nothing of the commit stands anywhere, so nothing is left in doubt."""
    granted = await running.init()
    await running.add(granted, logs[0])
    running.journal.room, running.journal.disk_is_full = 0, True
    assert await running.end(granted) is Refusal.STORAGE


async def test_want_of_file_descriptors_refuses_without_effect_and_passes(running, logs, autojump_clock):
    """Every request is refused before anything has changed; it succeeds when a file can be opened again."""
    running.journal.room, running.journal.files_are_out = 0, True
    assert await running.init() is Refusal.STORAGE
    running.journal.files_are_out = False
    granted = await running.init()
    running.journal.room, running.journal.files_are_out = 0, True
    assert await running.add(granted, logs[0]) is Refusal.STORAGE
    running.journal.files_are_out = False
    await running.add(granted, logs[0])
    running.produce(logs[0])
    running.journal.room, running.journal.files_are_out = 0, True
    for commit in (True, False):
        assert await running.end(granted, commit=commit) is Refusal.STORAGE
    running.journal.files_are_out = False
    assert await running.end(granted) is None
    await settle()
    assert running.participants.placings == [txid(0)]


async def test_want_of_file_descriptors_behind_a_commit_takes_nothing_back(running, logs, autojump_clock):
    """What is committed is said again; COMMITTED is written when it can be."""
    granted = await running.init()
    running.participants.copying = trio.Event()
    assert await running.transaction(granted, logs[0]) is None
    running.journal.room, running.journal.files_are_out = 0, True
    running.participants.copying.set()
    assert await running.end(granted) is None
    await trio.sleep(60)
    assert not any(isinstance(record, CommittedRecord) for record in running.journal.records)
    running.journal.files_are_out = False
    await trio.sleep(1)
    assert any(isinstance(record, CommittedRecord) for record in running.journal.records)


async def test_commit_waits_for_an_older_one_that_cannot_be_recorded(running, logs, autojump_clock):
    """A restart prepares it again, and the leaders remember the last five of an id: not more than those may follow."""
    granted = await running.init()
    running.participants.copying = trio.Event()
    assert await running.transaction(granted, logs[0]) is None
    running.journal.room, running.journal.files_are_out = 0, True
    running.participants.copying.set()
    await settle()  # COMMITTED of the first one is tried again in a while
    running.journal.files_are_out = False
    answers = []

    with trio.move_on_after(0.4):
        while len(answers) < DECIDED_MAX + 4:
            answers.append(await running.transaction(granted, logs[0]))
    assert answers == [None] * (DECIDED_MAX - 1)
    assert running.coordinator.describe("t").being_copied[0] == txid(0)
    await trio.sleep(0.2)
    assert running.coordinator.describe("t").being_copied == ()
    assert await running.end(granted) is None


async def test_abort_whose_discard_fails_is_not_acknowledged(running, logs, autojump_clock):
    """PREPARE_ABORT stands in the journal, and a restart says DISCARD again."""
    granted = await running.init()
    running.participants.discard_fails = True
    assert await running.transaction(granted, logs[0], commit=False) is Refusal.STORAGE
    after = running.restarted()
    after.participants.discard_fails = False
    await after.coordinator.recover(tail_kept=True)
    assert after.participants.discarded == [txid(0)]
    assert AbortedRecord in kinds(after.journal)


async def test_copy_that_fails_refuses_further_requests_and_wakes_who_waits(running, logs, nursery, autojump_clock):
    """Nobody waits for a copy that will not come."""
    gate = running.participants.copying = trio.Event()
    granted = await running.init()
    assert await running.transaction(granted, logs[0]) is None
    answers = []

    async def take_over():
        answers.append(await running.init(connection=2))

    nursery.start_soon(take_over)
    await settle()
    running.participants.apply_fails = True
    gate.set()
    await settle()
    assert answers == [Refusal.STORAGE]
    assert await running.add(granted, logs[0]) is Refusal.STORAGE
