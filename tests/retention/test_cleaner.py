"""One log compacted in steps: what goes and what stays, and what a failure in the middle leaves."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path
from uuid import UUID

import pytest

from datalog import time_index
from datalog.decompress import UnreadableRecords
from datalog.environment import LmdbDataLogs
from datalog.interface import Cleaned, Cleaning, Mark, NoRoom, TimestampOffset
from datalog.keyed import OpenedBatch, open_batch
from fairlog.retention import cleaner, judging
from fairlog.retention.cleaning import Rules
from fairlog_types import JournalPosition, LogId, Offset, StorageFailure
from tests.retention.cleaning_model import LOG, ModelLog, map_of

END = [(b"end", b"e")]
"""A last batch, which no cleaning touches."""


@pytest.fixture
def model(logs: LmdbDataLogs) -> ModelLog:
    """An empty log."""
    model = ModelLog(logs)
    model.create()
    return model


def offsets(model: ModelLog) -> list[int]:
    return [offset for offset, _, _ in model.stored()]


def test_cleaning_leaves_the_latest_record_of_each_key(model: ModelLog) -> None:
    """At its offset, over holes; bounds and high watermark are what they were."""
    model.append([(b"a", b"1"), (b"b", b"2")], [(b"a", b"3"), (b"a", b"4")], [(b"c", b"5")], END)
    report = model.clean().report
    assert offsets(model) == [1, 3, 4, 5]
    assert (report.reason, report.passes, report.keys, report.removed_records) == ("ratio", 1, 4, 2)
    bounds = model.logs.bounds(LOG)
    assert (bounds.log_start, bounds.next_offset) == (0, 6)
    assert map_of(model.stored()) == {b"b": b"2", b"a": b"4", b"c": b"5", b"end": b"e"}
    for start in range(7):
        assert [row[0] for row in model.stored(start)] == [at for at in (1, 3, 4, 5) if at >= start]


def test_cleaning_twice_does_nothing_the_second_time(model: ModelLog) -> None:
    """What is clean is not due again, neither in this run of the node nor, with the usual ratio, in the next."""
    model.append([(b"a", b"1")] * 50, [(b"b", b"2")] * 50, [(b"c", b"3")] * 200, END)
    first = model.clean().report
    before = model.stored()
    again = model.cleaner(seen=first.end)
    assert list(again.steps()) == []
    assert again.report.reason is None
    usual = Rules(1_000, 0, 1 << 62, 0.5)
    assert model.clean(usual).report.reason is None
    assert model.stored() == before


def test_cleaning_never_touches_the_last_batch_nor_the_last_transaction(model: ModelLog) -> None:
    """The log's end hangs on it; the next cleaning, when more has come, takes it like any other."""
    model.append([(b"a", b"1"), (b"a", b"2")])
    model.clean()
    assert offsets(model) == [0, 1]
    model.append([(b"a", b"3"), (b"b", b"1")], [(b"a", b"4"), (b"b", b"2")], transactional=True)
    model.clean()
    assert offsets(model) == [2, 3, 4, 5]
    model.append(END)
    model.clean()
    assert offsets(model) == [4, 5, 6]


def test_tombstone_stays_for_its_time_after_what_it_deletes_is_gone(model: ModelLog) -> None:
    """Counted from the end of the cleaning that removed the last older record of its key, not from its timestamp."""
    model.append([(b"a", b"1")], [(b"b", b"2")], [(b"a", None)], END)
    model.clean(now_ms=5_000)
    assert offsets(model) == [1, 2, 3]
    assert model.clean(now_ms=5_999).report.removed_records == 0
    report = model.clean(now_ms=6_000).report
    assert (report.reason, report.removed_records) == ("tombstones", 1)
    assert offsets(model) == [1, 3]
    assert model.logs.cleaned(LOG).history == ()


def test_tombstone_of_a_key_that_came_back_goes_with_its_kind(model: ModelLog) -> None:
    """It is superseded, like any older record of its key."""
    model.append([(b"a", None)], [(b"a", b"1")], END)
    model.clean()
    assert offsets(model) == [1, 2]


def test_tombstone_in_the_last_batch_does_not_bring_back_what_is_beside_it(model: ModelLog) -> None:
    """The older record in the same untouched batch goes before the tombstone does."""
    model.append([(b"b", b"0")], [(b"a", b"1"), (b"a", None)])
    for now_ms in (0, 1_000, 2_000):
        model.clean(now_ms=now_ms)
        assert offsets(model) == [0, 1, 2]
    model.append(END)
    seen: list[list[int]] = []
    for now_ms in (3_000, 3_999, 4_000):
        model.clean(now_ms=now_ms)
        seen.append(offsets(model))
    assert seen == [[0, 2, 3], [0, 2, 3], [0, 3]]


def test_records_without_a_key_stay(model: ModelLog) -> None:
    """Left from a time before the topic was compacted: nothing says which of them is the latest."""
    model.append([(None, b"1"), (b"a", b"1")], [(None, b"1"), (b"a", b"2")], END)
    model.clean()
    assert offsets(model) == [0, 2, 3, 4]


def test_young_records_neither_go_nor_supersede(model: ModelLog) -> None:
    """From the first young one on, everything is as it was; when it has aged, it is cleaned."""
    rules = Rules(1_000, 100, 1 << 62, 0.0)
    model.append([(b"a", b"1")], [(b"a", b"2")], timestamp_ms=10)
    model.append([(b"a", b"3")], [(b"b", b"1")], timestamp_ms=60)
    model.append([(b"b", b"2")], END, timestamp_ms=20)
    model.clean(rules, now_ms=105)
    assert offsets(model) == [0, 1, 2, 3, 4, 5]
    report = model.clean(rules, now_ms=120).report
    assert (report.end, offsets(model)) == (2, [1, 2, 3, 4, 5])
    model.clean(rules, now_ms=160)
    assert offsets(model) == [2, 4, 5]


def test_more_keys_than_fit_take_several_passes(model: ModelLog) -> None:
    """With the same result as one."""
    for number in range(20):
        model.append([(b"%d" % (number % 7), b"x"), (b"%d" % (number % 5), b"y")])
    model.append(END)
    report = model.clean(keys_max=3).report
    assert report.passes > 5
    assert map_of(model.stored()) == map_of(model.written)
    kept = offsets(model)
    assert len(kept) == len({key for _, key, _ in model.stored()})
    assert model.logs.cleaned(LOG).through == 40


def test_transaction_with_more_keys_than_fit_stops_the_cleaning(model: ModelLog) -> None:
    """What lies before it is clean then; the report says where it begins."""
    model.append([(b"a", b"1")], [(b"a", b"2")])
    model.append([(b"%d" % number, b"x") for number in range(3)], [(b"a", b"3")], transactional=True)
    model.append(END)
    report = model.clean(keys_max=3).report
    assert report.stuck_at == 2
    assert offsets(model) == [1, 2, 3, 4, 5, 6]
    assert map_of(model.stored()) == map_of(model.written)


def test_large_transaction_loses_whole_batches_only(model: ModelLog, monkeypatch: pytest.MonkeyPatch) -> None:
    """Too large to be rewritten in memory. A deletion behind it stays as long as anything superseded is left in it."""
    monkeypatch.setattr(cleaner, "REWRITTEN_BYTES_MAX", 50)
    model.append([(b"a", b"1"), (b"b", b"2")], [(b"c", b"3")], [(b"a", b"4")], transactional=True)
    model.append([(b"a", None)], [(b"c", b"5")], END)
    for now_ms in (0, 1_000, 2_000):
        model.clean(now_ms=now_ms)
        assert offsets(model) == [0, 1, 4, 5, 6]
        assert model.logs.cleaned(LOG).doubt_from == 0
    model.append([(b"b", b"6")], END)
    model.clean(now_ms=3_000)
    assert offsets(model) == [4, 5, 7, 8]
    assert model.logs.cleaned(LOG).doubt_from is None
    model.clean(now_ms=4_000)
    assert offsets(model) == [5, 7, 8]


@pytest.fixture
def codec_missing(monkeypatch: pytest.MonkeyPatch) -> Callable[[bool], None]:
    """Let the batches of producer 2 be unreadable, or readable again."""

    def switch(missing: bool) -> None:
        def open_some(batch: bytes) -> OpenedBatch:
            opened = open_batch(batch)
            if missing and opened.header.producer_id == 2:
                raise UnreadableRecords("zstd: the package is not installed")
            return opened

        monkeypatch.setattr(judging, "open_batch", open_some)

    return switch


def test_batch_that_cannot_be_read_is_kept_and_holds_tombstones(
    model: ModelLog, codec_missing: Callable[[bool], None]
) -> None:
    """It may hold an older record of the key. When the codec has come, both go in their time."""
    codec_missing(True)
    model.append([(b"a", b"1")])
    model.append([(b"a", b"2"), (b"b", b"2")], producer_id=2)
    model.append([(b"a", None)], [(b"b", b"3")], END)
    for now_ms in (0, 1_000, 2_000):
        cleaning = model.clean(now_ms=now_ms)
        assert offsets(model) == [1, 2, 3, 4, 5]
        assert cleaning.report.unreadable == "offset 1: zstd: the package is not installed"
    codec_missing(False)
    model.clean(now_ms=3_000)
    assert offsets(model) == [3, 4, 5]
    model.clean(now_ms=3_999)
    assert offsets(model) == [3, 4, 5]
    model.clean(now_ms=4_000)
    assert offsets(model) == [4, 5]


def test_doubt_of_a_batch_that_can_be_read_again_is_dispelled_by_the_last_pass_only(
    model: ModelLog, codec_missing: Callable[[bool], None], arm: Callable[[str], None]
) -> None:
    """Where its keys take several passes, and the node stops between two, tombstones behind it still stay."""
    codec_missing(True)
    model.append([(b"a", b"1"), (b"b", b"1")], producer_id=2)
    model.append([(b"c", b"1")], [(b"d", b"1")], [(b"a", None)], [(b"e", b"1")], END)
    model.clean()
    codec_missing(False)
    arm("retention.clean.before_mark:fail:2")
    with pytest.raises(OSError, match="failpoint"):
        model.clean(keys_max=2)
    assert model.logs.cleaned(LOG).doubt_from == 0
    arm("retention.clean.before_mark:kill:99")
    for now_ms in (5_000, 6_000):
        model.clean(now_ms=now_ms)
        assert map_of(model.stored()) == map_of(model.written)
    assert model.logs.cleaned(LOG).doubt_from is None


@pytest.mark.parametrize("nth", [1, 2, 3])
@pytest.mark.parametrize("point", ["before_commit", "after_commit", "before_mark"])
def test_failure_in_the_middle_loses_nothing_and_the_next_cleaning_ends_it(
    model: ModelLog, arm: Callable[[str], None], monkeypatch: pytest.MonkeyPatch, point: str, nth: int
) -> None:
    """Whatever step it falls into: every map is right, and the result in the end is what it would have been."""
    monkeypatch.setattr(cleaner, "STEP_BATCHES_MAX", 2)
    for number in range(30):
        model.append([(b"%d" % (number % 7), b"%d" % number), (b"%d" % (number % 5), b"x")])
    model.append(END)
    arm(f"retention.clean.{point}:fail:{nth}")
    with pytest.raises(OSError, match="failpoint"):
        model.clean(keys_max=3)
    assert map_of(model.stored()) == map_of(model.written)
    arm("retention.clean.before_mark:kill:99")
    model.clean()
    assert map_of(model.stored()) == map_of(model.written)
    assert len(model.stored()) == 8


def test_full_disk_stops_the_cleaning_and_nothing_else(model: ModelLog, monkeypatch: pytest.MonkeyPatch) -> None:
    """It asks for room beforehand, so no commit fails; with room again, the next one does what is left."""
    model.append([(b"a", b"1")], [(b"a", b"2")], END)

    def full(descriptor: int, offset: int, length: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr(os, "posix_fallocate", full)
        with pytest.raises(NoRoom, match="No space left"):
            model.clean()
    assert offsets(model) == [0, 1, 2]
    model.append([(b"b", b"1")])
    model.clean()
    assert offsets(model) == [1, 2, 3]


def test_full_map_stops_the_cleaning_and_not_the_writes(tmp_path: Path) -> None:
    """The step that finds no page is undone; what finds some is written, and reads go on."""
    logs = LmdbDataLogs.open(tmp_path / "small", map_bytes=258 << 12, sync=False)
    model = ModelLog(logs)
    model.create()
    for number in range(120):
        model.append([(b"%d" % number, b"x" * 5_000), (b"a", b"y")])
    before = model.stored()
    with pytest.raises(StorageFailure, match="map is full"):
        model.clean()
    assert model.stored() == before
    model.append(END)
    assert model.stored()[-1][1] == b"end"
    with logs.write() as writer:
        writer.delete_before(LOG, Offset(200))
    model.append(END)  # pages that a commit has set free are taken by the one after the next
    model.clean()
    assert map_of(model.stored(200)) == map_of([row for row in model.written if row[0] >= 200])
    assert len(model.stored(200)) == 20 + 2
    logs.close()


def test_cleaning_forgets_the_cuts_in_what_is_clean(model: ModelLog, monkeypatch: pytest.MonkeyPatch) -> None:
    """In steps; a reader with a limit gets the clean part at once, and goes on in cuts behind it."""
    monkeypatch.setattr(cleaner, "FORGOTTEN_CUTS_MAX", 3)
    for number in range(20):
        model.append([(b"a", b"%d" % number)])
        with model.logs.write() as writer:
            writer.put_cut(float(number))
    through = Offset(model.clean().report.end - 1)  # the last batch is never touched
    model.append(END)
    for start, end in ((0, through), (through, through + 1), (through + 1, through + 2)):
        assert model.logs.cut_within({LOG: Offset(start)}, records_max=1) == {LOG: end}
    with model.logs.write() as writer:
        assert writer.forget_cleaned_cuts(LOG, rows_max=100) == 0


def test_log_that_is_dropped_meanwhile_ends_the_cleaning(model: ModelLog) -> None:
    """Without a word: there is nothing left to be cleaned."""
    model.append(*[[(b"a", b"%d" % number)] for number in range(600)], END)
    steps = model.cleaner().steps()
    next(steps)
    with model.logs.write() as writer:
        writer.drop(LOG)
    assert len(list(steps)) <= 1, "what is looked at already is gone through, and no more"


def test_records_deleted_meanwhile_are_not_put_back(model: ModelLog, monkeypatch: pytest.MonkeyPatch) -> None:
    """Retention may delete what the cleaning has just read, at any step."""
    monkeypatch.setattr(cleaner, "BATCHES_PER_LOOK", 4)
    monkeypatch.setattr(cleaner, "STEP_BATCHES_MAX", 2)
    monkeypatch.setattr(cleaner, "READ_BYTES", 400)
    model.append(*[[(b"%d" % (number % 3), b"x"), (b"%d" % number, b"y")] for number in range(20)], END)
    for start, _ in enumerate(model.cleaner().steps()):
        with model.logs.write() as writer:
            writer.delete_before(LOG, Offset(min(2 * start, 38)), batches_max=1)
        start = model.logs.bounds(LOG).log_start
        assert map_of(model.stored(start)) == map_of([row for row in model.written if row[0] >= start])


def test_searches_by_timestamp_are_right_and_short_after_cleaning(
    model: ModelLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The time index is made anew over what is left, the largest timestamp included."""
    monkeypatch.setattr(time_index, "ENTRY_SPACING_BYTES", 100)
    for number in range(30):
        model.append([(b"%d" % (number % 10), b"x")], timestamp_ms=10 * number)
    model.append([(b"9", b"x")], timestamp_ms=9_000)
    model.append([(b"9", b"y")], timestamp_ms=310)
    model.append(END, timestamp_ms=320)
    model.clean()
    assert offsets(model) == [20, 21, 22, 23, 24, 25, 26, 27, 28, 31, 32]
    assert model.logs.max_timestamp(LOG) == TimestampOffset(Offset(32), 320)
    assert not model.logs.time_index_is_behind(LOG)
    assert model.logs.offset_for_timestamp(LOG, 0) == TimestampOffset(Offset(20), 200)
    assert model.logs.offset_for_timestamp(LOG, 281) == TimestampOffset(Offset(31), 310)
    assert model.logs.offset_for_timestamp(LOG, 321) is None


def test_what_is_clean_is_counted(model: ModelLog) -> None:
    """How far, how many bytes, and which tombstones wait: by this the next cleaning is planned."""
    model.append([(b"a", b"1")], [(b"a", b"2")], [(b"b", None)], END)
    model.clean(now_ms=77)
    bounds = model.logs.bounds(LOG)
    last_bytes = model.logs.units(LOG, Offset(3), batches_max=1)[0].size_bytes
    assert model.logs.cleaned(LOG) == Cleaned(
        Offset(3), bounds.size_bytes - last_bytes, None, (Cleaning(Offset(3), 77, 1),)
    )


def test_empty_log_and_one_of_a_single_batch_are_left_alone(model: ModelLog) -> None:
    """There is nothing that could be superseded."""
    assert model.clean().report.reason is None
    model.append(END)
    assert model.clean().report.removed_records == 0
    with model.logs.write() as writer:
        writer.delete_before(LOG, Offset(1))
    assert model.clean().report.reason is None


def test_other_logs_are_not_touched(model: ModelLog) -> None:
    """A cleaning reads and writes its own log alone, whatever stands beside it."""
    model.append([(b"a", b"1")], [(b"a", b"2")], END)
    other = LogId.of_topic(UUID(int=7), 1)
    with model.logs.write() as writer:
        writer.create(other)
        writer.put_mark(other, Mark(JournalPosition(1), JournalPosition(1), Offset(0)))
    model.clean()
    assert model.logs.cleaned(other) == Cleaned(Offset(0), 0, None, ())
    assert model.logs.mark(other) == Mark(JournalPosition(1), JournalPosition(1), Offset(0))
