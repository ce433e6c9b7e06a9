"""The checker is proven on planted histories: each anomaly is found, under its number, and nothing else is."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence

import pytest

from tests.crash.checker import Found, Reading, check, check_growth, check_offsets
from tests.crash.history import History, Outcome, PlainRecord, PlainTag, Transaction, TransactionalTag, parse_value

FIRST = Transaction("w", 0, {0: 2, 1: 1}, Outcome.DONE)
SECOND = Transaction("w", 1, {0: 1, 1: 2}, Outcome.DONE)
ABORTED = Transaction("w", 2, {0: 1}, Outcome.REFUSED)
OPEN = Transaction("hung", 0, {0: 1, 1: 1}, Outcome.OPEN)
ASKED = Transaction("x", 0, {0: 1, 1: 1}, Outcome.ASKED)
PLAIN = PlainRecord("p", 0, 1, Outcome.DONE, offset=3)
PLAIN_REFUSED = PlainRecord("p", 1, 0, Outcome.REFUSED)
PLAIN_ASKED = PlainRecord("p", 2, 0, Outcome.ASKED)
HISTORY = History.of(transactions=[FIRST, SECOND, ABORTED, OPEN, ASKED], plain=[PLAIN, PLAIN_REFUSED, PLAIN_ASKED])

NEVER_SENT = Transaction("w", 99, {0: 1}, Outcome.DONE)
TOO_LONG = Transaction("w", 1, {0: 2}, Outcome.DONE)


def sound() -> dict[int, list[bytes | None]]:
    """What the logs hold when all is well (and the transaction of unknown outcome did not take effect)."""
    return {
        0: [*FIRST.values(0), *SECOND.values(0)],
        1: [*FIRST.values(1), *SECOND.values(1), PLAIN.value],
    }


def as_logs(values: Mapping[int, Sequence[bytes | None]]) -> dict[int, list[Found]]:
    return {p: [Found(offset, value) for offset, value in enumerate(found)] for p, found in values.items()}


def invariants(values: Mapping[int, Sequence[bytes | None]], reading: Reading = Reading.AT_REST) -> set[int]:
    return {violation.invariant for violation in check(HISTORY, as_logs(values), reading)}


@pytest.mark.parametrize("reading", Reading)
def test_checker_sound_logs_pass(reading: Reading) -> None:
    """Nothing is found where nothing is wrong."""
    assert check(HISTORY, as_logs(sound()), reading) == []


def test_checker_unknown_outcome_may_be_there_whole() -> None:
    """A commit without an answer may have taken effect, everywhere; so may a plain record."""
    logs = sound()
    logs[0] += [*ASKED.values(0), PLAIN_ASKED.value]
    logs[1] += ASKED.values(1)
    assert invariants(logs) == set()


def test_checker_answered_commit_may_be_missing_at_the_crash_only() -> None:
    """In the data logs of a killed node a committed transaction may be missing, but only whole."""
    logs = {0: FIRST.values(0), 1: FIRST.values(1)}
    history = History.of(transactions=[FIRST, SECOND])
    assert check(history, as_logs(logs), Reading.AT_CRASH) == []
    assert {violation.invariant for violation in check(history, as_logs(logs), Reading.AT_REST)} == {5}


def test_checker_answered_plain_record_may_be_missing_at_the_end_and_at_the_crash_only() -> None:
    """It may be on its way into the data logs, but nothing overtakes it there."""
    history = History.of(transactions=[FIRST, SECOND], plain=[PLAIN])
    whole = {partition: [*FIRST.values(partition), *SECOND.values(partition)] for partition in range(2)}
    assert PLAIN.partition == 1
    assert PLAIN.offset == len(whole[1])
    assert check(history, as_logs(whole), Reading.AT_CRASH) == []
    assert {violation.invariant for violation in check(history, as_logs(whole), Reading.AT_REST)} == {5}
    later = PlainRecord("p", 1, 1, Outcome.ASKED)
    longer = as_logs(whole)
    longer[1].append(Found(PLAIN.offset, later.value))
    asked = History.of(transactions=[FIRST, SECOND], plain=[PLAIN, later])
    assert {violation.invariant for violation in check(asked, longer, Reading.AT_CRASH)} == {5}


def _with(partition: int, *values: bytes | None) -> dict[int, list[bytes | None]]:
    logs = sound()
    logs[partition] += values
    return logs


ANOMALIES: dict[str, tuple[dict[int, list[bytes | None]], set[int]]] = {
    "a control record": (_with(0, None), {1}),
    "somebody else's record": (_with(0, b"hello"), {1}),
    "a record in another partition than it was sent to": (_with(0, PLAIN.value), {1, 4}),
    "a record that was never sent": (_with(0, *NEVER_SENT.values(0)), {1}),
    "a record beyond the transaction's count": (_with(0, TOO_LONG.values(0)[1]), {1, 5}),
    "an open transaction, whole": ({0: [*sound()[0], *OPEN.values(0)], 1: [*sound()[1], *OPEN.values(1)]}, {1}),
    "an open transaction, in part": (_with(0, *OPEN.values(0)), {1, 7}),
    "an aborted transaction": (_with(0, *ABORTED.values(0)), {5}),
    "a refused plain record": (_with(0, PLAIN_REFUSED.value), {5}),
    "a committed transaction lost": ({0: SECOND.values(0), 1: SECOND.values(1)}, {5}),
    "a value cut short": (
        {0: [FIRST.values(0)[0], FIRST.values(0)[1][:-1], *SECOND.values(0)], 1: sound()[1]},
        {1, 5},
    ),
    "a committed transaction lost in one partition": ({0: SECOND.values(0), 1: sound()[1]}, {5}),
    "a commit of unknown outcome, in part": (_with(1, *ASKED.values(1)), {7}),
    "a transaction copied twice": (_with(0, *SECOND.values(0)), {4, 3, 5}),
    "a plain record copied twice": (_with(1, PLAIN.value), {4}),
    "a transaction torn apart": (
        {0: [FIRST.values(0)[0], *SECOND.values(0), FIRST.values(0)[1]], 1: sound()[1]},
        {3, 6},
    ),
    "a transaction out of order": ({0: [*FIRST.values(0)[::-1], *SECOND.values(0)], 1: sound()[1]}, {3}),
    "two transactions of a writer swapped in one partition": (
        {0: [*SECOND.values(0), *FIRST.values(0)], 1: sound()[1]},
        {6},
    ),
    "an answered plain record lost": ({0: sound()[0], 1: sound()[1][:-1]}, {5}),
    "an answered plain record at another offset": ({0: sound()[0], 1: [PLAIN.value, *sound()[1][:-1]]}, {5}),
}  # fmt: skip


@pytest.mark.parametrize("name", ANOMALIES)
def test_checker_anomaly_is_found_under_its_number(name: str) -> None:
    """Each planted anomaly is reported, and only invariants that it breaks are named."""
    logs, expected = ANOMALIES[name]
    found = invariants(logs)
    assert found, "the anomaly was not found"
    assert found <= expected


@pytest.mark.parametrize(
    "offsets", [[0, 2, 3], [1, 2, 3], [0, 1, 1], [0, 0, 1], [2, 1, 0]], ids=["hole", "late", "repeat", "stuck", "back"]
)
def test_checker_offsets_with_holes_or_repeats_are_found(offsets: list[int]) -> None:
    """Offsets are 0, 1, 2, … and nothing else."""
    logs = as_logs(sound())
    logs[0] = [Found(offset, found.value) for offset, found in zip(offsets, logs[0], strict=True)]
    assert {violation.invariant for violation in check(HISTORY, logs, Reading.AT_REST)} == {2}


def test_checker_record_that_changes_or_vanishes_after_it_was_read_is_found() -> None:
    """Growth: a later reading begins with the earlier one."""
    before = as_logs(sound())
    assert check_growth(before, as_logs(_with(0, *ASKED.values(0)))) == []
    shorter = as_logs(sound())
    shorter[1].pop()
    assert [violation.invariant for violation in check_growth(before, shorter)] == [5]
    other = as_logs(sound())
    other[0][1] = Found(1, b"p|p|2|0")
    assert [violation.invariant for violation in check_growth(before, other)] == [5]


@pytest.mark.parametrize("seed", range(20))
def test_checker_any_single_damage_to_a_long_history_is_found(seed: int) -> None:
    """Drop, repeat, swap or move one record of a few hundred: it never goes unnoticed."""
    rng = random.Random(seed)
    transactions = [
        Transaction(f"w{n % 3}", n // 3, {p: rng.randint(1, 4) for p in range(3)}, Outcome.DONE) for n in range(60)
    ]
    history = History.of(transactions=transactions)
    values: dict[int, list[bytes | None]] = {p: [v for t in transactions for v in t.values(p)] for p in range(3)}
    assert check(history, as_logs(values), Reading.AT_REST) == []
    partition = rng.randrange(3)
    log = values[partition]
    at = rng.randrange(len(log) - 1)
    match seed % 4:
        case 0:
            del log[at]
        case 1:
            log.insert(rng.randrange(len(log)), log[at])
        case 2:
            log[at], log[at + 1] = log[at + 1], log[at]
        case _:
            values[(partition + 1) % 3].append(log.pop(at))
    swapped_strangers = seed % 4 == 2 and _different_writers(log[at], log[at + 1])
    if not swapped_strangers:
        assert check(history, as_logs(values), Reading.AT_REST)


def _different_writers(first: bytes | None, second: bytes | None) -> bool:
    """Whether two neighbours belong to single-record transactions of two writers, whose order is free."""
    tags = [parse_value(first), parse_value(second)]
    return (
        isinstance(tags[0], TransactionalTag)
        and isinstance(tags[1], TransactionalTag)
        and tags[0].writer != tags[1].writer
        and tags[0].count == tags[1].count == 1
    )


def test_value_round_trips() -> None:
    """A record is traced to its sender by its value alone."""
    assert parse_value(FIRST.values(0)[1]) == TransactionalTag("w", 0, 0, 1, 2)
    assert parse_value(PLAIN.value) == PlainTag("p", 0, 1)
    assert parse_value(b"t|w|x|0|0|1|") is None
    assert parse_value(None) is None


@pytest.mark.parametrize(
    ("offsets", "wrong"),
    [
        ({"w": 2}, 0),
        ({"w": 1}, 1),
        ({"w": 3}, 1),
        ({"w": None}, 1),
        ({"w": 2, "hung": 1}, 1),
        ({"w": 2, "hung": None}, 0),
    ],
    ids=["behind the last", "too early", "too late", "missing", "of a transaction that is not there", "none and none"],
)
def test_checker_offset_without_its_transaction_is_found(offsets: Mapping[str, int | None], wrong: int) -> None:
    """A group stands exactly behind the last visible transaction of its writer."""
    violations = check_offsets(as_logs(sound()), offsets)
    assert [violation.invariant for violation in violations] == [7] * wrong
