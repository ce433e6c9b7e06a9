"""What is fuzzed: a *target* is one reader, as a function of bytes.

A target's function may raise nothing: it catches the errors by whose names the reader's callers know it, and whatever
else comes out is a finding. So is an input that takes more than `SECONDS_MAX` of computing, or more memory than
`MEMORY_BYTES_MAX` (`tests.fuzz.limits`).

Where a checksum stands before a reader, as good as no mutated input gets past it. Such targets come twice: with the
bytes as they are, and *mended*, with the checksums made right before they are read.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

REGRESSIONS = Path(__file__).parent / "regressions"

INPUT_BYTES_MAX = 1 << 16
"""Of the inputs that are made. Seeds and regressions may be larger."""

MEMORY_BYTES_MAX = 256 << 20
"""What an input may take."""


@dataclass(frozen=True, slots=True)
class Target:
    """One reader under test."""

    name: str
    what: str
    """What is read, in a few words."""
    run: Callable[[bytes], None]
    seeds: Callable[[], Iterable[bytes]]
    """Inputs to begin with: golden files and real requests."""
    memory_bytes_max: int = MEMORY_BYTES_MAX
    """More than the usual only where a reader promises no less, as for what is decompressed."""

    def regressions(self) -> list[bytes]:
        """What was found once, and must be no finding again."""
        return [path.read_bytes() for path in sorted((REGRESSIONS / self.name).glob("*"))]


def digest(data: bytes) -> str:
    """The name that an input is kept under."""
    return hashlib.sha256(data).hexdigest()[:16]
