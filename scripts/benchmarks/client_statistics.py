"""The client library's own counts: bytes received and requests sent, from librdkafka's statistics.

Bytes are counted where the library reads its sockets (`rxbytes`: whole answers, with their headers), over all
connections of one client. So data that a broker sends and the client drops, such as records of aborted transactions,
are counted as well. `parse` is pure; `Tap` collects the arguments of a client's statistics callback.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass

INTERVAL_MS = 100
WAITS_MAX = 100


@dataclass(frozen=True, slots=True)
class Counts:
    """Totals since the client was created."""

    received_bytes: int
    requests: Mapping[str, int]
    """Requests sent, by the API's name: {"Produce": 17, ...}."""

    def since(self, before: Counts) -> Counts:
        requests = {name: count - before.requests.get(name, 0) for name, count in self.requests.items()}
        return Counts(self.received_bytes - before.received_bytes, requests)


def parse(statistics: str) -> Counts:
    """The counts in one of librdkafka's statistics documents (STATISTICS.md there): JSON, `brokers` by name."""
    received_bytes = 0
    requests: dict[str, int] = {}
    for broker in json.loads(statistics)["brokers"].values():
        received_bytes += broker["rxbytes"]
        for name, count in broker["req"].items():
            requests[name] = requests.get(name, 0) + count
    return Counts(received_bytes, requests)


class Tap:
    """Attaches to one client: `Consumer({... **tap.configuration})`, and `tap.counts(consumer.poll)`."""

    def __init__(self) -> None:
        self._received = 0
        self._last = Counts(0, {})

    @property
    def configuration(self) -> dict[str, object]:
        return {"statistics.interval.ms": INTERVAL_MS, "stats_cb": self._take}

    def _take(self, statistics: str) -> None:
        self._received += 1
        self._last = parse(statistics)

    def counts(self, poll: Callable[[float], object]) -> Counts:
        """Totals up to a moment after this call began; takes up to two intervals. The results of `poll` are ignored.

        Of two documents that arrive after the call began, the second was also created after it began. Raises
        TimeoutError if the client library sends none.
        """
        enough = self._received + 2
        for _ in range(WAITS_MAX):
            if self._received >= enough:
                return self._last
            poll(INTERVAL_MS / 1000)
        raise TimeoutError("the client library sends no statistics")
