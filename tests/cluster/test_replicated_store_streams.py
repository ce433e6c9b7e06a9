"""The store of several machines over restarts and trims, and which streams it refuses."""

from __future__ import annotations

from contextlib import AbstractAsyncContextManager
from unittest import mock
from uuid import UUID

import pytest
import structlog.testing
import trio
import trio.testing

from fairlog.cluster import metadata_snapshots
from fairlog.cluster.features import FEATURES, FeatureUpdate, UpgradeType
from fairlog.cluster.interface import Topic
from fairlog.cluster.local_copy import LocalCopy
from fairlog.cluster.metadata_entry import Base, Origin, encode_change
from fairlog.cluster.metadata_log import MetadataLog
from fairlog.cluster.opening import StoreMismatch
from fairlog.cluster.replicated import ReplicatedStore
from fairlog.exception_groups import leaves
from fairlog_types import CorruptStorage, StorageFailure
from stream.engine import StreamPosition
from tests.cluster.replicated_nodes import STREAM, Nodes
from tests.stream.model_engine import Faults, ModelStream


async def test_restart_reads_only_what_is_new(nodes: Nodes) -> None:
    """From the last accepted entry on, which is compared with what was accepted."""
    async with nodes.store(1) as store:
        for name in ("a", "b", "c"):
            await store.create_topic(name, partitions=1, configs={}, now_ms=5)
    async with nodes.store(2) as store:
        await store.create_topic("d", partitions=1, configs={}, now_ms=5)
    starts: list[int] = []
    real = ModelStream.open_reader

    def open_reader(self: ModelStream, start: StreamPosition) -> AbstractAsyncContextManager[object]:
        starts.append(start)
        return real(self, start)

    with mock.patch.object(ModelStream, "open_reader", open_reader):
        async with nodes.store(1) as store:
            await store.catch_up()
            assert [topic.name for topic in store.topics()] == ["a", "b", "c", "d"]
    assert starts == [3]


@pytest.fixture
def small_snapshots(monkeypatch: pytest.MonkeyPatch) -> None:
    """One after every third change, in several entries."""
    monkeypatch.setattr(metadata_snapshots, "SNAPSHOT_ENTRIES", 3)
    monkeypatch.setattr(ModelStream, "entry_bytes_max", property(lambda _: 250))


async def make_topics(store: ReplicatedStore, first: int, last: int) -> list[Topic]:
    return [
        await store.create_topic(f"t{number:02}", partitions=1, configs={}, now_ms=number)
        for number in range(first, last + 1)
    ]


def start_of(nodes: Nodes) -> int:
    log = nodes.cluster.log(STREAM)
    assert log is not None
    return log.start


async def until_trimmed(nodes: Nodes, store: ReplicatedStore, first: int) -> list[Topic]:
    """Topics from this number on, until the stream begins long after the beginning."""
    topics: list[Topic] = []
    with trio.fail_after(20):
        while start_of(nodes) < 20:
            number = first + len(topics)
            topics += await make_topics(store, number, number)
    return topics


@pytest.mark.usefixtures("small_snapshots")
async def test_stream_is_trimmed_behind_snapshots_and_a_node_can_begin_there(nodes: Nodes) -> None:
    """Two nodes write snapshots; one that was down for long, and a new one, have all topics."""
    async with nodes.store(3) as store:
        topics = await make_topics(store, 1, 2)
    async with nodes.store(1) as one, nodes.store(2) as two:
        topics += await make_topics(one, 3, 10)
        await two.catch_up()
        topics += await until_trimmed(nodes, two, 11)
    with structlog.testing.capture_logs() as logged:
        async with nodes.store(3) as three, nodes.store(4) as four:
            await three.catch_up()
            assert three.topics() == four.topics() == topics
            assert await three.allot_producer_ids(5) == range(5)
    assert [each["event"] for each in logged].count("metadata begin at a snapshot") == 2


@pytest.mark.usefixtures("small_snapshots")
async def test_two_snapshots_are_kept(nodes: Nodes) -> None:
    """Without the newest one a node begins at the one before."""
    async with nodes.store(1) as store:
        topics = await until_trimmed(nodes, store, 1)
        log = nodes.cluster.log(STREAM)
        assert log is not None
        newest = max(at for at, data in enumerate(log.entries) if data[9:10] == b"\x03")
        log.entries[newest] = b"?"
        async with nodes.store(2) as two:
            await two.catch_up()
            assert two.topics() == topics


@pytest.mark.usefixtures("small_snapshots")
async def test_stream_of_which_nothing_counts_is_trimmed_as_well(nodes: Nodes) -> None:
    """The engine's own entries, and others' bytes, must not pile up while nobody changes anything."""
    async with nodes.store(1) as store:
        topics = await make_topics(store, 1, 2)
        with trio.fail_after(20):
            while start_of(nodes) < 50:
                nodes.cluster.land(STREAM, b"")
                await trio.sleep(0.005)
        async with nodes.store(2) as two:
            await two.catch_up()
            assert two.topics() == topics


async def test_refusal_knows_what_others_were_answered_before(nodes: Nodes) -> None:
    """A change that would have been refused on old memory is decided again on what there is by now."""
    nodes.cluster.faults = Faults(read_s_max=0.5)
    async with nodes.store(1) as one, nodes.store(2) as two:
        for number in range(5):
            await one.create_topic("orders", partitions=1, configs={}, now_ms=number)
            await two.delete_topic("orders")


async def test_stream_that_ends_before_what_was_read_is_refused(nodes: Nodes) -> None:
    """It has lost what was answered: nobody goes on as if nothing had been."""
    async with nodes.store(1) as store:
        await make_topics(store, 1, 3)
    del nodes.entries[2:]
    refusal = await nodes.refusal("node-1", None)
    assert isinstance(refusal, CorruptStorage)
    assert "stream c.metadata ends at entry 2, and entries up to 4 were read" in str(refusal)


async def test_stream_that_was_made_anew_is_refused(nodes: Nodes) -> None:
    """Also when it has as many entries by now; a node that runs ends, too."""
    async with nodes.store(1) as store:
        await make_topics(store, 1, 2)
    nodes.cluster.make_anew(STREAM)
    async with nodes.store(2) as store:
        await make_topics(store, 1, 5)
    refusal = await nodes.refusal("node-1", None)
    assert isinstance(refusal, StoreMismatch)
    assert "entry 2 of the metadata stream c.metadata is not the one that this node has accepted there" in str(refusal)


async def test_node_that_runs_ends_when_its_stream_is_deleted(nodes: Nodes) -> None:
    """Loudly, whatever it was about to read."""
    with pytest.raises(ExceptionGroup) as caught:  # noqa: PT012
        async with nodes.store(1):
            nodes.cluster.make_anew(STREAM)
            with trio.fail_after(10):
                await trio.sleep_forever()
    (refusal,) = leaves(caught.value)
    assert isinstance(refusal, CorruptStorage)
    assert "stream c.metadata lost entries" in str(refusal)


@pytest.mark.usefixtures("small_snapshots")
async def test_trimmed_stream_of_another_cluster_is_refused(nodes: Nodes) -> None:
    """The node was down, and somebody made the stream anew, and it was trimmed since."""
    async with nodes.store(1) as store:
        await make_topics(store, 1, 1)
    nodes.cluster.make_anew(STREAM)
    async with nodes.store(2) as store:
        await until_trimmed(nodes, store, 1)
    refusal = await nodes.refusal("node-1", None)
    assert isinstance(refusal, StoreMismatch)
    assert "and this node is of" in str(refusal)


async def test_stream_that_was_trimmed_by_somebody_else_is_refused(nodes: Nodes) -> None:
    """No snapshot says what was before."""
    async with nodes.store(1) as store:
        await make_topics(store, 1, 3)
        stream = await nodes.cluster.engine("somebody").open_stream(STREAM)
        await stream.trim(StreamPosition(2))
        refusal = await nodes.refusal("node-2", None)
    assert isinstance(refusal, CorruptStorage)
    assert "begins at entry 2, and no snapshot in it says what was before" in str(refusal)


async def test_entry_that_is_damaged_ends_all_nodes_naming_it(nodes: Nodes) -> None:
    """A change that waits is told; foreign bytes are logged and skipped."""
    async with nodes.store(1) as store:
        with structlog.testing.capture_logs() as logged:
            nodes.cluster.land(STREAM, b"somebody else's")
            await make_topics(store, 1, 1)
        assert [
            (each["position"], each["log_level"]) for each in logged if each["event"] == "metadata entry ignored"
        ] == [(1, "warning")]
    nodes.cluster.land(STREAM, nodes.entries[2][:-1] + b"?")
    refusal = await nodes.refusal("node-1", None)
    assert isinstance(refusal, CorruptStorage)
    assert "stream c.metadata is corrupt at entry 3: their CRC is wrong" in str(refusal)


@pytest.mark.parametrize(
    ("key", "value", "sentence"),
    [
        (b"shard/7", b"\x01", "the record b'shard/7' is of shard 7, of 3"),
        (b"wish/7", b"\x01", "the record b'wish/7' is of shard 7, of 3"),
        (b"wish/x", b"\x01", "the record b'wish/x' has no number in decimal"),
        (b"wish/1", b"\x20", "the record wish/1 reads -1"),
        (b"wish/1", b"\xf5", "the record wish/1 reads True"),
    ],
)
async def test_accepted_record_that_cannot_be_read_ends_the_node(
    nodes: Nodes, key: bytes, value: bytes, sentence: str
) -> None:
    """All nodes would have it: none guesses."""
    async with nodes.store(1) as store:
        cluster = UUID(bytes=nodes.entries[0][24:40])
        base = Base(StreamPosition(0), int.from_bytes(nodes.entries[0][4:8], "little"))
        assert store.topics() == []
    nodes.cluster.land(STREAM, encode_change(base, cluster, Origin(b"x" * 16, 1), {key: value}))
    refusal = await nodes.refusal("node-1", None)
    assert isinstance(refusal, CorruptStorage)
    assert f"c.metadata is corrupt before entry 2: {sentence}" in str(refusal)


async def test_features_that_this_program_does_not_support_are_refused(nodes: Nodes) -> None:
    """By a node that begins, as on one machine."""
    async with nodes.store(1) as store:
        await store.update_features(
            [FeatureUpdate("transaction.version", 1, UpgradeType.SAFE_DOWNGRADE)], validate_only=False
        )
    copy = LocalCopy.open(nodes.directory / "node-1", STREAM)
    stream = await nodes.cluster.engine("node-1").open_stream(STREAM)
    try:
        with pytest.raises(StoreMismatch, match=r"the feature transaction\.version is at level 1"):
            MetadataLog(stream, copy, {"group.version": FEATURES["group.version"]})
    finally:
        copy.close()


async def test_store_that_waits_for_a_change_is_told_when_the_stream_breaks(nodes: Nodes) -> None:
    """Not after ten seconds."""
    told: list[str] = []

    async def run() -> None:
        async with nodes.store(1) as store:
            with mock.patch.object(ModelStream, "append", breaks):
                try:
                    await store.allot_producer_ids(1)
                except StorageFailure as error:
                    told.append(str(error))
            await trio.sleep_forever()

    def breaks(*_: object) -> None:
        nodes.cluster.make_anew(STREAM)

    with trio.fail_after(5), pytest.raises(ExceptionGroup) as caught:
        await run()
    assert [type(error) for error in leaves(caught.value)] == [CorruptStorage]
    assert "stream c.metadata lost entries" in told[0]
