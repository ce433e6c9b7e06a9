"""Counters of the listener since the start.

There is one `ApiStatistics` for each API of Kafka's and each native op, and one `EdgeStatistics` for all connections.
Requests and connections increment integers; `fairlog.metrics` reads them. Nothing is reset, nothing is measured per
client or topic, so the memory does not depend on what clients do.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from time import perf_counter

from fairlog_histogram import Histogram

_LENGTH_BYTES = 4
"""In front of each frame."""


class ApiStatistics:
    """One API's requests."""

    __slots__ = ("answered", "bytes_in", "bytes_out", "errors", "failed", "latency", "name", "refusals")

    def __init__(self, name: str) -> None:
        self.name = name
        self.answered = 0
        """Requests that are done with; those that want no answer, too."""
        self.failed = 0
        """Requests whose connection was closed instead: malformed, without an honest answer, or by our fault."""
        self.errors: dict[int, int] = {}
        """Error codes that stood in answers, by code. An answer to many partitions may hold many."""
        self.refusals: dict[str, int] = {}
        """The same of a protocol whose refusals have names."""
        self.bytes_in = 0
        self.bytes_out = 0
        self.latency = Histogram()
        """From the whole request until its answer is handed to the system. A Fetch may wait for data in between."""

    def note_answer(self, body_bytes: int, started_s: float) -> None:
        """`started_s` is what `perf_counter` said when the request was whole."""
        self.answered += 1
        self.bytes_out += body_bytes + _LENGTH_BYTES
        self.latency.observe(perf_counter() - started_s)

    def note_silence(self, started_s: float) -> None:
        """The request is done with, and wants no answer."""
        self.answered += 1
        self.latency.observe(perf_counter() - started_s)

    def note_refusal(self, kind: str) -> None:
        self.refusals[kind] = self.refusals.get(kind, 0) + 1

    def note_request(self, body_bytes: int) -> None:
        self.bytes_in += body_bytes + _LENGTH_BYTES


class ThrottleStatistics:
    """What quotas have done to requests."""

    __slots__ = ("requests", "throttled_ms")

    def __init__(self) -> None:
        self.requests: Counter[str] = Counter()
        """How many were above a quota, by API: of a few that the node knows."""
        self.throttled_ms: Counter[str] = Counter()
        """For how long their connections were told to be silent, all together."""

    def note(self, api: str, throttle_ms: int) -> None:
        self.requests[api] += 1
        self.throttled_ms[api] += throttle_ms


class EdgeStatistics:
    """All connections, and all APIs."""

    __slots__ = ("accepted", "apis", "connected", "handshakes_failed", "not_served", "refused", "sign_ins", "throttles")

    def __init__(self, apis: Mapping[int, ApiStatistics], throttles: ThrottleStatistics) -> None:
        self.apis = apis
        """By key."""
        self.throttles = throttles
        self.accepted = 0
        self.refused: Counter[str] = Counter()
        """Connections that were closed at once, by the limit that was reached."""
        self.handshakes_failed = 0
        """Connections that were closed because there was no TLS with them."""
        self.connected = 0
        self.not_served = 0
        """Requests of APIs that are not served."""
        self.sign_ins: Counter[tuple[str, str]] = Counter()
        """How clients have signed in, or have not: by mechanism and outcome, of a few that the node knows."""
