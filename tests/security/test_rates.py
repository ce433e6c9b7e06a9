"""Windowed rates as Kafka has them, and the bounds of those that are kept."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from fairlog.security.meters import Meters, burst
from fairlog.security.quotas import Limit, Limits, QuotaKey, Quotas, entity_untrusted
from fairlog.security.rates import SAMPLES, WindowedRate


def test_ten_seconds_worth_may_come_at_once_and_more_waits_as_in_kafka() -> None:
    """(rate - limit) / limit * window, with a window of ten seconds at the beginning."""
    rate = WindowedRate()
    rate.record(1000, 50.0)
    assert rate.wait_s(100, 50.0) == 0
    rate.record(500, 50.0)
    assert rate.wait_s(100, 50.0) == 5.0
    assert rate.wait_s(100, 53.0) == 5.0  # ten whole samples, and the fraction of the last
    assert rate.wait_s(100, 53.5) == 4.5
    assert rate.wait_s(100, 61.0) == 0


def test_window_is_what_has_passed_since_the_oldest_sample() -> None:
    rate = WindowedRate()
    for second in range(SAMPLES):
        rate.record(100, float(second))
    assert rate.wait_s(100, 10.0) == 1.0  # 1100 over 10 seconds
    assert rate.wait_s(100, 10.5) == 0.5
    assert rate.wait_s(100, 11.0) == 0  # the first sample is gone, and so are ten seconds before the others


def test_what_is_older_than_the_window_counts_no_more() -> None:
    rate = WindowedRate()
    rate.record(10**9, 0.0)
    assert not rate.is_idle(10.9)
    assert rate.wait_s(1, 10.9) > 0
    assert rate.is_idle(11.0)
    assert rate.wait_s(1, 11.0) == 0


@given(st.lists(st.tuples(st.floats(0, 2), st.integers(0, 5000)), min_size=1, max_size=200), st.integers(100, 10_000))
def test_who_waits_as_told_stays_within_the_limit_and_a_burst(steps: list[tuple[float, int]], limit: int) -> None:
    """Whatever comes, in pieces of less than a window: and memory stays bounded."""
    rate, now_s, total = WindowedRate(), 100.0, 0
    for pause_s, amount in steps:
        now_s += pause_s
        piece = min(amount, 10 * limit)
        rate.record(piece, now_s)
        total += piece
        now_s += rate.wait_s(limit, now_s)
        assert len(rate._samples) <= SAMPLES + 1
        assert total <= (now_s - 100.0 + 2 * SAMPLES) * limit * 1.1


# --- meters -----------------------------------------------------------------------------------------

QUOTA = Quotas(entity_untrusted({"client-id": None}), {QuotaKey.CONSUMER: 100})


def meters(meters_max: int = 4) -> Meters:
    return Meters(Limits([QUOTA], QuotaKey.CONSUMER), meters_max=meters_max)


def limit_of(it: Meters, client_id: str) -> Limit:
    limit = it.limits.of_client("u", client_id)
    assert limit is not None
    return limit


def test_each_client_id_is_counted_by_itself() -> None:
    it = meters()
    assert it.record(limit_of(it, "a"), 2000, 1.0) == 10.0
    assert it.record(limit_of(it, "b"), 1000, 1.0) == 0
    assert burst(limit_of(it, "a")) == 1000


def test_what_is_not_admitted_is_not_counted() -> None:
    it = meters()
    limit = limit_of(it, "a")
    assert it.admit(limit, 600, 1.0) == 0
    assert it.admit(limit, 600, 1.0) == 2.0
    assert it.admit(limit, 400, 1.0) == 0
    assert it.admit(limit, 600, 7.0) == 6.0
    assert it.admit(limit, 600, 12.0) == 0


def test_client_ids_of_one_user_take_no_more_than_a_tenth_of_all_rates() -> None:
    """Another user is measured by itself all the same."""
    quota = Quotas(entity_untrusted({"user": None, "client-id": None}), {QuotaKey.CONSUMER: 100})
    it = Meters(Limits([quota], QuotaKey.CONSUMER), meters_max=20)

    def limit(user: str, client_id: str) -> Limit:
        found = it.limits.of_client(user, client_id)
        assert found is not None
        return found

    waits = [it.record(limit("mallory", f"made up {number}"), 1_000_000, 1.0) for number in range(100)]
    assert len(it) == 3
    assert waits[:2] == [9990.0] * 2
    assert it.record(limit("alice", "a"), 100, 1.0) == 0
    assert it.record(limit("alice", "b"), 100, 1.0) == 0
    assert it.record(limit("alice", "c"), 100, 1.0) == 0


def test_what_alone_is_too_much_is_admitted_when_the_rate_is_within_the_limit_without_it() -> None:
    """Though somebody else goes on all the time, slowly."""
    it = meters()
    big = 100 * 12
    admitted = 0
    for second in range(60):
        it.record(limit_of(it, "it"), 2, second)
        admitted += it.admit(limit_of(it, "it"), big, second) == 0
    assert 3 <= admitted <= 6


def test_what_alone_is_too_much_is_admitted_once_in_a_window() -> None:
    """A batch that is larger than ten seconds' worth would else never be read."""
    it = meters()
    limit = limit_of(it, "a")
    assert it.admit(limit, 5000, 1.0) == 0
    assert it.admit(limit, 5000, 2.0) > 0
    assert it.admit(limit, 5000, 13.0) == 0


def test_made_up_client_ids_share_what_is_left_when_there_are_too_many() -> None:
    """They take no more memory, and get no more than one client together."""
    it = meters(4)
    for number in range(4):
        assert it.record(limit_of(it, f"real {number}"), 500, 1.0) == 0
    waits = [it.record(limit_of(it, f"made up {number}"), 100, 1.0) for number in range(1000)]
    assert len(it) == 5
    assert waits[:10] == [0.0] * 10
    assert waits[-1] == 1.0  # nobody waits for what others have done
    it.replace(it.limits)
    assert len(it) == 4
    assert it.record(limit_of(it, "real 2"), 500, 1.0) == 0  # the others are counted as before
    assert it.record(limit_of(it, "new"), 500, 20.0) == 0  # silent ones have gone
    assert len(it) == 4
