"""Configs of consumer groups: DescribeConfigs, AlterConfigs, IncrementalAlterConfigs, ListConfigResources."""

from __future__ import annotations

import pytest

from fairlog.group_configs import GROUP_CONFIGS
from fairlog.kafka.errors import ErrorCode
from fairlog.kafka.handlers import api_32_describe_configs, api_33_alter_configs, api_44_incremental_alter_configs
from fairlog_types import StorageFailure
from tests.kafka.config_requests import (
    ALTER,
    APPEND,
    DELETE,
    DESCRIBE,
    INCREMENTAL,
    SET,
    alter,
    change,
    describe,
    told,
    versions,
)

RESOURCES = 74
GROUP = 32
OF_BROKER, DEFAULT, OF_GROUP = 4, 5, 8
INT = 3
SESSION, INTERVAL = "consumer.session.timeout.ms", "consumer.heartbeat.interval.ms"


async def sources(ask, group, *names):
    (line,) = (await ask(DESCRIBE, 4, **describe((GROUP, group, list(names)), synonyms=True))).results
    return {config.name: [(s.name, s.value, s.source) for s in config.synonyms] for config in line.configs}


@versions(api_32_describe_configs)
async def test_group_shows_all_its_configs_with_their_sources(ask, memory, version):
    """Its own and the node's settings, told apart; a group need not be there to have configs."""
    await memory.cluster.alter_group_configs("g", lambda _: {SESSION: "50000"})
    (line,) = (await ask(DESCRIBE, version, **describe((GROUP, "g", None), documentation=True))).results
    assert (line.error_code, line.resource_type, line.resource_name) == (0, GROUP, "g")
    found = {config.name: (config.value, config.config_source, config.read_only) for config in line.configs}
    assert found == {INTERVAL: ("5000", DEFAULT, False), SESSION: ("50000", OF_GROUP, False)}
    if version >= 3:
        assert [config.config_type for config in line.configs] == [INT, INT]
        assert line.configs[0].documentation == GROUP_CONFIGS[INTERVAL].doc


async def test_config_of_a_group_shows_where_else_its_value_could_come_from(ask, memory):
    """The group's own first, then what the node has under Kafka's name."""
    await memory.cluster.alter_group_configs("g", lambda _: {SESSION: "50000"})
    expected = [(SESSION, "50000", OF_GROUP), (f"group.{SESSION}", "45000", DEFAULT)]
    assert await sources(ask, "g", SESSION, "no.such") == {SESSION: expected}
    assert await sources(ask, "h", SESSION) == {SESSION: expected[1:]}


@versions(api_44_incremental_alter_configs)
async def test_configs_of_a_group_are_set_and_deleted_one_by_one(ask, memory, version):
    """A name that does not exist can be deleted; a group whose configs are all deleted has none."""
    changes = [(SESSION, SET, "50000"), (INTERVAL, SET, "6000")]
    assert told(await ask(INCREMENTAL, version, **change((GROUP, "g", changes)))) == [(0, None)]
    assert memory.cluster.group_configs("g") == {SESSION: "50000", INTERVAL: "6000"}
    changes = [(SESSION, DELETE, None), ("share.session.timeout.ms", DELETE, None)]
    assert told(await ask(INCREMENTAL, version, **change((GROUP, "g", changes)))) == [(0, None)]
    assert memory.cluster.group_configs("g") == {INTERVAL: "6000"}
    assert told(await ask(INCREMENTAL, version, **change((GROUP, "g", [(INTERVAL, DELETE, None)])))) == [(0, None)]
    assert list(memory.cluster.configured_groups()) == []


@versions(api_33_alter_configs)
async def test_configs_altered_are_all_that_the_group_has(ask, memory, version):
    """What is not named goes back to the node's."""
    await memory.cluster.alter_group_configs("g", lambda _: {SESSION: "50000"})
    assert told(await ask(ALTER, version, **alter((GROUP, "g", {INTERVAL: "6000"})))) == [(0, None)]
    assert memory.cluster.group_configs("g") == {INTERVAL: "6000"}


@pytest.mark.parametrize(
    ("config", "operation", "value", "error", "words"),
    [
        (SESSION, SET, "44999", ErrorCode.INVALID_CONFIG, "a whole number from 45000 to 60000 is needed"),
        (SESSION, SET, "60001", ErrorCode.INVALID_CONFIG, "groups.consumer_max_session_timeout_ms"),
        (SESSION, SET, "soon", ErrorCode.INVALID_CONFIG, "a whole number from 45000 to 60000 is needed"),
        (SESSION, SET, "", ErrorCode.INVALID_CONFIG, "a whole number from 45000 to 60000 is needed"),
        (SESSION, SET, "9" * 400, ErrorCode.INVALID_CONFIG, "a whole number from 45000 to 60000 is needed"),
        (INTERVAL, SET, "4999", ErrorCode.INVALID_CONFIG, "groups.consumer_min_heartbeat_interval_ms"),
        (INTERVAL, SET, "15001", ErrorCode.INVALID_CONFIG, "a whole number from 5000 to 15000 is needed"),
        (SESSION, APPEND, "50000", ErrorCode.INVALID_CONFIG, "is not a list"),
        ("share.session.timeout.ms", SET, "50000", ErrorCode.INVALID_CONFIG, "unknown group config"),
        (SESSION, SET, None, ErrorCode.INVALID_REQUEST, "is given no value"),
        (SESSION, 4, "50000", ErrorCode.INVALID_REQUEST, "there is no operation 4"),
        (INTERVAL, DELETE, None, ErrorCode.INVALID_REQUEST, "named more than once"),
    ],
)
async def test_config_of_a_group_that_cannot_be_so_is_refused(ask, memory, config, operation, value, error, words):
    """By name, and nothing beside it is changed; whether it is only validated or not."""
    other = (INTERVAL, SET, "6000") if config != INTERVAL or operation == DELETE else (SESSION, SET, "50000")
    for validate_only in (True, False):
        request = change((GROUP, "g", [other, (config, operation, value)]), validate_only=validate_only)
        ((code, message),) = told(await ask(INCREMENTAL, 1, **request))
        assert code == error
        assert config in message
        assert words in message
    assert list(memory.cluster.configured_groups()) == []


async def test_session_of_a_group_that_ends_before_its_next_heartbeat_is_refused(ask, memory):
    """Also where one of the two is the node's."""
    memory.configure_groups(
        consumer_max_heartbeat_interval_ms=50_000,
        consumer_session_timeout_ms=47_000,
    )
    for configs in ({INTERVAL: "47000"}, {INTERVAL: "48000", SESSION: "48000"}):
        ((code, message),) = told(await ask(ALTER, 2, **alter((GROUP, "g", configs))))
        assert code == ErrorCode.INVALID_CONFIG
        assert "is not above" in message
    assert told(await ask(ALTER, 2, **alter((GROUP, "g", {INTERVAL: "48000", SESSION: "48001"})))) == [(0, None)]


@pytest.mark.parametrize(
    ("name", "error"),
    [("", ErrorCode.INVALID_REQUEST), ("g" * 1_025, ErrorCode.INVALID_GROUP_ID)],
    ids=["empty", "long"],
)
async def test_configs_of_what_cannot_be_a_group_are_refused(ask, name, error):
    """By all three requests."""
    asked = [
        (await ask(DESCRIBE, 4, **describe((GROUP, name, None)))).results,
        (await ask(ALTER, 2, **alter((GROUP, name, {})))).responses,
        (await ask(INCREMENTAL, 1, **change((GROUP, name, [])))).responses,
    ]
    assert [line.error_code for (line,) in asked] == [error] * 3


async def test_config_of_a_group_validated_only_stays(ask, memory):
    """And the answer is what it would be."""
    answer = await ask(INCREMENTAL, 1, **change((GROUP, "g", [(SESSION, SET, "50000")]), validate_only=True))
    assert told(answer) == [(0, None)]
    assert list(memory.cluster.configured_groups()) == []


async def test_config_of_a_group_is_not_changed_on_a_failed_disk(ask, memory):
    """A storage failure is told as such."""
    memory.cluster.failure = StorageFailure("no space left on device")
    answer = await ask(INCREMENTAL, 1, **change((GROUP, "g", [(SESSION, SET, "50000")])))
    assert told(answer) == [(ErrorCode.KAFKA_STORAGE_ERROR, "no space left on device")]


async def test_groups_with_configs_are_listed(ask):
    """By name; a group without configs of its own is not."""
    for group in ("h", "g", "i"):
        await ask(INCREMENTAL, 1, **change((GROUP, group, [(SESSION, SET, "50000")])))
    await ask(INCREMENTAL, 1, **change((GROUP, "i", [(SESSION, DELETE, None)])))
    answer = await ask(RESOURCES, 1, resource_types=[GROUP])
    assert [(each.resource_type, each.resource_name) for each in answer.config_resources] == [
        (GROUP, "g"),
        (GROUP, "h"),
    ]
