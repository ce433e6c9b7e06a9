"""Every API and version, asked by a client that may do nothing, and by some that may do a part of it."""

from __future__ import annotations

import contextlib
import copy
import sys
import warnings
from typing import Any
from uuid import UUID

import pytest
from structlog.testing import capture_logs

from fairlog.edge.log_limiter import LINES_MAX
from fairlog.kafka import checks
from fairlog.kafka.api import Check, HangUp
from fairlog.kafka.errors import ErrorCode
from fairlog.kafka.handlers import ALL
from fairlog.security.acls import Acl, Operation, ResourceType
from fairlog.security.principal import ANONYMOUS
from tests.kafka.asking import REQUESTS
from tests.kafka.denials import (
    CLUSTER,
    DENIED,
    GROUP,
    NONE,
    TOPIC,
    TRANSACTIONAL_ID,
    UNKNOWN_TOPIC_ID,
    codes_in,
    expected,
)
from tests.kafka.denying import ADMIN, AskerAs, allow, enforce
from tests.kafka.example_requests import example_fields
from tests.kafka.in_memory import Memory

with warnings.catch_warnings():
    # It reads its schemas with importlib.resources.read_text.
    warnings.simplefilter("ignore", DeprecationWarning)
    from kafka.protocol import admin, metadata, producer

FETCH, TELEMETRY = 1, 71
BY_ID_FROM = 13
"""Of Fetch: the example names the first topic's id."""

EVERYTHING = [(api.key, version) for api in ALL for version in range(api.served.min, api.served.max + 1)]
SECRETS = (b"hidden",)


def full(description) -> Memory:
    """A broker that has what the example requests name, and more."""
    memory = Memory()
    for name in ("t", "hidden-topic"):
        memory.topics.create_now(name, partitions=2)
    for transactional_id in ("tx", "hidden-id"):
        memory.coordinator.descriptions[transactional_id] = description(transactional_id)
    return memory


async def ask(asker: AskerAs, key: int, version: int) -> bytes:
    """The answer's body."""
    answer = await asker.finish(await asker.start(key, version, **example_fields(key)))
    header = 5 if REQUESTS[key][0].flexible_version_q(version) and key != 18 else 4
    return answer[header:]


def test_table_has_each_api():
    """An API that is added needs a line."""
    assert DENIED.keys() == {api.key for api in ALL}


@pytest.mark.parametrize(("key", "version"), EVERYTHING)
async def test_outsider_is_refused_and_told_nothing(description, key, version):
    """The answer has the code that Kafka has, and is the same whether what is asked for exists or not."""
    by_id = key == FETCH and version >= BY_ID_FROM
    bodies: list[bytes] = []
    for memory in (full(description), Memory()):
        enforce(memory)
        before = memory.cluster.generation
        body = await ask(AskerAs(memory, ANONYMOUS), key, version)
        # An id tells nothing to who does not have the name, says Kafka, and so tells the one case from the other.
        unknown_id = by_id and not memory.cluster.by_name
        assert codes_in(key, version, body) == ({UNKNOWN_TOPIC_ID} if unknown_id else expected(key, version))
        assert not any(secret in body for secret in SECRETS)
        assert memory.cluster.generation == before
        bodies.append(body)
    if not by_id and key != TELEMETRY:  # which makes an id
        assert bodies[0] == bodies[1]


# --- what is asked ----------------------------------------------------------------------------------


class Recorder:
    """Which checks each request has made."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.seen: set[Check] = set()
        self._records = False
        for name in ("denied", "may", "may_with_any"):
            self._wrap(monkeypatch, name)

    def __enter__(self) -> None:
        self._records = True

    def __exit__(self, *_: object) -> None:
        self._records = False

    def _wrap(self, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
        asked = getattr(checks, name)

        def record(context, check, *resource):
            if self._records:
                self.seen.add(check)
            return asked(context, check, *resource)

        for module in list(sys.modules.values()):
            if getattr(module, name, None) is asked:
                monkeypatch.setattr(module, name, record)


def other_fields(key: int) -> list[dict[str, Any]]:
    """What the example does not ask."""
    example = example_fields(key)
    match key:
        case 0:
            return [{**example, "transactional_id": "tx"}, {**example, "topic_data": [_renamed(example["topic_data"])]}]
        case 3:
            unknown = metadata.MetadataRequest.MetadataRequestTopic(name="u", topic_id=None)
            return [
                {"topics": [unknown], "allow_auto_topic_creation": True, "include_cluster_authorized_operations": True}
            ]
        case 20:
            by_id = admin.DeleteTopicsRequest.DeleteTopicState(name=None, topic_id=UUID(int=1))
            return [{**example, "topics": [by_id]}]
        case 66:
            return [
                {
                    "state_filters": [],
                    "producer_id_filters": [],
                    "duration_filter": -1,
                    "transactional_id_pattern": None,
                }
            ]
        case 10:
            return [{**example, "key_type": 0}]
        case 22:
            return [{**example, "transactional_id": None}, {**example, "enable2_pc": True, "keep_prepared_txn": False}]
        case 32 | 33 | 44:
            (topic,) = example["resources"]
            others = [copy.copy(topic) for _ in range(2)]
            for other, (kind, name) in zip(others, [(4, "7"), (32, "g")], strict=True):
                other.resource_type, other.resource_name = kind, name
            return [{**example, "resources": others}]
        case _:
            return []


def _renamed(topics: list[Any]) -> Any:
    topic = copy.copy(topics[0])
    topic.name = "u"
    return topic


async def with_group(memory: Memory) -> None:
    """A consumer group whose member reads the topic."""
    enforce(memory)
    for _ in range(2):
        await ask(AskerAs(memory, ADMIN), 68, 0)


@pytest.mark.parametrize("api", ALL, ids=lambda api: api.name)
async def test_api_makes_the_checks_that_it_lists(description, monkeypatch, api):
    """All of them and no other, when everything else is allowed: asked as often as one check hides another."""
    recorder = Recorder(monkeypatch)
    for version in sorted({api.served.min, 3, 6, 8, api.served.max}):
        for given in [example_fields(api.key), *other_fields(api.key)]:
            each_left_out = [[each for each in api.checks if each is not left_out] for left_out in api.checks]
            for allowed in (api.checks, *each_left_out, []):
                memory = full(description)
                if api.key in (16, 69):
                    await with_group(memory)
                enforce(memory, *(allow(each.operation, each.of, "*") for each in allowed))
                if version in range(api.served.min, api.served.max + 1):
                    asker = AskerAs(memory, ANONYMOUS)
                    with recorder, contextlib.suppress(HangUp):
                        await asker.finish(await asker.start(api.key, version, **given))
    assert recorder.seen == set(api.checks)


# --- a part of it -----------------------------------------------------------------------------------

TOPIC_T, GROUP_G, ID_TX = (ResourceType.TOPIC, "t"), (ResourceType.GROUP, "g"), (ResourceType.TRANSACTIONAL_ID, "tx")
CLUSTER_ITSELF = (ResourceType.CLUSTER, "kafka-cluster")


async def codes(memory: Memory, key: int, version: int, /, *allowed: Acl, **changes: Any) -> frozenset[int]:
    """What the example, with changes, is answered to one who may do just this."""
    enforce(memory, *allowed)
    asker = AskerAs(memory, ANONYMOUS)
    answer = await asker.finish(await asker.start(key, version, **example_fields(key) | changes))
    header = 5 if REQUESTS[key][0].flexible_version_q(version) and key != 18 else 4
    return codes_in(key, version, answer[header:])


async def answer_of(memory: Memory, key: int, version: int, /, *allowed: Acl, **changes: Any) -> Any:
    enforce(memory, *allowed)
    return await AskerAs(memory, ANONYMOUS)(key, version, **example_fields(key) | changes)


async def test_missing_topic_is_made_only_for_those_who_may_create_it(memory):
    """By Produce and by Metadata: on the topic, or in the cluster. Who may not is told so, not that it is missing."""
    write = allow(Operation.WRITE, *TOPIC_T)
    create = [allow(Operation.CREATE, *TOPIC_T), allow(Operation.CREATE, *CLUSTER_ITSELF)]
    for key, version in ((0, 9), (3, 9)):
        assert await codes(memory, key, version, write) == {TOPIC}
        assert memory.cluster.topic("t") is None
    for one in create:
        for key, version in ((0, 9), (3, 9)):
            memory = Memory()
            assert await codes(memory, key, version, write, one) == {NONE}
            assert memory.cluster.topic("t") is not None


@pytest.mark.parametrize("version", [3, 8, 12])
async def test_transaction_is_not_written_without_its_id(memory, version):
    memory.topics.create_now("t")
    both = allow(Operation.WRITE, *TOPIC_T), allow(Operation.WRITE, *ID_TX)
    of_tx = {"transactional_id": "tx"}
    assert await codes(memory, 0, version, both[0], **of_tx) == {TRANSACTIONAL_ID}
    assert await codes(memory, 0, version, both[1], **of_tx) == {TOPIC}
    assert await codes(memory, 0, version, *both, **of_tx) == {ErrorCode.INVALID_RECORD}  # the batch is plain


async def test_partitions_are_added_all_or_none(memory):
    """As in Kafka: those that were not denied are not attempted."""
    for name in ("t", "u"):
        memory.topics.create_now(name)
    add = producer.AddPartitionsToTxnRequest.AddPartitionsToTxnTopic
    answer = await answer_of(
        memory,
        24,
        3,
        allow(Operation.WRITE, *ID_TX),
        allow(Operation.WRITE, *TOPIC_T),
        v3_and_below_topics=[add(name="t", partitions=[0]), add(name="u", partitions=[0])],
    )
    told = [each.results_by_partition[0].partition_error_code for each in answer.results_by_topic_v3_and_below]
    assert told == [ErrorCode.OPERATION_NOT_ATTEMPTED, TOPIC]
    assert memory.coordinator.calls == []


async def test_producer_without_an_id_needs_some_topic(memory):
    """KIP-679; or IDEMPOTENT_WRITE, as before it."""
    plain = {"transactional_id": None}
    assert await codes(memory, 22, 4, **plain) == {CLUSTER}
    assert await codes(memory, 22, 4, allow(Operation.WRITE, *TOPIC_T), **plain) == {NONE}
    assert await codes(memory, 22, 4, allow(Operation.IDEMPOTENT_WRITE, *CLUSTER_ITSELF), **plain) == {NONE}
    assert await codes(memory, 22, 4, allow(Operation.WRITE, *ID_TX), **plain) == {CLUSTER}


async def test_two_phases_need_an_operation_of_their_own(memory):
    """KIP-939."""
    asked = {"enable2_pc": True, "keep_prepared_txn": False}
    both = allow(Operation.WRITE, *ID_TX), allow(Operation.TWO_PHASE_COMMIT, *ID_TX)
    assert await codes(memory, 22, 6, both[0], **asked) == {TRANSACTIONAL_ID}
    assert memory.coordinator.calls == []
    assert await codes(memory, 22, 6, *both, **asked) == {NONE}


async def test_lane_is_its_sinks(memory):
    """One ACL for all lanes, which says that it is a sink; none on the lane's own id."""
    lane = {"transactional_id": "fairlog.lane.3.totals"}
    of_sink = allow(Operation.WRITE, ResourceType.TRANSACTIONAL_ID, "fairlog.sink.totals")
    of_lane = allow(Operation.WRITE, ResourceType.TRANSACTIONAL_ID, "fairlog.lane.3.totals")
    assert await codes(memory, 22, 4, of_lane, **lane) == {TRANSACTIONAL_ID}
    assert await codes(memory, 22, 4, of_sink, **lane) == {NONE}


@pytest.mark.parametrize("operation", [Operation.ALTER, Operation.CLUSTER_ACTION])
async def test_markers_are_for_operators_and_brokers(memory, operation):
    memory.topics.create_now("t")
    assert await codes(memory, 27, 1, allow(operation, *CLUSTER_ITSELF)) == {NONE}


async def test_lists_have_what_may_be_described(description):
    """Groups, transactional ids, offsets, and the partitions of a transaction."""
    memory = full(description)
    await with_group(memory)
    everything = {"state_filters": [], "producer_id_filters": []}
    listed = await answer_of(memory, 66, 1, allow(Operation.DESCRIBE, *ID_TX), **everything, duration_filter=-1)
    assert [each.transactional_id for each in listed.transaction_states] == ["tx"]
    for allowed, expected_groups in [(GROUP_G, ["g"]), (CLUSTER_ITSELF, ["g"]), (TOPIC_T, [])]:
        groups = await answer_of(memory, 16, 3, allow(Operation.DESCRIBE, *allowed))
        assert [each.group_id for each in groups.groups] == expected_groups
    of_tx = allow(Operation.DESCRIBE, *ID_TX)
    for allowed, topics in [((of_tx,), []), ((of_tx, allow(Operation.READ, *TOPIC_T)), ["t"])]:
        (state,) = (await answer_of(memory, 65, 0, *allowed)).transaction_states
        assert (state.error_code, [each.topic for each in state.topics]) == (NONE, topics)


async def test_group_that_reads_what_is_hidden_is_not_described(description):
    memory = full(description)
    await with_group(memory)
    of_group = allow(Operation.DESCRIBE, *GROUP_G)
    assert await codes(memory, 69, 0, of_group) == {TOPIC}
    assert await codes(memory, 69, 0, of_group, allow(Operation.DESCRIBE, *TOPIC_T)) == {NONE}


async def test_member_subscribes_to_what_it_may_describe(memory):
    memory.topics.create_now("t")
    of_group = allow(Operation.READ, *GROUP_G)
    assert await codes(memory, 68, 0, of_group) == {TOPIC}
    assert await codes(memory, 68, 0, of_group, allow(Operation.DESCRIBE, *TOPIC_T)) == {NONE}


async def test_offsets_of_hidden_topics_are_neither_told_nor_taken(memory):
    """One by one if they are asked for; if all are, they are left out."""
    memory.topics.create_now("t")
    of_group, of_topic = allow(Operation.READ, *GROUP_G), allow(Operation.READ, *TOPIC_T)
    assert await codes(memory, 8, 9, of_group) == {TOPIC}
    assert await codes(memory, 8, 9, of_group, of_topic) == {NONE}
    assert await codes(memory, 28, 3, of_group, allow(Operation.WRITE, *ID_TX)) == {TOPIC}
    assert await codes(memory, 9, 7, of_group) == {TOPIC}
    assert await codes(memory, 9, 7, of_group, of_topic) == {NONE}
    for allowed, names in [((of_group,), []), ((of_group, of_topic), ["t"])]:
        assert [topic.name for topic in (await answer_of(memory, 9, 7, *allowed, topics=None)).topics] == names


async def test_new_topic_shows_its_configs_to_those_who_may_describe_them(memory):
    new = allow(Operation.CREATE, ResourceType.TOPIC, "u")
    (topic,) = (await answer_of(memory, 19, 7, new)).topics
    assert (topic.error_code, topic.num_partitions, topic.configs) == (NONE, -1, None)
    assert topic.topic_config_error_code == TOPIC
    memory = Memory()
    (topic,) = (await answer_of(memory, 19, 7, new, allow(Operation.DESCRIBE_CONFIGS, ResourceType.TOPIC, "u"))).topics
    assert (topic.error_code, topic.num_partitions, topic.topic_config_error_code) == (NONE, 1, NONE)


async def test_topic_that_may_not_be_deleted_keeps_its_name(memory):
    """Named by its id, it has no name in the answer, unless the client may describe it."""
    made = memory.topics.create_now("t")
    by_id = [admin.DeleteTopicsRequest.DeleteTopicState(name=None, topic_id=made.topic_id)]
    for allowed, name in [((), None), ((allow(Operation.DESCRIBE, *TOPIC_T),), "t")]:
        (line,) = (await answer_of(memory, 20, 6, *allowed, topics=by_id)).responses
        assert (line.error_code, line.name) == (TOPIC, name)
    assert await codes(memory, 20, 6, allow(Operation.DELETE, *CLUSTER_ITSELF), topics=by_id) == {NONE}


@pytest.mark.parametrize("key", [32, 33, 44])
async def test_configs_have_the_code_of_their_resource(memory, key):
    """A broker's are the cluster's."""
    (others,) = (each["resources"] for each in other_fields(key))
    broker, group = others
    assert await codes(memory, key, 1, resources=[broker]) == {CLUSTER}
    assert await codes(memory, key, 1, resources=[group]) == {GROUP}


async def test_epochs_are_told_to_brokers(memory):
    memory.topics.create_now("t")
    for operation, of in [(Operation.DESCRIBE, TOPIC_T), (Operation.CLUSTER_ACTION, CLUSTER_ITSELF)]:
        assert await codes(memory, 23, 4, allow(operation, *of)) == {NONE}


async def test_page_ends_before_what_may_be_described(memory):
    """No cursor names a topic that is hidden."""
    for name in ("a", "b", "t"):
        memory.topics.create_now(name)
    allowed = allow(Operation.DESCRIBE, ResourceType.TOPIC, "a"), allow(Operation.DESCRIBE, *TOPIC_T)
    page = await answer_of(memory, 75, 0, *allowed, topics=[], cursor=None, response_partition_limit=1)
    assert ([each.name for each in page.topics], page.next_cursor.topic_name) == (["a"], "t")


async def test_denial_is_one_line(memory):
    """With who, from where, what, on what; limited like all lines that clients can cause."""
    memory.topics.create_now("t")
    enforce(memory)
    asker = AskerAs(memory, ANONYMOUS)
    with capture_logs() as lines:
        for _ in range(30):
            await asker(2, 7, **example_fields(2))
    line = {"event": "access denied", "principal": "User:ANONYMOUS", "host": "test", "log_level": "info"}
    assert lines == [line | {"operation": "DESCRIBE", "resource": "TOPIC:t", "client_id": "asker"}] * LINES_MAX


def test_api_without_checks_is_one_that_needs_none():
    """Who adds an API has to say what it checks, and here if it is nothing."""
    signing_in = {"SaslHandshake", "SaslAuthenticate"}
    open_to_all = {"ApiVersions", "GetTelemetrySubscriptions", "PushTelemetry"}
    assert {api.name for api in ALL if not api.checks} == signing_in | open_to_all
