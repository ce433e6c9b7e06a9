"""One read of some logs: how much is read of which, within which limits, and when it is enough.

    LogRead.lag ──▶ has it something to read? ──▶ ReadPlan.wanted, grant, requests ──▶ DataLogs.lend ──▶ ReadPlan.take
                                                                                      ReadPlan.note, is_enough ◀──┘

A `LogRead` is one log's part: where it is read, what was found, and how far the log can be read. The `ReadPlan` holds
the limits of all parts together, and counts. One read may ask the data logs several times, as new records come in.

1. Batches are whole. A log gets batches up to its own limit, all logs together up to that of the read. Only the first
   batch of the whole read may exceed them, so that no reader is stuck at a large one (KIP-74).
2. A log is *full* once it has more to read than its part may hold, or a problem. It is not read again in this read.
3. A read is enough if its batches have `bytes_min`, if every log is full, or if one has a problem.
4. The batches of a log follow each other without a gap, and a reader of committed records gets none at or after the
   last stable offset. With them come the transactions that were aborted there, each once, though the part is put
   together from several reads of the data logs: librdkafka would apply a repetition to what the producer writes next.

No I/O. Not here: waiting, threads, who else needs the memory (`fairlog.reading.service`).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from enum import Enum

from datalog.batch import BadBatch, parse_stored_header
from datalog.interface import AbortedTransaction, Batch, LogMissing, OffsetOutOfRange, ReadAnswer, ReadRequest
from fairlog_types import CorruptStorage, LogId, Offset
from partition.answers import PlacedEnd

READ_BYTES_MAX = 57_671_680
"""Of batches in one read, whatever the reader asks. Kafka's `fetch.max.bytes` of the broker."""


class Problem(Enum):
    """Why a log is not read."""

    REFUSED = "whoever asks must not read it, and knows why"
    UNKNOWN_LOG = "this node does not lead the log (any more)"
    OUT_OF_RANGE = "the log does not have the offset"


def _no_batches() -> list[Batch]:
    """For each log of each read: `list[Batch]`, called, takes three times as long."""
    return []


def _none_aborted() -> dict[AbortedTransaction, None]:
    return {}


@dataclass(slots=True)
class LogRead:
    """One log's part of a read."""

    log: LogId | None
    """None only if it is refused."""
    position: int
    """The next offset to read."""
    bytes_left: int
    """Of the log's own limit."""
    committed_only: bool
    high_watermark: int = -1
    last_stable: int = -1
    log_start: int = -1
    """These three are -1 until they are known."""
    batches: list[Batch] = field(default_factory=_no_batches)
    aborted: dict[AbortedTransaction, None] = field(default_factory=_none_aborted)
    """A set in the order in which they ended."""
    problem: Problem | None = None
    full: bool = False
    """Nothing more is read of it."""

    @property
    def readable_end(self) -> int:
        return self.last_stable if self.committed_only else self.high_watermark

    def fail(self, problem: Problem) -> None:
        self.problem, self.full = problem, True

    def lag(self, high_watermark: Offset, last_stable: Offset, log_start: Offset) -> int:
        """How far the reader is behind the readable end; negative: it is beyond that. The ends are the log's of now."""
        self.high_watermark = max(self.high_watermark, high_watermark)
        self.last_stable = max(self.last_stable, last_stable)
        self.log_start = log_start
        return (last_stable if self.committed_only else high_watermark) - self.position

    def awaits(self, placed: PlacedEnd) -> bool:
        """Whether a position beyond the readable end is one of a record that is placed and cannot be read yet.

        If not, it is out of range; the data logs say so, together with the range.
        """
        return self.position <= placed.next_offset

    def extend_to(self, placed: PlacedEnd) -> None:
        """Speak of all that is placed: no one takes what is already copied for all there is (invariant 13)."""
        if self.problem is None:
            self.high_watermark = max(self.high_watermark, placed.next_offset)
            self.last_stable = max(self.last_stable, placed.last_stable_offset)


class ReadPlan:
    """The limits of one read, and how much of them is used."""

    __slots__ = ("_bytes_max", "_enough_bytes", "_failed", "_full", "_limit", "bytes_read")

    def __init__(self, *, bytes_min: int, bytes_max: int) -> None:
        """Read up to `bytes_max`, and at most READ_BYTES_MAX; `bytes_min` of it are worth an answer."""
        self._bytes_max = min(max(bytes_max, 0), READ_BYTES_MAX)
        self._enough_bytes = min(bytes_min, self._bytes_max)
        self._limit = 0
        """What `bytes_read` may become, by what was granted last."""
        self._full = 0
        self._failed = False
        self.bytes_read = 0

    def wanted(self, reads: Iterable[LogRead]) -> int:
        """The bytes that these may need: to be granted before they are read."""
        return min(max(self._bytes_max - self.bytes_read, 0), sum([read.bytes_left for read in reads]))

    def grant(self, granted: int, *, wanted: int) -> None:
        """So much of what was wanted may be read now."""
        self._limit = self._bytes_max if granted == wanted else self.bytes_read + granted

    def requests(self, reads: Sequence[LogRead]) -> tuple[list[ReadRequest], int]:
        """What to ask of the data logs for these, and how many bytes they may answer in all."""
        requests = [
            ReadRequest(read.log, Offset(read.position), read.bytes_left, read.committed_only)
            for read in reads
            if read.log is not None
        ]
        return requests, max(self._limit - self.bytes_read, 0)

    def left(self, read: LogRead) -> int:
        """How many bytes this part may still get of what was granted."""
        return max(min(self._limit - self.bytes_read, read.bytes_left), 0)

    def take(self, read: LogRead, answer: ReadAnswer) -> None:
        """Let a log's part have what was answered to its request. Raises CorruptStorage."""
        if isinstance(answer, LogMissing):
            read.fail(Problem.UNKNOWN_LOG)
            return
        read.high_watermark, read.log_start = answer.next_offset, answer.log_start_offset
        if isinstance(answer, OffsetOutOfRange):
            read.fail(Problem.OUT_OF_RANGE)
            return
        read.last_stable = answer.last_stable_offset
        batches, bytes_read = answer.batches, self.bytes_read
        size = sum(map(len, batches))
        # The data logs send at least one batch per call; only the very first of this read may exceed the limits.
        if not batches or (bytes_read and size > min(self._limit - bytes_read, read.bytes_left)):
            read.full = read.position < read.readable_end
            return
        read.batches += batches
        read.aborted.update(dict.fromkeys(answer.aborted))
        read.bytes_left -= size
        try:
            read.position = parse_stored_header(batches[-1]).last_offset + 1
        except BadBatch as error:
            damage = f"data log {read.log}: the batch at or after offset {read.position} is not a batch: {error}"
            raise CorruptStorage(damage) from error
        read.full = read.bytes_left <= 0 or read.position < read.readable_end
        self.bytes_read = bytes_read + size

    def note(self, looked_at: Sequence[LogRead]) -> None:
        """Count what has become of logs that were not full before."""
        for read in looked_at:
            self._full += read.full
            self._failed |= read.problem is not None

    def is_enough(self, logs: int) -> bool:
        """Whether to answer now, for a reader of so many logs."""
        return self._failed or self._full == logs or self.bytes_read >= self._enough_bytes
