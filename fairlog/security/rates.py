"""How fast somebody goes, over the last seconds, and how long to wait if that is too fast. Pure.

Kafka's `Rate` over a `WindowedSum`, with the defaults of quota.window.num and quota.window.size.seconds:

    │ 1 s │ 1 s │  …  │ 1 s │ now      SAMPLES of a second each, with the amount of each;
    ╰──────── window ───────╯          the rate is all of it by the time since the oldest, which counts as ten seconds
                                       at least: so after a pause ten seconds' worth may come at once

A sample begins with the first amount after the last one is over, and is dropped SAMPLES seconds after its last amount.
The wait is such that over the window and the wait together the rate is the limit: (rate - limit) / limit * window,
which is amount / limit - window.

Who sends more than twenty seconds' worth at once may so get up to twice the limit, as in Kafka: after a wait that is
longer than the window nothing of it counts any more.

Times are seconds of any clock that does not go back; amounts are of any unit.
"""

from __future__ import annotations

from collections import deque

SAMPLES = 11
SAMPLE_S = 1.0

BURST_S = (SAMPLES - 1) * SAMPLE_S
"""The least window: who has been silent may take so many seconds' worth at once."""

_WINDOW_S_MIN = 0.001


class _Sample:
    __slots__ = ("amount", "began_s", "last_s")

    def __init__(self, now_s: float) -> None:
        self.began_s = self.last_s = now_s
        self.amount = 0.0


class WindowedRate:
    """The rate of one entity. Holds at most SAMPLES + 1 samples."""

    __slots__ = ("_samples", "_sum")

    def __init__(self) -> None:
        self._samples: deque[_Sample] = deque()
        self._sum = 0.0

    def record(self, amount: float, now_s: float) -> None:
        """So much has come now."""
        self._drop_old(now_s)
        if not self._samples or now_s - self._samples[-1].began_s >= SAMPLE_S:
            self._samples.append(_Sample(now_s))
        sample = self._samples[-1]
        sample.amount += amount
        sample.last_s = now_s
        self._sum += amount

    def is_idle(self, now_s: float) -> bool:
        """Whether nothing that was recorded counts any more: a new one would say the same."""
        self._drop_old(now_s)
        return not self._samples

    def wait_s(self, limit: float, now_s: float, more: float = 0.0) -> float:
        """How long until the rate is down to the limit, if nothing more comes than `more` now; 0 if it is not above."""
        self._drop_old(now_s)
        return max((self._sum + more) / limit - self._window_s(now_s), 0.0)

    def _window_s(self, now_s: float) -> float:
        elapsed_s = now_s - self._samples[0].began_s if self._samples else 0.0
        lacking = SAMPLES - 1 - int(elapsed_s / SAMPLE_S)
        return max(elapsed_s + max(lacking, 0) * SAMPLE_S, _WINDOW_S_MIN)

    def _drop_old(self, now_s: float) -> None:
        while self._samples and now_s - self._samples[0].last_s >= SAMPLES * SAMPLE_S:
            self._sum -= self._samples.popleft().amount
        if not self._samples:
            self._sum = 0.0  # what rounding has left
