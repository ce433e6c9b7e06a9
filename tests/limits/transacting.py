"""Transactions: many at once, a large one, a long one, and many who have had one."""

from __future__ import annotations

import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from tests.limits import wire
from tests.limits.site import Site
from tests.limits.strain import MIB, Ended, Strain, side_by_side
from tests.limits.wire import Who, Wire
from tests.shards import shard_in

TOPIC = "strain"
_PARTITIONS = 16
_CLIENTS = 16
_VALUE = b"strain" * 20
_BATCH_BYTES = 1_000_000


def _make_topic(address: str, partitions: int) -> None:
    with Wire(address) as maker:
        maker.call(wire.create_topics([TOPIC], partitions=partitions))


def _many_open(site: Site, number: int) -> Ended:
    """Each of another id, with one record; then every other is committed, and the rest is aborted."""
    _make_topic(site.address, _PARTITIONS)
    clients = [Wire(site.address) for _ in range(_CLIENTS)]
    everyone: list[list[Who]] = [[] for _ in clients]

    def begin(index: int) -> None:
        client = clients[index]
        ids = [f"many-{each:06}" for each in range(index, number, _CLIENTS)]
        answers = client.call_all(map(wire.init_producer_id, ids))
        everyone[index] = [wire.initialized(each, answer) for each, answer in zip(ids, answers, strict=True)]
        client.call_all(wire.add_partition(who, TOPIC, index) for who in everyone[index])
        client.call_all(
            wire.produce(TOPIC, index, wire.batch(_VALUE, by=who, sequence=0), by=who) for who in everyone[index]
        )

    def finish(index: int) -> None:
        clients[index].call_all(wire.end(who, commit=n % 2 == 0) for n, who in enumerate(everyone[index]))

    with site.strained():
        began = time.monotonic()
        side_by_side([partial(begin, each) for each in range(_CLIENTS)])
        opened = time.monotonic()
        site.bystander.wait_for(20)
        ending = time.monotonic()
        side_by_side([partial(finish, each) for each in range(_CLIENTS)])
        ended = time.monotonic()
    visible = sum(_end_offset(clients[0], partition) for partition in range(_PARTITIONS))
    committed = sum((len(each) + 1) // 2 for each in everyone)
    assert visible == committed, f"{visible} records are visible of {committed}"
    for client in clients:
        client.close()
    return f"opened in {opened - began:.0f} s, {committed:,} committed and the rest aborted in {ended - ending:.0f} s"


def _end_offset(client: Wire, partition: int) -> int:
    """The high watermark, from the answer to a fetch that asks for nothing."""
    answer = client.call(wire.fetch([(TOPIC, [(partition, 0)])], bytes_max=1))
    return int.from_bytes(answer[26:34], "big")


def _large(site: Site, size_bytes: int) -> Ended:
    """One transaction of so many bytes in one partition. Others go on while it is written, committed and copied.

    It is copied in stages, so the node does not grow by its size (docs/operating.md), and the bystander waits for none
    but the stage that is being written.
    """
    _make_topic(site.address, 1)
    value = bytes(_BATCH_BYTES)
    count = size_bytes // _BATCH_BYTES
    with Wire(site.address, timeout_s=600) as client, Wire(site.address) as reader:
        who = wire.initialized("large", client.call(wire.init_producer_id("large")))
        client.call(wire.add_partition(who, TOPIC, 0))
        with site.strained():
            began = time.monotonic()
            client.call_all(
                wire.produce(TOPIC, 0, wire.batch(value, by=who, sequence=each), by=who) for each in range(count)
            )
            written = time.monotonic()
            client.call(wire.end(who, commit=True))
            committed = time.monotonic()
            _wait_for_end(reader, count)
            seen = time.monotonic()
    return (
        f"written in {written - began:.1f} s, committed in {committed - written:.2f} s, "
        f"to be read {seen - committed:.1f} s later"
    )


def _wait_for_end(reader: Wire, offset: int) -> None:
    deadline = time.monotonic() + 600
    while _end_offset(reader, 0) < offset:
        assert time.monotonic() < deadline, "it never became visible"
        time.sleep(0.02)


def _long(site: Site, segments: int, segment_bytes: int) -> Ended:
    """One transaction stays open while others write `segments` journal segments to its partition, and to one beside it.

    What is behind its first record stays in the journal of its partition; the other partition's is cut. When it has
    committed, its own is cut, too.
    """
    _make_topic(site.address, 2)
    with Wire(site.address, timeout_s=600) as client:
        who = _begin_long(client)
        with site.strained():
            count = _write_behind_it(site, client, segments, segment_bytes)
            pinned = _kept_for_it(site, segments, segment_bytes)
            client.call(wire.produce(TOPIC, 0, wire.batch(_VALUE, by=who, sequence=1), by=who))
            began = time.monotonic()
            client.call(wire.end(who, commit=True))
            took = time.monotonic() - began
            _until_cut(site, "-0", at_most=4 * segment_bytes)
        _wait_for_end(client, count + 2)
    return f"{pinned / MIB:.0f} MiB kept for it, the other journal was cut; committed in {took:.3f} s, then cut"


def _long_and_killed(site: Site, segments: int, segment_bytes: int) -> Ended:
    """The node is killed while a transaction is open that `segments` journal segments are kept for.

    The start reads them all. Nobody sees anything of the transaction until its producer goes on with it and commits:
    then all of it, the journal is cut, and the producer's next instance begins another one.
    """
    _make_topic(site.address, 2)
    with Wire(site.address, timeout_s=600) as client:
        who = _begin_long(client)
        with site.strained():
            count = _write_behind_it(site, client, segments, segment_bytes)
    pinned = _kept_for_it(site, segments, segment_bytes)
    took = site.kill_and_start()
    with Wire(site.address, timeout_s=600) as client:
        ends = [_end_offset(client, partition) for partition in range(2)]
        assert ends == [count, count], f"{ends} records are visible of {count} each"
        client.call(wire.produce(TOPIC, 0, wire.batch(_VALUE, by=who, sequence=1), by=who))
        client.call(wire.end(who, commit=True))
        _wait_for_end(client, count + 2)
        _until_cut(site, "-0", at_most=4 * segment_bytes)
        who = _begin_long(client)
        client.call(wire.end(who, commit=True))
        _wait_for_end(client, count + 3)
        assert _end_offset(client, 0) == count + 3, "more became visible than was committed"
    site.bystander.wait_for(20)
    return f"{pinned / MIB:.0f} MiB kept for it; ready again in {took:.1f} s, committed then, and cut"


def _begin_long(client: Wire) -> Who:
    """Its first record is in partition 0, and it is open."""
    who = wire.initialized("long", client.call(wire.init_producer_id("long")))
    client.call(wire.add_partition(who, TOPIC, 0))
    client.call(wire.produce(TOPIC, 0, wire.batch(_VALUE, by=who, sequence=0), by=who))
    return who


def _write_behind_it(site: Site, client: Wire, segments: int, segment_bytes: int) -> int:
    """So many segments of plain records to each partition, until the journal beside is cut; how many in each."""
    data = wire.batch(bytes(_BATCH_BYTES))
    count = segments * segment_bytes // len(data)
    for partition in (1, 0):
        client.call_all(wire.produce(TOPIC, partition, data) for _ in range(count))
    _until_cut(site, "-1", at_most=4 * segment_bytes)
    return count


def _kept_for_it(site: Site, segments: int, segment_bytes: int) -> int:
    """What the journal of its partition keeps, in bytes: nearly all of these segments."""
    pinned = _journal_bytes(site, "-0")
    assert pinned > (segments - 2) * segment_bytes, f"only {pinned} bytes are kept for the open transaction"
    return pinned


def _journal_bytes(site: Site, suffix: str) -> int:
    """Of the journals of topics' partitions with this end of their names; the bystander's topic is made first."""
    root = shard_in(Path(site.node.data_dir)).local_journals
    newest = max(
        (each for each in root.iterdir() if each.name.startswith("t-") and each.name.endswith(suffix)),
        key=lambda each: each.stat().st_ctime_ns if suffix != "-0" else _allocated(each),
    )
    return _allocated(newest)


def _allocated(directory: Path) -> int:
    total = 0
    for each in directory.iterdir():
        try:
            total += each.stat().st_blocks * 512
        except FileNotFoundError:
            continue  # it has just been given back
    return total


def _until_cut(site: Site, suffix: str, *, at_most: int) -> None:
    deadline = time.monotonic() + 120
    while _journal_bytes(site, suffix) > at_most:
        assert time.monotonic() < deadline, f"the journal keeps {_journal_bytes(site, suffix)} bytes"
        time.sleep(0.2)


def _many_ids(site: Site, number: int) -> Ended:
    """So many transactional ids, each of which commits one record, and is not heard of again."""
    _make_topic(site.address, _PARTITIONS)

    def come_and_go(index: int) -> None:
        with Wire(site.address) as client:
            mine: Sequence[int] = range(index, number, _CLIENTS)
            for first in range(0, len(mine), 100):
                ids = [f"once-{each:07}" for each in mine[first : first + 100]]
                answers = client.call_all(map(wire.init_producer_id, ids))
                some = [wire.initialized(each, answer) for each, answer in zip(ids, answers, strict=True)]
                client.call_all(wire.add_partition(who, TOPIC, index) for who in some)
                client.call_all(
                    wire.produce(TOPIC, index, wire.batch(_VALUE, by=who, sequence=0), by=who) for who in some
                )
                client.call_all(wire.end(who, commit=True) for who in some)

    with site.strained():
        began = time.monotonic()
        side_by_side([partial(come_and_go, each) for each in range(_CLIENTS)])
        took = time.monotonic() - began
    grown = (site.seen.memory_after - site.seen.memory_before) / number
    return f"{number / took:,.0f} a second; {grown:,.0f} bytes kept for each"


STRAINS = (
    Strain(
        "many-open",
        "10,000 transactions open at once, of 10,000 ids",
        partial(_many_open, number=10_000),
        partial(_many_open, number=160),
        grows_bytes_max=100 * MIB,
        small_grows_bytes_max=24 * MIB,
    ),
    Strain(
        "large",
        "one transaction of 1 GB",
        partial(_large, size_bytes=1_000_000_000),
        partial(_large, size_bytes=40_000_000),
        grows_bytes_max=64 * MIB,
        small_grows_bytes_max=48 * MIB,
    ),
    Strain(
        "long",
        "one transaction open while 200 journal segments of 4 MiB go through its partition, and as many beside it",
        partial(_long, segments=200, segment_bytes=4 * MIB),
        partial(_long, segments=8, segment_bytes=4 * MIB),
        grows_bytes_max=150 * MIB,
        small_grows_bytes_max=48 * MIB,
        environment={"FAIRLOG_JOURNAL_SEGMENT_BYTES_MAX": str(4 * MIB)},
    ),
    Strain(
        "long-and-killed",
        "one transaction open while 200 journal segments of 4 MiB go through its partition; then the node is killed",
        partial(_long_and_killed, segments=200, segment_bytes=4 * MIB),
        partial(_long_and_killed, segments=8, segment_bytes=4 * MIB),
        grows_bytes_max=150 * MIB,
        small_grows_bytes_max=48 * MIB,
        environment={"FAIRLOG_JOURNAL_SEGMENT_BYTES_MAX": str(4 * MIB)},
    ),
    Strain(
        "many-ids",
        "20,000 transactional ids, each of which commits once (a million: [benchmarks.md](benchmarks.md))",
        partial(_many_ids, number=20_000),
        partial(_many_ids, number=320),
        grows_bytes_max=120 * MIB,
        small_grows_bytes_max=24 * MIB,
    ),
)
