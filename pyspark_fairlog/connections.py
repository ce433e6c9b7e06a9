"""Connections to nodes that a process keeps from one question to the next.

    borrowed(bootstrap) ──▶ the kept one, if it is sound and was used of late; else a new one ──▶ kept again

Spark uses its Python processes again from task to task and from commit to commit, and a new connection costs a commit
about as much as its flush: the node's event loop accepts it, greets it, and only then sees the request. So one is kept
for each list of nodes and each user. It is nobody's while it is borrowed, hence two threads never share one, and
whoever comes second connects. What raises a ConnectionError closes its connection, which is not kept.

A node that was stopped or killed has closed it: that can be seen without asking (`Native.is_idle`). What cannot be seen
is a firewall that has forgotten it, so after `IDLE_S` it is not used again. A child of a fork never uses its parent's.
"""

from __future__ import annotations

import atexit
import os
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager

from fairlog_client_security import ClientSecurity
from pyspark_fairlog.native import Native

IDLE_S = 30.0
"""Shorter than the patience of any firewall, and longer than from one micro-batch to the next where it matters."""

_kept: dict[tuple[int, str, ClientSecurity], tuple[Native, float]] = {}
"""By process, list of nodes and who is shown there: the connection, and when it was last used."""


@contextmanager
def borrowed(
    bootstrap: str,
    security: ClientSecurity = ClientSecurity(),
    *,
    connect: Callable[..., Native] = Native.connect,
    clock: Callable[[], float] = time.monotonic,
) -> Generator[Native]:
    """A connection to the first node of `bootstrap` that answers, for the time of the `with`.

    Raises as `Native.connect` does. It is kept for the next who asks, unless it has broken meanwhile.
    """
    key = (os.getpid(), bootstrap, security)
    native, used_s = _kept.pop(key, (None, 0.0))
    if native is not None and not (native.is_idle and clock() - used_s <= IDLE_S):
        native.close()
        native = None
    if native is None:
        native = connect(bootstrap, security=security)
    try:
        yield native
    except ConnectionError:
        native.close()  # also where the answer was read whole, and makes no sense
        raise
    finally:
        other = _kept.pop(key, None)  # of another thread
        if other is not None:
            other[0].close()
        if native.is_idle:
            _kept[key] = (native, clock())
        else:
            native.close()


def close_all() -> None:
    """Close what this process has kept."""
    for key in [key for key in _kept if key[0] == os.getpid()]:
        _kept.pop(key)[0].close()


atexit.register(close_all)
