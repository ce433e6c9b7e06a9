"""What the engine on Kafka is told, and how a stream's topic has to be kept: pure, no client in here.

A topic is made with the settings that are wanted right away, and judged by what the brokers say of it: `weakness` is
one sentence on the first thing that is weaker than wanted, with the command that mends it.

What each of them is for:

- *replicas* and `min.insync.replicas`: an append is answered when this many replicas have it.
- `unclean.leader.election.enable=false`: a replica that lacks answered entries never leads.
- `retention.ms`, `retention.bytes` and `cleanup.policy`: nothing goes but what we trim.
- `max.message.bytes`: the largest entry fits.
- `flush.messages=1`, if asked for: replicas have it on their disks, not only in their memory, so that all of them may
  lose their power at once.
- `message.timestamp.type=LogAppendTime` is set and not judged: with the other type a broker refuses records from a
  clock that is an hour ahead, and no clock is to have a say here.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from stream.engine import WeakStream

PASSED_ON = ("security.protocol", "sasl.", "ssl.")
"""Settings of librdkafka that may be passed on, or how their names begin: who we are, and how to hide it."""

OVERHEAD_BYTES = 1024
"""For what Kafka writes around an entry: a batch header of 61 bytes, a record's of some 20."""

_NAME = re.compile(r"[a-zA-Z0-9._-]+")
_NAME_LENGTH_MAX = 249
"""As in org.apache.kafka.common.internals.Topic."""


class SettingsRefused(ValueError):
    """A setting of the engine cannot be used; the message names it, and what is possible."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KafkaEngineSettings:
    """Raises SettingsRefused."""

    bootstrap_servers: str
    """HOST:PORT of some brokers, with commas between them."""
    cluster: str
    """The name of our cluster: what its topics' names begin with."""
    node: int | None = None
    """The number of the node that asks, for the client id: brokers log, count and limit by it."""
    replicas: int = 3
    """How many replicas each topic has. 1 is for trying it out: one disk then decides."""
    min_insync_replicas: int = 2
    """How many of them have an entry when it is answered."""
    flush_each_entry: bool = False
    """Whether they have it on their disks then."""
    entry_bytes_max: int = 16 << 20
    append_timeout_s: float = 30.0
    """After this an append that is not answered is Unknown."""
    request_timeout_s: float = 10.0
    """After this a connection on which a request is not answered is given up, and another broker is asked."""
    passed_on: Mapping[str, str] = field(default_factory=dict[str, str])
    """Settings of librdkafka, by its names: security.protocol, sasl.* and ssl.*."""

    def __post_init__(self) -> None:
        if not _NAME.fullmatch(self.cluster):
            raise SettingsRefused(
                f"the cluster's name begins the names of topics, so it is made of letters, digits, '.', '_' and '-': "
                f"not {self.cluster!r}"
            )
        if self.replicas < 1:
            raise SettingsRefused(f"a topic has at least 1 replica, not {self.replicas}")
        if not 1 <= self.min_insync_replicas <= self.replicas:
            raise SettingsRefused(
                f"of {self.replicas} replicas 1 to {self.replicas} can be in sync, "
                f"so min.insync.replicas cannot be {self.min_insync_replicas}"
            )
        if self.append_timeout_s <= 0 or self.request_timeout_s <= 0:
            raise SettingsRefused("time-outs are longer than 0 s")
        if not 1 <= self.entry_bytes_max <= 1_000_000_000 - OVERHEAD_BYTES:
            raise SettingsRefused(f"an entry takes 1 to {1_000_000_000 - OVERHEAD_BYTES} bytes at most")
        for name in self.passed_on:
            if not name.startswith(PASSED_ON):
                raise SettingsRefused(
                    f"{name} cannot be passed on to librdkafka: only security.protocol, sasl.* and ssl.* can, "
                    "for the rest is what the contract of a stream relies on"
                )

    def topic(self, stream: str) -> str:
        """The topic of a stream. Raises SettingsRefused."""
        topic = f"{self.cluster}.{stream}"
        if not _NAME.fullmatch(topic) or len(topic) > _NAME_LENGTH_MAX:
            raise SettingsRefused(
                f"{topic!r} cannot be a topic of Kafka: at most {_NAME_LENGTH_MAX} letters, digits, '.', '_' and '-'"
            )
        return topic


@dataclass(frozen=True, slots=True)
class KeptTopic:
    """A topic as the brokers describe it."""

    name: str
    partitions: int
    replicas: int
    """Of the partition that has the fewest."""
    configs: Mapping[str, str]
    """Its settings by name, also those that are the brokers' defaults."""


def configs_at_creation(settings: KafkaEngineSettings) -> dict[str, str]:
    """The settings that a stream's topic is made with."""
    return {name: value for name, value, _ in _wanted(settings)} | {"message.timestamp.type": "LogAppendTime"}


def check_strength(topic: KeptTopic, settings: KafkaEngineSettings) -> None:
    """Raises WeakStream: the topic is kept less safely than the settings say."""
    weakness = _weakness(topic, settings)
    if weakness is not None:
        raise WeakStream(weakness)


def _weakness(topic: KeptTopic, settings: KafkaEngineSettings) -> str | None:
    if topic.partitions != 1:
        return (
            f"the topic {topic.name} has {topic.partitions} partitions, and a stream has 1: none can be taken away, "
            "so the cluster needs another name, or this topic has to go (with all that is in it)"
        )
    if topic.replicas < settings.replicas:
        return (
            f"the topic {topic.name} has {topic.replicas} replicas, and {settings.replicas} are wanted: "
            f"`kafka-reassign-partitions.sh --bootstrap-server {_first_server(settings)} "
            "--reassignment-json-file FILE --execute` adds some"
        )
    for name, wanted, at_least in _wanted(settings):
        found = topic.configs.get(name)
        if found is None:
            return f"the brokers do not say what {name} of the topic {topic.name} is, and {wanted} is wanted"
        if found == wanted or (at_least and found.isdecimal() and int(found) >= int(wanted)):
            continue
        return (
            f"{name} of the topic {topic.name} is {found}, and {wanted} is wanted{' at least' if at_least else ''}: "
            f"`kafka-configs.sh --bootstrap-server {_first_server(settings)} --alter --entity-type topics "
            f"--entity-name {topic.name} --add-config {name}={wanted}` mends it"
        )
    return None


def _wanted(settings: KafkaEngineSettings) -> list[tuple[str, str, bool]]:
    """Name, value, and whether more than that is as good."""
    wanted = [
        ("min.insync.replicas", str(settings.min_insync_replicas), True),
        ("unclean.leader.election.enable", "false", False),
        ("cleanup.policy", "delete", False),
        ("retention.ms", "-1", False),
        ("retention.bytes", "-1", False),
        ("max.message.bytes", str(settings.entry_bytes_max + OVERHEAD_BYTES), True),
    ]
    if settings.flush_each_entry:
        wanted.append(("flush.messages", "1", False))
    return wanted


def _first_server(settings: KafkaEngineSettings) -> str:
    return settings.bootstrap_servers.partition(",")[0]
