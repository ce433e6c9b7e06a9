"""What the admin listener counts. `fairlog.metrics` and `fairlog.cluster_node.metrics` show it."""

from __future__ import annotations

from collections import Counter


class AdminStatistics:
    """Of one listener, since its start."""

    __slots__ = ("handshakes_failed", "sign_ins")

    def __init__(self) -> None:
        self.handshakes_failed = 0
        """Connections that were closed because there was no TLS with them."""
        self.sign_ins: Counter[tuple[str, str]] = Counter()
        """By mechanism, `page` or `basic`, and outcome."""
