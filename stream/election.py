"""When a replica tries to become the owner of its shard.

    hears of the owner ─▶ silence for the failover time ─▶ asks for the stream's end ─▶ has read up to it ─▶ FENCE

The owner is heard in the stream itself: every entry of its that is accepted counts, and it appends a heartbeat if it
has nothing else to say. Silence counts only if the replica has read all that there is: one that lags behind, or an
engine that does not answer, says nothing about the owner. So a replica asks for the end of the stream before it tries,
and begins to wait anew if there is no answer.

Clocks decide here when to try, and nothing else: two that try at once append two FENCEs, and the first one wins
(`fold`). The one that stands first among the shard's replicas tries first, the others a little later.

Pure: times come in as seconds of any one clock.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from stream.engine import StreamPosition
from stream.fold import Fenced, Folded, FoldState, Frames, HandedOver, Plain

RANK_S = 0.2
"""How much later each further replica tries."""


class Try(Enum):
    """What a replica is to do now."""

    ASK_FOR_END = "ask where the stream ends"
    FENCE = "append a FENCE of the next epoch"


@dataclass(frozen=True, slots=True)
class Wait:
    """Look again at this time, or when something was read."""

    until_s: float


class Election:
    """One replica's view of its shard's owner."""

    def __init__(self, node: str, rank: int, failover_s: float, state: FoldState, now_s: float) -> None:
        """`rank` counts from 0 among the shard's replicas; `state` is where its fold begins."""
        self._node = node
        self._patience_s = failover_s + rank * RANK_S
        self._hand_over_s = rank * RANK_S
        self._due_s = now_s + (self._patience_s if state.owner is not None else self._hand_over_s)
        self._end: StreamPosition | None = None
        """Where the stream ended when it was last asked, since the owner was last heard."""
        if state.handed_over or (state.owner is not None and state.owner.node == node):
            self._due_s = now_s + self._hand_over_s  # an earlier run of this node was the owner, and has ended

    def read(self, folded: Folded, now_s: float) -> None:
        """An entry was read."""
        if isinstance(folded, HandedOver):
            mine = folded.successor == self._node
            self._hear(now_s, 0.0 if mine else self._hand_over_s if folded.successor is None else self._patience_s)
        elif isinstance(folded, Fenced | Frames | Plain):
            self._hear(now_s, self._patience_s)

    def _hear(self, now_s: float, patience_s: float) -> None:
        self._due_s = now_s + patience_s
        self._end = None

    def answered(self, end: StreamPosition) -> None:
        """The stream ended there after the silence had lasted for long enough."""
        self._end = end

    def not_answered(self, now_s: float) -> None:
        """The engine did not say where the stream ends: the owner may be unable to be heard."""
        self._hear(now_s, self._patience_s)

    def fenced(self, now_s: float) -> None:
        """A FENCE was appended, or may have been: its outcome will be read."""
        self._hear(now_s, self._patience_s)

    def next(self, next_position: StreamPosition, now_s: float) -> Try | Wait | None:
        """What to do now; `next_position` is that of the entry that is to be read next. None: read on first."""
        if now_s < self._due_s:
            return Wait(self._due_s)
        if self._end is None:
            return Try.ASK_FOR_END
        return Try.FENCE if next_position >= self._end else None
