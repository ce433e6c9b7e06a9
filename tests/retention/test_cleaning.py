"""Compaction's rules, pure: which records stay, when a log is due, when tombstones may go."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from datalog.interface import Cleaned, Cleaning
from datalog.keyed import KeyedRecord
from fairlog.retention.cleaning import (
    Keys,
    KeysExceeded,
    News,
    Rules,
    history_after,
    is_young,
    matured,
    why_due,
)
from fairlog_types import Offset

SALT = b"0123456789abcdef"
RULES = Rules(delete_retention_ms=1_000, lag_min_ms=0, lag_max_ms=1 << 62, dirty_ratio_min=0.5)
CLEAN = Cleaned(Offset(10), 100, None, ())


def record(offset: int, key: bytes | None, *, tombstone: bool = False) -> KeyedRecord:
    return KeyedRecord(Offset(offset), 0, key, tombstone, 0, 0)


def keys_of(*records: KeyedRecord) -> Keys:
    keys = Keys(SALT, keys_max=100)
    keys.note(records)
    return keys


def left(records: list[KeyedRecord], keys: Keys, tombstones_before: int = 0) -> list[int]:
    return [each.offset for each in keys.left_of(records, tombstones_before=Offset(tombstones_before))]


def test_records_stay_unless_a_later_one_of_the_key_was_noted() -> None:
    """The noted one itself stays, so do records of other keys, and those without a key."""
    records = [record(0, b"a"), record(1, b"b"), record(2, None), record(3, b"a"), record(4, b"")]
    assert left(records, keys_of(*records)) == [1, 2, 3, 4]
    assert left(records, keys_of(record(3, b"a"), record(9, b""))) == [1, 2, 3]
    assert left(records, keys_of()) == [0, 1, 2, 3, 4]


def test_tombstones_stay_until_their_offset_is_named() -> None:
    """From an offset on they are kept like any record; one without a key is no tombstone."""
    records = [record(0, b"a", tombstone=True), record(1, None, tombstone=True), record(2, b"b", tombstone=True)]
    assert left(records, keys_of(*records)) == [0, 1, 2]
    assert left(records, keys_of(*records), 2) == [1, 2]
    assert left(records, keys_of(*records), 3) == [1]


KEYS = [None, b"", b"a", b"b" * 15, b"b" * 16, b"c" * 16, b"c" * 17]
"""Short ones are kept as they are, long ones as hashes."""


@given(st.lists(st.tuples(st.sampled_from(KEYS), st.booleans()), max_size=20), st.data())
def test_map_read_from_anywhere_is_the_same_after_cleaning(
    drawn: list[tuple[bytes | None, bool]], data: st.DataObject
) -> None:
    """Whatever part of the keys was noted: read from any record to the end, each key has the value that it had."""
    records = [record(offset, key, tombstone=tombstone) for offset, (key, tombstone) in enumerate(drawn)]
    noted = records[data.draw(st.integers(0, len(records))) :]
    kept = keys_of(*noted).left_of(records, tombstones_before=Offset(0))

    def read(some: list[KeyedRecord], start: int) -> dict[bytes | None, Offset]:
        return {each.key: each.offset for each in some if each.offset >= start and each.key is not None}

    for start in range(len(records) + 1):
        assert read(kept, start) == read(records, start)
    assert [each for each in records if each.key is None] == [each for each in kept if each.key is None]


def test_keys_beyond_the_memory_are_refused() -> None:
    """As many as there is room for are noted; keys that are known take no room."""
    keys = Keys(SALT, keys_max=2)
    keys.note([record(0, b"a"), record(1, b"b"), record(2, b"a")])
    assert len(keys) == 2
    with pytest.raises(KeysExceeded):
        keys.note([record(3, b"b"), record(4, b"c")])
    assert len(keys) == 2
    assert left([record(0, b"c"), record(1, b"b")], keys) == [0]


@pytest.mark.parametrize(
    ("news", "seen", "reason"),
    [
        (News(Offset(20), 101, 0), 0, "ratio"),
        (News(Offset(20), 100, 0), 0, None),
        (News(Offset(20), 101, 0), 20, None),
        (News(Offset(20), 101, 0), 19, "ratio"),
        (News(Offset(10), 0, None), 0, None),
    ],
)
def test_log_is_due_when_enough_of_it_is_new(news: News, seen: int, reason: str | None) -> None:
    """More than the ratio of all that may be cleaned, and not all of it seen by the last cleaning."""
    assert why_due(RULES, CLEAN, news, seen=Offset(seen), now_ms=5_000) == reason


def test_log_is_due_when_its_news_have_waited_for_the_maximum_lag() -> None:
    """However little there is; a record without a timestamp has not waited."""
    rules = Rules(1_000, 0, 300, 0.5)
    for oldest_ms, reason in ((699, "lag"), (700, None), (-1, None)):
        assert why_due(rules, CLEAN, News(Offset(20), 1, oldest_ms), seen=Offset(0), now_ms=1_000) == reason


def test_log_is_due_when_its_tombstones_may_go() -> None:
    """Also if nothing is new; a mark without tombstones is no reason."""
    news = News(Offset(10), 0, None)
    for tombstones, now_ms, reason in ((1, 5_000, "tombstones"), (1, 4_999, None), (0, 5_000, None)):
        cleaned = Cleaned(Offset(10), 100, None, (Cleaning(Offset(10), 4_000, tombstones),))
        assert why_due(RULES, cleaned, news, seen=Offset(10), now_ms=now_ms) == reason


def test_log_with_a_ratio_of_one_is_never_due_by_it() -> None:
    """As in Kafka; with zero any news will do."""
    for ratio, reason in ((1.0, None), (0.0, "ratio")):
        rules = Rules(1_000, 0, 1 << 62, ratio)
        news = News(Offset(20), 1, 0)
        assert why_due(rules, Cleaned(Offset(0), 0, None, ()), news, seen=Offset(0), now_ms=0) == reason


def test_unit_is_young_for_the_minimum_lag() -> None:
    """Not at all if there is none, though its timestamp be in the future."""
    rules = Rules(0, 100, 1 << 62, 0.5)
    assert [is_young(rules, at, now_ms=1_000) for at in (900, 901, 5_000, -1)] == [False, True, True, False]
    assert not is_young(RULES, 5_000, now_ms=1_000)


def test_history_keeps_what_is_needed_and_no_more() -> None:
    """Marks that have done their work go, and one that says nothing new is left out."""
    first, second = Cleaning(Offset(10), 100, 2), Cleaning(Offset(20), 600, 1)
    done = Cleaning(Offset(30), 1_200, 4)
    assert history_after((first, second), RULES, done, tombstones_before=Offset(10)) == (second, done)
    assert history_after((first, second), RULES, done, tombstones_before=Offset(0)) == (first, second, done)
    again = Cleaning(Offset(20), 1_300, 4)
    assert history_after((first, second), RULES, again, tombstones_before=Offset(20)) == ()


def test_history_of_frequent_cleanings_stays_short_and_matures() -> None:
    """A cleaning every 90 seconds for ten days: some 66 marks, and tombstones wait for a day, hardly longer."""
    rules = Rules(86_400_000, 0, 1 << 62, 0.5)
    history: tuple[Cleaning, ...] = ()
    born: dict[Offset, int] = {}
    delays: list[int] = []
    for number in range(1, 10 * 5760, 6):
        now_ms, before = number * 15_000, Offset(number)
        ripe = matured(history, rules, now_ms=now_ms)
        limit = Offset(0) if ripe is None else ripe.before
        delays += [now_ms - born.pop(offset) for offset in list(born) if offset < limit]
        born[Offset(before - 1)] = now_ms
        history = history_after(history, rules, Cleaning(before, now_ms, 1), tombstones_before=limit)
        assert len(history) <= 66
    assert min(delays) >= 86_400_000
    assert max(delays) <= 86_400_000 * 66 / 64
