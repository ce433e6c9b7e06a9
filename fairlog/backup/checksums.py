"""The checksums in a backup's manifest: SHA-256 of each file, made with the backup and compared before a restore."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from pathlib import Path

_HASHED_AT_ONCE = 1 << 20


def checksum(path: Path, told: Callable[[int], None] = lambda _: None) -> str:
    """SHA-256 of a file, as 64 hex digits; `told` hears how many bytes are read. Blocking. Raises OSError."""
    found = hashlib.sha256()
    with path.open("rb") as file:
        for chunk in _chunks(file.read):
            found.update(chunk)
            told(file.tell())
    return found.hexdigest()


def _chunks(read: Callable[[int], bytes]) -> Iterator[bytes]:
    while chunk := read(_HASHED_AT_ONCE):
        yield chunk
