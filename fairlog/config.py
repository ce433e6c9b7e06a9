"""The node's settings: what can be set.

One table describes all keys: the dataclasses below and in `fairlog.security_settings`. Each field is declared by
`key(...)`, which carries the default, the reader that turns an outside value into the right type, and the sentence for
the docs. From this table come the reading of flags, environment and file, the messages, and docs/configuration.md.

A key's full name is its path, `journal.fsync`. Where its value comes from, `fairlog.config_sources` says.
"""

from __future__ import annotations

import dataclasses
import os
import types
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, cast

from fairlog.config_key import NOTES, KeyNotes, key
from fairlog.config_values import (
    Address,
    CountsByName,
    ListenerAddresses,
    Secret,
    one_of,
    read_address_or_off,
    read_counts_by_address,
    read_counts_by_listener,
    read_directory,
    read_file_or_none,
    read_journals,
    read_listeners,
    read_name_or_empty,
    read_names,
    read_protocol,
    read_secret,
    read_switch,
    read_text_or_empty,
    whole,
)
from fairlog.security.listeners import SecurityProtocol
from fairlog.security_settings import (
    AuthorizerSettings,
    OauthSettings,
    SaslSettings,
    SecuritySettings,
    TlsSettings,
    TrailSettings,
)
from partition.modes import TransactionModeName

ENVIRONMENT_PREFIX = "FAIRLOG_"

PROCESS_VARIABLE = "FAIRLOG_PROCESS"
"""What a supervisor tells each of its processes (`fairlog.supervisor.assignment`)."""

TransactionalOffsetsName = Literal["none", "lowest"]
"""Which offsets are answered inside of transactions."""


NO_LIMIT = 2**31 - 1
"""Kafka's way to say so."""

PROCESSES_MAX = 64
"""So many processes one supervisor starts; above this, one machine's cores are no reason for more."""


class ConfigError(Exception):
    """A setting is wrong. The message is one sentence that names the key and where it was set."""


@dataclass(frozen=True, slots=True)
class Ready:
    """What a node that serves says of itself."""

    advertised: ListenerAddresses
    """What clients are told to connect to: one address for each listener."""
    admin: Address | None
    """Where the admin listener is; None if there is none."""


def _read_processes(value: object) -> object:
    """A number of processes; `auto` is one for each core that this process may use."""
    if isinstance(value, str) and value.lower() == "auto":
        return min(len(os.sched_getaffinity(0)), PROCESSES_MAX)
    try:
        return whole(1, PROCESSES_MAX)(value)
    except ValueError as error:
        raise ValueError(f"auto, or {error}") from error


# --- the table -----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class TopicSettings:
    """How topics are made, and what they keep unless they say so themselves."""

    auto_create: bool = key(
        True,
        read_switch,
        "Create a topic when a client asks for its metadata, if that client allows it, or produces to it.",
    )
    partitions_default: int = key(
        1,
        whole(1, 100_000),
        "Partitions of a topic that is created without a number of partitions (auto-created, or created with -1).",
    )
    replication_factor_policy: Literal["clamp", "refuse"] = key(
        "clamp",
        one_of("clamp", "refuse"),
        "What to do when a client asks for more replicas than there are nodes. clamp: create the topic with one "
        "replica for each node, and log a line. refuse: INVALID_REPLICATION_FACTOR.",
    )
    transactions: TransactionModeName = key(
        "journal",
        one_of("journal", "markers"),
        "How transactions reach a topic that is created without its own fairlog.transactions. journal: they are "
        "copied into it when they have committed. markers: at once, and a control record ends them, as in Kafka. "
        "Existing topics do not change.",
    )
    transactional_offsets: TransactionalOffsetsName = key(
        "none",
        one_of("none", "lowest"),
        "What delivery reports inside a transaction show as the offset, in topics of journal mode without their own "
        "fairlog.transactional.offsets. none: no offset. lowest: the smallest offset that the record can still get, "
        "which is exact if one producer writes a partition.",
    )
    retention_ms: int = key(
        604_800_000,
        whole(-1),
        "Milliseconds for which records are kept, in topics without their own retention.ms; -1: no limit. Kafka's "
        "log.retention.ms.",
    )
    retention_bytes: int = key(
        -1,
        whole(-1),
        "Bytes of records that each partition keeps, in topics without their own retention.bytes; -1: no limit. "
        "Kafka's log.retention.bytes.",
    )


@dataclass(frozen=True, slots=True)
class RequestSettings:
    """What a client may ask of the node's memory."""

    request_bytes_max: int = key(
        104_857_600,
        whole(1024, 2**31 - 1),
        "Largest request frame in bytes; the node closes a connection that announces a larger one. Kafka's "
        "socket.request.max.bytes.",
    )
    message_bytes_max: int = key(
        1_048_588,
        whole(1024, 2**31 - 1),
        "Largest record batch in bytes, as sent (compressed), in topics without their own max.message.bytes. Kafka's "
        "message.max.bytes.",
    )
    connections_max: int = key(
        1000, whole(1), "Connections served at once; each further one is closed at once, with a log line."
    )
    connections_max_per_ip: int = key(
        NO_LIMIT,
        whole(0, NO_LIMIT),
        "Connections from one address at once; each further one is closed at once. Kafka's max.connections.per.ip.",
        default_text="no limit",
    )
    connections_max_per_ip_overrides: CountsByName = key(
        CountsByName(),
        read_counts_by_address,
        "The same for single addresses: ADDRESS:COUNT, with commas between them. Kafka's "
        "max.connections.per.ip.overrides.",
        default_text="none",
    )
    connections_max_by_listener: CountsByName = key(
        CountsByName(),
        read_counts_by_listener,
        "Connections at one listener at once: NAME:COUNT, with commas between several. Kafka's max.connections of a "
        "listener.",
        default_text="none",
    )
    connection_rate_max: int = key(
        NO_LIMIT,
        whole(1, NO_LIMIT),
        "New connections a second; after a pause, ten seconds' worth at once. Each further one is closed at once. "
        "Kafka's max.connection.creation.rate.",
        default_text="no limit",
    )
    fetch_session_cache_slots: int = key(
        1000,
        whole(0),
        "Fetch sessions kept at once; a consumer without a session names all its partitions in each request. 0: no "
        "sessions. Kafka's max.incremental.fetch.session.cache.slots.",
    )


@dataclass(frozen=True, slots=True)
class JournalSettings:
    """How journals are written."""

    engine: str | None = key(
        None,
        read_journals,
        "Where journals are kept. files: in the data directory. kafka://HOST:PORT,…: on a replicated log, the Kafka "
        "cluster with these brokers; then several machines serve as one cluster (cluster.name), and docs/cluster.md "
        "describes it.",
        default_text="files",
    )
    fsync: Literal["commit", "interval", "never"] = key(
        "commit",
        one_of("commit", "interval", "never"),
        "When journals are flushed to disk. commit: before the answer (to a commit, or to a plain produce with "
        "acks=all). interval: within journal.fsync_interval_ms. never: the operating system decides, as with Kafka.",
    )
    fsync_interval_ms: int = key(100, whole(1), "Milliseconds between two flushes with journal.fsync = interval.")
    segment_bytes_max: int = key(
        32 * 1024 * 1024,
        whole(1024 * 1024, 2**31 - 1),
        "Size in bytes at which a local journal (one per partition) continues in a new segment file. Space is freed "
        "by whole segments.",
    )
    group_journals: int = key(
        16,
        whole(1, 1024),
        "Group journals over which transactional ids are hashed. Fixed at the very first start of a data directory: "
        "later values are ignored.",
    )


@dataclass(frozen=True, slots=True)
class EngineSettings:
    """The Kafka cluster that keeps the journals, with journal.engine. What its topics lack of this is refused."""

    replicas: int = key(
        3,
        whole(1, 100),
        "Replicas of each of the engine's topics. 1 is for trying it out: then one disk has what was answered.",
    )
    min_insync_replicas: int = key(
        2,
        whole(1, 100),
        "How many of them have an entry when it is answered. Kafka's min.insync.replicas.",
    )
    flush_each_entry: bool = key(
        False,
        read_switch,
        "Whether they have it on their disks then, so that all of them may lose their power at once. Kafka's "
        "flush.messages = 1.",
    )
    client_properties: Path | None = key(
        None,
        read_file_or_none,
        "A file with settings of librdkafka, a line NAME=VALUE each, by which the node connects to the engine: "
        "security.protocol, sasl.* and ssl.*.",
        default_text="none",
    )


@dataclass(frozen=True, slots=True)
class ClusterSettings:
    """Several machines that serve as one cluster, with journal.engine. All nodes of a cluster have the same values,
    but for the rack.
    """

    name: str = key(
        "",
        read_name_or_empty,
        "The cluster's name: what the names of the engine's topics begin with. Nodes with one name on one engine are "
        "one cluster.",
        default_text="none",
    )
    shards: int = key(
        3,
        whole(1, PROCESSES_MAX),
        "Shards over which partitions, groups and transactions are spread; each is owned by one node at a time. Fixed "
        "at the cluster's first start.",
    )
    replicas: int = key(
        2,
        whole(1, 100),
        "Nodes that keep a copy of each shard, its owner among them. What is answered is safe with one: the engine has "
        "it. Each further one can become the owner at once.",
    )
    failover_ms: int = key(
        3000,
        whole(200, 600_000),
        "Milliseconds for which nothing is heard of a shard's owner until another node takes its place.",
    )
    rack: str = key(
        "",
        read_name_or_empty,
        "The rack, or zone, that this node is in. Consumers with the same client.rack read from its copies. Kafka's "
        "broker.rack.",
        default_text="none",
    )


@dataclass(frozen=True, slots=True)
class DataLogSettings:
    """How data logs are kept."""

    map_bytes: int = key(
        256 * 1024**3,
        whole(16 * 1024**2),
        "Maximum size of all data logs together, in bytes: LMDB's map size. It takes address space, not disk or "
        "memory.",
    )


@dataclass(frozen=True, slots=True)
class RetentionSettings:
    """How often it is looked for what topics need not keep. How much they keep is said by each topic's configs."""

    check_interval_ms: int = key(
        300_000,
        whole(1),
        "Milliseconds between two checks for records to delete by age or size (cleanup.policy=delete). Kafka's "
        "log.retention.check.interval.ms.",
    )
    clean_interval_ms: int = key(
        15_000,
        whole(1),
        "Milliseconds between two checks for topics to compact (cleanup.policy=compact). Kafka's "
        "log.cleaner.backoff.ms.",
    )
    dedupe_buffer_bytes: int = key(
        128 * 1024**2,
        whole(32 * 1024**2),
        "Memory for the keys of one compaction, about 200 bytes each; if they do not fit, compaction takes several "
        "passes over the log. Kafka's log.cleaner.dedupe.buffer.size.",
    )


@dataclass(frozen=True, slots=True)
class TransactionSettings:
    """How long transactions and producers may idle. Defaults are Kafka's, where Kafka has one."""

    check_interval_ms: int = key(
        10_000, whole(1), "Milliseconds between two checks for transactions that have timed out."
    )
    fence_on_timeout: bool = key(
        True,
        read_switch,
        "Bump the producer's epoch when its transaction times out, so that a producer that wakes up late is fenced.",
    )
    min_timeout_ms: int = key(1000, whole(1), "A client's transaction.timeout.ms below this is raised to it.")
    max_timeout_ms: int = key(
        900_000,
        whole(1, 2**31 - 2),
        "A client's transaction.timeout.ms above this is lowered to it; zero or less is refused as "
        "INVALID_TRANSACTION_TIMEOUT. Kafka, with its transaction.max.timeout.ms, refuses both.",
    )
    two_phase_commit_enable: bool = key(
        False,
        read_switch,
        "Accept transactions without a time-out, whose outcome another system decides (KIP-939). If such a "
        "transaction is never ended, it keeps journal segments for ever. Kafka's transaction.two.phase.commit.enable.",
    )
    group_separator: str = key(
        "",
        read_text_or_empty,
        "What stands between group and member in a transactional id, such as `::`. All ids of one group then share one "
        "commit order in every partition. Empty: each id is a group of its own. An id that is known stays in the group "
        "that it was made in until it expires. With several processes it is fixed at the first start.",
        default_text="empty",
    )
    transactional_id_expiration_ms: int = key(
        604_800_000,
        whole(1),
        "Milliseconds after which an idle transactional id is forgotten. Kafka's transactional.id.expiration.ms.",
    )
    producer_id_expiration_ms: int = key(
        86_400_000,
        whole(1),
        "Milliseconds after which a partition forgets the sequences of an idle producer. Kafka's "
        "producer.id.expiration.ms.",
    )


@dataclass(frozen=True, slots=True)
class OffsetSettings:
    """What consumer groups commit. Defaults are Kafka's."""

    retention_minutes: int = key(
        10_080,
        whole(1),
        "Minutes after which a committed offset is forgotten. They count from the time when the group's last member "
        "left, or from the commit if that is later, or if the group no longer consumes the topic. Kafka's "
        "offsets.retention.minutes.",
    )
    retention_check_interval_ms: int = key(
        600_000,
        whole(1),
        "Milliseconds between two checks for such offsets. Kafka's offsets.retention.check.interval.ms.",
    )
    metadata_bytes_max: int = key(
        4096,
        whole(0, 2**15 - 1),
        "Largest metadata string of a committed offset, in bytes of UTF-8. Kafka's offset.metadata.max.bytes.",
    )


@dataclass(frozen=True, slots=True)
class GroupSettings:
    """How consumer groups find together. Defaults are Kafka's, but for the first and the last."""

    initial_rebalance_delay_ms: int = key(
        200,
        whole(0, 2**31 - 1),
        "Milliseconds that the first member of an empty group waits for further members; each new member starts the "
        "wait again. Kafka's group.initial.rebalance.delay.ms, which is 3000 because of large deployments.",
    )
    min_session_timeout_ms: int = key(
        6_000,
        whole(1, 2**31 - 1),
        "A consumer's session.timeout.ms below this is refused. Kafka's group.min.session.timeout.ms.",
    )
    max_session_timeout_ms: int = key(
        1_800_000,
        whole(1, 2**31 - 1),
        "A consumer's session.timeout.ms above this is refused. Kafka's group.max.session.timeout.ms.",
    )
    consumer_session_timeout_ms: int = key(
        45_000,
        whole(1, 2**31 - 1),
        "Milliseconds without a heartbeat after which a member of the new protocol (KIP-848) is removed. Kafka's "
        "group.consumer.session.timeout.ms.",
    )
    consumer_heartbeat_interval_ms: int = key(
        5_000,
        whole(1, 2**31 - 1),
        "Milliseconds between two heartbeats of a member of the new protocol. The node tells members this interval. "
        "Kafka's group.consumer.heartbeat.interval.ms.",
    )
    consumer_min_session_timeout_ms: int = key(
        45_000,
        whole(1, 2**31 - 1),
        "The smallest consumer.session.timeout.ms that a group of the new protocol can have. Kafka's "
        "group.consumer.min.session.timeout.ms.",
    )
    consumer_max_session_timeout_ms: int = key(
        60_000,
        whole(1, 2**31 - 1),
        "The largest consumer.session.timeout.ms that a group of the new protocol can have. Kafka's "
        "group.consumer.max.session.timeout.ms.",
    )
    consumer_min_heartbeat_interval_ms: int = key(
        5_000,
        whole(1, 2**31 - 1),
        "The smallest consumer.heartbeat.interval.ms that a group of the new protocol can have. Kafka's "
        "group.consumer.min.heartbeat.interval.ms.",
    )
    consumer_max_heartbeat_interval_ms: int = key(
        15_000,
        whole(1, 2**31 - 1),
        "The largest consumer.heartbeat.interval.ms that a group of the new protocol can have. Kafka's "
        "group.consumer.max.heartbeat.interval.ms.",
    )
    members_max: int = key(
        1_000, whole(1), "Maximum number of members of one group. Kafka's group.max.size, which is unlimited."
    )


@dataclass(frozen=True, slots=True)
class AdminSettings:
    """The admin listener: health, metrics, and the console. docs/admin-http.md describes it."""

    listen: Address | None = key(
        Address("127.0.0.1", 9644),
        read_address_or_off,
        "HOST:PORT of the admin listener, or off. With several shards it is the first one's, and the ports of the "
        "others follow.",
    )
    protocol: SecurityProtocol = key(
        SecurityProtocol.PLAINTEXT,
        read_protocol,
        "How the admin listener is protected, by the names of other listeners: PLAINTEXT, SSL (TLS), SASL_PLAINTEXT or "
        "SASL_SSL (callers have to say who they are: users with their passwords). Without SASL, anyone who reaches it "
        "can look at everything except records, and changes need the token.",
    )
    token: Secret | None = key(
        None,
        read_secret,
        "The token that allows everything at the admin listener, such as aborting a transaction.",
        default_text="generated at the first start: the file `admin-token` in `data_dir`",
    )
    hosts: tuple[str, ...] = key(
        (),
        read_names,
        "Names, separated by commas, by which clients reach the admin listener, besides localhost and IP addresses. "
        "Requests to other names are refused, because pages of other sites could send them.",
        default_text="none",
    )


@dataclass(frozen=True, slots=True)
class LogSettings:
    """The node's own log lines, on stderr."""

    level: Literal["debug", "info", "warning", "error"] = key(
        "info",
        one_of("debug", "info", "warning", "error"),
        "debug: a line per request, and all others. info: a line per transaction. warning: what an operator should "
        "look at. error: failures.",
    )
    format: Literal["auto", "console", "json"] = key(
        "auto",
        one_of("auto", "console", "json"),
        "console: for people. json: one object per line. auto: console if stderr is a terminal, else json.",
    )


@dataclass(frozen=True, slots=True)
class Settings:
    """All that can be set; `Settings()` is all defaults. Make one with `load`."""

    data_dir: Path = key(
        Path("fairlog-data"), read_directory, "The directory for all data. Only one node at a time may use it."
    )
    listen: ListenerAddresses = key(
        ListenerAddresses.plain(Address("127.0.0.1", 9092)),
        read_listeners,
        "HOST:PORT to accept clients on. With port 0 the system picks one; 0.0.0.0 accepts on every interface. Or "
        "several listeners, as in Kafka's listeners: NAME://HOST:PORT,NAME2://HOST:PORT. A name is a security protocol "
        "(PLAINTEXT, SSL), or is mapped to one by security.protocols; without a name it is PLAINTEXT. With several "
        "shards an address is the first one's, and the ports of the others follow; or list one for each, with commas "
        "between them (with names: each with the name). In a cluster of several machines an address is where clients "
        "may begin; after it follow a port for each shard, and, for the first listener, one for each shard where "
        "nodes reach each other, unless these have a listener of their own (security.inner_listener).",
    )
    advertised: ListenerAddresses | None = key(
        None,
        read_listeners,
        "HOST:PORT that clients are told to connect to. Needed when they cannot use the listen address: behind a "
        "port mapping, or with listen = 0.0.0.0. Port 0 stands for the port of the listen address. With several "
        "listeners NAME://HOST:PORT,NAME2://HOST:PORT: clients are told the addresses of the listener that they have "
        "come in by; one that is not named is reached where it listens. Kafka's advertised.listeners. With several "
        "shards as listen.",
        default_text="the listen address",
    )
    node_id: int = key(
        1,
        whole(0, 2**31 - 1),
        "This node's id. Fixed at the very first start of a data directory: a different one is refused. With several "
        "shards it is the first one's, and the ids of the others follow. In a cluster of several machines each node "
        "has another one, and the broker of a shard on it has the id 1000 × node_id + shard.",
    )
    processes: int = key(
        1,
        _read_processes,
        f"Processes that may serve the data directory; at most {PROCESSES_MAX}. auto: one for each core that the node "
        "may use. The very first start makes a shard for each, which is a broker of its own to clients. Later there "
        "may be more processes, or as few as have a shard; fairlog shard adds and moves shards.",
    )
    shard: int = 0
    """Which shard is served with these settings, from 0: no key, for the supervisor says so."""
    shards: int = 1
    """How many there are: no key, for the data directory says so."""
    admin_listeners: tuple[Address, ...] = ()
    """Where the admin listener of each shard is, by number, if there are several: no key either."""
    stop_grace_ms: int = key(
        10_000,
        whole(0),
        "Maximum milliseconds for stopping: up to three quarters for requests in flight and for copying committed "
        "transactions, the rest for closing files. Unfinished work is done at the next start.",
    )
    topics: TopicSettings = TopicSettings()
    requests: RequestSettings = RequestSettings()
    journal: JournalSettings = JournalSettings()
    engine: EngineSettings = EngineSettings()
    cluster: ClusterSettings = ClusterSettings()
    datalog: DataLogSettings = DataLogSettings()
    retention: RetentionSettings = RetentionSettings()
    transactions: TransactionSettings = TransactionSettings()
    offsets: OffsetSettings = OffsetSettings()
    groups: GroupSettings = GroupSettings()
    authorizer: AuthorizerSettings = AuthorizerSettings()
    admin: AdminSettings = AdminSettings()
    security: SecuritySettings = SecuritySettings()
    tls: TlsSettings = TlsSettings()
    sasl: SaslSettings = SaslSettings()
    oauth: OauthSettings = OauthSettings()
    log: LogSettings = LogSettings()
    trail: TrailSettings = TrailSettings()


# --- what the table says -------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Key:
    """A row of the table."""

    name: str
    """The full name: `journal.fsync`."""
    default: object
    doc: str
    default_text: str | None
    read: Callable[[object], object]

    @property
    def variable(self) -> str:
        """The environment variable that sets it."""
        return ENVIRONMENT_PREFIX + self.name.replace(".", "_").upper()


def _rows(tree: type[Any], prefix: str) -> Iterator[Key]:
    for field in dataclasses.fields(tree):
        notes = field.metadata.get(NOTES)
        if isinstance(notes, KeyNotes):
            yield Key(prefix + field.name, field.default, notes.doc, notes.default_text, notes.read)
        elif dataclasses.is_dataclass(field.default):
            yield from _rows(cast(type[Any], type(field.default)), f"{prefix}{field.name}.")


KEYS: Mapping[str, Key] = types.MappingProxyType({row.name: row for row in _rows(Settings, "")})
"""The table, by full name, in the order of the docs."""
