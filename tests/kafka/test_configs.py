"""DescribeConfigs, AlterConfigs, IncrementalAlterConfigs: what clients see of configs, and how topics' change."""

from __future__ import annotations

import pytest
from kafka.protocol.admin import CreateTopicsRequest
from kafka.protocol.producer import ProduceRequest

from fairlog.broker_configs import BROKER_CONFIGS
from fairlog.kafka.errors import ErrorCode
from fairlog.kafka.handlers import api_32_describe_configs, api_33_alter_configs, api_44_incremental_alter_configs
from fairlog.topic_configs import TOPIC_CONFIGS
from fairlog_types import StorageFailure
from tests.kafka.config_requests import (
    ALTER,
    APPEND,
    DELETE,
    DESCRIBE,
    INCREMENTAL,
    SET,
    SUBTRACT,
    alter,
    change,
    describe,
    told,
    versions,
)

PRODUCE, CREATE = 0, 19
Topic = ProduceRequest.TopicProduceData
TOPIC, BROKER, LOGGER = 2, 4, 8
NODE = "7"
OF_TOPIC, OF_BROKER, DEFAULT = 1, 4, 5
SET_FOR_BROKER, SET_FOR_ALL = 2, 3
DYNAMIC = {
    "fairlog.transactional.offsets",
    "log.cleaner.backoff.ms",
    "log.cleaner.dedupe.buffer.size",
    "log.retention.bytes",
    "log.retention.ms",
    "max.connection.creation.rate",
    "max.connections",
    "max.connections.per.ip",
    "max.connections.per.ip.overrides",
    "message.max.bytes",
}
LONG, LIST = 5, 7


# --- DescribeConfigs -------------------------------------------------------------------------------


@versions(api_32_describe_configs)
async def test_topic_shows_all_its_configs_with_their_sources(ask, memory, version):
    """Its own, the node's settings and the defaults, told apart; types and documentation where the version has them."""
    memory.configure(retention_ms=5)
    memory.topics.create_now("t", configs={"cleanup.policy": "compact"})
    answer = await ask(DESCRIBE, version, **describe((TOPIC, "t", None), documentation=True))
    (line,) = answer.results
    assert (line.error_code, line.resource_type, line.resource_name) == (0, TOPIC, "t")
    shown = {config.name: config for config in line.configs}
    assert list(shown) == list(TOPIC_CONFIGS)
    assert not any(config.is_sensitive or config.synonyms for config in shown.values())
    fixed = [config.name for config in shown.values() if config.read_only]
    assert fixed == ["fairlog.placement", "fairlog.transactions"]
    found = {name: (shown[name].value, shown[name].config_source) for name in ("cleanup.policy", "retention.ms")}
    assert found == {"cleanup.policy": ("compact", OF_TOPIC), "retention.ms": ("5", OF_BROKER)}
    assert (shown["flush.messages"].value, shown["flush.messages"].config_source) == (str(2**63 - 1), DEFAULT)
    if version >= 3:
        assert (shown["retention.ms"].config_type, shown["cleanup.policy"].config_type) == (LONG, LIST)
        assert shown["retention.ms"].documentation == TOPIC_CONFIGS["retention.ms"].doc


@versions(api_32_describe_configs)
async def test_broker_shows_its_settings_under_kafkas_names(ask, memory, version):
    """Read-only but for what can be changed at run time; what differs from the default is told to be a setting."""
    memory.configure(partitions_default=3)
    (line,) = (await ask(DESCRIBE, version, **describe((BROKER, NODE, None)))).results
    shown = {config.name: config for config in line.configs}
    assert list(shown) == list(BROKER_CONFIGS)
    assert {config.name for config in shown.values() if not config.read_only} == DYNAMIC
    assert (shown["num.partitions"].value, shown["num.partitions"].config_source) == ("3", OF_BROKER)
    assert (shown["message.max.bytes"].value, shown["message.max.bytes"].config_source) == ("1048588", DEFAULT)
    assert shown["advertised.listeners"].value is None
    if version >= 3:
        assert shown["num.partitions"].documentation is None


@versions(api_32_describe_configs)
async def test_config_shows_where_else_its_value_could_come_from(ask, memory, version):
    """Synonyms, strongest first, under the name that each place has for it."""
    memory.configure(retention_ms=5)
    memory.topics.create_now("t", configs={"retention.ms": "9", "fairlog.transactions": "journal"})
    names = ["retention.ms", "fairlog.transactions", "cleanup.policy"]
    (line,) = (await ask(DESCRIBE, version, **describe((TOPIC, "t", names), synonyms=True))).results
    synonyms = {config.name: [(s.name, s.value, s.source) for s in config.synonyms] for config in line.configs}
    assert synonyms == {
        "cleanup.policy": [("log.cleanup.policy", "delete", DEFAULT)],
        "fairlog.transactions": [
            ("fairlog.transactions", "journal", OF_TOPIC),
            ("fairlog.transactions", "journal", DEFAULT),
        ],
        "retention.ms": [
            ("retention.ms", "9", OF_TOPIC),
            ("log.retention.ms", "5", OF_BROKER),
            ("log.retention.ms", "604800000", DEFAULT),
        ],
    }


@versions(api_32_describe_configs)
@pytest.mark.parametrize(
    ("setting", "named", "setting_later", "shown"),
    [
        ("journal", None, "journal", ("journal", DEFAULT)),
        ("journal", None, "markers", ("journal", DEFAULT)),
        ("journal", "journal", "journal", ("journal", OF_TOPIC)),
        ("journal", "markers", "journal", ("markers", OF_TOPIC)),
        ("markers", None, "markers", ("markers", OF_BROKER)),
        ("markers", None, "journal", ("markers", OF_TOPIC)),
        ("markers", "journal", "markers", ("journal", OF_TOPIC)),
    ],
)
async def test_mode_of_a_topic_is_an_override_only_if_its_client_has_set_it(
    ask, memory, version, setting, named, setting_later, shown
):
    """What the node's setting has given a topic is no config of its own: tools would copy it, or take it away."""
    memory.configure(transactions=setting)
    config = CreateTopicsRequest.CreatableTopic.CreatableTopicConfig
    configs = [] if named is None else [config(name="fairlog.transactions", value=named)]
    new = CreateTopicsRequest.CreatableTopic(
        "t", num_partitions=1, replication_factor=1, assignments=[], configs=configs
    )
    await ask(CREATE, 7, topics=[new], timeout_ms=1000, validate_only=False)
    memory.configure(transactions=setting_later)
    (line,) = (await ask(DESCRIBE, version, **describe((TOPIC, "t", ["fairlog.transactions"]), synonyms=True))).results
    ((found, source, synonyms),) = [(c.value, c.config_source, c.synonyms) for c in line.configs]
    assert (found, source) == shown
    assert (synonyms[0].value, synonyms[0].source) == shown


@versions(api_32_describe_configs)
async def test_configs_asked_for_by_name_are_shown_alone(ask, memory, version):
    """Names that do not exist are left out; no name at all means all; repetitions are answered once."""
    memory.topics.create_now("t")
    resources = [(TOPIC, "t", ["retention.ms", "no.such"]), (TOPIC, "t", ["flush.ms"]), (BROKER, NODE, ["node.id"])]
    answer = await ask(DESCRIBE, version, **describe(*resources))
    shown = [[config.name for config in line.configs] for line in answer.results]
    assert shown == [["flush.ms", "retention.ms"], ["node.id"]]
    answer = await ask(DESCRIBE, version, **describe((TOPIC, "t", []), (TOPIC, "t", ["flush.ms"])))
    (line,) = answer.results
    assert len(line.configs) == len(TOPIC_CONFIGS)


@versions(api_32_describe_configs)
async def test_resource_that_is_not_there_has_its_error(ask, version):
    """Topics, other brokers, and kinds of resources that have no configs here; all brokers together have none."""
    asked = [(TOPIC, "none", None), (BROKER, "8", None), (BROKER, "07", None), (LOGGER, NODE, None), (BROKER, "", None)]
    answer = await ask(DESCRIBE, version, **describe(*asked))
    assert [(line.error_code, line.error_message) for line in answer.results] == [
        (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "there is no topic none"),
        (ErrorCode.INVALID_REQUEST, "broker 8 is not this one, which is 7"),
        (ErrorCode.INVALID_REQUEST, "broker 07 is not this one, which is 7"),
        (ErrorCode.INVALID_REQUEST, "resources of type 8 have no configs here"),
        (ErrorCode.NONE, None),
    ]
    assert not any(line.configs for line in answer.results)


# --- AlterConfigs ----------------------------------------------------------------------------------


@versions(api_33_alter_configs)
async def test_configs_altered_are_all_that_the_topic_has(ask, memory, version):
    """What is not named goes back to the default."""
    memory.topics.create_now("t", configs={"retention.ms": "9", "flush.ms": "1"})
    assert told(await ask(ALTER, version, **alter((TOPIC, "t", {"retention.ms": "5"})))) == [(0, None)]
    assert memory.cluster.by_name["t"].configs == {"retention.ms": "5"}
    assert told(await ask(ALTER, version, **alter((TOPIC, "t", {})))) == [(0, None)]
    assert memory.cluster.by_name["t"].configs == {}


@versions(api_33_alter_configs)
async def test_one_bad_config_refuses_its_resource_and_no_other(ask, memory, version):
    """The refusal names it; nothing of that resource is changed."""
    for name in "abc":
        memory.topics.create_now(name, configs={"flush.ms": "1"})
    answer = await ask(
        ALTER,
        version,
        **alter(
            (TOPIC, "a", {"retention.ms": "5", "retention": "5"}),
            (TOPIC, "b", {"retention.ms": None}),
            (TOPIC, "c", {"retention.ms": "5"}),
            (TOPIC, "d", {}),
        ),
    )
    assert told(answer) == [
        (ErrorCode.INVALID_CONFIG, "unknown topic config retention"),
        (
            ErrorCode.INVALID_REQUEST,
            "retention.ms is given no value: leave it out, or delete it, to go back to its default",
        ),
        (ErrorCode.NONE, None),
        (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "there is no topic d"),
    ]
    kept = {name: dict(topic.configs) for name, topic in memory.cluster.by_name.items()}
    assert kept == {"a": {"flush.ms": "1"}, "b": {"flush.ms": "1"}, "c": {"retention.ms": "5"}}


@versions(api_33_alter_configs)
async def test_most_configs_of_a_broker_are_read_only(ask, version):
    """The refusal says what to set instead; an unknown name is refused as such, and so is another broker."""
    answer = await ask(
        ALTER,
        version,
        **alter(
            (BROKER, NODE, {"num.partitions": "5"}),
            (BROKER, "", {"log.cleaner.thread": "5"}),
            (BROKER, "8", {}),
            (BROKER, "07", {}),
            (LOGGER, NODE, {}),
        ),
    )
    assert told(answer) == [
        (
            ErrorCode.INVALID_REQUEST,
            "num.partitions of a broker is read-only: set topics.partitions_default for its next start",
        ),
        (ErrorCode.INVALID_REQUEST, "unknown broker config log.cleaner.thread"),
        (ErrorCode.INVALID_REQUEST, "broker 8 is not this one, which is 7"),
        (ErrorCode.INVALID_REQUEST, "broker 07 is not this one, which is 7"),
        (ErrorCode.INVALID_REQUEST, "resources of type 8 have no configs here"),
    ]


# --- IncrementalAlterConfigs -----------------------------------------------------------------------


@versions(api_44_incremental_alter_configs)
async def test_configs_changed_one_by_one_leave_the_others(ask, memory, version):
    """Set, delete, append to and subtract from a list, in one request, in its order."""
    memory.topics.create_now("t", configs={"retention.ms": "9", "flush.ms": "1"})
    changes = [
        ("max.message.bytes", SET, "5000"),
        ("flush.ms", DELETE, None),
        ("cleanup.policy", APPEND, "compact"),
    ]
    assert told(await ask(INCREMENTAL, version, **change((TOPIC, "t", changes)))) == [(0, None)]
    assert memory.cluster.by_name["t"].configs == {
        "retention.ms": "9",
        "max.message.bytes": "5000",
        "cleanup.policy": "delete,compact",
    }
    changes = [("cleanup.policy", SUBTRACT, "delete")]
    assert told(await ask(INCREMENTAL, version, **change((TOPIC, "t", changes)))) == [(0, None)]
    assert memory.cluster.by_name["t"].configs["cleanup.policy"] == "compact"


@versions(api_44_incremental_alter_configs)
async def test_deleting_a_config_that_does_not_exist_succeeds(ask, memory, version):
    """MirrorMaker deletes on its target what only the source knows; one such name must not refuse the rest."""
    memory.topics.create_now("t", configs={"flush.ms": "1"})
    changes = [("errors.deadletterqueue.group.enable", DELETE, None), ("retention.ms", SET, "5")]
    assert told(await ask(INCREMENTAL, version, **change((TOPIC, "t", changes)))) == [(0, None)]
    assert memory.cluster.by_name["t"].configs == {"flush.ms": "1", "retention.ms": "5"}


@versions(api_44_incremental_alter_configs)
async def test_cleanup_policy_can_be_emptied(ask, memory, version):
    """By taking away its only item, or set so; it is shown as it is."""
    memory.topics.create_now("t")
    memory.topics.create_now("u")
    answer = await ask(
        INCREMENTAL,
        version,
        **change((TOPIC, "t", [("cleanup.policy", SUBTRACT, "delete")]), (TOPIC, "u", [("cleanup.policy", SET, "")])),
    )
    assert told(answer) == [(0, None), (0, None)]
    shown = await ask(DESCRIBE, 4, **describe((TOPIC, "t", ["cleanup.policy"]), (TOPIC, "u", ["cleanup.policy"])))
    assert [(c.value, c.config_source) for line in shown.results for c in line.configs] == [("", OF_TOPIC)] * 2


@versions(api_44_incremental_alter_configs)
async def test_change_that_is_not_clear_is_an_invalid_request(ask, memory, version):
    """A name twice, or without a value: Kafka finds fault with the request, not with the config."""
    memory.topics.create_now("t")
    memory.topics.create_now("u")
    twice, without = [("flush.ms", SET, "1"), ("flush.ms", DELETE, None)], [("flush.ms", SET, None)]
    answer = await ask(INCREMENTAL, version, **change((TOPIC, "t", twice), (TOPIC, "u", without)))
    assert [code for code, _ in told(answer)] == [ErrorCode.INVALID_REQUEST] * 2


@versions(api_44_incremental_alter_configs)
async def test_changes_validated_only_change_nothing(ask, memory, version):
    """And answer as if they would."""
    memory.topics.create_now("t")
    generation = memory.cluster.generation
    good, bad = [("flush.ms", SET, "1")], [("flush.ms", SET, "soon")]
    answer = await ask(INCREMENTAL, version, **change((TOPIC, "t", good), (TOPIC, "u", good), validate_only=True))
    assert [code for code, _ in told(answer)] == [0, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION]
    answer = await ask(INCREMENTAL, version, **change((TOPIC, "t", bad), validate_only=True))
    assert [code for code, _ in told(answer)] == [ErrorCode.INVALID_CONFIG]
    assert told(await ask(ALTER, version, **alter((TOPIC, "t", {"flush.ms": "1"}), validate_only=True))) == [(0, None)]
    assert memory.cluster.generation == generation
    assert memory.cluster.by_name["t"].configs == {}


@versions(api_44_incremental_alter_configs)
async def test_one_bad_change_refuses_its_topic_as_a_whole(ask, memory, version):
    """Also an operation that does not exist, and a topic that is named twice, since nobody knows which counts."""
    for name in "abc":
        memory.topics.create_now(name)
    good = ("flush.ms", SET, "1")
    answer = await ask(
        INCREMENTAL,
        version,
        **change(
            (TOPIC, "a", [good, ("retention.ms", APPEND, "1")]),
            (TOPIC, "b", [good, ("retention.ms", 4, "1")]),
            (TOPIC, "c", [good]),
            (BROKER, NODE, [("num.partitions", SET, "5")]),
            (TOPIC, "c", [good]),
        ),
    )
    assert told(answer) == [
        (ErrorCode.INVALID_CONFIG, "retention.ms is not a list: it can be set, but not be changed item by item"),
        (ErrorCode.INVALID_REQUEST, "retention.ms: there is no operation 4"),
        (ErrorCode.INVALID_REQUEST, "the request names this resource more than once"),
        (
            ErrorCode.INVALID_REQUEST,
            "num.partitions of a broker is read-only: set topics.partitions_default for its next start",
        ),
    ]
    assert not any(topic.configs for topic in memory.cluster.by_name.values())


@pytest.mark.parametrize(
    ("name", "error"),
    [
        ("", ErrorCode.INVALID_REQUEST),
        ("no spaces please", ErrorCode.INVALID_TOPIC_EXCEPTION),
        ("none", ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
    ],
)
async def test_configs_of_what_cannot_be_a_topic_have_kafkas_errors(ask, name, error):
    """A name that no topic can have is told from one that no topic has, by all three requests."""
    asked = [
        (await ask(DESCRIBE, 4, **describe((TOPIC, name, None)))).results,
        (await ask(ALTER, 2, **alter((TOPIC, name, {})))).responses,
        (await ask(INCREMENTAL, 1, **change((TOPIC, name, [])))).responses,
    ]
    assert [line.error_code for (line,) in asked] == [error] * 3


# --- of brokers ------------------------------------------------------------------------------------


async def sources(ask, resource, *names):
    (line,) = (await ask(DESCRIBE, 4, **describe((*resource, list(names)), synonyms=True))).results
    return {config.name: [(s.name, s.value, s.source) for s in config.synonyms] for config in line.configs}


@versions(api_44_incremental_alter_configs)
async def test_dynamic_config_is_set_for_the_broker_and_for_all(ask, memory, version):
    """The broker's own goes before that of all, and both before the node's setting; topics without their own follow."""
    memory.configure(retention_ms=5)
    memory.topics.create_now("t")
    changes = (BROKER, "", [("log.retention.ms", SET, "6")]), (BROKER, NODE, [("log.retention.ms", SET, "7")])
    assert told(await ask(INCREMENTAL, version, **change(*changes))) == [(0, None)] * 2
    assert memory.broker.settings.topics.retention_ms == 7
    expected = [
        ("log.retention.ms", "7", SET_FOR_BROKER),
        ("log.retention.ms", "6", SET_FOR_ALL),
        ("log.retention.ms", "5", OF_BROKER),
        ("log.retention.ms", "604800000", DEFAULT),
    ]
    assert await sources(ask, (BROKER, NODE), "log.retention.ms") == {"log.retention.ms": expected}
    assert await sources(ask, (TOPIC, "t"), "retention.ms") == {"retention.ms": expected}
    assert await sources(ask, (BROKER, "")) == {"log.retention.ms": expected[1:2]}
    back = (BROKER, NODE, [("log.retention.ms", DELETE, None), ("no.such", DELETE, None)])
    assert told(await ask(INCREMENTAL, version, **change(back))) == [(0, None)]
    assert memory.broker.settings.topics.retention_ms == 6
    assert told(await ask(ALTER, 2, **alter((BROKER, "", {"message.max.bytes": "5000"})))) == [(0, None)]
    settings = memory.broker.settings
    assert (settings.topics.retention_ms, settings.requests.message_bytes_max) == (5, 5000)


@pytest.mark.parametrize(
    ("config", "operation", "value", "words"),
    [
        ("log.cleaner.backoff.ms", SET, "0", "a whole number of at least 1 is needed"),
        ("log.cleaner.backoff.ms", SET, "soon", "a whole number of at least 1 is needed"),
        ("log.cleaner.backoff.ms", APPEND, "1", "is not a list"),
        ("log.cleaner.backoff.ms", SET, None, "is given no value"),
        ("message.max.bytes", SET, "2000000000", "is above requests.request_bytes_max"),
        ("log.retention.hours", SET, "1", "read-only: set topics.retention_ms"),
        ("background.threads", SET, "9", "unknown broker config background.threads"),
    ],
)
@pytest.mark.parametrize("resource", ["", NODE])
async def test_config_of_a_broker_that_cannot_be_so_is_refused(ask, memory, resource, config, operation, value, words):
    """By name, and nothing beside it is changed."""
    changes = [("max.connections", SET, "5"), (config, operation, value)]
    ((error, message),) = told(await ask(INCREMENTAL, 1, **change((BROKER, resource, changes))))
    assert error == ErrorCode.INVALID_REQUEST
    assert config in message
    assert words in message
    assert memory.cluster.of_brokers == {}


async def test_config_of_a_broker_validated_only_stays(ask, memory):
    """And the answer is what it would be."""
    good, bad = [("max.connections", SET, "5")], [("max.connections", SET, "-5")]
    for changes, error in ((good, 0), (bad, ErrorCode.INVALID_REQUEST)):
        answer = await ask(INCREMENTAL, 1, **change((BROKER, NODE, changes), validate_only=True))
        assert [code for code, _ in told(answer)] == [error]
    assert memory.cluster.of_brokers == {}


async def test_config_of_a_broker_is_not_changed_on_a_failed_disk(ask, memory):
    """Neither for the next start, nor now."""
    memory.cluster.failure = StorageFailure("no space left on device")
    answer = await ask(INCREMENTAL, 1, **change((BROKER, NODE, [("max.connections", SET, "5")])))
    assert told(answer) == [(ErrorCode.KAFKA_STORAGE_ERROR, "no space left on device")]
    assert memory.broker.settings.requests.connections_max == 1000


# --- what both do ----------------------------------------------------------------------------------


async def test_change_on_a_failed_disk_is_not_made(ask, memory):
    """A storage failure is told as such."""
    memory.topics.create_now("t")
    memory.topics.failure = StorageFailure("no space left on device")
    answer = await ask(INCREMENTAL, 1, **change((TOPIC, "t", [("flush.ms", SET, "1")])))
    assert told(answer) == [(ErrorCode.KAFKA_STORAGE_ERROR, "no space left on device")]


async def test_topics_largest_batch_holds_from_the_next_produce_on(ask, memory, batch):
    """A config that acts is not kept from the past."""
    memory.topics.create_now("t")
    fields = {"transactional_id": None, "acks": -1, "timeout_ms": 1000}

    async def produce():
        data = [Topic(name="t", partition_data=[Topic.PartitionProduceData(index=0, records=batch())])]
        return (await ask(PRODUCE, 9, **fields, topic_data=data)).responses[0].partition_responses[0].error_code

    assert await produce() == 0
    await ask(INCREMENTAL, 1, **change((TOPIC, "t", [("max.message.bytes", SET, "100")])))
    assert await produce() == ErrorCode.MESSAGE_TOO_LARGE
    await ask(INCREMENTAL, 1, **change((TOPIC, "t", [("max.message.bytes", DELETE, None)])))
    assert await produce() == 0
