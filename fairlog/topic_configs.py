"""The topic configs that this node knows: Kafka's names, their types, values and defaults, and which of them act.

One table, `TOPIC_CONFIGS`, has everything that is known about a config. From it come the checks of CreateTopics and of
the requests that alter configs, what DescribeConfigs shows, the table in docs/compatibility.md, and the typed readers
at the end of this module. Through them the rooms that act on a config read a topic's value: its own, or else the node's
setting, or else the constant of the table.

A name that is not in the table is refused: a misspelt config that is silently kept does harm on a bad day. Some configs
are kept and shown but not acted upon (`acts` is false); they are accepted because tools set them routinely, and none of
them changes what a consumer reads.

Pure. Values were checked when they were set, so the readers do not fail; a value that an older version accepted and
this one does not know is our bug, and stops the reader.
"""

from __future__ import annotations

import re
import typing
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import cast

from fairlog.cluster.interface import Topic
from fairlog.config import Settings, TransactionalOffsetsName
from partition.modes import MODES, TransactionMode, TransactionModeName


class ConfigType(Enum):
    """What a value is. Values travel and are kept as text."""

    BOOLEAN = "boolean"
    STRING = "string"
    INT = "int"
    """32 bits."""
    LONG = "long"
    """64 bits."""
    DOUBLE = "double"
    LIST = "list"
    """Items with commas in between; these alone can be appended to and subtracted from."""


class CleanupPolicy(Enum):
    """What happens to records that a topic need not keep."""

    DELETE = "delete"
    COMPACT = "compact"


@dataclass(frozen=True, slots=True)
class Values:
    """Which values a config takes."""

    type: ConfigType
    allows: Callable[[str], bool]
    described: str
    """For messages: "a whole number of at least 0"."""


_INT_MAX = 2**31 - 1
_LONG_MAX = 2**63 - 1
_LIST_CHARACTERS_MAX = 100
"""A list of known words is short; with spaces and repetitions it might fill the cluster store."""
_WHOLE = re.compile(r"-?[0-9]{1,19}")
_DECIMAL = re.compile(r"([0-9]{1,30}(\.[0-9]{0,30})?|\.[0-9]{1,30})([eE][+-]?[0-9]{1,3})?")


def _whole(least: int, most: int) -> Values:
    def allows(value: str) -> bool:
        return _WHOLE.fullmatch(value) is not None and least <= int(value) <= most

    kind = ConfigType.INT if most <= _INT_MAX else ConfigType.LONG
    upwards = f"a whole number of at least {least}"
    return Values(kind, allows, upwards if most in (_INT_MAX, _LONG_MAX) else f"a whole number from {least} to {most}")


def _int(least: int, most: int = _INT_MAX) -> Values:
    return _whole(least, most)


def _long(least: int) -> Values:
    return _whole(least, _LONG_MAX)


def _one_of(*words: str) -> Values:
    return Values(ConfigType.STRING, words.__contains__, words[0] if len(words) == 1 else f"one of {', '.join(words)}")


def list_items(value: str) -> list[str]:
    """The items of a list as Kafka reads it: an empty text has none, and between two commas is an empty one."""
    return [item.strip() for item in value.split(",")] if value.strip() else []


def _any_of(*words: str) -> Values:
    def allows(value: str) -> bool:
        return len(value) <= _LIST_CHARACTERS_MAX and set(list_items(value)) <= set(words)

    return Values(ConfigType.LIST, allows, f"any of {', '.join(words)}, or an empty list,")


def _ratio() -> Values:
    def allows(value: str) -> bool:
        return _DECIMAL.fullmatch(value) is not None and float(value) <= 1.0

    return Values(ConfigType.DOUBLE, allows, "a number from 0 to 1")


_SWITCH = Values(ConfigType.BOOLEAN, ("true", "false").__contains__, "true or false")


@dataclass(frozen=True, slots=True)
class TopicConfig:
    """A row of the table."""

    name: str
    values: Values
    default: str
    """The value of a topic that has none of its own, unless `setting` names where the node's own stands."""
    doc: str
    """For people, in a sentence or two."""
    acts: bool = False
    """False: kept and shown, and nothing else."""
    setting: str | None = None
    """The full name of the node's setting that gives the default: `topics.retention_ms`."""
    broker_name: str | None = None
    """What Kafka calls the broker's config that gives the default."""
    fixed: bool = False
    """Settled when a topic is made, and never changed: what lies in its journals, or where, depends on it."""


MESSAGE_BYTES_MAX = "max.message.bytes"
PLACEMENT = "fairlog.placement"
TRANSACTIONS = "fairlog.transactions"
TRANSACTIONAL_OFFSETS = "fairlog.transactional.offsets"
TIMESTAMP_TYPE = "message.timestamp.type"
CLEANUP_POLICY = "cleanup.policy"
RETENTION_MS = "retention.ms"
RETENTION_BYTES = "retention.bytes"
DELETE_RETENTION_MS = "delete.retention.ms"
COMPACTION_LAG_MIN_MS = "min.compaction.lag.ms"
COMPACTION_LAG_MAX_MS = "max.compaction.lag.ms"
DIRTY_RATIO_MIN = "min.cleanable.dirty.ratio"

_TOGETHER = "together"

_ROWS = (
    TopicConfig(
        CLEANUP_POLICY,
        _any_of("delete", "compact"),
        "delete",
        "How records are removed. delete: the oldest, by age or total size. compact: all but the latest of each key. "
        "Both may be given, or neither: then all records are kept.",
        acts=True,
        broker_name="log.cleanup.policy",
    ),
    TopicConfig(
        "compression.type",
        _one_of("producer", "uncompressed", "gzip", "snappy", "lz4", "zstd"),
        "producer",
        "How batches should be compressed. Batches are always kept as the producer sent them.",
        broker_name="compression.type",
    ),
    TopicConfig(
        DELETE_RETENTION_MS,
        _long(0),
        "86400000",
        "Milliseconds for which a compacted topic keeps a tombstone, so that slow consumers see the deletion.",
        acts=True,
        broker_name="log.cleaner.delete.retention.ms",
    ),
    TopicConfig(
        PLACEMENT,
        _one_of("spread", _TOGETHER),
        "spread",
        "Which of a node's processes lead the partitions. spread: all of them in turn. together: one leads them all, "
        "which makes transactions over several of them cheaper. Fixed when the topic is created; without effect if the "
        "node is one process.",
        acts=True,
        fixed=True,
    ),
    TopicConfig(
        TRANSACTIONAL_OFFSETS,
        _one_of(*typing.get_args(TransactionalOffsetsName)),
        "",
        "What delivery reports inside a transaction show as the offset, if the topic is of journal mode. none: no "
        "offset. lowest: the smallest offset that the record can still get, which is exact if one producer writes a "
        "partition.",
        acts=True,
        setting="topics.transactional_offsets",
        broker_name=TRANSACTIONAL_OFFSETS,
    ),
    TopicConfig(
        TRANSACTIONS,
        _one_of(*typing.get_args(TransactionModeName)),
        "journal",
        "How transactions reach the topic. journal: they are copied into it when they have committed. markers: their "
        "records go into it at once, and a control record ends them, as in Kafka. Fixed when the topic is created, "
        "from the node's topics.transactions if not given.",
        acts=True,
        fixed=True,
    ),
    TopicConfig(
        "file.delete.delay.ms",
        _long(0),
        "60000",
        "Milliseconds to wait before a file is removed. Data logs are not files, so this has no effect.",
        broker_name="log.segment.delete.delay.ms",
    ),
    TopicConfig(
        "flush.messages",
        _long(1),
        str(_LONG_MAX),
        "Records after which to flush. The node's journal.fsync says when journals are flushed.",
        broker_name="log.flush.interval.messages",
    ),
    TopicConfig(
        "flush.ms",
        _long(0),
        str(_LONG_MAX),
        "Milliseconds after which to flush. The node's journal.fsync says when journals are flushed.",
        broker_name="log.flush.interval.ms",
    ),
    TopicConfig(
        "index.interval.bytes",
        _int(0),
        "4096",
        "Bytes between two index entries. Data logs are found by key.",
        broker_name="log.index.interval.bytes",
    ),
    TopicConfig(
        COMPACTION_LAG_MAX_MS,
        _long(1),
        str(_LONG_MAX),
        "Milliseconds after which a record may be compacted, even if there is little to clean.",
        acts=True,
        broker_name="log.cleaner.max.compaction.lag.ms",
    ),
    TopicConfig(
        MESSAGE_BYTES_MAX,
        _int(0),
        "",
        "The largest record batch that the topic takes, in bytes, as sent (compressed).",
        acts=True,
        setting="requests.message_bytes_max",
        broker_name="message.max.bytes",
    ),
    TopicConfig(
        TIMESTAMP_TYPE,
        _one_of("CreateTime", "LogAppendTime"),
        "CreateTime",
        "Which clock sets a record's timestamp: the producer's (CreateTime), or the node's when the batch arrives "
        "(LogAppendTime).",
        acts=True,
        broker_name="log.message.timestamp.type",
    ),
    TopicConfig(
        DIRTY_RATIO_MIN,
        _ratio(),
        "0.5",
        "The fraction of a compacted topic, from 0 to 1, that must be new before it is compacted again.",
        acts=True,
        broker_name="log.cleaner.min.cleanable.ratio",
    ),
    TopicConfig(
        COMPACTION_LAG_MIN_MS,
        _long(0),
        "0",
        "Milliseconds for which compaction leaves a new record alone.",
        acts=True,
        broker_name="log.cleaner.min.compaction.lag.ms",
    ),
    TopicConfig(
        "min.insync.replicas",
        _int(1),
        "1",
        "Replicas that must have a batch before acks=all is answered. There is one replica.",
        broker_name="min.insync.replicas",
    ),
    TopicConfig(
        "preallocate",
        _SWITCH,
        "false",
        "Whether files are created at full size. Journals always have room ahead of their end.",
        broker_name="log.preallocate",
    ),
    TopicConfig(
        RETENTION_BYTES,
        _long(-1),
        "",
        "With cleanup.policy delete: bytes of records that a partition keeps; older records are deleted. -1: no limit.",
        acts=True,
        setting="topics.retention_bytes",
        broker_name="log.retention.bytes",
    ),
    TopicConfig(
        RETENTION_MS,
        _long(-1),
        "",
        "With cleanup.policy delete: milliseconds for which a record is kept. -1: no limit.",
        acts=True,
        setting="topics.retention_ms",
        broker_name="log.retention.ms",
    ),
    TopicConfig(
        "segment.bytes",
        _int(14),
        "1073741824",
        "The size of a log's files. For journals the node's journal.segment_bytes_max applies; data logs have no "
        "files.",
        broker_name="log.segment.bytes",
    ),
    TopicConfig(
        "segment.index.bytes",
        _int(4),
        "10485760",
        "The size of an index file. Data logs have none.",
        broker_name="log.index.size.max.bytes",
    ),
    TopicConfig(
        "segment.jitter.ms",
        _long(0),
        "0",
        "Milliseconds by which a file may end early. Data logs have no files.",
        broker_name="log.roll.jitter.ms",
    ),
    TopicConfig(
        "segment.ms",
        _long(1),
        "604800000",
        "Milliseconds after which a log continues in a new file. Data logs have no files.",
        broker_name="log.roll.ms",
    ),
    TopicConfig(
        "unclean.leader.election.enable",
        _SWITCH,
        "false",
        "Whether a replica that lacks records may become leader. There is one replica.",
        broker_name="unclean.leader.election.enable",
    ),
)

TOPIC_CONFIGS: Mapping[str, TopicConfig] = {row.name: row for row in sorted(_ROWS, key=lambda row: row.name)}
"""The table, by name."""


def why_refused(configs: Mapping[str, str | None]) -> str | None:
    """What is wrong with a topic's configs, as a sentence; None if nothing is. A null value means the default.

    `configs` are all configs that the topic would have of its own, since some values have to fit each other.
    """
    for name, value in configs.items():
        row = TOPIC_CONFIGS.get(name)
        if row is None:
            return f"unknown topic config {name}"
        if value is not None and not row.values.allows(value):
            return f"{name}={value} is not a value of this config: {row.values.described} is needed"
    least, most = configs.get(COMPACTION_LAG_MIN_MS), configs.get(COMPACTION_LAG_MAX_MS)
    if least is not None and most is not None and int(least) > int(most):
        return f"{COMPACTION_LAG_MIN_MS}={least} is above {COMPACTION_LAG_MAX_MS}={most}"
    return None


def with_fixed(configs: Mapping[str, str], settings: Settings) -> dict[str, str]:
    """The configs that a topic gets which is made with `configs`.

    The node's setting is written into it where it differs from the table's default, so that the topic keeps it
    whatever the setting is later.
    """
    by_setting = settings.topics.transactions
    if by_setting == TOPIC_CONFIGS[TRANSACTIONS].default:
        return dict(configs)
    return {TRANSACTIONS: by_setting, **configs}


def default_value(row: TopicConfig, settings: Settings) -> str:
    """The value of a topic that has none of its own, as text."""
    return row.default if row.setting is None else setting_text(settings, row.setting)


def setting_text(settings: Settings, full_name: str) -> str:
    """A setting of the node, by its full name, as Kafka writes values."""
    value: object = settings
    for name in full_name.split("."):
        value = getattr(value, name)
    return str(value).lower() if isinstance(value, bool) else str(value)


def value_of(name: str, topic: Topic, settings: Settings) -> str:
    """What holds for a topic, as text. `name` is in the table."""
    own = topic.configs.get(name)
    return default_value(TOPIC_CONFIGS[name], settings) if own is None else own


# --- typed readers of what acts ---------------------------------------------------------------------


def message_bytes_max(topic: Topic, settings: Settings) -> int:
    """The largest batch that a topic takes, in bytes."""
    # Asked with every batch: shorter than by the table.
    own = topic.configs.get(MESSAGE_BYTES_MAX)
    return settings.requests.message_bytes_max if own is None else int(own)


def stamps_append_time(topic: Topic) -> bool:
    """Whether records get the node's time instead of their producer's."""
    return topic.configs.get(TIMESTAMP_TYPE) == "LogAppendTime"


def transactions(topic: Topic) -> TransactionModeName:
    """How transactions reach the topic. One that says nothing is `journal`, whatever the node's setting is now."""
    return cast(TransactionModeName, topic.configs.get(TRANSACTIONS, TOPIC_CONFIGS[TRANSACTIONS].default))


def mode_of(topic: Topic) -> TransactionMode:
    """The mode of a topic's logs. Other logs, those of committed offsets, are of JOURNAL."""
    return MODES[transactions(topic)]


def is_together(topic: Topic) -> bool:
    """Whether one shard leads all of the topic's partitions; `shard.placement` asks."""
    return topic.configs.get(PLACEMENT) == _TOGETHER


def answers_lowest_offsets(topic: Topic, settings: Settings) -> bool:
    """Whether a batch of an open transaction is answered with the lowest offset that it can still get."""
    # Asked with every batch of a transaction: shorter than by the table.
    own = topic.configs.get(TRANSACTIONAL_OFFSETS)
    return (settings.topics.transactional_offsets if own is None else own) == "lowest"


def cleanup_policies(topic: Topic, settings: Settings) -> frozenset[CleanupPolicy]:
    """What happens to records that the topic need not keep; none: it keeps them all."""
    return frozenset(map(CleanupPolicy, list_items(value_of(CLEANUP_POLICY, topic, settings))))


def is_compacted(topic: Topic) -> bool:
    """Whether the topic keeps the latest record of each key: short for a look at `cleanup_policies`, for Produce."""
    own = topic.configs.get(CLEANUP_POLICY)
    return own is not None and CleanupPolicy.COMPACT.value in own


def retention_ms(topic: Topic, settings: Settings) -> int | None:
    """For how long records are kept, in milliseconds, if the policy is to delete; None: there is no limit."""
    return _limit(value_of(RETENTION_MS, topic, settings))


def retention_bytes(topic: Topic, settings: Settings) -> int | None:
    """How much each partition keeps, in bytes, if the policy is to delete; None: there is no limit."""
    return _limit(value_of(RETENTION_BYTES, topic, settings))


def delete_retention_ms(topic: Topic, settings: Settings) -> int:
    """For how long compaction keeps a tombstone, in milliseconds."""
    return int(value_of(DELETE_RETENTION_MS, topic, settings))


def compaction_lag_min_ms(topic: Topic, settings: Settings) -> int:
    """For how long compaction leaves a record alone, in milliseconds."""
    return int(value_of(COMPACTION_LAG_MIN_MS, topic, settings))


def compaction_lag_max_ms(topic: Topic, settings: Settings) -> int:
    """After how long compaction does not wait for more to clean, in milliseconds; 2^63 - 1 for never."""
    return int(value_of(COMPACTION_LAG_MAX_MS, topic, settings))


def dirty_ratio_min(topic: Topic, settings: Settings) -> float:
    """Which part of the topic, from 0 to 1, has to be new before it is compacted again."""
    return float(value_of(DIRTY_RATIO_MIN, topic, settings))


def _limit(text: str) -> int | None:
    value = int(text)
    return None if value == -1 else value
