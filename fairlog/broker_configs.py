"""The node's settings under the names that Kafka's clients and tools ask for: what DescribeConfigs shows of a broker.

A table of names, in three parts: settings of ours that Kafka has under another name; what a topic's config has for
a default (`fairlog.topic_configs`); and what is always so on this node. All are read-only: settings come from flags,
environment and file, and hold from one start to the next. A name that is not in the table does not exist.

Pure.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from fairlog.config import KEYS, Settings
from fairlog.topic_configs import TOPIC_CONFIGS, TRANSACTIONS, ConfigType, TopicConfig, default_value, setting_text

_DEFAULTS = Settings()


@dataclass(frozen=True, slots=True)
class BrokerConfig:
    """A row of the table."""

    name: str
    type: ConfigType
    doc: str
    value: Callable[[Settings], str | None]
    """As text; None if it has none."""
    setting: str | None = None
    """The full name of the setting that it is, if it is one."""

    @property
    def default(self) -> str | None:
        """The value of a node whose settings are all at their defaults."""
        return self.value(_DEFAULTS)

    def refusal(self) -> str:
        """Why it cannot be altered, and what to do instead."""
        if self.setting is None:
            return f"{self.name} of a broker is read-only"
        return f"{self.name} of a broker is read-only: set {self.setting} for its next start"


def _of_setting(name: str, kind: ConfigType, setting: str) -> BrokerConfig:
    return BrokerConfig(name, kind, KEYS[setting].doc, lambda settings: setting_text(settings, setting), setting)


def _of_topics(row: TopicConfig, name: str) -> BrokerConfig:
    doc = f"Of topics that have no {row.name} of their own. {row.doc}"
    return BrokerConfig(name, row.values.type, doc, lambda settings: default_value(row, settings), row.setting)


def _always(name: str, kind: ConfigType, value: str, doc: str) -> BrokerConfig:
    return BrokerConfig(name, kind, doc, lambda _settings: value)


def _retention_in(unit_ms: int, name: str, unit: str) -> BrokerConfig:
    def value(settings: Settings) -> str | None:
        retention_ms = settings.topics.retention_ms
        if retention_ms == -1:
            return "-1"
        return None if retention_ms % unit_ms else str(retention_ms // unit_ms)

    doc = f"log.retention.ms in {unit}, if it is a whole number of them."
    return BrokerConfig(name, ConfigType.INT, doc, value, "topics.retention_ms")


def _advertised(settings: Settings) -> str | None:
    return None if settings.advertised is None else f"PLAINTEXT://{settings.advertised}"


def _listeners(settings: Settings) -> str:
    return f"PLAINTEXT://{settings.listen}"


_ROWS = (
    _of_setting("auto.create.topics.enable", ConfigType.BOOLEAN, "topics.auto_create"),
    _of_setting(TRANSACTIONS, ConfigType.STRING, "topics.transactions"),
    _of_setting("num.partitions", ConfigType.INT, "topics.partitions_default"),
    _of_setting("broker.id", ConfigType.INT, "node_id"),
    _of_setting("node.id", ConfigType.INT, "node_id"),
    _of_setting("max.connections", ConfigType.INT, "requests.connections_max"),
    _of_setting("socket.request.max.bytes", ConfigType.INT, "requests.request_bytes_max"),
    _of_setting("producer.id.expiration.ms", ConfigType.INT, "transactions.producer_id_expiration_ms"),
    _of_setting("transaction.max.timeout.ms", ConfigType.INT, "transactions.max_timeout_ms"),
    _of_setting("transactional.id.expiration.ms", ConfigType.INT, "transactions.transactional_id_expiration_ms"),
    _of_setting(
        "transaction.abort.timed.out.transaction.cleanup.interval.ms",
        ConfigType.INT,
        "transactions.check_interval_ms",
    ),
    _of_setting("group.consumer.session.timeout.ms", ConfigType.INT, "groups.consumer_session_timeout_ms"),
    _of_setting("group.consumer.heartbeat.interval.ms", ConfigType.INT, "groups.consumer_heartbeat_interval_ms"),
    _of_setting("group.consumer.max.size", ConfigType.INT, "groups.members_max"),
    BrokerConfig("listeners", ConfigType.STRING, KEYS["listen"].doc, _listeners, "listen"),
    BrokerConfig("advertised.listeners", ConfigType.STRING, KEYS["advertised"].doc, _advertised, "advertised"),
    _retention_in(60_000, "log.retention.minutes", "minutes"),
    _retention_in(3_600_000, "log.retention.hours", "hours"),
    _always(
        "authorizer.class.name", ConfigType.STRING, "", "There are no ACLs: whoever can connect may do everything."
    ),
    _always("group.consumer.assignors", ConfigType.LIST, "uniform,range", "The first is for groups that do not say."),
    _always(
        "group.consumer.migration.policy",
        ConfigType.STRING,
        "bidirectional",
        "Groups change between the classic protocol and the new one while they have members.",
    ),
    _always("default.replication.factor", ConfigType.INT, "1", "Replicas of a partition: this node's alone."),
    _always("delete.topic.enable", ConfigType.BOOLEAN, "true", "Topics can be deleted."),
    *(_of_topics(row, row.broker_name) for row in TOPIC_CONFIGS.values() if row.broker_name is not None),
)

BROKER_CONFIGS: Mapping[str, BrokerConfig] = {row.name: row for row in sorted(_ROWS, key=lambda row: row.name)}
"""The table, by Kafka's name."""
