"""The topic configs that this node knows: Kafka's names, their allowed values, and what is made of them.

A name that is not in the table is refused (INVALID_CONFIG): a misspelt config that is silently kept does harm on
a bad day. Some are kept and shown but not acted upon yet; they are accepted because tools set them
as a matter of course. docs/compatibility.md lists them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from fairlog.cluster.interface import Topic
from fairlog.config import Settings

Check = Callable[[str], bool]


def _whole(least: int, most: int = 2**63 - 1) -> Check:
    def check(value: str) -> bool:
        digits = value.removeprefix("-")
        return digits.isascii() and digits.isdigit() and len(digits) < 20 and least <= int(value) <= most

    return check


def _one_of(*words: str) -> Check:
    return lambda value: value in words


def _policies(value: str) -> bool:
    return set(value.replace(" ", "").split(",")) <= {"delete", "compact"}


def _ratio(value: str) -> bool:
    try:
        return 0.0 <= float(value) <= 1.0
    except ValueError:
        return False


MESSAGE_BYTES_MAX = "max.message.bytes"
TRANSACTIONS = "fairlog.transactions"

CONFIGS: Mapping[str, Check] = {
    MESSAGE_BYTES_MAX: _whole(0, 2**31 - 1),
    TRANSACTIONS: _one_of("journal"),
    # Kept, not acted upon yet.
    "cleanup.policy": _policies,
    "compression.type": _one_of("producer", "uncompressed", "gzip", "snappy", "lz4", "zstd"),
    "delete.retention.ms": _whole(0),
    "file.delete.delay.ms": _whole(0),
    "flush.messages": _whole(1),
    "flush.ms": _whole(0),
    "max.compaction.lag.ms": _whole(1),
    "message.timestamp.type": _one_of("CreateTime", "LogAppendTime"),
    "min.cleanable.dirty.ratio": _ratio,
    "min.compaction.lag.ms": _whole(0),
    "min.insync.replicas": _whole(1, 2**31 - 1),
    "retention.bytes": _whole(-1),
    "retention.ms": _whole(-1),
    "segment.bytes": _whole(14, 2**31 - 1),
    "segment.ms": _whole(1),
    "unclean.leader.election.enable": _one_of("true", "false"),
}
"""Name → whether a value is allowed."""


def why_refused(configs: Mapping[str, str | None]) -> str | None:
    """What is wrong with a new topic's configs, as a sentence; None if nothing is. A null value means the default."""
    for name, value in configs.items():
        check = CONFIGS.get(name)
        if check is None:
            return f"unknown topic config {name}"
        if value is None or check(value):
            continue
        if name == TRANSACTIONS:
            return f"{name}={value}: only journal is there yet"
        return f"{name}={value} is not a value of this config"
    return None


def message_bytes_max(topic: Topic, settings: Settings) -> int:
    """The largest batch that a topic takes, in bytes."""
    own = topic.configs.get(MESSAGE_BYTES_MAX)
    return settings.requests.message_bytes_max if own is None else int(own)
