"""The node's settings under Kafka's names."""

from __future__ import annotations

from pathlib import Path

import pytest

from fairlog.broker_configs import AUTHORIZER, BROKER_CONFIGS, BrokerConfig, settings_with
from fairlog.config import KEYS, ConfigError, Settings
from fairlog.config_sources import load
from fairlog.topic_configs import ConfigType


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
    assert not row.dynamic or row.setting is not None


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


def test_broker_configs_have_the_names_that_admin_tools_look_for() -> None:
    """Of groups, offsets, transactions and compaction: with the values that hold here."""
    settings = with_settings(groups__members_max=7, offsets__retention_minutes=60, data_dir="/data")
    expected = {
        "group.initial.rebalance.delay.ms": "200",
        "group.max.session.timeout.ms": "1800000",
        "group.max.size": "7",
        "group.min.session.timeout.ms": "6000",
        "log.cleaner.backoff.ms": "15000",
        "log.cleaner.dedupe.buffer.size": "134217728",
        "log.cleaner.enable": "true",
        "log.cleaner.threads": "1",
        "log.dirs": "/data",
        "log.retention.check.interval.ms": "300000",
        "offset.metadata.max.bytes": "4096",
        "offsets.retention.check.interval.ms": "600000",
        "offsets.retention.minutes": "60",
        "sasl.enabled.mechanisms": "SCRAM-SHA-256,SCRAM-SHA-512,PLAIN",
        "transaction.partition.verification.enable": "true",
    }
    assert {name: value(name, settings) for name in expected} == expected


def test_broker_configs_say_whether_there_are_acls_and_who_may_everything() -> None:
    """Admin tools offer ACLs only where there is an authorizer."""
    rows = ("authorizer.class.name", "super.users", "allow.everyone.if.no.acl.found")
    assert [value(name, Settings()) for name in rows] == ["", "", "false"]
    settings = with_settings(authorizer__enable=True, authorizer__super_users=("User:a", "User:b"))
    assert [value(name, settings) for name in rows] == [AUTHORIZER, "User:a;User:b", "false"]


@pytest.mark.parametrize("row", [row for row in BROKER_CONFIGS.values() if row.dynamic], ids=lambda row: row.name)
def test_dynamic_config_is_put_on_top_of_the_settings(row: BrokerConfig) -> None:
    """The stronger layer counts, nothing else changes, and what is shown is what was set."""
    weaker, stronger = str(64 << 20), str(32 << 20)
    if row.type is ConfigType.STRING:
        weaker, stronger = ("127.0.0.1:1", "::1:2") if "overrides" in row.name else ("none", "lowest")
    of_start = with_settings(requests__request_bytes_max=128 << 20, journal__segment_bytes_max=256 << 20)
    settings = settings_with(of_start, {row.name: weaker}, {row.name: stronger})
    assert row.value(settings) == stronger
    assert settings_with(settings, {row.name: row.value(of_start) or ""}) == of_start


@pytest.mark.parametrize("name", ["num.partitions", "delete.topic.enable", "no.such.config"])
def test_config_that_is_not_dynamic_is_not_put_on_top(name: str) -> None:
    """A store that says so was written by a program that knew more; it is not passed over."""
    with pytest.raises(ConfigError, match=f"{name} of a broker cannot be changed at run time"):
        settings_with(Settings(), {name: "1"})


def test_retention_in_hours_is_shown_only_if_it_is_whole_hours() -> None:
    """Half an hour is not 0 hours, and no limit is no limit in any unit."""
    half = with_settings(topics__retention_ms=1_800_000)
    assert (value("log.retention.hours", half), value("log.retention.minutes", half)) == (None, "30")
    for_ever = with_settings(topics__retention_ms=-1)
    assert (value("log.retention.hours", for_ever), value("log.retention.minutes", for_ever)) == ("-1", "-1")


def test_broker_config_says_what_to_set_instead() -> None:
    """Of what is not changed at run time."""
    assert BROKER_CONFIGS["num.partitions"].refusal() == (
        "num.partitions of a broker is read-only: set topics.partitions_default for its next start"
    )
    assert BROKER_CONFIGS["delete.topic.enable"].refusal() == "delete.topic.enable of a broker is read-only"


def test_compatibility_page_has_the_configs_that_can_be_changed() -> None:
    """With the settings that they are."""
    page = (Path(__file__).resolve().parents[2] / "docs" / "compatibility.md").read_text(encoding="utf-8")
    table = page.partition("| config | setting |\n|---|---|\n")[2].partition("\n\n")[0].splitlines()
    rows = [f"| `{row.name}` | `{row.setting}`" for row in BROKER_CONFIGS.values() if row.dynamic]
    assert [line.partition(";")[0].rstrip(" |") for line in table] == rows
