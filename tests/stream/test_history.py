"""The judge of random histories finds what breaks the contract, and nothing in a history that keeps it."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from stream.engine import StoredEntry, StreamPosition, Unknown
from tests.stream.history import StreamHistory


def entry(position: int, data: bytes) -> StoredEntry:
    return StoredEntry(StreamPosition(position), data)


def good() -> StreamHistory:
    """Three appends of two nodes, one of them unknown and there twice, an empty entry, and two readers."""
    history = StreamHistory("shard-0")
    first, second, third = history.begin("a", b"1"), history.begin("a", b"2"), history.begin("b", b"3")
    history.told(first, StreamPosition(0))
    history.end_told("b", history.answered_max, StreamPosition(1))
    history.told(second, Unknown("lost"))
    history.told(third, StreamPosition(3))
    read = [entry(0, b"1"), entry(1, b""), entry(2, b"2"), entry(3, b"3"), entry(4, b"2")]
    due = history.read("a", StreamPosition(0), read[:2])
    history.read("a", due, read[2:])
    history.read("b", StreamPosition(1), read[1:3])
    history.end_told("a", history.answered_max, StreamPosition(5))
    return history


def test_history_that_keeps_the_contract_has_no_findings() -> None:
    """An unknown append may be there, twice even; empty entries are the engine's own."""
    history = good()
    history.finish()
    assert history.findings == []
    assert (history.answered(), history.unknown(), history.landed_unknown(), history.twice()) == (2, 1, 1, 1)


def _reads_another(history: StreamHistory) -> None:
    history.read("b", StreamPosition(3), [entry(3, b"1")])


def _skips(history: StreamHistory) -> None:
    history.read("b", StreamPosition(3), [entry(4, b"2")])


def _invents(history: StreamHistory) -> None:
    history.read("b", StreamPosition(5), [entry(5, b"4")])


def _loses(history: StreamHistory) -> None:
    history.told(history.begin("a", b"4"), StreamPosition(5))


def _moves(history: StreamHistory) -> None:
    history.told(history.begin("a", b"4"), StreamPosition(5))
    history.read("a", StreamPosition(5), [entry(5, b"2"), entry(6, b"4")])


def _ends_too_early(history: StreamHistory) -> None:
    history.end_told("b", history.answered_max, StreamPosition(3))


def _reorders(history: StreamHistory) -> None:
    later, earlier = history.begin("b", b"4"), history.begin("b", b"5")
    history.told(later, StreamPosition(6))
    history.told(earlier, StreamPosition(5))
    history.read("a", StreamPosition(5), [entry(5, b"5"), entry(6, b"4")])


def _tells_twice(history: StreamHistory) -> None:
    history.told(history.appends[0], StreamPosition(0))


def _tells_nothing(history: StreamHistory) -> None:
    history.begin("a", b"4")


@pytest.mark.parametrize(
    ("breaks", "finding"),
    [
        (_reads_another, "read b'1' at 3, where b'3' was read before"),
        (_skips, "read position 4 where 3 was due"),
        (_invents, "b'4' at 5 was never appended"),
        (_loses, "b'4' was answered at 5, where nothing is"),
        (_moves, "b'4' was answered at 5, where b'2' is"),
        (_ends_too_early, "ends at 3, after position 3 was answered"),
        (_reorders, "b appended what lies at 6 before what lies at 5"),
        (_tells_twice, "b'1' was told 0, and then 0"),
        (_tells_nothing, "b'4' has no outcome"),
    ],
    ids=lambda value: getattr(value, "__name__", None),
)
def test_history_that_breaks_the_contract_is_found(breaks: Callable[[StreamHistory], None], finding: str) -> None:
    """Each property can be found broken."""
    history = good()
    breaks(history)
    history.finish()
    assert [each for each in history.findings if finding in each], history.findings
