"""The node's settings under Kafka's names."""

from __future__ import annotations

import pytest

from fairlog.broker_configs import BROKER_CONFIGS, BrokerConfig
from fairlog.config import KEYS, Settings, load


def value(name: str, settings: Settings) -> str | None:
    return BROKER_CONFIGS[name].value(settings)


def with_settings(**flags: object) -> Settings:
    return load(flags={name.replace("__", "."): each for name, each in flags.items()}, environment={})


@pytest.mark.parametrize("row", BROKER_CONFIGS.values(), ids=lambda row: row.name)
def test_broker_config_row_is_complete(row: BrokerConfig) -> None:
    """There is something to read about each, and a setting that it names is one."""
    assert row.doc.endswith(".")
    assert row.setting is None or row.setting in KEYS
    assert row.name in row.refusal()


def test_broker_configs_show_the_settings_of_the_node() -> None:
    """As Kafka writes them: booleans in small letters, listeners with their protocol."""
    settings = with_settings(
        topics__auto_create=False,
        topics__partitions_default=6,
        topics__retention_ms=7_200_000,
        requests__message_bytes_max=5000,
        transactions__max_timeout_ms=60_000,
        listen="0.0.0.0:9092",
        advertised="broker.example:9094",
        node_id=3,
    )
    expected = {
        "auto.create.topics.enable": "false",
        "num.partitions": "6",
        "log.retention.ms": "7200000",
        "log.retention.minutes": "120",
        "log.retention.hours": "2",
        "log.retention.bytes": "-1",
        "log.cleanup.policy": "delete",
        "message.max.bytes": "5000",
        "transaction.max.timeout.ms": "60000",
        "transactional.id.expiration.ms": "604800000",
        "listeners": "PLAINTEXT://0.0.0.0:9092",
        "advertised.listeners": "PLAINTEXT://broker.example:9094",
        "broker.id": "3",
        "default.replication.factor": "1",
    }
    assert {name: value(name, settings) for name in expected} == expected
    assert BROKER_CONFIGS["num.partitions"].default == "1"


def test_retention_in_hours_is_shown_only_if_it_is_whole_hours() -> None:
    """Half an hour is not 0 hours, and no limit is no limit in any unit."""
    half = with_settings(topics__retention_ms=1_800_000)
    assert (value("log.retention.hours", half), value("log.retention.minutes", half)) == (None, "30")
    for_ever = with_settings(topics__retention_ms=-1)
    assert (value("log.retention.hours", for_ever), value("log.retention.minutes", for_ever)) == ("-1", "-1")


def test_broker_config_says_what_to_set_instead() -> None:
    """Nothing of a broker is altered at run time."""
    assert BROKER_CONFIGS["num.partitions"].refusal() == (
        "num.partitions of a broker is read-only: set topics.partitions_default for its next start"
    )
    assert BROKER_CONFIGS["delete.topic.enable"].refusal() == "delete.topic.enable of a broker is read-only"
