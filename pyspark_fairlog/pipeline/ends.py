"""Where topics end just now, asked of the broker now and then, for progress: no answer is no failure there. And whether
what a step has committed can be read already: a commit is answered when it is certain, and the copy comes behind it.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Collection, Iterable

from pyspark_fairlog.native import Native, NativeError, Topics
from pyspark_fairlog.persistence import PATIENCE_S, persistently
from pyspark_fairlog.pipeline.progress import Ends

TIMEOUT_S = 2.0
"""The queries are not looked at meanwhile."""

READABLE_POLL_S = 0.05


class TopicEnds:
    """Call it with topics. It keeps one connection; a context manager that closes it."""

    def __init__(self, bootstrap: str) -> None:
        self._bootstrap = bootstrap
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
                self._native = Native.connect(self._bootstrap, timeout_s=TIMEOUT_S)
            cut = self._native.cut(Topics(tuple(dict.fromkeys(topics))))
        except (ConnectionError, NativeError):
            if self._native is not None:
                self._native.close()
                self._native = None
            return None
        return {(each.topic, each.partition): each.high for each in cut}


def wait_until_readable(
    bootstrap: str, sinks: Collection[str], stop: threading.Event, *, patience_s: float = PATIENCE_S
) -> None:
    """Return when the last batches of these sinks can be read, or `stop` is set.

    Raises TimeoutError if they cannot in time; ConnectionError, NativeError.
    """
    deadline = time.monotonic() + patience_s
    while not persistently(lambda native: _are_readable(native, sinks), bootstrap):
        if time.monotonic() > deadline:
            raise TimeoutError(f"what {', '.join(sinks)} has committed cannot be read after {patience_s:.0f} s")
        if stop.wait(READABLE_POLL_S):
            return


def _are_readable(native: Native, sinks: Collection[str]) -> bool:
    placed = [place for each in native.sinks() if each.sink in sinks for place in each.placements]
    if not placed:
        return True
    cut = native.cut(Topics(tuple(dict.fromkeys(place.topic for place in placed))))
    highs = {(each.topic, each.partition): each.high for each in cut}
    return all(place.base_offset + place.records <= highs[place.topic, place.partition] for place in placed)
