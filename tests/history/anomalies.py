"""The catalogue of anomalies: each has a name, a meaning, a source, and the modes that promise never to show it. Pure.

Names, and most meanings, are those of Jepsen's Kafka workload (`jepsen.tests.kafka`), with which Redpanda 21.10.1
(2022) and Bufstream 0.1.0 (2024) were tested; cycles are Adya's (*Weak Consistency*, 1999). What is OURS neither Kafka
nor those tests promise. docs/history-checker.md explains each one.
"""

from __future__ import annotations

from dataclasses import dataclass

from tests.history.operations import Mode

BOTH = frozenset(Mode)
JOURNAL = frozenset({Mode.JOURNAL})
JEPSEN = "jepsen.tests.kafka"
ADYA = "Adya 1999"
OURS = "Fairlog"


@dataclass(frozen=True, slots=True)
class AnomalyKind:
    """One way in which a history can be wrong."""

    name: str
    meaning: str
    source: str
    forbidden: frozenset[Mode]
    """The modes in which it is a violation. In the others it is counted, and allowed."""


@dataclass(frozen=True, slots=True)
class Anomaly:
    """One found anomaly: what it is, in words, and the lines of the operations that make it up."""

    kind: AnomalyKind
    text: str
    lines: tuple[int, ...]


ABORTED_READ = AnomalyKind(
    "aborted-read", "a consumer of committed records saw one that was never committed", f"{JEPSEN} (G1a)", BOTH
)
PLAIN_ABORTED_READ = AnomalyKind(
    "plain-aborted-read", "a plain consumer saw a record that was never committed", OURS, JOURNAL
)
PRECOMMITTED_READ = AnomalyKind("precommitted-read", "a transaction polled a record that it sent itself", JEPSEN, BOTH)
EARLY_READ = AnomalyKind("early-read", "a consumer had a record before anybody asked to commit it", OURS, BOTH)
PLAIN_EARLY_READ = AnomalyKind(
    "plain-early-read", "a plain consumer had a record before anybody asked to commit it", OURS, JOURNAL
)
PHANTOM = AnomalyKind("phantom", "a record was read that nobody sent to that partition", JEPSEN, BOTH)
LOST_WRITE = AnomalyKind(
    "lost-write", "a record that was acknowledged, or read before, is missing in a reading to the end", JEPSEN, BOTH
)
TORN_TRANSACTION = AnomalyKind(
    "torn-transaction",
    "of a transaction of unknown outcome a part is there, and a part is not",
    "Jepsen, Bufstream 0.1.0",
    BOTH,
)
DUPLICATE = AnomalyKind("duplicate", "one record stands at several places", JEPSEN, BOTH)
INCONSISTENT_OFFSET = AnomalyKind(
    "inconsistent-offset", "two clients disagree on which record stands at an offset", JEPSEN, BOTH
)
POLL_SKIP = AnomalyKind("poll-skip", "a consumer that read on passed over a record", JEPSEN, BOTH)
NONMONOTONIC_POLL = AnomalyKind(
    "nonmonotonic-poll", "a consumer that read on came back to where it had been", JEPSEN, BOTH
)
NONMONOTONIC_SEND = AnomalyKind(
    "nonmonotonic-send", "a producer's records stand in another order than it sent them", JEPSEN, BOTH
)
CONSUMED_TWICE = AnomalyKind(
    "consumed-twice", "two committed transactions of a consumer group processed the same record", OURS, BOTH
)
CONSUMED_NEVER = AnomalyKind(
    "consumed-never", "a consumer group's transactions went past a record that none of them processed", OURS, BOTH
)
OFFSET_GAP = AnomalyKind("offset-gap", "offsets of a partition are not 0, 1, 2, …", OURS, JOURNAL)
INTERLEAVED = AnomalyKind(
    "interleaved-transaction", "others' records stand between a transaction's records in a partition", OURS, JOURNAL
)
GROUP_ORDER = AnomalyKind(
    "group-order", "transactions of one transactional id stand in another order than they were committed in", OURS, BOTH
)
G0 = AnomalyKind("G0", "transactions overwrite each other in a circle: ww edges alone", ADYA, JOURNAL)
G1C = AnomalyKind("G1c", "information flows in a circle: ww and wr edges", ADYA, JOURNAL)
G_SINGLE = AnomalyKind(
    "G-single", "a reading of several partitions at once saw a part of what was committed: one rw edge", ADYA, JOURNAL
)
G2 = AnomalyKind("G2", "readings at once saw commits in different orders: several rw edges", ADYA, JOURNAL)
STALE_END = AnomalyKind(
    "stale-end", "the end of a partition, asked for after a record was answered, was before that record", OURS, BOTH
)
REFUSED_COMMIT = AnomalyKind(
    "refused-commit",
    "the commit of a prepared transaction was refused, though no one had ended it",
    OURS,
    BOTH,
)
LOST_PLACE = AnomalyKind(
    "lost-place", "a consumer was told that the offset up to which it had read is not there", OURS, BOTH
)
HELD = AnomalyKind(
    "held-by-open", "beside a transaction that stays open, commits are seen only when that one has ended", OURS, JOURNAL
)

KINDS = (
    ABORTED_READ, PLAIN_ABORTED_READ, PRECOMMITTED_READ, EARLY_READ, PLAIN_EARLY_READ, PHANTOM,
    LOST_WRITE, TORN_TRANSACTION, DUPLICATE, INCONSISTENT_OFFSET,
    POLL_SKIP, NONMONOTONIC_POLL, NONMONOTONIC_SEND, CONSUMED_TWICE, CONSUMED_NEVER,
    OFFSET_GAP, INTERLEAVED, GROUP_ORDER, G0, G1C, G_SINGLE, G2, STALE_END, REFUSED_COMMIT,
    LOST_PLACE, HELD,
)  # fmt: skip
