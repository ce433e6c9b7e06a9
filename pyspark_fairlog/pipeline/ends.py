"""Where topics end just now, asked of the broker now and then, for progress: no answer is no failure."""

from __future__ import annotations

from collections.abc import Iterable

from fairlog_client_security import ClientSecurity
from pyspark_fairlog.native import Native, NativeError, Topics
from pyspark_fairlog.pipeline.progress import Ends

TIMEOUT_S = 2.0
"""The queries are not looked at meanwhile."""


class TopicEnds:
    """Call it with topics. It keeps one connection; a context manager that closes it."""

    def __init__(self, bootstrap: str, security: ClientSecurity = ClientSecurity()) -> None:
        self._bootstrap = bootstrap
        self._security = security
        self._native: Native | None = None

    def __enter__(self) -> TopicEnds:
        return self

    def __exit__(self, *_: object) -> None:
        if self._native is not None:
            self._native.close()

    def __call__(self, topics: Iterable[str]) -> Ends | None:
        """The ends of all partitions of `topics`; None if the broker does not say."""
        try:
            if self._native is None:
                self._native = Native.connect(self._bootstrap, timeout_s=TIMEOUT_S, security=self._security)
            cut = self._native.cut(Topics(tuple(dict.fromkeys(topics))))
        except (ConnectionError, NativeError):
            if self._native is not None:
                self._native.close()
                self._native = None
            return None
        return {(each.topic, each.partition): each.high for each in cut}
