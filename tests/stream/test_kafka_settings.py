"""Settings of the engine on Kafka: what is refused, and what a topic is judged by; without a cluster."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from typing import Any

import pytest

from stream.engine import WeakStream
from stream.kafka_settings import (
    KafkaEngineSettings,
    KeptTopic,
    SettingsRefused,
    check_strength,
    configs_at_creation,
)

SETTINGS = KafkaEngineSettings(bootstrap_servers="one:9092,two:9092", cluster="orders")


@pytest.mark.parametrize(
    ("changed", "sentence"),
    [
        ({"cluster": "a b"}, "not 'a b'"),
        ({"cluster": ""}, "not ''"),
        ({"replicas": 0}, "at least 1 replica, not 0"),
        ({"min_insync_replicas": 4}, "of 3 replicas 1 to 3 .* cannot be 4"),
        ({"min_insync_replicas": 0}, "cannot be 0"),
        ({"replicas": 1}, "of 1 replicas 1 to 1 .* cannot be 2"),
        ({"append_timeout_s": 0}, "longer than 0 s"),
        ({"entry_bytes_max": 2_000_000_000}, "bytes at most"),
        ({"passed_on": {"acks": "1"}}, r"acks cannot be passed on .* only security\.protocol, sasl\.\* and ssl\.\*"),
        ({"passed_on": {"enable.idempotence": "false"}}, "enable.idempotence cannot be passed on"),
    ],
)
def test_settings_that_cannot_be_used_are_refused(changed: dict[str, Any], sentence: str) -> None:
    """With a sentence that says what is wrong with them."""
    with pytest.raises(SettingsRefused, match=sentence):
        replace(SETTINGS, **changed)


def test_security_settings_are_passed_on() -> None:
    """TLS and SASL are librdkafka's business."""
    passed_on = {"security.protocol": "SASL_SSL", "sasl.username": "fairlog", "ssl.ca.location": "ca.pem"}
    assert replace(SETTINGS, passed_on=passed_on).passed_on == passed_on


def test_topic_has_the_names_of_cluster_and_stream() -> None:
    """A name that Kafka refuses is refused here."""
    assert SETTINGS.topic("shard-0") == "orders.shard-0"
    with pytest.raises(SettingsRefused, match="cannot be a topic"):
        SETTINGS.topic("shard/0")
    with pytest.raises(SettingsRefused, match="cannot be a topic"):
        SETTINGS.topic("x" * 249)


def test_topic_that_is_kept_as_it_was_made_is_strong_enough() -> None:
    """What a topic is made with passes; so does more than is wanted."""
    topic = KeptTopic("orders.shard-0", 1, 3, configs_at_creation(SETTINGS))
    check_strength(topic, SETTINGS)
    more = {**topic.configs, "min.insync.replicas": "3", "max.message.bytes": "100000000"}
    check_strength(replace(topic, replicas=5, configs=more), SETTINGS)
    with pytest.raises(WeakStream, match=r"flush\.messages"):
        check_strength(topic, replace(SETTINGS, flush_each_entry=True))


@pytest.mark.parametrize("name", [name for name in configs_at_creation(SETTINGS) if name != "message.timestamp.type"])
@pytest.mark.parametrize("value", ["0", "compact", None])
def test_topic_with_one_weak_setting_is_weak(name: str, value: str | None) -> None:
    """The sentence has the topic, the setting, what it is, and how to mend it; or that it is not known."""
    configs = configs_at_creation(SETTINGS)
    wanted = configs.pop(name)
    if value is not None:
        configs[name] = value
    with pytest.raises(WeakStream) as caught:
        check_strength(KeptTopic("orders.shard-0", 1, 3, configs), SETTINGS)
    said = str(caught.value)
    assert name in said
    assert "orders.shard-0" in said
    assert wanted in said
    if value is not None:
        assert f"is {value}, and {wanted} is wanted" in said
        assert "--bootstrap-server one:9092 --alter --entity-type topics --entity-name orders.shard-0" in said


def test_contract_needs_no_client_and_the_engine_says_which_extra_has_it() -> None:
    """Nodes with journals of their own have no confluent-kafka."""
    program = (
        "import sys; sys.modules['confluent_kafka'] = None\n"
        "import stream.engine, stream.fold, stream.kafka_settings\n"
        "import stream.kafka_engine\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "pip install 'fairlog[cluster]'" in done.stderr
