"""What a history is made of: operations of clients, and the micro-operations within them. Pure.

A *process* is one instance of a client, with one producer, one consumer, or both. It does one operation after the
other; a client that was killed comes back as another process. An operation has three moments: when it was invoked, when
its commit was asked for (a plain send asks at once), and when its outcome was known:

    OK      it took effect, whole
    FAIL    it has none, and never will have: aborted, or refused with an error of the "no effect" kind
    INFO    nobody knows: it may take effect, whole, or not at all

A transaction for which nobody ever asked to commit cannot take effect, whatever was heard of its end. So `may_commit`
is what the checks ask, and not the outcome alone.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum


class BadHistory(Exception):
    """What was read is not a history. The message names the line."""


class Mode(Enum):
    """How transactions reach the partitions, hence what may be promised (docs/marker-mode.md).

    Not `tests.clients.modes.Mode`, which comes with pytest: the checker runs on a file alone.
    """

    JOURNAL = "journal"
    MARKERS = "markers"


class Kind(Enum):
    """What an operation is, as the format has it."""

    TXN = "txn"
    """A transaction, of sends and polls."""
    SEND = "send"
    """Records outside any transaction."""
    POLL = "poll"
    """Reading on from where the process' consumer is."""
    ASSIGN = "assign"
    """The process' consumer was given partitions, or lost some: a rebalance, or a seek."""
    END = "end"
    """A question where partitions end, to whoever is not reading them."""
    FINAL = "final"
    """A reading of whole partitions, from their beginning to their end, when all else has come to rest."""


class Outcome(Enum):
    """What the client knows of an operation."""

    OK = "ok"
    FAIL = "fail"
    INFO = "info"


class Isolation(Enum):
    """What a consumer asked to see."""

    COMMITTED = "committed"
    PLAIN = "plain"


@dataclass(slots=True)
class Send:
    """A record that was sent. `value` is the history's only one of that name."""

    partition: str
    value: str
    offset: int | None
    """As answered; None if it was not, which is so within transactions of journal mode."""


@dataclass(slots=True)
class Poll:
    """Records of one partition that came together, as (offset, value)."""

    partition: str
    records: Sequence[tuple[int, str]]


@dataclass(slots=True)
class Operation:
    """One operation of a client. Times are microseconds of one clock for all processes."""

    line: int
    """Where it is invoked in the history, counted from 1: so people find it."""
    process: str
    kind: Kind
    start_us: int
    outcome: Outcome = Outcome.INFO
    commit_us: int | None = None
    """When the commit was asked for; of plain sends, when they were invoked. None: never."""
    prepared: bool = False
    """Of a transaction: all its records were answered, and no one but its client ends it; so its commit may not be
    refused."""
    end_us: int | None = None
    """When the outcome was known. None: it never was."""
    micro: Sequence[Send | Poll] = ()
    group: str | None = None
    """Of a transaction: the transactional id, whose transactions have one commit order."""
    consumer_group: str | None = None
    """Of a transaction that commits the offsets of what it polled: for whom."""
    isolation: Isolation = Isolation.COMMITTED
    positions: Mapping[str, int | None] = field(default_factory=dict[str, int | None])
    """Of ASSIGN: where reading goes on in each partition that is given (None: wherever); others stay as they are."""
    revoked: Sequence[str] = ()
    """Of ASSIGN: partitions that are taken."""
    ends: Mapping[str, int] = field(default_factory=dict[str, int])
    """Of FINAL: through which offset (exclusive) each partition was read. Of POLL: the same, and one answer gave it for
    all these partitions together: a cut. Of END: the ends that were answered."""
    from_copies: int = 0
    """Of POLL: how many of its records came from a broker that does not lead their partition."""

    @property
    def may_commit(self) -> bool:
        """Whether its sends may ever be seen."""
        return self.outcome is Outcome.OK or (self.outcome is Outcome.INFO and self.commit_us is not None)

    def sends(self) -> Iterator[Send]:
        return (each for each in self.micro if isinstance(each, Send))

    def polls(self) -> Iterator[Poll]:
        return (each for each in self.micro if isinstance(each, Poll))

    def __str__(self) -> str:
        """As violations name it."""
        of_group = f" of {self.group}" if self.group else ""
        asked = ", never asked to commit" if self.kind is Kind.TXN and self.commit_us is None else ""
        return f"line {self.line}: {self.process} {self.kind.value}{of_group} ({self.outcome.value}{asked})"


@dataclass(slots=True)
class History:
    """All operations, in the order in which they were invoked."""

    mode: Mode
    operations: list[Operation] = field(default_factory=list[Operation])
    about: Mapping[str, object] = field(default_factory=dict[str, object])
    """What else the first line says: seed, duration and the like. For people."""
    shards: Mapping[str, int] = field(default_factory=dict[str, int])
    """Which shard leads each partition, if there are several. Empty: one leads all."""
