"""The checkers of one log, on logs made up at random: they are silent about a right one, and see what is wrong."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from uuid import UUID

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from datalog import layout, time_index
from datalog.batch import BatchHeader
from datalog.interface import Mark
from datalog.layout import LogRecord
from datalog.lmdb_pages import Item
from datalog.offset_entries import CommittedOffset, OffsetEntry, OffsetKey, encode_offset_entry
from fairlog.groups.persisted_group import PersistedClassicGroup, encode_group
from fairlog.verify.batches import DensityCheck, KeptBatch, LogCheck
from fairlog.verify.committed_offsets import check_committed_offset
from fairlog.verify.copies import CopiedBatch, CopiesCheck
from fairlog.verify.counters import CountersCheck, TimeIndexCheck
from fairlog.verify.findings import Kind, Summary, Violation
from fairlog.verify.journals import JournalView, ReadFrame, check_journal
from fairlog.verify.persisted_groups import check_persisted_group
from fairlog.verify.placements import KnownPlace, PlacementsCheck
from fairlog.verify.producers import FirstBatchesCheck, ProducersCheck
from fairlog.verify.rules import LogRules
from fairlog_types import (
    ApplyNumber,
    JournalPosition,
    LeaderEpoch,
    LogId,
    Offset,
    ProducerEpoch,
    ProducerId,
    TxId,
)
from partition.producer_window import AppliedTransaction, ProducerWindow, first_window
from partition.records import Apply, Discard, PlainBatch, Start, TransactionalBatch

LOG = LogId.of_topic(UUID(int=1), 0)
TRANSACTIONAL = 0x10
PLAIN_PRODUCERS, TRANSACTIONAL_PRODUCERS = (1, 2), (3, 4)


@pytest.fixture(autouse=True)
def small_spacing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Entries of the time index after a few batches."""
    monkeypatch.setattr(time_index, "ENTRY_SPACING_BYTES", 200)


@dataclass
class MadeUp:
    """A data log with everything that is kept beside it, as a node would have made it."""

    batches: list[KeptBatch] = field(default_factory=list)
    record: LogRecord = field(default_factory=lambda: LogRecord(0))
    windows: dict[ProducerId, ProducerWindow] = field(default_factory=dict)
    entries: list[tuple[int, int]] = field(default_factory=list)
    places: list[KnownPlace] = field(default_factory=list)
    _numbers: dict[int, int] = field(default_factory=dict)

    def plain(self, producer: int, count: int, timestamp_ms: int) -> None:
        sequence = -1 if producer < 0 else self._window(producer).next_sequence
        if producer >= 0:
            self._write(producer, count, self.record.next_offset)
        self._append(producer, sequence, count, timestamp_ms, attributes=0)

    def transaction(self, producer: int, counts: Sequence[int], timestamp_ms: int, *, commit: bool) -> None:
        number = self._numbers[producer] = self._numbers.get(producer, -1) + 1
        base_offset = self.record.next_offset
        for count in counts:
            sequence = self._window(producer).next_sequence
            self._write(producer, count, None)
            if commit:
                self._append(producer, sequence, count, timestamp_ms, attributes=TRANSACTIONAL)
        if commit:
            placed = AppliedTransaction(ProducerEpoch(0), number, ApplyNumber(number), base_offset, sum(counts))
            window = self._window(producer).with_applied(placed, as_of=JournalPosition(0), timestamp_ms=0)
            self.windows[ProducerId(producer)] = window
            txid = TxId(ProducerId(producer), ProducerEpoch(0), number)
            self.places = [place for place in self.places if place.txid.producer_id != producer] + [
                KnownPlace(it.base_offset, it.record_count, TxId(txid.producer_id, it.epoch, it.number), "the window")
                for it in window.applied
            ]

    def _window(self, producer: int) -> ProducerWindow:
        default = first_window(ProducerEpoch(0), as_of=JournalPosition(0), timestamp_ms=0)
        return self.windows.get(ProducerId(producer), default)

    def _write(self, producer: int, count: int, base_offset: Offset | None) -> None:
        window = self._window(producer)
        self.windows[ProducerId(producer)] = window.with_batch(
            ProducerEpoch(0), window.next_sequence, count, base_offset, as_of=JournalPosition(0), timestamp_ms=0
        )

    def _append(self, producer: int, sequence: int, count: int, timestamp_ms: int, *, attributes: int) -> None:
        size = 61 + 7 * count
        base = self.record.next_offset
        crc, epoch = hash((producer, sequence, base)) & 0xFFFF_FFFF, ProducerEpoch(0 if producer >= 0 else -1)
        header = BatchHeader(
            base, size - 12, LeaderEpoch(1), 2, crc, attributes, count - 1,
            timestamp_ms, timestamp_ms, ProducerId(producer), epoch, sequence, count,
        )  # fmt: skip
        last = Offset(base + count - 1)
        before = time_index.note(self.record, last, timestamp_ms, size)
        if before is not None:
            self.entries.append((before, last))
        self.record.next_offset = Offset(last + 1)
        self.record.size_bytes += size
        self.batches.append(KeptBatch(base, last, size, header, f"offset {last}"))

    def again_at_the_end(self, index: int) -> None:
        """Copy a batch a second time, with all counters as if it belonged there; nothing else knows of it."""
        batch = self.batches[index]
        header = batch.header
        base = self.record.next_offset
        last = Offset(base + header.last_offset_delta)
        time_index.note(self.record, last, header.max_timestamp, batch.size_bytes)
        self.record.next_offset = Offset(last + 1)
        self.record.size_bytes += batch.size_bytes
        copy = header._replace(base_offset=base)
        self.batches.append(KeptBatch(base, last, batch.size_bytes, copy, f"offset {last}"))

    def violations(self) -> list[Violation]:
        record, rules, summary = self.record, LogRules(), Summary()
        bounds = {"log_start": record.log_start, "next_offset": record.next_offset}
        checks: list[LogCheck] = [
            DensityCheck("log", **bounds, rules=rules),
            CountersCheck("log", record, rules=rules),
            TimeIndexCheck("log", self.entries, log_start=record.log_start, rules=rules),
            ProducersCheck("log", self.windows, log_start=record.log_start, copied_through=0, rules=rules),
            PlacementsCheck("log", self.places, **bounds, rules=rules, summary=summary),
        ]
        return list(past(checks, self.batches))


def past(checks: Sequence[LogCheck], batches: Sequence[KeptBatch]) -> Iterator[Violation]:
    for batch in batches:
        for check in checks:
            yield from check.feed(batch)
    for check in checks:
        yield from check.finish()


counts = st.integers(1, 4)
times = st.integers(0, 50)
events = st.one_of(
    st.tuples(st.just("plain"), st.sampled_from((-1, *PLAIN_PRODUCERS)), counts, times),
    st.tuples(
        st.sampled_from(("commit", "abort")),
        st.sampled_from(TRANSACTIONAL_PRODUCERS),
        st.lists(counts, min_size=1, max_size=3),
        times,
    ),
)


def made_up(happened: Sequence[tuple]) -> MadeUp:
    log = MadeUp()
    for what, producer, count, timestamp_ms in happened:
        if what == "plain":
            log.plain(producer, count, timestamp_ms)
        else:
            log.transaction(producer, count, timestamp_ms, commit=what == "commit")
    return log


@given(happened=st.lists(events, max_size=40))
def test_log_as_a_node_makes_it_has_no_violation(happened: list[tuple]) -> None:
    """Plain and idempotent batches, committed and aborted transactions, more than any window remembers."""
    assert made_up(happened).violations() == []


@settings(max_examples=60)
@given(happened=st.lists(events, min_size=1, max_size=40), data=st.data())
def test_batch_of_a_producer_that_is_copied_twice_is_found_without_any_journal(
    happened: list[tuple], data: st.DataObject
) -> None:
    """Sequences, windows and places together: whichever batch with a producer stands there a second time is seen."""
    log = made_up(happened)
    of_producers = [at for at, batch in enumerate(log.batches) if batch.header.producer_id >= 0]
    if of_producers:
        log.again_at_the_end(data.draw(st.sampled_from(of_producers)))
        assert log.violations()


@settings(max_examples=60)
@given(happened=st.lists(events, min_size=2, max_size=30), data=st.data())
def test_batch_that_is_missing_is_found(happened: list[tuple], data: st.DataObject) -> None:
    """A hole in the offsets, wherever it is (invariant 2)."""
    log = made_up(happened)
    if log.batches:
        del log.batches[data.draw(st.integers(0, len(log.batches) - 1))]
        assert any(violation.invariant == 2 for violation in log.violations())


@settings(max_examples=60)
@given(happened=st.lists(events, min_size=2, max_size=30), data=st.data())
def test_batch_that_its_journal_has_otherwise_is_found(happened: list[tuple], data: st.DataObject) -> None:
    """Against the journal even a plain batch without a producer cannot be dropped, doubled or changed unseen."""
    log = made_up(happened)
    if not log.batches:
        return
    copied = [
        CopiedBatch(batch.base_offset, batch.header.record_count, batch.header.crc, 1, JournalPosition(0))
        for batch in log.batches
    ]

    def check() -> list[Violation]:
        checked = CopiesCheck("log", copied, complete_from=0, log_start=0, rules=LogRules(), summary=Summary())
        return list(past([checked], log.batches))

    assert check() == []
    at = data.draw(st.integers(0, len(log.batches) - 1))
    batch = log.batches[at]
    match data.draw(st.sampled_from(("change", "drop", "repeat"))):
        case "change":
            log.batches[at] = batch._replace(header=batch.header._replace(crc=batch.header.crc ^ 1))
        case "drop":
            del log.batches[at]
        case _:
            log.again_at_the_end(at)
    assert any(violation.invariant == 4 for violation in check())


def test_log_that_is_compacted_may_have_holes_where_its_record_says_so() -> None:
    """Before `holes_before` batches may be missing, also of a transaction; behind it none."""
    log = made_up([("commit", 3, [1, 1, 1], 1), ("plain", -1, 2, 1), ("plain", -1, 1, 1), ("plain", -1, 1, 1)])
    del log.batches[1]

    def check(holes_before: int) -> list[Violation]:
        rules = LogRules(holes_before=holes_before)
        bounds = {"log_start": 0, "next_offset": log.record.next_offset}
        checks: list[LogCheck] = [
            DensityCheck("log", **bounds, rules=rules),
            PlacementsCheck("log", log.places, **bounds, rules=rules, summary=Summary()),
        ]
        return list(past(checks, log.batches))

    assert check(holes_before=2) == []
    assert check(holes_before=0)
    del log.batches[3]
    assert check(holes_before=2)


def test_damaged_batches_hide_no_others() -> None:
    """Offsets are dense across one whose key is known; after a stretch that cannot be read they begin anew."""
    log = made_up([("plain", -1, 1, 1)] * 4)

    def check(unreadable: Callable[[DensityCheck], None], then: int) -> list[Kind | None]:
        density = DensityCheck("log", log_start=0, next_offset=4, rules=LogRules())
        found = list(density.feed(log.batches[0]))
        unreadable(density)
        found += past([density], log.batches[then:])
        return [each.kind for each in found]

    assert check(lambda density: density.skip(1), 2) == []
    assert check(lambda density: density.skip(1), 3) == [Kind.HOLE]
    assert check(lambda density: density.lose_track(), 3) == []
    assert check(lambda density: density.lose_track(), 4) == [Kind.WRONG_END]


def test_producer_whose_later_places_may_be_forgotten_accuses_nobody() -> None:
    """Its place that is known must be right all the same."""
    log = made_up([("commit", 3, [1], 1), ("commit", 3, [1], 1)])
    first, _ = log.places
    bounds = {"log_start": 0, "next_offset": 2, "rules": LogRules()}
    for later_are_known, kinds in ((True, [Kind.UNKNOWN_TRANSACTION]), (False, [])):
        place = replace(first, later_are_known=later_are_known)
        check = PlacementsCheck("log", [place], **bounds, summary=Summary())
        assert [each.kind for each in past([check], log.batches)] == kinds
    wrong = replace(first, count=2, later_are_known=False)
    check = PlacementsCheck("log", [wrong], **bounds, summary=Summary())
    assert [each.kind for each in past([check], log.batches[:1])] == [Kind.TORN_TRANSACTION]


def test_marker_in_a_log_without_them_is_told_once() -> None:
    """As a control batch, and not as a transaction's records, too."""
    log = made_up([("commit", 3, [1], 1), ("commit", 3, [1], 1)])
    last = log.batches[1]
    log.batches[1] = last._replace(header=last.header._replace(attributes=0x30, base_sequence=-1))
    del log.places[1]
    kinds = [each.kind for each in log.violations() if each.kind is not None]
    assert kinds == [Kind.CONTROL_BATCH]


def test_places_that_overlap_are_each_counted_by_themselves() -> None:
    """A batch may be in both; what is wrong is that they overlap, and what is not there."""
    log = made_up([("commit", 3, [1, 1], 1), ("commit", 4, [1], 1)])
    first, second = sorted(log.places)
    check = PlacementsCheck(
        "log",
        [first, replace(second, base_offset=1, count=2)],
        log_start=0,
        next_offset=3,
        rules=LogRules(),
        summary=Summary(),
    )
    found = [(each.kind, each.offset) for each in past([check], log.batches)]
    assert sorted(found) == [(Kind.PLACES_OVERLAP, 1), (Kind.TORN_TRANSACTION, 1)]


def test_first_batch_there_again_is_found_by_its_bytes() -> None:
    """A producer that was forgotten begins with 0 again, with other records; an epoch's first batch comes once."""
    log = made_up([("plain", 1, 1, 1), ("plain", 2, 1, 1), ("plain", 1, 1, 1)])
    assert list(past([FirstBatchesCheck()], log.batches)) == []
    log.again_at_the_end(0)
    (found,) = past([FirstBatchesCheck()], log.batches)
    assert (found.kind, found.offset) == (Kind.BATCH_TWICE, 3)
    log.batches[3] = log.batches[3]._replace(header=log.batches[3].header._replace(producer_epoch=ProducerEpoch(1)))
    assert list(past([FirstBatchesCheck()], log.batches)) == []


def test_entry_of_a_batch_that_compaction_has_made_older_is_right() -> None:
    """Until the time index is made anew, which a crash may put off: no search is led astray by it."""
    log = made_up([("plain", -1, 1, 5), ("plain", -1, 1, 5), ("plain", -1, 1, 9)])
    for before_ms, holes_before, right in ((7, 2, True), (7, 1, False), (4, 2, False)):
        rules = LogRules(holes_before=holes_before)
        check = TimeIndexCheck("log", [(before_ms, 1)], log_start=0, rules=rules)
        assert (list(past([check], log.batches)) == []) is right


def test_log_that_starts_inside_a_batch_is_right() -> None:
    """Retention moves the start; the batch that contains it stays, and those before it may wait to be removed."""
    log = made_up([("plain", -1, 3, 1), ("plain", -1, 3, 1), ("plain", -1, 3, 1)])
    for log_start in range(9):
        check = DensityCheck("log", log_start=log_start, next_offset=9, rules=LogRules())
        kept = log.batches[log_start // 3 :]
        assert list(past([check], kept)) == []
        late = DensityCheck("log", log_start=log_start, next_offset=9, rules=LogRules())
        assert list(past([late], kept[1:]))


@pytest.mark.parametrize("offset", [-1, 0, 1 << 62])
def test_committed_offset_is_right_whatever_the_client_has_committed(offset: int) -> None:
    """The node takes it as it comes."""
    key = OffsetKey("g", "0" * 32, 0)
    entry = encode_offset_entry(OffsetEntry(key, CommittedOffset(Offset(offset), -1, "", 0)))
    item = Item(layout.offset_key(7, key), memoryview(entry), 0)
    assert list(check_committed_offset("log", 7, item, Summary())) == []
    assert list(check_committed_offset("log", 8, item, Summary()))


def test_group_is_right_under_its_own_digest_alone() -> None:
    """Whichever log it is in; what is no group is named with its byte."""
    record = encode_group("g", PersistedClassicGroup(4, "consumer", "", "", ()))
    right = (layout.group_key(7, "g"), record)
    wrong = [(layout.group_key(7, "h"), record), (right[0], record[:-1]), (right[0], b""), (right[0][:-1], record)]
    assert list(check_persisted_group("log", Item(right[0], memoryview(right[1]), 9), Summary())) == []
    for key, value in wrong:
        (violation,) = check_persisted_group("log", Item(key, memoryview(value), 9), Summary())
        assert violation.where == "log, byte 9 of the file"


# --- journals -------------------------------------------------------------------------------------


T1, T2 = (TxId(ProducerId(3), ProducerEpoch(0), number) for number in range(2))


def frames(*records: object) -> list[ReadFrame]:
    """Each at a multiple of 8."""
    return [
        ReadFrame(JournalPosition(at * 8), JournalPosition(at * 8 + 8), LeaderEpoch(1), 0, record, JournalPosition(0))  # type: ignore[arg-type]
        for at, record in enumerate(records)
    ]


def plain(base_offset: int) -> PlainBatch:
    return PlainBatch(Offset(base_offset), 1, 0, ProducerId(-1), ProducerEpoch(-1), -1)


def apply(txid: TxId, base_offset: int, count: int) -> Apply:
    return Apply(txid, ApplyNumber(0), Offset(base_offset), count, 0)


def in_transaction(txid: TxId, sequence: int) -> TransactionalBatch:
    return TransactionalBatch(txid, 1, 0, sequence)


JOURNAL = frames(
    plain(0), in_transaction(T1, 0), plain(1), in_transaction(T2, 1), apply(T1, 2, 1), Discard(T2), plain(3)
)
"""At the mark 24, T1 is open since 8; at 40, T2 since 24; at 56, nothing."""

RIGHT = [(8, 8, 1), (24, 8, 2), (40, 24, 3), (48, 48, 3), (56, 56, 4), (0, 0, 0)]


@pytest.mark.parametrize(("copied_through", "replay_from", "next_offset"), RIGHT)
def test_journal_with_its_mark_at_any_decision_is_right(
    copied_through: int, replay_from: int, next_offset: int
) -> None:
    """What is open at the mark is where the replay begins; what is decided behind it is found as pending."""
    view = JournalView()
    windows = {
        ProducerId(3): first_window(ProducerEpoch(0), as_of=JournalPosition(copied_through), timestamp_ms=0).with_batch(
            ProducerEpoch(0),
            0,
            2 if copied_through > 24 else 1,
            None,
            as_of=JournalPosition(copied_through),
            timestamp_ms=0,
        )
    }
    mark = Mark(JournalPosition(copied_through), JournalPosition(replay_from), Offset(next_offset))
    held = windows if copied_through > 8 else {}
    found = list(
        check_journal(LOG, "log", JOURNAL, mark, held, (), view, start=JournalPosition(0), log_start=Offset(0))
    )
    assert found == []
    assert (T1 in view.applied, T1 in view.pending) == (copied_through >= 40, copied_through < 40)
    assert view.complete_from == (0 if copied_through else None)


WRONG = [
    ((24, 0, 2), 11, "nothing before 8 is needed"),
    ((24, 24, 2), 11, "a transaction that was open at the mark has a frame at 8"),
    ((20, 8, 2), 4, "is not where a frame ends"),
    ((24, 8, 1), 4, "next offset 1 at position 24, where the journal has come to offset 2"),
]


@pytest.mark.parametrize(("mark", "invariant", "words"), WRONG)
def test_journal_with_a_mark_that_does_not_fit_is_a_violation(
    mark: tuple[int, int, int], invariant: int, words: str
) -> None:
    """Too early pins the journal, too late loses what is open, and neither may stand between two frames."""
    copied_through, replay_from, next_offset = mark
    given_mark = Mark(JournalPosition(copied_through), JournalPosition(replay_from), Offset(next_offset))
    found = list(
        check_journal(
            LOG, "log", JOURNAL, given_mark, {}, (), JournalView(), start=JournalPosition(0), log_start=Offset(0)
        )
    )
    assert any(each.invariant == invariant and words in each.what for each in found), found


def test_journal_that_contradicts_itself_is_a_violation() -> None:
    """An APPLY twice, a hole between two places, a count that is not held."""
    mark = Mark(JournalPosition(40), JournalPosition(40), Offset(4))
    for records_, words in (
        ((in_transaction(T1, 0), apply(T1, 0, 1), apply(T1, 1, 0), plain(1), plain(2)), "applied a second time"),
        ((plain(0), plain(1), plain(3), plain(4), plain(5)), "at offset 3, due is 2"),
        (
            (in_transaction(T1, 0), apply(T1, 0, 2), plain(2), plain(3), plain(4)),
            "places 2 records, and 1 stand",
        ),
    ):
        found = list(
            check_journal(
                LOG,
                "log",
                frames(*records_),
                mark,
                {},
                (),
                JournalView(),
                start=JournalPosition(0),
                log_start=Offset(0),
            )
        )
        assert any(words in each.what for each in found), found


@pytest.mark.parametrize(
    ("log_start", "mark_at", "words"),
    [
        (2, 40, None),
        (3, 40, None),
        (1, 40, "was told to begin at offset 2, and its data log begins at 1"),
        (0, 16, None),
        (1, 48, "was told to begin at offset 2"),
    ],
)
def test_start_that_the_mark_has_passed_and_the_data_log_does_not_have_is_a_violation(
    log_start: int, mark_at: int, words: str | None
) -> None:
    """The copier moves both at once; where the data log is ahead of the mark, its leader has been faster."""
    journal = frames(plain(0), plain(1), Start(Offset(2)), Start(Offset(1)), plain(2), plain(3))
    mark = Mark(JournalPosition(mark_at), JournalPosition(mark_at), Offset({16: 2, 40: 3, 48: 4}[mark_at]))
    view = JournalView()
    found = check_journal(
        LOG, "log", journal, mark, {}, (), view, start=JournalPosition(0), log_start=Offset(log_start)
    )
    assert [(each.invariant, words in each.what) for each in found if words] == ([(4, True)] if words else [])


def test_start_behind_the_end_of_its_log_is_a_violation() -> None:
    """As a restart finds it."""
    mark = Mark(JournalPosition(8), JournalPosition(8), Offset(1))
    (found,) = check_journal(
        *(LOG, "log", frames(plain(0), Start(Offset(3))), mark, {}, (), JournalView()),
        start=JournalPosition(0),
        log_start=Offset(0),
    )
    assert "begin at offset 3, which ends at 1" in found.what


def test_log_whose_largest_timestamp_is_gone_has_a_bound() -> None:
    """Then the record's timestamp may be larger than all that is left, and never smaller."""
    log = made_up([("plain", -1, 1, 9), ("plain", -1, 1, 5)])
    log.record.size_bytes -= log.batches.pop(0).size_bytes
    for timestamp_ms, bound, right in ((9, True, True), (9, False, False), (4, True, False)):
        log.record.max_timestamp_ms = timestamp_ms
        check = CountersCheck("log", log.record, rules=LogRules(timestamp_is_bound=bound))
        assert (list(past([check], log.batches)) == []) is right
