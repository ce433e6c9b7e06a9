"""The LMDB environments of cluster stores. A process opens each once, for LMDB's locks do not allow more.

A process that serves several shards has a store for each, all on one environment: it is closed with the last of them.
For any thread.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import lmdb


@dataclass(slots=True)
class _Shared:
    environment: lmdb.Environment
    users: int = 1


_lock = threading.Lock()
_shared: dict[Path, _Shared] = {}
"""By directory."""


def acquire(directory: Path, open_environment: Callable[[], lmdb.Environment]) -> lmdb.Environment:
    """The environment in the directory, opened if it is not open. `release` it. Raises what `open_environment` raises.

    Blocks.
    """
    key = directory.resolve()
    with _lock:
        if (shared := _shared.get(key)) is not None:
            shared.users += 1
            return shared.environment
        _shared[key] = _Shared(open_environment())
        return _shared[key].environment


def release(directory: Path) -> None:
    """The caller uses it no more. Blocks."""
    key = directory.resolve()
    with _lock:
        shared = _shared[key]
        shared.users -= 1
        if not shared.users:
            del _shared[key]
            shared.environment.close()
