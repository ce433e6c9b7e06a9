"""Asking a node until it answers: what is asked over a restart of the node, and for how long.

What a sink asks can be repeated without harm: a lane that was joined in vain is discarded with its batch, and a batch
is committed once, however often it is asked for. So a lost connection, a node that is being restarted and a disk that
has refused are asked again for a while; everything else that the node says is final.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

from pyspark_fairlog.native import Native, NativeError

PATIENCE_S = 60.0
"""For a restart of the node, which replays its journals first."""

PAUSE_MIN_S = 0.05
PAUSE_MAX_S = 2.0

PASSING = ("storage", "effect-unknown", "in-use")
"""Refusals that end by themselves, or with the node's restart."""

T = TypeVar("T")


def persistently(
    ask: Callable[[Native], T],
    bootstrap: str,
    *,
    patience_s: float = PATIENCE_S,
    connect: Callable[[str], Native] = Native.connect,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> T:
    """What `ask` answers on a connection to the node, asked again for up to `patience_s` seconds.

    Raises the last NativeError or ConnectionError when the time is over, and at once the NativeError of a refusal that
    stays; ValueError if `bootstrap` is not a list of addresses.
    """
    deadline = clock() + patience_s
    pause_s = PAUSE_MIN_S
    while True:
        try:
            with connect(bootstrap) as native:
                return ask(native)
        except (ConnectionError, NativeError) as error:
            if isinstance(error, NativeError) and error.kind not in PASSING:
                raise
            if clock() + pause_s > deadline:
                raise
        sleep(pause_s)
        pause_s = min(2 * pause_s, PAUSE_MAX_S)
