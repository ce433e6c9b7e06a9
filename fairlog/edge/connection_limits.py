"""Which connections are taken: by their number in all, at a listener and from an address, and by how often they come.

    accepted ──▶ refusal ─┬─ None ──▶ opened … closed
                          └─ the limit that is reached: closed at once

Only connections that are open are counted, so memory is bounded by `requests.connections_max`. No I/O; time comes in
as an argument. Quotas of addresses, which the cluster keeps, are asked for by the caller (`fairlog.live_quotas`).
"""

from __future__ import annotations

from collections import Counter
from enum import Enum

from fairlog.config import NO_LIMIT, RequestSettings
from fairlog.security.rates import WindowedRate


class ReachedLimit(Enum):
    """Why a connection is closed at once. The value is what the metric calls it."""

    NODE = "node"
    LISTENER = "listener"
    ADDRESS = "address"
    RATE = "rate"
    QUOTA = "quota"


class ConnectionLimits:
    """The connections of one server."""

    def __init__(self) -> None:
        self._by_address: Counter[str] = Counter()
        self._by_listener: Counter[str] = Counter()
        self._rate = WindowedRate()

    def refusal(self, settings: RequestSettings, listener: str, address: str, now_s: float) -> ReachedLimit | None:
        """Why one more connection is not taken; None if it may be."""
        of_listener = settings.connections_max_by_listener.of(listener)
        if of_listener is not None and self._by_listener[listener] >= of_listener:
            return ReachedLimit.LISTENER
        of_address = settings.connections_max_per_ip_overrides.of(address)
        if of_address is None:
            of_address = settings.connections_max_per_ip
        if self._by_address.get(address, 0) >= of_address:
            return ReachedLimit.ADDRESS
        if settings.connection_rate_max < NO_LIMIT and self._rate.wait_s(settings.connection_rate_max, now_s, 1) > 0:
            return ReachedLimit.RATE
        return None

    def opened(self, listener: str, address: str, now_s: float) -> None:
        """A connection is taken."""
        self._by_listener[listener] += 1
        self._by_address[address] += 1
        self._rate.record(1, now_s)

    def closed(self, listener: str, address: str) -> None:
        """It is over."""
        self._by_listener[listener] -= 1
        self._by_address[address] -= 1
        if not self._by_address[address]:
            del self._by_address[address]
