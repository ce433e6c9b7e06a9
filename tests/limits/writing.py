"""Producers that send more than the disk takes, and such as keep large requests to themselves."""

from __future__ import annotations

import time
from functools import partial

from tests.limits import wire
from tests.limits.site import Site
from tests.limits.strain import MIB, Ended, Strain, connections, side_by_side
from tests.limits.wire import PIPELINED, Wire

TOPIC = "strain"


def _flood(site: Site, number: int, value_bytes: int, seconds: float) -> Ended:
    """Each sends requests one behind the other, and a dozen ahead of the answers, as fast as they are taken."""
    data = wire.batch(bytes(value_bytes))
    with Wire(site.address) as maker:
        maker.call(wire.create_topics([TOPIC], partitions=8))
    sent = [0] * number

    def produce(index: int, producer: Wire) -> None:
        request = wire.produce(TOPIC, index % 8, data)
        waiting = 0
        while time.monotonic() < until or not waiting:
            if waiting == PIPELINED:
                wire.check(request, producer.receive())
                waiting -= 1
            producer.send(request)
            waiting += 1
            sent[index] += 1
        for _ in range(waiting):
            wire.check(request, producer.receive())

    with site.strained(), connections(site.address, number) as producers:
        began = time.monotonic()
        until = began + seconds
        side_by_side([partial(produce, index, producer) for index, producer in enumerate(producers)])
        rate = sum(sent) * value_bytes / (time.monotonic() - began)
    assert all(sent), f"{sent.count(0)} could send nothing"
    return f"made to wait: {rate / 1e6:.0f} MB/s in all, from {min(sent)} to {max(sent)} requests each, none lost"


def _hoarded(site: Site, number: int, frame_bytes: int, sent_bytes: int) -> Ended:
    """Requests of 100 MiB that are begun and not gone on with; and one who sends 2 MiB, and means it."""
    begun = frame_bytes.to_bytes(4, "big") + bytes(sent_bytes)
    with Wire(site.address) as maker:
        maker.call(wire.metadata([TOPIC]))
    data = wire.batch(bytes(1_000_000))
    # Two partitions' worth in one request: larger than what passes by the budget of large requests.
    large = wire.produce_to_many(TOPIC, [(0, data), (0, data)])
    with site.strained(), connections(site.address, number) as hoarders:
        for each in hoarders:
            each.socket.settimeout(1)
            try:
                each.socket.sendall(begun)
            except TimeoutError:
                continue  # it is not read from
        took: list[float] = []
        with Wire(site.address, timeout_s=600) as honest:
            for _ in range(3):
                began = time.monotonic()
                honest.call(large)
                took.append(time.monotonic() - began)
        site.bystander.wait_for(20)
    return f"an honest request of 2 MB beside them took {max(took):.1f} s"


STRAINS = (
    Strain(
        "flood",
        "200 producers of requests of 1 MB, a dozen ahead, for 15 s",
        partial(_flood, number=200, value_bytes=1_000_000, seconds=15),
        partial(_flood, number=12, value_bytes=1_000_000, seconds=1.5),
        grows_bytes_max=500 * MIB,
        small_grows_bytes_max=100 * MIB,
    ),
    Strain(
        "flood-of-small-ones",
        "500 producers of requests of 4 KB, a dozen ahead, for 15 s",
        partial(_flood, number=500, value_bytes=4_000, seconds=15),
        partial(_flood, number=40, value_bytes=4_000, seconds=1.5),
        grows_bytes_max=200 * MIB,
        small_grows_bytes_max=64 * MIB,
    ),
    Strain(
        "hoarded",
        "100 requests of 100 MiB of which 5 MiB come",
        partial(_hoarded, number=100, frame_bytes=100 * MIB, sent_bytes=5 * MIB),
        partial(_hoarded, number=8, frame_bytes=100 * MIB, sent_bytes=MIB),
        grows_bytes_max=600 * MIB,
        small_grows_bytes_max=64 * MIB,
    ),
)
