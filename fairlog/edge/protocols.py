"""What another protocol needs in order to be served on Kafka's port.

The listener accepts, counts and stops all connections alike. By the first bytes it finds out that a connection speaks
another protocol, and hands it over; the composition root says which protocols there are, so that no protocol knows
another.
"""

from __future__ import annotations

from typing import Protocol

import trio

from fairlog.edge.frame_budget import FrameBudget
from fairlog.edge.log_limiter import LogLimiter
from fairlog.security.listeners import PLAIN, Listener
from fairlog.security.principal import ANONYMOUS, Principal


class Served(Protocol):
    """A connection that is being served."""

    async def serve(self) -> bytes | None:
        """Serve until either side ends it, then close the stream; None.

        Kafka's connections may answer bytes: what was read of a stream that is another protocol's, and is left open.
        """
        ...

    def stop(self) -> None:
        """Take no further request; answer what is under way, then end."""
        ...


class ListenerProtocol(Protocol):
    """Another protocol."""

    @property
    def opening(self) -> bytes:
        """How its connections begin: `frames.OPENING_BYTES` that are no length of a Kafka request."""
        ...

    def connection(
        self,
        stream: trio.abc.Stream,
        received: bytes,
        *,
        ordinal: int,
        peer: str,
        budget: FrameBudget,
        lines: LogLimiter,
        listener: Listener = PLAIN,
        principal: Principal = ANONYMOUS,
    ) -> Served:
        """A connection, of which `received` is read already.

        `ordinal` grows with each connection that the node accepts, `peer` is for log lines, and `budget` is what large
        frames of all protocols take their room from. `lines` limits what clients can have logged. The connection came
        in at `listener`, and its peer has shown there to be `principal`.
        """
        ...
