"""Programs of raw requests: what each step asks of a node, or does to it.

A *program* is a list of steps: requests of one or two transactional ids, deaths of the machine, the passing of time,
and what operators do. Nothing keeps its order from being nonsense. A request goes out on either of two connections, in
the present epoch or in an older one, whatever was answered before. So a program covers clients that go on after an
error, and those that nobody has written yet. `raw_requests` carries programs out.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from uuid import UUID

from fairlog_types import LogId

LOGS = tuple(LogId.of_topic(UUID(int=7), partition) for partition in range(3))
IDS = 2
CONNECTIONS = 2

TIMEOUT_MS = 200
CHECK_MS = 40
SHORT_S, LONG_S = 0.02, (TIMEOUT_MS + 3 * CHECK_MS) / 1000
"""No transaction times out within the first; every open one does within the second."""
FOREVER_S = 1e6


class Which(Enum):
    """What a Produce sends."""

    NEXT = "a new batch, with the sequence that is due"
    REPEATED = "the last batch of this log once more"
    RENUMBERED = "a new batch in a log that was added, with a sequence of a transaction that has ended"


@dataclass(frozen=True, slots=True)
class Request:
    """What all requests have. `back`: so many epochs before the present one."""

    id: int
    connection: int = 0
    back: int = 0


@dataclass(frozen=True, slots=True)
class Init(Request):
    """InitProducerId. `named`: with the producer id and epoch that the client has (KIP-360).

    `keeps`: what is open stays so, and the epoch granted is to end it (KIP-939).
    """

    named: bool = False
    keeps: bool = False


@dataclass(frozen=True, slots=True)
class Add(Request):
    """AddPartitionsToTxn."""

    logs: tuple[int, ...] = (0,)


@dataclass(frozen=True, slots=True)
class Produce(Request):
    """One batch of one record."""

    log: int = 0
    which: Which = Which.NEXT


@dataclass(frozen=True, slots=True)
class Write(Request):
    """AddPartitionsToTxn and, whatever it was answered, Produce."""

    log: int = 0


@dataclass(frozen=True, slots=True)
class AddOffsets(Request):
    """AddOffsetsToTxn."""


@dataclass(frozen=True, slots=True)
class CommitOffsets(Request):
    """TxnOffsetCommit."""


@dataclass(frozen=True, slots=True)
class End(Request):
    """EndTxn. `grants`: of transaction version 2, answered with the next epoch."""

    commit: bool = True
    grants: bool = False


@dataclass(frozen=True, slots=True)
class Together:
    """EndTxn, and another request that does not wait for its answer."""

    end: End
    other: Add | Produce | AddOffsets | CommitOffsets
    steps_later: int = 0
    """So many checkpoints after EndTxn was sent."""


@dataclass(frozen=True, slots=True)
class Reconnect:
    """The client opens this connection anew: it is the latest one then."""

    id: int
    connection: int


@dataclass(frozen=True, slots=True)
class AbortOpen:
    """An operator aborts the open transaction."""

    id: int


@dataclass(frozen=True, slots=True)
class AbortByMarker:
    """An administrator sends an abort marker for one log (WriteTxnMarkers)."""

    id: int
    log: int


@dataclass(frozen=True, slots=True)
class Wait:
    """Time passes; if long, what is open times out."""

    long: bool


@dataclass(frozen=True, slots=True)
class Restart:
    """The node ends and starts again: power cut, kill, or stop in good order."""

    kind: str
    long: bool = False
    """It is down until what was open has had its time."""
    again_at: int | None = None
    """It dies again, at that step of the event loop; mostly while it recovers."""


@dataclass(frozen=True, slots=True)
class DieLater:
    """Power cut or kill at that step of the event loop, in the middle of what comes next."""

    kind: str
    at_step: int


Step = Request | Together | Reconnect | AbortOpen | AbortByMarker | Wait | Restart | DieLater
