"""Log lines that a client can cause at will, limited in rate.

A client that connects again at once and sends unsupported requests writes a thousand lines a second, and hides what an
operator should see. So each address has `LINES_MAX` lines of an event in a period of `PERIOD_S`; the others are
counted, and the next line says how many there were.

Memory is bounded: only `ADDRESSES_MAX` pairs of address and event are told apart. When there are more, those whose
period is over are forgotten, and the next line with the same event reports their counts. If there are none of these,
new addresses share the lines of one address.

No I/O; the clock is passed in. One limiter belongs to one server.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Mapping

LINES_MAX = 10
"""Of one event and one address in a period: so many causes are seen at once."""

PERIOD_S = 60.0

ADDRESSES_MAX = 1000
"""Pairs of address and event: 300 KB."""


class _Entry:
    """The lines of one address and event in the present period."""

    __slots__ = ("began_s", "suppressed", "written")

    def __init__(self, began_s: float) -> None:
        self.began_s = began_s
        self.written = 0
        self.suppressed = 0


class LogLimiter:
    """Decides which lines are written."""

    def __init__(self, now_s: Callable[[], float], *, addresses_max: int = ADDRESSES_MAX) -> None:
        self._now_s = now_s
        self._addresses_max = addresses_max
        self._entries: OrderedDict[tuple[str, str], _Entry] = OrderedDict()
        """By address and event; the one whose period is over first comes first."""
        self._shared: dict[str, _Entry] = {}
        """By event, for addresses for which there is no room."""
        self._unsaid: dict[str, int] = {}
        """By event: lines that were suppressed of addresses that are forgotten."""

    def admit(self, address: str, event: str) -> Mapping[str, int] | None:
        """None if a line of this event is not to be written now, which is counted. Else further fields for it:
        `suppressed`, if lines like it were suppressed since the last one.

        `event` is one of a few that the program knows, never something that clients have chosen.
        """
        now_s = self._now_s()
        entry = self._entry(address, event, now_s)
        if entry.written >= LINES_MAX:
            entry.suppressed += 1
            return None
        entry.written += 1
        suppressed = entry.suppressed + self._unsaid.pop(event, 0)
        entry.suppressed = 0
        return {"suppressed": suppressed} if suppressed else {}

    def _entry(self, address: str, event: str, now_s: float) -> _Entry:
        key = address, event
        entry = self._entries.get(key)
        if entry is None and len(self._entries) >= self._addresses_max and not self._forget_one(now_s):
            entry = self._shared.setdefault(event, _Entry(now_s))
        elif entry is None:
            entry = self._entries[key] = _Entry(now_s)
        if now_s - entry.began_s >= PERIOD_S:
            entry.began_s = now_s
            entry.written = 0
            if key in self._entries:
                self._entries.move_to_end(key)
        return entry

    def _forget_one(self, now_s: float) -> bool:
        (_, event), entry = next(iter(self._entries.items()))
        if now_s - entry.began_s < PERIOD_S:
            return False
        self._entries.popitem(last=False)
        if entry.suppressed:
            self._unsaid[event] = self._unsaid.get(event, 0) + entry.suppressed
        return True
