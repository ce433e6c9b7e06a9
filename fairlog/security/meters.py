"""The use of those who have a quota, added up, and how long each has to wait. Pure.

    who asks ──▶ Limits: the quota that counts, and with whom it is shared ──▶ the WindowedRate of these ──▶ seconds

Memory is bounded, whatever names clients give themselves: there are METERS_MAX rates at most. When there are so many,
those are dropped in which nothing counts any more (that is after eleven seconds of silence, where Kafka keeps them for
an hour to show them). If there are none, newcomers to whom the same quota applies share one rate, and so do the client
ids of a user who has a tenth of all rates already. So the names that somebody makes up get no more than one of them,
once there are too many. Who shares one waits for its own doing only: it may do somewhat more than the quota, and nobody
can keep it waiting.
"""

from __future__ import annotations

from collections import Counter, OrderedDict

from fairlog.security.quotas import Entity, Limit, Limits
from fairlog.security.rates import BURST_S, SAMPLE_S, WindowedRate

METERS_MAX = 5000
"""Of each kind of quota: 10 MB with all samples."""

_USERS_MIN = 10
"""No user has a larger part of the rates."""

_LOOKED_AT = 16
"""Of the rates that were longest not used, for one that can go."""

_Key = tuple[str | None, str | None]


class Meters:
    """Measures one kind of quota."""

    def __init__(self, limits: Limits, *, meters_max: int = METERS_MAX) -> None:
        self.limits = limits
        self._meters_max = meters_max
        self._rates: OrderedDict[_Key, WindowedRate] = OrderedDict()
        """Least recently used first."""
        self._of_user: Counter[str | None] = Counter()
        """How many of them each user has."""
        self._shared: dict[tuple[Entity, str | None], WindowedRate] = {}
        """By the entity whose quota counts, and the user who has too many; None: there are too many of all."""

    def replace(self, limits: Limits) -> None:
        """Go by these quotas from now on. What was measured stays, but what newcomers share, which is by quota."""
        self.limits = limits
        self._shared.clear()

    def __len__(self) -> int:
        return len(self._rates) + len(self._shared)

    def record(self, limit: Limit, amount: float, now_s: float) -> float:
        """Count what has been done; how many seconds its doer has to wait now."""
        rate, is_shared = self._rate_of(limit, now_s)
        rate.record(amount, now_s)
        wait_s = rate.wait_s(limit.rate, now_s)
        return min(wait_s, _own_s(limit, amount)) if is_shared else wait_s

    def admit(self, limit: Limit, amount: float, now_s: float) -> float:
        """Count what is about to be done if it is within the limit, and return 0; else count nothing, and return how
        many seconds to wait.

        Kafka records it, and takes it back. What alone is too much for a whole window is let through when the rate is
        within the limit without it, and counted; Kafka would refuse it for ever.
        """
        rate, is_shared = self._rate_of(limit, now_s)
        wait_s = rate.wait_s(limit.rate, now_s, amount)
        if wait_s > 0 and not (amount > burst(limit) and rate.wait_s(limit.rate, now_s) == 0):
            return min(wait_s, _own_s(limit, amount)) if is_shared else wait_s
        rate.record(amount, now_s)
        return 0.0

    def _rate_of(self, limit: Limit, now_s: float) -> tuple[WindowedRate, bool]:
        """And whether others are measured by it, to whom it is not meant to be common."""
        key = limit.counted
        rate = self._rates.get(key)
        if rate is not None:
            self._rates.move_to_end(key)
            return rate, False
        user, _ = key
        if user is not None and self._of_user[user] >= max(1, self._meters_max // _USERS_MIN):
            return self._shared.setdefault((limit.entity, user), WindowedRate()), True
        if len(self._rates) >= self._meters_max and not self._drop_one(now_s):
            return self._shared.setdefault((limit.entity, None), WindowedRate()), True
        rate = self._rates[key] = WindowedRate()
        self._of_user[user] += 1
        return rate, False

    def _drop_one(self, now_s: float) -> bool:
        """Drop a rate in which nothing counts."""
        for _ in range(_LOOKED_AT):
            key, rate = next(iter(self._rates.items()))
            if rate.is_idle(now_s):
                del self._rates[key]
                self._of_user[key[0]] -= 1
                if not self._of_user[key[0]]:
                    del self._of_user[key[0]]
                return True
            self._rates.move_to_end(key)
        return False


def _own_s(limit: Limit, amount: float) -> float:
    """How long it takes to do so much within the limit."""
    return max(amount / limit.rate, SAMPLE_S)


def burst(limit: Limit) -> int:
    """The most that may be done at once."""
    return int(limit.rate * BURST_S)
