"""Sending without a turn of the event loop, as almost always the system takes what is sent at once; and in pieces,
where what is sent is copied.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence

from fairlog.edge.frames import Buffer


def taken_at_once(fd: int, buffers: Sequence[Buffer]) -> int:
    """How many of the bytes the system has taken without waiting, 0 if it has no room. Raises OSError.

    `fd` is a socket's that does not block.
    """
    try:
        return os.writev(fd, buffers)
    except BlockingIOError:
        return 0


def pieces(buffers: Sequence[Buffer], size: int) -> Iterator[Buffer]:
    """The same bytes in pieces of at most so many: small buffers are joined, large ones are cut."""
    pending: list[Buffer] = []
    length = 0
    for buffer in buffers:
        view = memoryview(buffer)
        while len(view) > size - length:
            pending.append(view[: size - length])
            view = view[size - length :]
            yield _joined(pending)
            pending, length = [], 0
        if len(view):
            pending.append(view)
            length += len(view)
    if pending:
        yield _joined(pending)


def _joined(buffers: Sequence[Buffer]) -> Buffer:
    return buffers[0] if len(buffers) == 1 else b"".join(buffers)
