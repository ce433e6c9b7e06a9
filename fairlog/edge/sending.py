"""Sending without a turn of the event loop: almost always the system takes what is sent at once."""

from __future__ import annotations

import os
from collections.abc import Sequence

from fairlog.edge.frames import Buffer


def taken_at_once(fd: int, buffers: Sequence[Buffer]) -> int:
    """How many of the bytes the system has taken without waiting, 0 if it has no room. Raises OSError.

    `fd` is a socket's that does not block.
    """
    try:
        return os.writev(fd, buffers)
    except BlockingIOError:
        return 0
