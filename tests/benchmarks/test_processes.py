"""`processes` against real nodes of one and of two processes, with tiny amounts: who leads what each case writes to."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from benchmarks import processes
from benchmarks.rows import Measurements
from benchmarks.scenario import Bench
from confluent_kafka import TopicPartition
from confluent_kafka.admin import AdminClient, OffsetSpec
from peers.catalogue import available
from peers.interface import Missing, Peer

pytestmark = pytest.mark.slow

CASES = {case.name: case for case in processes.SCENARIO.cases(False)}


@pytest.fixture(scope="module", params=["journal", "journal-2"])
def measured(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Bench, Peer]]:
    bench = Bench(quick=True, rounds=1, directory=tmp_path_factory.mktemp("bench"))
    peer = available(request.param, bench.directory / request.param)
    assert not isinstance(peer, Missing)
    peer.start()
    try:
        yield bench, peer
    finally:
        bench.close_clients()
        peer.stop()


def ends(peer: Peer, topic: str) -> dict[int, int]:
    """The number of records in each partition that has any."""
    admin = AdminClient({"bootstrap.servers": peer.address})
    asked = {TopicPartition(topic, number): OffsetSpec.latest() for number in range(processes.PARTITIONS)}
    found = {place.partition: future.result().offset for place, future in admin.list_offsets(asked).items()}
    return {partition: end for partition, end in found.items() if end}


def leaders(peer: Peer, topic: str) -> dict[int, int]:
    partitions = AdminClient({"bootstrap.servers": peer.address}).list_topics(topic).topics[topic].partitions
    return {number: partition.leader for number, partition in partitions.items()}


def measure(bench: Bench, peer: Peer, case: str) -> Measurements:
    return processes.SCENARIO.measure(bench, peer, CASES[case], 0)


def test_one_producer_writes_within_one_shard_or_over_two(measured: tuple[Bench, Peer]) -> None:
    """*within*: the two partitions that are written to have one leader; *over*: two, if there are two processes."""
    bench, peer = measured
    within = measure(bench, peer, "within one shard")
    written = ends(peer, processes.PAIR)
    led_by = leaders(peer, processes.PAIR)
    assert len(written) == processes.TOUCHED
    assert len({led_by[partition] for partition in written}) == 1

    over = measure(bench, peer, "over two shards")
    more = {partition for partition, end in ends(peer, processes.PAIR).items() if end != written.get(partition)}
    assert len(more) == processes.TOUCHED
    assert {led_by[partition] for partition in more} == set(led_by.values())
    for found in (within, over):
        assert found["rate"].value > 0
        assert found["transaction"].value > 0
        assert found["broker CPU"].value > 0
        assert found["client CPU"].value > 0


def test_many_producers_write_everywhere_or_each_within_its_shard(measured: tuple[Bench, Peer]) -> None:
    """Both write to partitions of all leaders, and the rate is that of all producers together."""
    bench, peer = measured
    for case in ("16 producers within shards", "16 producers"):
        found = measure(bench, peer, case)
        led_by = leaders(peer, processes.SPREAD)
        assert {led_by[partition] for partition in ends(peer, processes.SPREAD)} == set(led_by.values())
        at_once = found["rate"].value * found["transaction"].value / 1e3
        assert at_once > 4, "they are at work side by side"
