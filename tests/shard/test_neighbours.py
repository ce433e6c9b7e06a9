"""Transactions whose coordinator is in one shard and whose logs are in two, over a way that loses and doubles."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import trio
import trio.testing

from coordinator.answers import Granted, Refusal
from coordinator.group_records import PrepareCommitRecord, decode_group
from coordinator.messages import UNCOUNTED
from fairlog_types import LogId, ShardNumber
from journal.journal import JournalKind
from journal.read_only import open_read_only
from partition.modes import JOURNAL, MARKERS, TransactionMode
from partition.record_codec import decode_local
from partition.records import Prepared
from shard.commands import SaidAll
from shard.conversation import Command
from tests.shard.neighbours import Cluster, Writer, log_of, open_cluster

OWN, OTHER = log_of(0), log_of(1)
"""Of the coordinator's shard, and of the other one."""
BOTH = {OWN: [b"own"], OTHER: [b"other"]}
NOTHING: dict[LogId, list[bytes]] = {OWN: [], OTHER: []}

pytestmark = pytest.mark.slow


def local_journal(log: LogId) -> str:
    return f"local/{log}"


GROUP_JOURNAL = "shards/0/journals/group/0"


@pytest.mark.parametrize("mode", [JOURNAL, MARKERS])
@pytest.mark.parametrize("seed", range(3))
async def test_commit_over_shards_is_visible_in_both(tmp_path: Path, seed: int, mode: TransactionMode) -> None:
    """And the next one follows it there, whatever the way loses and doubles."""
    async with open_cluster(tmp_path, seed=seed, mode=mode) as cluster:
        writer = await cluster.writer("t")
        for number in range(4):
            await writer.write({log: [f"{number}".encode()] for log in BOTH})
            assert await writer.end() is None
        await visible_everywhere(cluster, writer)
        expected = [b"0", b"1", b"2", b"3"]
        assert await committed_values(cluster) == {OWN: expected, OTHER: expected}


async def committed_values(cluster: Cluster) -> dict[LogId, list[bytes]]:
    """Without the markers of marker mode."""
    found = await cluster.values(OWN, OTHER)
    return {log: [value for value in values if value.isdigit()] for log, values in found.items()}


async def visible_everywhere(cluster: Cluster, writer: Writer) -> None:
    """Wait until the coordinator has heard that all its commits can be read."""
    with trio.fail_after(10):
        while True:
            found = cluster.coordinator(writer.shard).describe(writer.name)
            assert found is not None
            if not found.being_copied:
                return
            await trio.sleep(0.01)


async def test_abort_over_shards_leaves_nothing_in_either(tmp_path: Path) -> None:
    """And the producer's next transaction is not touched by it."""
    async with open_cluster(tmp_path) as cluster:
        writer = await cluster.writer("t")
        await writer.write(BOTH)
        assert await writer.end(commit=False) is None
        writer.sequences.clear()
        again = await cluster.writer("t")
        await again.write({log: [b"next"] for log in BOTH})
        assert await again.end() is None
        await visible_everywhere(cluster, again)
        assert await cluster.values(OWN, OTHER) == {OWN: [b"next"], OTHER: [b"next"]}


async def test_transaction_within_the_coordinators_shard_tells_the_other_one_nothing(tmp_path: Path) -> None:
    """It costs what it costs in a node of one shard."""
    async with open_cluster(tmp_path) as cluster:
        writer = await cluster.writer("t")
        before = len(cluster.way.carried)
        await writer.write({OWN: [b"own"]})
        assert await writer.end() is None
        await visible_everywhere(cluster, writer)
        commands = [it.body for *_, it in cluster.way.carried[before:] if isinstance(it, Command)]
        assert [it for it in commands if not isinstance(it, SaidAll)] == []
        assert await cluster.values(OWN, OTHER) == {OWN: [b"own"], OTHER: []}


async def test_commit_waits_until_the_other_shard_has_prepared_durably(tmp_path: Path) -> None:
    """Its PREPARED lies behind the data; on disk it stands for all of them (invariant 5)."""
    async with open_cluster(tmp_path) as cluster, trio.open_nursery() as nursery:
        writer = await cluster.writer("t")
        await writer.write(BOTH)
        disk = cluster.disks[ShardNumber(1)]
        disk.hold(local_journal(OTHER))
        answers: list[object] = []
        answered = trio.Event()

        async def end() -> None:
            answers.append(await writer.end())
            answered.set()

        nursery.start_soon(end)
        await trio.sleep(1.0)
        assert answers == []
        disk.let_go()
        with trio.fail_after(10):
            await answered.wait()
        assert answers == [None]
        await visible_everywhere(cluster, writer)
        assert await cluster.values(OWN, OTHER) == BOTH


async def test_prepare_commit_leaves_the_count_to_the_other_shard(tmp_path: Path) -> None:
    """PREPARE_COMMIT is written before the other shard has counted, and its PREPARED has the count."""
    async with open_cluster(tmp_path) as cluster:
        writer = await cluster.writer("t")
        await writer.write({OWN: [b"a"], OTHER: [b"b", b"c"]})
        assert await writer.end() is None
        await visible_everywhere(cluster, writer)
        image = cluster.crash(tmp_path / "image")
    (told,) = (it for it in group_records(image) if isinstance(it, PrepareCommitRecord))
    assert {log: it.records for log, it in told.participants.items()} == {OWN: 1, OTHER: UNCOUNTED}
    (prepared,) = (it for it in local_records(image, OTHER) if isinstance(it, Prepared))
    assert (prepared.txid, prepared.record_count, prepared.coordinator_shard) == (told.txid, 2, 0)
    assert not any(isinstance(it, Prepared) for it in local_records(image, OWN))


def is_prepared(cluster: Cluster, log: LogId) -> bool:
    return any(isinstance(it, Prepared) for it in local_records(cluster.data_dir, log))


def group_records(data_dir: Path) -> list[object]:
    journal = open_read_only(data_dir / GROUP_JOURNAL, kind=JournalKind.GROUP)
    return [decode_group(it.kind, it.header, b"") for it in journal.frames(journal.start)]


def local_records(data_dir: Path, log: LogId) -> list[object]:
    (directory,) = (path for path in data_dir.glob("shards/*/journals/local/*") if path.name == str(log))
    journal = open_read_only(directory, kind=JournalKind.LOCAL)
    return [decode_local(it.kind, it.header) for it in journal.frames(journal.start)]


@pytest.fixture
async def images(tmp_path: Path) -> dict[str, Path]:
    """What lies on the disks while a transaction over both shards is open, and when it is prepared and not decided."""
    async with open_cluster(tmp_path / "run", copying=False) as cluster, trio.open_nursery() as nursery:
        writer = await cluster.writer("t")
        await writer.write(BOTH)
        found = {"open": cluster.crash(tmp_path / "open")}
        cluster.disks[ShardNumber(0)].hold("group")
        nursery.start_soon(writer.end)
        with trio.fail_after(10):
            while not any(isinstance(it, Prepared) for it in local_records(cluster.data_dir, OTHER)):  # noqa: ASYNC110
                await trio.sleep(0.01)
        found["in doubt"] = cluster.crash(tmp_path / "in doubt")
        nursery.cancel_scope.cancel()
        cluster.disks[ShardNumber(0)].let_go()
    return found


@pytest.mark.parametrize(
    ("lost", "outcome"),
    [
        ([], BOTH),
        ([local_journal(OTHER)], NOTHING),
        ([GROUP_JOURNAL], NOTHING),
        ([local_journal(OTHER), GROUP_JOURNAL], NOTHING),
    ],
)
async def test_loss_of_power_leaves_all_of_a_transaction_or_nothing(
    images: dict[str, Path], tmp_path: Path, lost: list[str], outcome: dict[LogId, list[bytes]]
) -> None:
    """Whichever of PREPARE_COMMIT and PREPARED was not on disk: half of it is in neither shard (invariant 5)."""
    found = tmp_path / "lost"
    await trio.to_thread.run_sync(merge, images, found, lost)
    for starts in (2, 3):
        async with open_cluster(found, starts=starts, tail_kept=False) as cluster:
            assert await cluster.values(OWN, OTHER) == outcome
            writer = await cluster.writer("t")
            await writer.write({log: [f"start {starts}".encode()] for log in BOTH})
            assert await writer.end() is None
            await visible_everywhere(cluster, writer)
            outcome = {log: [*values, f"start {starts}".encode()] for log, values in outcome.items()}
            assert await cluster.values(OWN, OTHER) == outcome


def merge(images: dict[str, Path], into: Path, lost: list[str]) -> None:
    """What a loss of power may leave: of the journals named in `lost` what they had while it was open."""
    shutil.copytree(images["in doubt"], into)
    for part in lost:
        (journal,) = (path for path in into.glob("shards/*/journals/*/*") if str(path).endswith(part))
        shutil.rmtree(journal)
        shutil.copytree(images["open"] / journal.relative_to(into), journal)


async def test_open_transaction_over_shards_goes_on_after_a_kill(images: dict[str, Path]) -> None:
    """Nothing of it is missing then: its client writes on, and commits."""
    async with open_cluster(images["open"], starts=2) as cluster:
        found = cluster.coordinator(0).describe("t")
        assert found is not None
        writer = Writer(cluster, "t", 0, Granted(found.producer_id, found.epoch), {OWN: 1, OTHER: 1})
        await writer.write({log: [b"more"] for log in BOTH})
        assert await writer.end() is None
        await visible_everywhere(cluster, writer)
        assert await cluster.values(OWN, OTHER) == {log: [*values, b"more"] for log, values in BOTH.items()}


async def test_log_whose_shard_has_failed_may_lack_what_it_has_prepared(tmp_path: Path) -> None:
    """Its coordinator may have answered the commit; until the restart nobody may be told that the log ends here."""
    async with open_cluster(tmp_path) as cluster:
        writer = await cluster.writer("t")
        await writer.write(BOTH)
        partition = cluster.shards[ShardNumber(1)].partitions.by_log[OTHER]
        cluster.way.cut.add((ShardNumber(1), ShardNumber(0)))  # PREPARED is not heard of
        async with trio.open_nursery() as nursery:
            nursery.start_soon(writer.end)
            with trio.fail_after(10):
                while not any(it.prepared_for == 0 for it in partition.state.open_transactions.values()):  # noqa: ASYNC110
                    await trio.sleep(0.01)
            assert not partition.may_lack_commits
            cluster.shards[ShardNumber(1)].partitions.refuse_writes("the disk is full")
            assert partition.may_lack_commits
            assert not cluster.shards[ShardNumber(1)].partitions.by_log[log_of(1, 1)].may_lack_commits
            cluster.way.cut.clear()


async def test_log_whose_shard_has_failed_is_refused_for_its_disk(tmp_path: Path) -> None:
    """Nobody may take it for one that is not led yet, which is asked for again without end. The other one is added."""
    async with open_cluster(tmp_path) as cluster:
        writer = await cluster.writer("t")
        cluster.shards[ShardNumber(1)].partitions.refuse_writes("the disk is full")
        it, coordinator = writer.granted, cluster.coordinator(0)
        added = await coordinator.add_logs("t", it.producer_id, it.epoch, [OWN, OTHER], 1)
        assert added == {OWN: None, OTHER: Refusal.STORAGE}


async def test_log_without_records_is_prepared_again_after_a_loss_of_power(tmp_path: Path) -> None:
    """Regression, of seed a.9: it had applied nothing, had forgotten that, and took its part of a commit for lost."""
    empty = log_of(1, 1)
    async with open_cluster(tmp_path / "run", copying=False) as cluster, trio.open_nursery() as nursery:
        writer = await cluster.writer("t")  # COMMITTED is not written, as nothing is copied
        it = writer.granted
        await cluster.coordinator(0).add_logs("t", it.producer_id, it.epoch, [OTHER, empty], 1)
        await writer.write({OTHER: [b"other"]})
        cluster.disks[ShardNumber(0)].hold("group")
        nursery.start_soon(writer.end)
        with trio.fail_after(10):
            while not all(is_prepared(cluster, log) for log in (OTHER, empty)):  # noqa: ASYNC110
                await trio.sleep(0.01)
            in_doubt = cluster.crash(tmp_path / "in doubt")
            cluster.disks[ShardNumber(0)].let_go()
            state = cluster.shards[ShardNumber(1)].partitions.by_log[empty].state
            while state.open_transactions:  # noqa: ASYNC110
                await trio.sleep(0.01)
        image = cluster.crash(tmp_path / "image", losing={local_journal(OTHER): in_doubt})  # without its APPLY
    for starts in (2, 3):
        async with open_cluster(image, starts=starts, tail_kept=False) as cluster:
            assert await cluster.values(OTHER, empty) == {OTHER: [b"other"], empty: []}
