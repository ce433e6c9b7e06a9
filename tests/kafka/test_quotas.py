"""Quotas at Kafka's edge: the APIs that change and show them, and what they do to Produce and Fetch."""

from __future__ import annotations

import warnings
from collections.abc import Mapping

import pytest
import trio

from fairlog.kafka.handlers import api_49_alter_client_quotas as api
from fairlog.security.principal import ANONYMOUS, Principal
from fairlog.security.quotas import QUOTAS
from fairlog_types import StorageFailure
from tests.kafka.asking import Asker
from tests.kafka.denying import AskerAs
from tests.kafka.example_requests import build_batch, example_fields
from tests.kafka.in_memory import Memory

with warnings.catch_warnings():
    # It reads its schemas with importlib.resources.read_text.
    warnings.simplefilter("ignore", DeprecationWarning)
    from kafka.protocol import admin, consumer, producer

NONE, INVALID_REQUEST, UNSUPPORTED_VERSION, POLICY_VIOLATION, STORAGE = 0, 42, 35, 44, 56
PRODUCE, FETCH, DESCRIBE, ALTER = 0, 1, 48, 49
ENTRY = admin.AlterClientQuotasRequest.EntryData
COMPONENT = admin.DescribeClientQuotasRequest.ComponentData

Names = Mapping[str, str | None]


@pytest.fixture
def memory() -> Memory:
    return Memory()


@pytest.fixture
def ask(memory: Memory) -> Asker:
    return AskerAs(memory, ANONYMOUS)


def entry(entity: Names, **rates: float | None) -> object:
    return ENTRY(
        entity=[ENTRY.EntityData(entity_type=of_type, entity_name=name) for of_type, name in entity.items()],
        ops=[ENTRY.OpData(key=key, value=rate or 0.0, remove=rate is None) for key, rate in rates.items()],
    )


async def alter(ask: Asker, *entries: object, version: int = 1, validate_only: bool = False) -> list[int]:
    answer = await ask(ALTER, version, entries=list(entries), validate_only=validate_only)
    assert [[(part.entity_type, part.entity_name) for part in each.entity] for each in answer.entries] == [
        [(part.entity_type, part.entity_name) for part in each.entity] for each in entries
    ]
    assert all(bool(each.error_message) == bool(each.error_code) for each in answer.entries)
    return [each.error_code for each in answer.entries]


async def described(
    ask: Asker, *components: tuple[str, int, str | None], strict: bool = False, version: int = 1
) -> list[tuple[dict[str, str | None], dict[str, float]]]:
    parts = [COMPONENT(entity_type=of_type, match_type=match, match=name) for of_type, match, name in components]
    answer = await ask(DESCRIBE, version, components=parts, strict=strict)
    assert answer.error_code == NONE
    return [
        ({part.entity_type: part.entity_name for part in each.entity}, {it.key: it.value for it in each.values})
        for each in answer.entries
    ]


# --- the APIs -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", [0, 1])
async def test_quotas_are_set_shown_changed_and_removed(ask: Asker, memory: Memory, version: int) -> None:
    both = {"user": "alice", "client-id": None}
    codes = await alter(
        ask,
        entry(both, producer_byte_rate=1000.0, consumer_byte_rate=2000.0),
        entry({"ip": "10.0.0.1"}, connection_creation_rate=5.0),
        entry({"client-id": "c"}, consumer_byte_rate=7.0),
        version=version,
    )
    assert codes == [NONE] * 3
    assert await described(ask, version=version) == [
        ({"client-id": "c"}, {"consumer_byte_rate": 7.0}),
        ({"ip": "10.0.0.1"}, {"connection_creation_rate": 5.0}),
        (both, {"producer_byte_rate": 1000.0, "consumer_byte_rate": 2000.0}),
    ]
    assert await described(ask, ("user", 2, None), strict=True) == []
    assert await described(ask, ("user", 0, "alice"), ("client-id", 1, None), strict=True) == [
        (both, {"producer_byte_rate": 1000.0, "consumer_byte_rate": 2000.0})
    ]
    assert await alter(ask, entry(both, producer_byte_rate=None, consumer_byte_rate=3000.0)) == [NONE]
    assert await described(ask, ("user", 2, None)) == [(both, {"consumer_byte_rate": 3000.0})]
    assert await alter(
        ask, entry(both, consumer_byte_rate=None), entry({"user": "nobody"}, producer_byte_rate=None)
    ) == [
        NONE,
        NONE,
    ]
    assert len(memory.cluster.access(QUOTAS)) == 2


async def test_bad_entry_is_refused_and_others_in_the_request_are_not(ask: Asker, memory: Memory) -> None:
    codes = await alter(
        ask,
        entry({"user": ""}, producer_byte_rate=1.0),
        entry({}, producer_byte_rate=1.0),
        entry({"user": "a"}, producer_byte_rate=0.0),
        entry({"user": "b"}, request_percentage=50.0),
        entry({"user": "twice"}, producer_byte_rate=1.0),
        entry({"user": "twice"}, producer_byte_rate=2.0),
        entry({"user": "good"}, producer_byte_rate=1.0),
    )
    assert codes == [INVALID_REQUEST] * 6 + [NONE]
    assert [quotas.entity for quotas in memory.cluster.access(QUOTAS).values()] == [(("user", "good"),)]


async def test_validation_changes_nothing_and_finds_the_same(ask: Asker, memory: Memory) -> None:
    entries = entry({"user": "a"}, producer_byte_rate=1.0), entry({"user": "b"}, producer_byte_rate=-1.0)
    assert await alter(ask, *entries, validate_only=True) == [NONE, INVALID_REQUEST]
    assert memory.cluster.access(QUOTAS) == {}
    assert memory.quotas.producers is None


async def test_too_many_are_refused_together(ask: Asker, memory: Memory, monkeypatch: pytest.MonkeyPatch) -> None:
    many = [entry({"user": f"u{number}"}, producer_byte_rate=1.0) for number in range(api.ENTRIES_MAX + 1)]
    assert set(await alter(ask, *many)) == {POLICY_VIOLATION}
    assert memory.cluster.access(QUOTAS) == {}
    monkeypatch.setattr("fairlog.security.quota_changes.QUOTAS_MAX", 1)
    assert await alter(ask, *many[:2]) == [NONE, POLICY_VIOLATION]


async def test_disk_that_refuses_is_told(ask: Asker, memory: Memory) -> None:
    memory.cluster.failure = StorageFailure("the disk is full")
    entries = entry({"user": "a"}, producer_byte_rate=1.0), entry({"user": "b"}, producer_byte_rate=-1.0)
    assert await alter(ask, *entries) == [STORAGE, INVALID_REQUEST]


@pytest.mark.parametrize(
    ("components", "code"),
    [([("group", 2, None)], UNSUPPORTED_VERSION), ([("user", 0, None)], INVALID_REQUEST), ([("user", 9, None)], 42)],
)
async def test_bad_filter_is_refused_with_a_sentence(ask: Asker, components, code: int) -> None:
    parts = [COMPONENT(entity_type=of_type, match_type=match, match=name) for of_type, match, name in components]
    answer = await ask(DESCRIBE, 1, components=parts, strict=False)
    assert (answer.error_code, answer.entries) == (code, None)
    assert answer.error_message


# --- what they do -------------------------------------------------------------------------------------


async def produce(ask: Asker, records: bytes, *, acks: int = -1) -> int:
    """The throttle time of the answer, which has no error."""
    data = producer.ProduceRequest.TopicProduceData
    partition = data.PartitionProduceData(index=0, records=records)
    fields = {"transactional_id": None, "acks": acks, "timeout_ms": 1000}
    answer = await ask(PRODUCE, 9, topic_data=[data(name="t", partition_data=[partition])], **fields)
    assert answer.responses[0].partition_responses[0].error_code == NONE
    return answer.throttle_time_ms


async def fetch(ask: Asker, version: int = 12, **changes: object):
    topic = consumer.FetchRequest.FetchTopic
    position = {"current_leader_epoch": -1, "fetch_offset": 0, "last_fetched_epoch": -1, "log_start_offset": -1}
    partition = topic.FetchPartition(partition=0, partition_max_bytes=100_000, **position)
    fields = {**example_fields(FETCH), "topics": [topic(topic="t", partitions=[partition])], "max_bytes": 100_000}
    return await ask(FETCH, version, **{**fields, **changes})


def read_bytes(answer) -> int:
    return sum(len(partition.records or b"") for topic in answer.responses for partition in topic.partitions)


async def test_produce_above_the_quota_is_carried_out_and_mutes(ask: Asker, memory: Memory, autojump_clock) -> None:
    memory.topics.create_now("t")
    assert await alter(ask, entry({"user": "ANONYMOUS"}, producer_byte_rate=1000.0)) == [NONE]
    assert await produce(ask, build_batch(size=9000)) == 0
    assert ask.client.muted_until == 0
    throttle_ms = await produce(ask, build_batch(size=9000))
    assert 8000 < throttle_ms < 9000  # 18 KB and two headers, at 1 KB/s, after a burst of 10 s
    assert ask.client.muted_until == pytest.approx(trio.current_time() + throttle_ms / 1000)
    assert len(memory.leaders.logs[memory.log("t")]) == 2
    assert memory.quotas.throttles.requests == {"Produce": 1}
    assert memory.quotas.throttles.throttled_ms == {"Produce": throttle_ms}
    await trio.sleep(30)
    assert await produce(ask, build_batch(size=9000)) == 0


async def test_connections_of_a_user_share_its_quota_whatever_they_call_themselves(
    ask: Asker, memory: Memory, autojump_clock
) -> None:
    memory.topics.create_now("t")
    await alter(
        ask, entry({"user": None}, producer_byte_rate=1000.0), entry({"client-id": None}, producer_byte_rate=9e9)
    )
    one, other = AskerAs(memory, Principal("User", "alice")), AskerAs(memory, Principal("User", "alice"))
    assert await produce(one, build_batch(size=8000)) == 0
    assert await produce(other, build_batch(size=8000)) > 5000
    assert one.client.muted_until == 0
    assert await produce(AskerAs(memory, Principal("User", "bob")), build_batch(size=8000)) == 0
    assert await produce(ask, build_batch(size=8000)) == 0  # who has not signed in is a user, too


async def test_client_without_a_quota_is_not_throttled_by_others(ask: Asker, memory: Memory) -> None:
    memory.topics.create_now("t")
    await alter(
        ask, entry({"user": "other"}, producer_byte_rate=1.0), entry({"client-id": "x"}, producer_byte_rate=1.0)
    )
    assert await produce(ask, build_batch(size=9000)) == 0
    assert len(memory.quotas.producers) == 0


async def test_fetch_above_the_quota_is_empty_and_is_read_again_later(
    ask: Asker, memory: Memory, autojump_clock
) -> None:
    memory.topics.create_now("t")
    for _ in range(3):
        await produce(ask, build_batch(size=8000))
    await alter(ask, entry({"client-id": "asker"}, consumer_byte_rate=1000.0))
    first = await fetch(ask)
    assert (first.throttle_time_ms, read_bytes(first)) == (0, 8000)  # not more than ten seconds' worth
    second = await fetch(ask)
    assert (second.throttle_time_ms, second.responses, second.error_code) == (6000, [], NONE)
    assert ask.client.muted_until == pytest.approx(trio.current_time() + 6)
    await trio.sleep(12)
    assert read_bytes(await fetch(ask)) == 8000


async def test_batch_larger_than_a_window_is_read_when_nothing_else_was(
    ask: Asker, memory: Memory, autojump_clock
) -> None:
    memory.topics.create_now("t")
    await produce(ask, build_batch(size=8000))
    await alter(ask, entry({"client-id": None}, consumer_byte_rate=100.0))
    assert read_bytes(await fetch(ask)) == 8000
    assert (await fetch(ask)).throttle_time_ms == 150_000


async def test_throttled_session_goes_on_with_what_it_did_not_get(ask: Asker, memory: Memory, autojump_clock) -> None:
    memory.topics.create_now("t")
    await produce(ask, build_batch(size=8000))
    await alter(ask, entry({"client-id": None}, consumer_byte_rate=1000.0))
    first = await fetch(ask, session_epoch=0)
    assert first.session_id != 0
    topic = consumer.FetchRequest.FetchTopic
    position = {"current_leader_epoch": -1, "last_fetched_epoch": -1, "log_start_offset": -1}
    again = topic.FetchPartition(partition=0, partition_max_bytes=100_000, fetch_offset=0, **position)
    same = {"session_id": first.session_id}
    named = [topic(topic="t", partitions=[again])]
    second = await fetch(ask, **same, session_epoch=1, topics=named)
    assert (second.throttle_time_ms > 0, second.session_id, second.responses) == (True, first.session_id, [])
    await trio.sleep(20)
    third = await fetch(ask, **same, session_epoch=2, topics=[])
    assert (third.error_code, third.throttle_time_ms, read_bytes(third)) == (NONE, 0, 8000)
    await trio.sleep(20)
    fourth = await fetch(ask, **same, session_epoch=3, topics=[])
    assert read_bytes(fourth) in (0, 8000)


async def test_full_fetch_that_is_throttled_has_no_session(ask: Asker, memory: Memory, autojump_clock) -> None:
    memory.topics.create_now("t")
    await produce(ask, build_batch(size=8000))
    await alter(ask, entry({"client-id": None}, consumer_byte_rate=1000.0))
    await fetch(ask)
    second = await fetch(ask, session_epoch=0)
    assert (second.throttle_time_ms > 0, second.session_id) == (True, 0)


async def test_change_of_another_broker_holds_when_it_is_known(ask: Asker, memory: Memory, nursery) -> None:
    await nursery.start(_started, memory)
    other = Memory(cluster=memory.cluster)
    assert await alter(AskerAs(other, ANONYMOUS), entry({"user": None}, producer_byte_rate=1.0)) == [NONE]
    await trio.testing.wait_all_tasks_blocked()
    assert memory.quotas.producers is not None
    assert await alter(ask, entry({"user": None}, producer_byte_rate=None)) == [NONE]
    assert memory.quotas.producers is None
    nursery.cancel_scope.cancel()


async def _started(memory: Memory, *, task_status: trio.TaskStatus[None]) -> None:
    task_status.started()
    await memory.quotas.follow()


async def test_strangers_take_no_more_memory_than_others(ask: Asker, memory: Memory) -> None:
    """A default for client ids, and ten thousand of them."""
    memory.topics.create_now("t")
    await alter(ask, entry({"client-id": None}, producer_byte_rate=10**9))
    memory.quotas.producers._meters_max = 50
    for number in range(200):
        ask.client.client_id = f"stranger {number}"
        limit = memory.quotas.producers.limits.of_client("ANONYMOUS", ask.client.client_id)
        memory.quotas.producers.record(limit, 1, trio.current_time())
    assert len(memory.quotas.producers) == 51
