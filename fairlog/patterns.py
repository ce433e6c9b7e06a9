"""Regular expressions from clients, matched in linear time: RE2, the engine that Kafka uses as RE2/J.

A client's pattern may be made to take exponential time in a backtracking engine, such as Python's. RE2 takes time
linear in the text, and refuses a pattern whose program would be large. A pattern must match the whole text.
"""

from __future__ import annotations

from typing import Protocol, cast

import re2  # pyright: ignore[reportMissingTypeStubs]

PATTERN_BYTES_MAX = 16_384
"""Of a pattern in UTF-8."""

PROGRAM_BYTES_MAX = 32 << 10
"""What RE2 may take for one pattern's program and its cache; its own default is 8 MiB. The time for a text grows with
it: programs of 1 MiB took 90 ms for a name of 250 characters."""


class BadPattern(ValueError):
    """The pattern is not one of RE2's, or too large; the message says why."""


class _Match(Protocol):
    def groups(self) -> tuple[str | None, ...]: ...


class _Compiled(Protocol):
    def fullmatch(self, text: str) -> _Match | None: ...


_OPTIONS = re2.Options()
_OPTIONS.log_errors = False
_OPTIONS.max_mem = PROGRAM_BYTES_MAX


class Pattern:
    """A pattern that was accepted. Raises BadPattern for others."""

    __slots__ = ("_compiled",)

    def __init__(self, pattern: str) -> None:
        if len(pattern.encode()) > PATTERN_BYTES_MAX:
            raise BadPattern(f"it takes more than {PATTERN_BYTES_MAX} bytes")
        try:
            self._compiled = cast("_Compiled", re2.compile(pattern, _OPTIONS))  # pyright: ignore[reportUnknownMemberType]
        except re2.error as error:  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType]
            reason = cast("RuntimeError", error).args[0]
            raise BadPattern(reason.decode("utf-8", "replace") if isinstance(reason, bytes) else str(reason)) from None

    def matches(self, text: str) -> bool:
        """Whether the whole text matches."""
        return self._compiled.fullmatch(text) is not None

    def groups(self, text: str) -> tuple[str | None, ...] | None:
        """The whole text, and what each group has matched; None if the whole text does not match."""
        found = self._compiled.fullmatch(text)
        return None if found is None else (text, *found.groups())
