"""Log lines that clients cause: few of each address and event, none forgotten without being counted, bounded memory."""

from __future__ import annotations

from fairlog.edge.log_limiter import LINES_MAX, PERIOD_S, LogLimiter


class Clock:
    def __init__(self) -> None:
        self.now_s = 1000.0

    def __call__(self) -> float:
        return self.now_s


def lines_of(limiter: LogLimiter, times: int, address: str = "10.0.0.1", event: str = "malformed") -> int:
    return sum(limiter.admit(address, event) is not None for _ in range(times))


def test_lines_beyond_the_limit_are_counted_and_said_with_the_next() -> None:
    """Ten thousand attempts in a minute are ten lines, and the next minute's first says of the rest."""
    clock = Clock()
    limiter = LogLimiter(clock)
    assert lines_of(limiter, 10_000) == LINES_MAX
    clock.now_s += PERIOD_S
    assert limiter.admit("10.0.0.1", "malformed") == {"suppressed": 10_000 - LINES_MAX}
    assert limiter.admit("10.0.0.1", "malformed") == {}


def test_limit_holds_in_each_period() -> None:
    """It begins with its first line; what comes late in it does not lengthen it."""
    clock = Clock()
    limiter = LogLimiter(clock)
    for _ in range(3):
        assert lines_of(limiter, 20) == LINES_MAX
        clock.now_s += PERIOD_S - 1
        assert lines_of(limiter, 20) == 0
        clock.now_s += 1


def test_addresses_and_events_are_limited_apart() -> None:
    """One client's noise hides neither another client's line nor another event."""
    limiter = LogLimiter(Clock())
    assert lines_of(limiter, 99) == LINES_MAX
    assert limiter.admit("10.0.0.2", "malformed") == {}
    assert limiter.admit("10.0.0.1", "not served") == {}


def test_addresses_without_room_share_the_lines_of_one() -> None:
    """Someone with many addresses neither fills the memory nor the log; the events stay apart."""
    limiter = LogLimiter(Clock(), addresses_max=5)
    many = sum(lines_of(limiter, 1, f"10.0.{number}") for number in range(1000))
    assert many == 5 + LINES_MAX
    assert lines_of(limiter, 1, "10.9", "not served") == 1
    assert len(limiter._entries) == 5
    assert lines_of(limiter, 99, "10.0.1") == LINES_MAX - 1


def test_address_whose_period_is_over_gives_its_room_and_its_count_to_others() -> None:
    """What was suppressed of it is said with the next line of the same event, whoever causes that."""
    clock = Clock()
    limiter = LogLimiter(clock, addresses_max=1)
    assert lines_of(limiter, LINES_MAX + 7) == LINES_MAX
    clock.now_s += PERIOD_S
    assert limiter.admit("10.0.0.2", "not served") == {}
    clock.now_s += PERIOD_S
    assert limiter.admit("10.0.0.3", "malformed") == {"suppressed": 7}


def test_address_that_goes_on_keeps_its_place() -> None:
    """The one that was silent for longest is forgotten first."""
    clock = Clock()
    limiter = LogLimiter(clock, addresses_max=2)
    for address in ("a", "b"):
        lines_of(limiter, LINES_MAX + 1, address)
    clock.now_s += PERIOD_S
    assert limiter.admit("a", "malformed") == {"suppressed": 1}
    assert limiter.admit("c", "malformed") == {"suppressed": 1}
    assert lines_of(limiter, 99, "a") == LINES_MAX - 1
