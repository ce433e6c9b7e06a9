"""The admin listeners of a node of three processes."""

from __future__ import annotations

import json
import time
import urllib.request
from collections import Counter

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic
from prometheus_client.parser import text_string_to_metric_families

from tests.three_processes import FIRST_NODE_ID, PROCESSES, ThreeProcesses

pytestmark = pytest.mark.slow

WAIT_S = 60
PARTITIONS = 7


def get(url: str) -> str:
    with urllib.request.urlopen(url, timeout=WAIT_S) as answer:
        return answer.read().decode()


def samples(page: str) -> dict[tuple[str, str], float]:
    """By name and shard; the last one of those with more labels."""
    found = [sample for family in text_string_to_metric_families(page) for sample in family.samples]
    identities = Counter((sample.name, tuple(sorted(sample.labels.items()))) for sample in found)
    assert max(identities.values()) == 1, identities.most_common(1)
    return {(sample.name, sample.labels["shard"]): sample.value for sample in found}


@pytest.fixture(scope="module", autouse=True)
def topic(three: ThreeProcesses) -> None:
    admin = AdminClient({"bootstrap.servers": three.addresses[0]})
    admin.create_topics([NewTopic("spread", PARTITIONS, 1)])["spread"].result(WAIT_S)


def test_first_metrics_page_has_all_shards(three: ThreeProcesses) -> None:
    """Each counts what is its own; the others' pages have their own alone."""
    shards = [str(shard) for shard in range(PROCESSES)]
    page = samples(get(three.consoles[0] + "metrics"))
    deadline = time.monotonic() + WAIT_S
    while sum(page["fairlog_partitions", shard] for shard in shards) < PARTITIONS and time.monotonic() < deadline:
        page = samples(get(three.consoles[0] + "metrics"))  # a new topic is heard of a moment later
    assert [page["fairlog_shard_up", shard] for shard in shards] == [1.0] * PROCESSES
    assert [page["fairlog_serving", shard] for shard in shards] == [1.0] * PROCESSES
    led = [page["fairlog_partitions", shard] for shard in shards]
    assert sum(led) == json.loads(get(three.consoles[0] + "api/cluster"))["partitions"]
    assert all(led)
    assert {shard for _, shard in samples(get(three.consoles[1] + "metrics"))} == {"1"}


def test_process_that_does_not_answer_is_down_and_the_others_are_seen(three: ThreeProcesses) -> None:
    """In the metrics and among the brokers; and up again when it goes on."""
    with three.frozen(2):
        page = samples(get(three.consoles[0] + "metrics"))
        assert [page["fairlog_shard_up", str(shard)] for shard in range(PROCESSES)] == [1.0, 1.0, 0.0]
        assert ("fairlog_serving", "1") in page
        assert ("fairlog_serving", "2") not in page
        assert statuses(three, 1) == ["serving", "serving", "down"]
    assert samples(get(three.consoles[0] + "metrics"))["fairlog_shard_up", "2"] == 1.0


def test_lag_of_a_group_counts_the_partitions_of_all_processes(three: ThreeProcesses) -> None:
    """On the page of the group's coordinator, and so on the first one; in the console as well."""
    producer = Producer({"bootstrap.servers": three.addresses[0]})
    for partition in range(PARTITIONS):
        for _ in range(3):
            producer.produce("spread", b"x", partition=partition)
    assert producer.flush(WAIT_S) == 0
    consumer = Consumer({"bootstrap.servers": three.addresses[0], "group.id": "readers"})
    places = [TopicPartition("spread", partition, 1) for partition in range(PARTITIONS)]
    consumer.commit(offsets=places, asynchronous=False)
    consumer.close()
    deadline = time.monotonic() + WAIT_S
    while (lags := lags_of("readers", three)) != [2 * PARTITIONS] and time.monotonic() < deadline:
        time.sleep(0.5)  # groups are read once a few seconds
    assert lags == [2 * PARTITIONS]
    groups = [group for console in three.consoles for group in json.loads(get(console + "api/groups"))["groups"]]
    (readers,) = (group for group in groups if group["group"] == "readers")
    assert [each["high_watermark"] for each in readers["partitions"]] == [3] * PARTITIONS


def lags_of(group: str, three: ThreeProcesses) -> list[float]:
    """The values of all of its rows in `fairlog_group_lag_records` on the first page."""
    page = get(three.consoles[0] + "metrics")
    found = [sample for family in text_string_to_metric_families(page) for sample in family.samples]
    of_group = [each for each in found if each.labels.get("group") == group]
    return [each.value for each in of_group if each.name == "fairlog_group_lag_records"]


def statuses(three: ThreeProcesses, asked: int) -> list[str]:
    return [each["status"] for each in json.loads(get(three.consoles[asked] + "api/brokers"))["brokers"]]


def test_brokers_lead_all_partitions_together(three: ThreeProcesses) -> None:
    """Every process says the same of all, and of itself which shard it is."""
    for shard, console in enumerate(three.consoles):
        brokers = json.loads(get(console + "api/brokers"))["brokers"]
        assert [each["node_id"] for each in brokers] == list(range(FIRST_NODE_ID, FIRST_NODE_ID + PROCESSES))
        assert [each["address"] for each in brokers] == list(three.addresses)
        assert [f"http://127.0.0.1:{each['admin_port']}/" for each in brokers] == list(three.consoles)
        cluster = json.loads(get(console + "api/cluster"))
        assert (cluster["shard"], cluster["shards"]) == (shard, PROCESSES)
        assert sum(each["partitions"] for each in brokers) == cluster["partitions"]
        topics = json.loads(get(console + "api/topics?contains=spread"))["topics"]
        (spread,) = (each for each in topics if each["name"] == "spread")
        leaders = {each["partition"]: each["leader"] for each in spread["elsewhere"]}
        led = {each["partition"]: FIRST_NODE_ID + shard for each in spread["partitions"]}
        assert leaders.keys() | led.keys() == set(range(PARTITIONS))
        assert FIRST_NODE_ID + shard not in leaders.values()
