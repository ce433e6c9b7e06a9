"""The node's settings under the names that Kafka's clients and tools ask for: what DescribeConfigs shows of a broker.

A table of names, in three parts: settings of ours that Kafka has under another name; the defaults of topic configs
(`fairlog.topic_configs`); and constants of this node. A name that is not in the table does not exist.

Most are read-only: settings come from flags, environment and file, and apply from one start to the next. Those that are
*dynamic* can be changed while the node runs (`fairlog.live_settings`): they are dynamic in Kafka, and the code that
uses them here reads them anew each time. `settings_with` puts such changes on top of the settings of the start.

Pure.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from fairlog.config import KEYS, ConfigError, Settings
from fairlog.config_sources import with_texts
from fairlog.config_values import ListenerAddresses
from fairlog.configured_listeners import all_listeners_of
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
    dynamic: bool = False
    """It can be changed while the node runs; then it is a setting, and written as that is."""

    @property
    def default(self) -> str | None:
        """The value of a node whose settings are all at their defaults."""
        return self.value(_DEFAULTS)

    def refusal(self) -> str:
        """Why it cannot be altered, and what to do instead."""
        if self.setting is None:
            return f"{self.name} of a broker is read-only"
        return f"{self.name} of a broker is read-only: set {self.setting} for its next start"


def _of_setting(name: str, kind: ConfigType, setting: str, *, dynamic: bool = False) -> BrokerConfig:
    return BrokerConfig(
        name, kind, KEYS[setting].doc, lambda settings: setting_text(settings, setting), setting, dynamic
    )


def _of_topics(row: TopicConfig, name: str) -> BrokerConfig:
    doc = f"Of topics that have no {row.name} of their own. {row.doc}"
    dynamic = row.setting is not None
    return BrokerConfig(name, row.values.type, doc, lambda settings: default_value(row, settings), row.setting, dynamic)


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
    return None if settings.advertised is None else _named(settings.advertised)


def _listeners(settings: Settings) -> str:
    return _named(settings.listen)


def _named(addresses: ListenerAddresses) -> str:
    return ",".join(f"{name}://{address}" for name, of_shards in addresses.named for address in of_shards)


def _protocols(settings: Settings) -> str:
    return ",".join(map(str, all_listeners_of(settings)))


GROUP_SEPARATOR = "fairlog.transaction.group.separator"

AUTHORIZER = "fairlog.security.authorizer.Authorizer"
"""What `authorizer.class.name` is with an authorizer: admin tools ask whether it is anything."""

_ROWS = (
    _of_setting("auto.create.topics.enable", ConfigType.BOOLEAN, "topics.auto_create"),
    _of_setting(TRANSACTIONS, ConfigType.STRING, "topics.transactions"),
    _of_setting("num.partitions", ConfigType.INT, "topics.partitions_default"),
    _of_setting("broker.id", ConfigType.INT, "node_id"),
    _of_setting("node.id", ConfigType.INT, "node_id"),
    _of_setting("max.connections", ConfigType.INT, "requests.connections_max", dynamic=True),
    _of_setting("max.connections.per.ip", ConfigType.INT, "requests.connections_max_per_ip", dynamic=True),
    _of_setting(
        "max.connections.per.ip.overrides",
        ConfigType.STRING,
        "requests.connections_max_per_ip_overrides",
        dynamic=True,
    ),
    _of_setting("max.connection.creation.rate", ConfigType.INT, "requests.connection_rate_max", dynamic=True),
    _of_setting("max.incremental.fetch.session.cache.slots", ConfigType.INT, "requests.fetch_session_cache_slots"),
    _of_setting("socket.request.max.bytes", ConfigType.INT, "requests.request_bytes_max"),
    _of_setting("producer.id.expiration.ms", ConfigType.INT, "transactions.producer_id_expiration_ms"),
    _of_setting("transaction.max.timeout.ms", ConfigType.INT, "transactions.max_timeout_ms"),
    _of_setting("transaction.two.phase.commit.enable", ConfigType.BOOLEAN, "transactions.two_phase_commit_enable"),
    _of_setting(GROUP_SEPARATOR, ConfigType.STRING, "transactions.group_separator"),
    _of_setting("transactional.id.expiration.ms", ConfigType.INT, "transactions.transactional_id_expiration_ms"),
    _of_setting(
        "transaction.abort.timed.out.transaction.cleanup.interval.ms",
        ConfigType.INT,
        "transactions.check_interval_ms",
    ),
    _of_setting("log.retention.check.interval.ms", ConfigType.LONG, "retention.check_interval_ms"),
    _of_setting("log.cleaner.backoff.ms", ConfigType.LONG, "retention.clean_interval_ms", dynamic=True),
    _of_setting("log.cleaner.dedupe.buffer.size", ConfigType.LONG, "retention.dedupe_buffer_bytes", dynamic=True),
    _of_setting("offsets.retention.minutes", ConfigType.INT, "offsets.retention_minutes"),
    _of_setting("offsets.retention.check.interval.ms", ConfigType.LONG, "offsets.retention_check_interval_ms"),
    _of_setting("offset.metadata.max.bytes", ConfigType.INT, "offsets.metadata_bytes_max"),
    _of_setting("group.initial.rebalance.delay.ms", ConfigType.INT, "groups.initial_rebalance_delay_ms"),
    _of_setting("group.min.session.timeout.ms", ConfigType.INT, "groups.min_session_timeout_ms"),
    _of_setting("group.max.session.timeout.ms", ConfigType.INT, "groups.max_session_timeout_ms"),
    _of_setting("group.max.size", ConfigType.INT, "groups.members_max"),
    _of_setting("log.dirs", ConfigType.STRING, "data_dir"),
    _of_setting("group.consumer.session.timeout.ms", ConfigType.INT, "groups.consumer_session_timeout_ms"),
    _of_setting("group.consumer.heartbeat.interval.ms", ConfigType.INT, "groups.consumer_heartbeat_interval_ms"),
    _of_setting("group.consumer.min.session.timeout.ms", ConfigType.INT, "groups.consumer_min_session_timeout_ms"),
    _of_setting("group.consumer.max.session.timeout.ms", ConfigType.INT, "groups.consumer_max_session_timeout_ms"),
    _of_setting(
        "group.consumer.min.heartbeat.interval.ms", ConfigType.INT, "groups.consumer_min_heartbeat_interval_ms"
    ),
    _of_setting(
        "group.consumer.max.heartbeat.interval.ms", ConfigType.INT, "groups.consumer_max_heartbeat_interval_ms"
    ),
    _of_setting("group.consumer.max.size", ConfigType.INT, "groups.members_max"),
    BrokerConfig("listeners", ConfigType.STRING, KEYS["listen"].doc, _listeners, "listen"),
    BrokerConfig("advertised.listeners", ConfigType.STRING, KEYS["advertised"].doc, _advertised, "advertised"),
    BrokerConfig(
        "listener.security.protocol.map",
        ConfigType.STRING,
        KEYS["security.protocols"].doc,
        _protocols,
        "security.protocols",
    ),
    BrokerConfig(
        "inter.broker.listener.name",
        ConfigType.STRING,
        KEYS["security.inner_listener"].doc,
        lambda settings: settings.security.inner_listener or None,
        "security.inner_listener",
    ),
    _of_setting("ssl.client.auth", ConfigType.STRING, "tls.client_auth"),
    _of_setting("ssl.principal.mapping.rules", ConfigType.STRING, "tls.principal_rules"),
    _retention_in(60_000, "log.retention.minutes", "minutes"),
    _retention_in(3_600_000, "log.retention.hours", "hours"),
    BrokerConfig(
        "authorizer.class.name",
        ConfigType.STRING,
        KEYS["authorizer.enable"].doc,
        lambda settings: AUTHORIZER if settings.authorizer.enable else "",
        "authorizer.enable",
    ),
    BrokerConfig(
        "super.users",
        ConfigType.STRING,
        KEYS["authorizer.super_users"].doc,
        lambda settings: ";".join(settings.authorizer.super_users),
        "authorizer.super_users",
    ),
    _of_setting("allow.everyone.if.no.acl.found", ConfigType.BOOLEAN, "authorizer.allow_everyone_if_no_acl_found"),
    _always("group.consumer.assignors", ConfigType.LIST, "uniform,range", "The first is for groups that do not say."),
    _always(
        "group.consumer.migration.policy",
        ConfigType.STRING,
        "bidirectional",
        "Groups change between the classic protocol and the new one while they have members.",
    ),
    _always("default.replication.factor", ConfigType.INT, "1", "Replicas of a partition: this node's alone."),
    _always("delete.topic.enable", ConfigType.BOOLEAN, "true", "Topics can be deleted."),
    _always("log.cleaner.enable", ConfigType.BOOLEAN, "true", "Topics with cleanup.policy compact are compacted."),
    _always("log.cleaner.threads", ConfigType.INT, "1", "One thread cleans, one partition after the other."),
    BrokerConfig(
        "sasl.enabled.mechanisms",
        ConfigType.LIST,
        KEYS["sasl.mechanisms"].doc,
        lambda settings: ",".join(settings.sasl.mechanisms),
        "sasl.mechanisms",
    ),
    _always(
        "transaction.partition.verification.enable",
        ConfigType.BOOLEAN,
        "true",
        "A transactional batch for a partition that was not added to the transaction is refused.",
    ),
    *(_of_topics(row, row.broker_name) for row in TOPIC_CONFIGS.values() if row.broker_name is not None),
)

BROKER_CONFIGS: Mapping[str, BrokerConfig] = {row.name: row for row in sorted(_ROWS, key=lambda row: row.name)}
"""The table, by Kafka's name."""


def settings_with(of_start: Settings, *changed: Mapping[str, str]) -> Settings:
    """The settings of the start with what clients have set for brokers on top, the weakest first.

    `changed` are Kafka's names of dynamic configs, with values as text. Raises ConfigError that names the config.
    """
    settings = of_start
    for name, value in {name: value for each in changed for name, value in each.items()}.items():
        row = BROKER_CONFIGS.get(name)
        if row is None or row.setting is None or not row.dynamic:
            raise ConfigError(f"{name} of a broker cannot be changed at run time")
        settings = with_texts(settings, {row.setting: value}, f"the broker config {name}")
    return settings
