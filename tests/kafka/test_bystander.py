"""The broker of a shard that another node owns: it answers every request, and sends clients to the right one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest

from fairlog.broker import Broker
from fairlog.bystander import make_bystander
from fairlog.config_values import Address
from fairlog.kafka.api import HangUp
from fairlog.kafka.errors import ErrorCode
from fairlog.kafka.handlers import ALL
from fairlog.live_settings import LiveSettings
from tests.kafka.asking import REQUESTS, Asker, consumer
from tests.kafka.example_requests import build_batch, example_fields
from tests.kafka.in_memory import Memory
from tests.kafka.test_fetch import request

CHANGES = {19, 20, 33, 37, 44, 57}
"""These change the cluster's metadata: tests/on_kafka tries some of them."""

ASKED = [api for api in ALL if api.key in REQUESTS and api.key not in CHANGES]


@dataclass
class Bystander(Memory):
    has_copy: bool = False
    opens: bool = False
    is_door: bool = False
    """The broker of a node's first port, which is no shard's."""
    engine_is_silent: bool = False

    @property
    def broker(self) -> Broker:
        live = LiveSettings(self.settings, self.cluster)  # type: ignore[arg-type]
        return make_bystander(
            self.cluster,  # type: ignore[arg-type]
            live,
            {"PLAINTEXT": Address("door.example", 9092)} if self.is_door else self.advertised,
            data_logs=self.data_logs,  # type: ignore[arg-type]
            copied=lambda: self.leaders if self.has_copy else None,
            opens=lambda: self.opens,
            engine_is_silent=lambda: self.engine_is_silent,
        )


@pytest.fixture
def bystander() -> Bystander:
    """Of shard 1 of three, with a topic."""
    memory = Bystander()
    memory.spread(3, 1)
    memory.topics.create_now("t", partitions=3)
    memory.cluster.allot_producer_ids = _allot  # type: ignore[attr-defined]
    return memory


async def _allot(count: int) -> range:
    return range(4000, 4000 + count)


@pytest.mark.parametrize("api", ASKED, ids=lambda api: api.name)
async def test_each_request_is_answered(bystander: Bystander, api) -> None:
    """In each version: no part that it lacks is asked for."""
    for version in range(api.served.min, api.served.max + 1):
        await Asker(bystander)(api.key, version, **example_fields(api.key))


async def test_producers_get_ids(bystander: Bystander) -> None:
    """Those without a transactional id: any broker may be asked."""
    answer = await Asker(bystander)(22, 4, **example_fields(22) | {"transactional_id": None})
    assert (answer.error_code, answer.producer_id, answer.producer_epoch) == (ErrorCode.NONE, 4000, 0)


async def test_others_are_sent_to_the_owner(bystander: Bystander) -> None:
    """Also what would be this shard's, for another node owns it."""
    ask = Asker(bystander)
    for partition in range(3):
        answer = await ask(2, 6, **example_fields(2) | {"topics": [_partition(partition)]})
        assert answer.topics[0].partitions[0].error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert await _asked_of_three_shards(bystander) == [ErrorCode.NOT_COORDINATOR] * 6


async def test_who_has_just_become_the_owner_says_that_it_loads(bystander: Bystander) -> None:
    """What is this shard's: the others' coordinators are elsewhere."""
    bystander.opens = True
    elsewhere, loads = ErrorCode.NOT_COORDINATOR, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    assert sorted(await _asked_of_three_shards(bystander)) == [loads, loads, *[elsewhere] * 4]


async def test_who_knows_of_no_other_owner_hangs_up_and_sends_nobody_back_to_itself(bystander: Bystander) -> None:
    """librdkafka asks the broker that it has used last who the owner is. Of other shards it is said as ever."""
    bystander.engine_is_silent = True
    ask = Asker(bystander)
    elsewhere = next(name for name in map(str, range(99)) if bystander.broker.shard_of(name) != 1)
    here = next(name for name in map(str, range(99)) if bystander.broker.shard_of(name) == 1)
    answer = await ask(26, 3, **example_fields(26) | {"transactional_id": elsewhere})
    assert answer.error_code == ErrorCode.NOT_COORDINATOR
    with pytest.raises(HangUp):
        await ask(26, 3, **example_fields(26) | {"transactional_id": here})
    with pytest.raises(HangUp):
        await ask(0, 9, **example_fields(0))
    bystander.cluster.broker_of = lambda shard: 99  # type: ignore[method-assign]
    assert (await ask(26, 3, **example_fields(26) | {"transactional_id": here})).error_code == ErrorCode.NOT_COORDINATOR


async def _asked_of_three_shards(bystander: Bystander) -> list[int]:
    """What is answered for a group, and for a transactional id, of each shard."""
    ask, codes = Asker(bystander), list[int]()
    for shard in range(3):
        group = next(name for name in map(str, range(99)) if bystander.broker.shard_of_group(name) == shard)
        name = next(name for name in map(str, range(99)) if bystander.broker.shard_of(name) == shard)
        codes.append((await ask(12, 3, **example_fields(12) | {"group_id": group})).error_code)
        codes.append((await ask(26, 3, **example_fields(26) | {"transactional_id": name})).error_code)
    return codes


def _partition(index: int) -> object:
    topic = consumer.ListOffsetsRequest.ListOffsetsTopic
    wanted = topic.ListOffsetsPartition(partition_index=index, current_leader_epoch=-1, timestamp=-1)
    return topic(name="t", partitions=[wanted])


@pytest.fixture
def own_partition(bystander: Bystander) -> int:
    """One that is in the broker's shard, with a batch of two records."""
    topic = bystander.cluster.by_name["t"]
    (index, *_) = [log.partition for log in topic.logs() if bystander.cluster.shard_of(log) == 1]
    log = bystander.log("t", index)
    bystander.leaders.logs[log].append(build_batch(records=2))
    bystander.leaders.release()
    return index


async def fetched(memory: Memory, partition: int, offset: int, rack: str = "") -> Any:
    """The partition's entry in the answer."""
    wanted = request(memory, {partition: offset}, version=12) | {"rack_id": rack}
    return (await Asker(memory)(1, 12, **wanted)).responses[0].partitions[0]


async def test_consumers_read_what_is_copied(bystander: Bystander, own_partition: int) -> None:
    """From where there is no copy they are sent to the leader; beyond what is there they are to ask again."""
    assert (await fetched(bystander, own_partition, 0)).error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
    bystander.has_copy = True
    found = await fetched(bystander, own_partition, 0)
    assert (found.error_code, found.high_watermark, bool(found.records)) == (ErrorCode.NONE, 2, True)
    assert (await fetched(bystander, own_partition, 2)).error_code == ErrorCode.NONE
    assert (await fetched(bystander, own_partition, 9)).error_code == ErrorCode.OFFSET_NOT_AVAILABLE


async def test_leader_sends_consumers_to_the_copy_in_their_rack(memory: Memory) -> None:
    """Not if it is in that rack itself, nor if no copy in sync is there."""
    memory.spread(3, 1)
    memory.topics.create_now("t", partitions=3)
    topic = memory.cluster.by_name["t"]
    (index, *_) = [log.partition for log in topic.logs() if memory.cluster.shard_of(log) == 1]
    memory.cluster.racks = {8: "a", 7: "b"}
    memory.cluster.other_copies = [7]
    for rack, broker in (("", -1), ("a", -1), ("b", 7), ("c", -1)):
        found = await fetched(memory, index, 0, rack)
        assert (found.error_code, found.preferred_read_replica) == (ErrorCode.NONE, broker)
