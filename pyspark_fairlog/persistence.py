"""Asking a node until it answers: what is asked over a restart of the node, and for how long.

What a sink asks can be repeated without harm: a lane that was joined in vain is discarded with its batch, and a batch
is committed once, however often it is asked for. So a lost connection, a node that is being restarted and a disk that
has refused are asked again for a while; everything else that the node says is final.

A node that is there and has not answered yet is another matter: it answers for a batch when its records can be read,
and the copy takes as long as the batch is large. Whoever says so (`work_s`) goes on asking such a node, and waits
longer each time, since each question that is given up stays with the node until it is answered.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import TypeVar

from fairlog_client_security import ClientSecurity
from pyspark_fairlog.connections import borrowed
from pyspark_fairlog.native import Native, NativeError, NoAnswerYet

PATIENCE_S = 60.0
"""For a restart of the node, which replays its journals first."""

WORK_S = 900.0
"""For a node that is at work on a batch: as long as the batch may take to be written."""

ANSWER_MIN_S = 10.0
ANSWER_MAX_S = 60.0
"""For one answer: a machine that is gone without a word is noticed no sooner."""

PAUSE_MIN_S = 0.05
PAUSE_MAX_S = 2.0

PASSING = ("storage", "effect-unknown", "in-use", "not-available", "not-coordinator")
"""Refusals that end by themselves, or with the node's restart."""

T = TypeVar("T")

_log = logging.getLogger(__name__)


def persistently(
    ask: Callable[[Native], T],
    bootstrap: str,
    security: ClientSecurity = ClientSecurity(),
    *,
    patience_s: float = PATIENCE_S,
    work_s: float = 0.0,
    connect: Callable[[str, ClientSecurity], AbstractContextManager[Native]] = borrowed,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> T:
    """What `ask` answers on a connection to the node, asked again for up to `patience_s` seconds.

    These are counted anew, for up to `work_s` seconds in all, whenever the node was there and had no answer yet.
    Raises the last NativeError or ConnectionError when the time is over, and at once the NativeError of a refusal that
    stays; ValueError if `bootstrap` is not a list of addresses.
    """
    begun_s = clock()
    deadline = begun_s + patience_s
    pause_s, answer_s = PAUSE_MIN_S, ANSWER_MIN_S
    while True:
        try:
            with connect(bootstrap, security) as native:
                native.answer_s = answer_s
                return ask(native)
        except (ConnectionError, NativeError) as error:
            if isinstance(error, NativeError) and error.kind not in PASSING:
                raise
            if isinstance(error, NoAnswerYet):
                deadline = max(deadline, min(clock() + patience_s, begun_s + work_s))
                answer_s = min(2 * answer_s, ANSWER_MAX_S)
                _log.warning("%s; it is asked again, for up to %.0f s more", error, max(0.0, deadline - clock()))
            if clock() + pause_s > deadline:
                raise
        sleep(pause_s)
        pause_s = min(2 * pause_s, PAUSE_MAX_S)
