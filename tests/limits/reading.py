"""Clients that ask for much and read nothing: records, and descriptions of ten thousand partitions."""

from __future__ import annotations

import time
from collections.abc import Sequence
from functools import partial

from tests.limits import wire
from tests.limits.site import Site
from tests.limits.strain import MIB, Ended, Strain, connections, side_by_side
from tests.limits.wire import Request, Wire

TOPIC = "strain"
_PARTITIONS = 10
_RECEIVE_BYTES = 4096
"""What the system keeps of what these clients do not read; it is asked to keep no more."""


def _fill(address: str, size_bytes: int) -> None:
    """A topic of plain batches of 1 MB."""
    with Wire(address) as writer:
        writer.call(wire.metadata([TOPIC]))
        data = wire.batch(bytes(1_000_000))
        writer.call_all(wire.produce(TOPIC, 0, data) for _ in range(size_bytes // 1_000_000))


def _records_unread(site: Site, number: int, bytes_max: int, fill_bytes: int, read_s: float) -> Ended:
    """Fetches that are not read, while another client reads the whole topic again and again."""
    _fill(site.address, fill_bytes)
    ask = wire.fetch([(TOPIC, [(0, 0)])], bytes_max=bytes_max)
    with site.strained(), connections(site.address, number, receive_bytes=_RECEIVE_BYTES) as deaf:
        for each in deaf:
            each.send(ask)
            each.send(ask)
        site.bystander.wait_for(20)
        with Wire(site.address) as reader:
            began, passes = time.monotonic(), 0
            while time.monotonic() < began + read_s or not passes:
                _read_through(reader, fill_bytes // 1_000_000)
                passes += 1
            rate = passes * fill_bytes / (time.monotonic() - began)
        cut_off = sum(each.is_closed_by_node() for each in deaf)
    kept = number - cut_off
    return f"{kept} kept waiting, {cut_off} cut off; one who reads beside them gets {rate / 1e6:.0f} MB/s"


def _read_through(reader: Wire, batches: int) -> None:
    """All records of the topic, each of which is a batch."""
    offset = 0
    while offset < batches:
        answer = reader.call(wire.fetch([(TOPIC, [(0, offset)])], bytes_max=16 << 20))
        got = wire.fetched_bytes(answer) // 1_000_000
        assert got, "a fetch at an offset that exists got nothing"
        offset += got


def _answers_unread(site: Site, number: int, topics: int, pipelined: int) -> Ended:
    """Behind a fetch that waits, descriptions of all topics: answers that are ready, and nobody takes."""
    _make_topics(site.address, topics)
    wait = wire.fetch([(TOPIC, [(0, 0)])], bytes_max=MIB, wait_ms=20_000)
    with site.strained(), connections(site.address, number, receive_bytes=_RECEIVE_BYTES) as deaf:
        for each in deaf:
            each.send(wait)
            for _ in range(pipelined):
                each.send(wire.metadata(None))
        site.bystander.wait_for(20)
        cut_off = sum(each.is_closed_by_node() for each in deaf)
    return f"{number - cut_off} kept waiting, {cut_off} cut off"


def _make_topics(address: str, number: int) -> Sequence[str]:
    """TOPIC, and so many more, each of PARTITIONS; their names."""
    names = [f"topic-{each:05}" for each in range(number)]
    with Wire(address, timeout_s=600) as maker:
        maker.call(wire.metadata([TOPIC]))
        for first in range(0, number, 50):
            maker.call(wire.create_topics(names[first : first + 50], partitions=_PARTITIONS))
    return names


def _many_topics(site: Site, number: int) -> Ended:
    """Ten clients at a time ask for the description of all topics, then each fetches all partitions."""
    names = _make_topics(site.address, number)
    fetch_all = wire.fetch(
        [(each, [(partition, 0) for partition in range(_PARTITIONS)]) for each in names], bytes_max=MIB, wait_ms=500
    )
    took: dict[str, float] = {}

    def ask(what: str, request: Request) -> None:
        with Wire(site.address) as client:
            for _ in range(3):
                began = time.monotonic()
                answer = client.call(request)
                took[what] = max(took.get(what, 0.0), time.monotonic() - began)
                assert len(answer) > 10 * number

    with site.strained():
        for what, request in (("descriptions", wire.metadata(None)), ("fetches", fetch_all)):
            side_by_side([partial(ask, what, request)] * 10)
    return "; ".join(f"{what}: the slowest took {seconds:.2f} s" for what, seconds in took.items())


STRAINS = (
    Strain(
        "unread-55",
        "64 connections that fetch 55 MiB, twice, and do not read",
        partial(_records_unread, number=64, bytes_max=57_000_000, fill_bytes=200_000_000, read_s=5),
        partial(_records_unread, number=4, bytes_max=57_000_000, fill_bytes=20_000_000, read_s=0),
        grows_bytes_max=700 * MIB,
        small_grows_bytes_max=120 * MIB,
    ),
    Strain(
        "unread-1",
        "900 connections that fetch 1 MiB, twice, and do not read",
        partial(_records_unread, number=900, bytes_max=MIB, fill_bytes=200_000_000, read_s=5),
        partial(_records_unread, number=40, bytes_max=MIB, fill_bytes=4_000_000, read_s=0),
        grows_bytes_max=850 * MIB,  # 640 for answers, 40 being read, 13 for connections; the allocator's slack
        small_grows_bytes_max=70 * MIB,
    ),
    Strain(
        "unread-descriptions",
        "300 connections that ask 15 times for 10,000 partitions, and do not read",
        partial(_answers_unread, number=300, topics=1_000, pipelined=15),
        partial(_answers_unread, number=20, topics=30, pipelined=15),
        grows_bytes_max=700 * MIB,
        small_grows_bytes_max=32 * MIB,
    ),
    Strain(
        "topics",
        "1,000 topics of 10 partitions: described to ten at a time; all fetched by ten at a time",
        partial(_many_topics, number=1_000),
        partial(_many_topics, number=30),
        grows_bytes_max=300 * MIB,
        small_grows_bytes_max=32 * MIB,
    ),
)
