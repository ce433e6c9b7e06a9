"""What the coordinator shows of transactions to whoever watches: counts, those under way, and the last that ended.

Nothing here decides anything, and nothing here is on disk: it begins anew with each run. `executor` notes what
happens; a note costs a few stores, and the memory is bounded whatever the clients do.

The steps of a transaction, and what it waits for in between:

    BEGIN ─── open ──▶ PREPARE_COMMIT ── prepare, flush ──▶ DECIDED ── apply ──▶ COPIED ──▶ COMMITTED
      └────── open ──▶ ABORTED

The producer is answered at DECIDED, the driver of a sink's batch at COPIED, when the records are visible; COMMITTED
follows at once, and says where.
Times are of the event loop's clock, which does not jump; the wall clock's are noted beside it, to be shown.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum

import structlog
import trio

from coordinator.id_entry import IdEntry, ms_since
from coordinator.messages import DiscardTransaction
from coordinator.producer import Decided
from coordinator.states import EventKind
from fairlog_histogram import Durations, Histogram
from fairlog_types import LogId, Placement, TxId

ENDED_KEPT = 200
"""So many ended transactions are remembered."""

PLACES_KEPT = 20_000
"""So many partitions of ended transactions are remembered, over all of them: one may have written to thousands."""


_log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)


class Step(Enum):
    """What happens in a transaction's life. The value is its line in the documentation."""

    BEGIN = "the first partition was added"
    PREPARE_COMMIT = "the producer asked for the commit; the participants are being asked"
    DECIDED = "all have it on disk: a producer is answered (a sink's driver at COPIED), the records will be visible"
    COPIED = "the records are in the data logs, and visible"
    COMMITTED = "the group journal says where they are"
    ABORTED = "nothing of it will ever be visible"


@dataclass(frozen=True, slots=True)
class UnderWay:
    """A transaction that has begun and not ended."""

    transactional_id: str
    txid: TxId
    began_ms: int | None
    """By the wall clock, in milliseconds since 1970; None if it began in an earlier run."""
    timeout_ms: int
    steps: tuple[tuple[Step, float], ...]
    """What has happened, and how many seconds ago; in order. The last one is the state that it is in."""
    silent_s: float
    """Since the coordinator last heard of the producer."""
    logs: tuple[LogId, ...]
    records: int | None
    """None while it is open: the partitions' leaders know."""


@dataclass(frozen=True, slots=True)
class Ended:
    """A transaction that has ended in this run."""

    transactional_id: str
    txid: TxId
    began_ms: int | None
    """By the wall clock; None if it began in an earlier run."""
    ended_ms: int
    cause: str | None
    """Why it was aborted, in the words of `states.EventKind`; None if it is committed."""
    steps: Sequence[tuple[Step, float]]
    """What has happened, in order, and when: as it is noted, by the event loop's clock; as `History` tells it, in
    seconds after the first of these."""
    logs: tuple[LogId, ...]
    records: int | None
    """None if it was aborted: nobody counted them."""
    placements: tuple[Placement, ...]


@dataclass(frozen=True, slots=True)
class CommitDurations:
    """Where a commit's time goes."""

    prepare: Durations
    """From PREPARE_COMMIT until all participants have the records on disk."""
    flush: Durations
    """From then until PREPARE_COMMIT is on disk, too: next to nothing, as both go on side by side."""
    apply: Durations
    """From the decision until the records are visible. No producer waits for it; the driver of a sink's batch does."""


@dataclass(frozen=True, slots=True)
class CoordinatorStatistics:
    """What has happened since the start, and how things stand."""

    begun: int
    committed: int
    """Decided; the copy may still be under way."""
    aborted: dict[str, int]
    """By cause."""
    durations: CommitDurations
    transactional_ids: int
    open: int
    preparing: int
    copying: int
    oldest: tuple[tuple[str, float], ...]
    """Transactional id and age in seconds of the transactions that have been open longest, the oldest first."""
    failed_journals: int


@dataclass(slots=True)
class Copying:
    """A committed transaction until it is visible."""

    entry: IdEntry
    began_ms: int | None
    began_s: float | None
    """None if it was recovered from the journal; so are `began_ms` and `prepared_s`."""
    prepared_s: float | None
    """When PREPARE_COMMIT was written."""
    decided_s: float
    logs: tuple[LogId, ...]
    records: int

    def steps(self) -> list[tuple[Step, float]]:
        """What has happened, each with its time by the event loop's clock."""
        steps = [(Step.BEGIN, self.began_s), (Step.PREPARE_COMMIT, self.prepared_s), (Step.DECIDED, self.decided_s)]
        return [(step, at_s) for step, at_s in steps if at_s is not None]


@dataclass(slots=True)
class Tally:
    """What is counted since the start."""

    committed: int = 0
    aborted: dict[str, int] = field(default_factory=dict[str, int])
    prepare: Histogram = field(default_factory=Histogram)
    flush: Histogram = field(default_factory=Histogram)
    apply: Histogram = field(default_factory=Histogram)


class History:
    """The last transactions that ended."""

    def __init__(self) -> None:
        self._ended: deque[Ended] = deque()
        self._places = 0

    def add(self, ended: Ended) -> None:
        """Remember one more, and forget the oldest if there are too many."""
        self._ended.append(ended)
        self._places += _places(ended)
        while len(self._ended) > ENDED_KEPT or (self._places > PLACES_KEPT and len(self._ended) > 1):
            self._places -= _places(self._ended.popleft())

    def latest_first(self) -> Sequence[Ended]:
        return [replace(ended, steps=_relative(ended.steps)) for ended in reversed(self._ended)]


class Statistics:
    """What is counted and remembered of a shard's transactions."""

    def __init__(self, now_ms: Callable[[], int]) -> None:
        """`now_ms` is the wall clock."""
        self.tally = Tally()
        self.history = History()
        self.copying: dict[TxId, Copying] = {}
        """What is committed and not yet visible, in the order of the decisions."""
        self._now_ms = now_ms

    def note_committed(
        self, txid: TxId, copying: Copying, placements: tuple[Placement, ...], copied_s: float, **named: object
    ) -> None:
        """Count, remember and log a transaction, or a sink commit, that is visible; `named` says of whom in the log."""
        if copying.prepared_s is not None:
            self.tally.apply.observe(copied_s - copying.decided_s)
        steps = [*copying.steps(), (Step.COPIED, copied_s), (Step.COMMITTED, trio.current_time())]
        self.history.add(
            Ended(
                copying.entry.producer.transactional_id,
                txid,
                copying.began_ms,
                self._now_ms(),
                None,
                steps,
                copying.logs,
                copying.records,
                placements,
            )
        )
        _log.info(
            "transaction",
            txid=str(txid),
            **named,
            outcome="committed",
            partitions=len(copying.logs),
            records=copying.records,
            apply_ms=ms_since(copying.decided_s),
            **_known(
                open_ms=_ms_between(copying.began_s, copying.decided_s),
                prepare_ms=_ms_between(copying.prepared_s, copying.decided_s),
            ),
        )

    def note_aborted(self, entry: IdEntry, message: DiscardTransaction, kind: EventKind) -> None:
        cause = kind.name.lower()
        self.tally.aborted[cause] = self.tally.aborted.get(cause, 0) + 1
        now_s, now_ms = trio.current_time(), self._now_ms()
        began_here = kind not in (EventKind.RESTARTED, EventKind.WITHDRAWN)
        began_s, prepared_s = (entry.opened_s, entry.prepared_s) if began_here else (None, None)
        open_ms = _ms_between(began_s, now_s)
        if not began_here and entry.began_ms is not None:
            open_ms = max(0, now_ms - entry.began_ms)  # from one run to the next there is the wall clock only
        steps = [(Step.BEGIN, began_s), (Step.PREPARE_COMMIT, prepared_s), (Step.ABORTED, now_s)]
        self.history.add(
            Ended(
                entry.producer.transactional_id,
                message.txid,
                entry.began_ms,
                now_ms,
                cause,
                [(step, at_s) for step, at_s in steps if at_s is not None],
                message.logs,
                None,
                (),
            )
        )
        _log.info(
            "transaction",
            txid=str(message.txid),
            transactional_id=entry.producer.transactional_id,
            outcome="aborted",
            cause=cause,
            partitions=len(message.logs),
            **_known(open_ms=open_ms),
        )

    def note_decided(
        self, entry: IdEntry, decided: Decided, began_ms: int | None, began_s: float | None, prepared_s: float | None
    ) -> None:
        self.copying[decided.txid] = Copying(
            entry,
            began_ms,
            began_s,
            prepared_s,
            trio.current_time(),
            tuple(log for log, it in decided.expected.items() if it.records),
            sum(max(it.records, 0) for it in decided.expected.values()),
        )


def _places(ended: Ended) -> int:
    return len(ended.logs) + len(ended.placements)


def _relative(steps: Sequence[tuple[Step, float]]) -> tuple[tuple[Step, float], ...]:
    return tuple((step, at_s - steps[0][1]) for step, at_s in steps)


def ago(steps: Sequence[tuple[Step, float]], now_s: float) -> tuple[tuple[Step, float], ...]:
    """Times of the event loop's clock as seconds before now."""
    return tuple((step, now_s - at_s) for step, at_s in steps)


def _known(**fields: float | None) -> dict[str, float]:
    """Those that have a value: what is not known is left out of a line, and not given as nothing."""
    return {name: value for name, value in fields.items() if value is not None}


def _ms_between(since_s: float | None, until_s: float) -> float | None:
    """Between two times of the event loop's clock; None if the first lies in an earlier run."""
    return None if since_s is None else round((until_s - since_s) * 1000, 2)
