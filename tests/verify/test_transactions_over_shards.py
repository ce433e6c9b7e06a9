"""Transactions whose coordinator is in one shard and whose logs are in two: what may lie on the disks, and what not."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path

import pytest
import trio

from fairlog.verify.verification import Verification
from fairlog_types import ShardNumber
from partition.modes import JOURNAL, MARKERS, TransactionMode
from partition.records import Prepared
from tests.shard.neighbours import log_of, open_cluster
from tests.verify.over_shards import (
    FIRST,
    OTHER,
    OWN,
    SECOND,
    TXID,
    make_images,
    note_shards,
    prepared,
    put_together,
    say_otherwise,
    violations,
    visible_everywhere,
)

pytestmark = pytest.mark.slow

Images = Mapping[str, Path]


@pytest.fixture(scope="module", params=[JOURNAL, MARKERS], ids=["journal", "markers"])
def images(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Images:
    """What lies on the disks at each stage of one and the same transaction over both shards, committed or aborted."""
    return trio.run(make_images, tmp_path_factory.mktemp("images"), request.param)


def test_transaction_over_shards_is_clean_at_every_stage(images: Images) -> None:
    """Whichever of the shards lags behind the other one, and whether the next start commits or aborts it."""
    found = {name: violations(image) for name, image in images.items()}
    assert {name: each for name, each in found.items() if each} == {}


TOGETHER: list[tuple[str, str, str]] = [
    ("committed", "aborted at the start", "COMMITTED"),
    ("other lags", "aborted at the start", "neither has nor holds its 2 records (invariant 7)"),
    ("aborted", "committed", "is aborted, yet 2 records"),
    ("committed", "in doubt", "COMMITTED has 2 records at 0 of topic-1"),
    ("committed", "open", "topic-1 (t-00000000000000000000000000000001-1) has not prepared it (invariant 5)"),
    ("other lags", "open", "has not prepared it (invariant 5)"),
    ("other lags", "before", "has not prepared it (invariant 5)"),
    ("open", "committed", "has only begun, yet 2 records"),
    ("before", "committed", "its coordinator in shard 0 knows nothing of it (invariant 1)"),
]


@pytest.mark.parametrize(("first", "second", "words"), TOGETHER, ids=[f"{a} + {b}" for a, b, _ in TOGETHER])
def test_shards_that_contradict_each_other_are_found(
    images: Images, tmp_path: Path, first: str, second: str, words: str
) -> None:
    """What one has applied and the other has not, and holds no more."""
    found = violations(put_together(tmp_path / "together", images[first], images[second]))
    assert any(words in each for each in found), found


@pytest.mark.parametrize(
    ("image", "words"),
    [
        ("other lags", "PREPARED of 1000.0.0 counts 3 records, but 2 stand before it"),
        ("own lags", "3 records are expected in topic-1"),
        ("own lags", "PREPARED of 1000.0.0 counts 3 records, and 2 stand before it"),
        ("committed", "COMMITTED has 2 records in topic-1"),
    ],
)
def test_count_that_is_not_what_prepared_says_is_found(images: Images, tmp_path: Path, image: str, words: str) -> None:
    """Before the mark and behind it, whether COMMITTED is there or not."""
    damaged = Path(shutil.copytree(images[image], tmp_path / "damaged"))
    say_otherwise(damaged, OTHER, Prepared(TXID, 3, FIRST))
    found = violations(damaged)
    assert any(words in each for each in found), found


@pytest.mark.parametrize(("image", "coordinator"), [("in doubt", SECOND), ("committed", 2)])
def test_prepared_for_another_coordinator_is_found(
    images: Images, tmp_path: Path, image: str, coordinator: ShardNumber
) -> None:
    """Its own shard's, or one that the transaction is not of."""
    damaged = Path(shutil.copytree(images[image], tmp_path / "damaged"))
    say_otherwise(damaged, OTHER, Prepared(TXID, 2, coordinator))
    assert any(f"has prepared it for a coordinator in shard {coordinator}" in each for each in violations(damaged))


@pytest.fixture(scope="module")
def pinned(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of a transaction that has not written to the other shard's log, PREPARED lies there, and later ones behind it."""

    async def make(data_dir: Path) -> Path:
        async with open_cluster(data_dir / "run") as cluster, trio.open_nursery() as nursery:
            writer = await cluster.writer("t")
            await writer.write({OWN: [b"own"]})
            it = writer.granted
            added = await cluster.coordinator(0).add_logs("t", it.producer_id, it.epoch, [OTHER], 1)
            assert added == {OTHER: None}
            cluster.disks[FIRST].hold("group")
            nursery.start_soon(writer.end)
            await prepared(cluster, OTHER)
            later = await cluster.writer("later", shard=1)
            await later.write({OTHER: [b"later"]})
            await later.end()
            await visible_everywhere(cluster, later)
            image = cluster.crash(data_dir / "image")
            cluster.disks[FIRST].let_go()
            await visible_everywhere(cluster, writer)
            await later.write({OTHER: [b"much later"]})
            await later.end()
            await visible_everywhere(cluster, later)
            note_shards(cluster.crash(data_dir / "decided"), JOURNAL)
        return note_shards(image, JOURNAL).parent

    return trio.run(make, tmp_path_factory.mktemp("pinned"))


def test_prepared_without_batches_pins_the_journal_until_it_is_decided(pinned: Path) -> None:
    """What was copied behind it does not free it; what was decided does."""
    assert violations(pinned / "image") == []
    assert violations(pinned / "decided") == []


@pytest.mark.parametrize("mode", [JOURNAL, MARKERS])
async def test_many_transactions_of_both_coordinators_are_clean(tmp_path: Path, mode: TransactionMode) -> None:
    """Each shard counts its applies by itself, so a transaction has other numbers in each; also after a restart."""
    async with open_cluster(tmp_path / "run", mode=mode) as cluster:
        writers = [await cluster.writer(f"t{number}", shard=number) for number in range(2)]
        alone = await cluster.writer("alone", shard=1)
        for turn in range(7):
            await alone.write({log_of(1, 1): [b"alone"]})
            await alone.end()
            for writer in writers:
                await writer.write({log: [f"{turn}".encode()] for log in (OWN, OTHER, log_of(turn % 2, 1))})
                await writer.end()
        for writer in (*writers, alone):
            await visible_everywhere(cluster, writer)
        await cluster.values(OWN, OTHER)
        image = note_shards(cluster.crash(tmp_path / "image"), mode)
    checked = Verification(image, has_journals=True)
    assert list(checked.violations()) == []
    numbers = {(view.shard, part.apply_number) for view in checked._views.values() for part in view.applied.values()}
    assert len({number for shard, number in numbers if shard == FIRST}) == 14
    assert len({number for shard, number in numbers if shard == SECOND}) == 21
    async with open_cluster(image, starts=2, mode=mode) as cluster:
        await cluster.values(OWN, OTHER)
    assert violations(image) == []
