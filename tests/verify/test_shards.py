"""`fairlog verify` checks all shards of a directory, and all together."""

from __future__ import annotations

import shutil
from collections.abc import Callable

import pytest

from datalog.environment import LmdbDataLogs
from datalog.offset_entries import GroupEntry
from fairlog.cluster.growing import add_shard
from fairlog.data_directory import CLUSTER
from fairlog.last_run import move_note
from fairlog.verify.verification import Verification
from fairlog_types import LogId
from shard.directory import ShardDirectory
from tests.cli.in_process import FairlogCommand
from tests.shards import MAP_BYTES, shard_in, split_in_two
from tests.verify.planting import Planted, flip

pytestmark = pytest.mark.slow

Shards = tuple[ShardDirectory, ShardDirectory]


@pytest.fixture
def shards(planted: Planted) -> Shards:
    """The stopped node's directory, as two shards; its transactions are in both."""
    return split_in_two(planted.directory)


def found_in(shards: Shards) -> list[str]:
    return [str(each) for each in Verification(shards[0].data_dir, has_journals=True).violations()]


def test_directory_of_two_shards_is_checked_as_a_whole(planted: Planted, fairlog: FairlogCommand) -> None:
    """Everything is looked at that was looked at in one shard; a transaction is compared over both."""
    one = Verification(planted.directory, has_journals=True)
    assert list(one.violations()) == []
    shards = split_in_two(planted.directory)
    two = Verification(planted.directory, has_journals=True)
    assert list(two.violations()) == []
    differ = {"shards": 1, "free pages of the data logs' files": 0}
    assert {**two.summary.counts, **differ} == {**one.summary.counts, **differ}
    assert two.summary.counts["shards"] == 2
    assert fairlog("verify", shards[0].data_dir)[0] == 0


def test_lost_group_journal_is_found_before_an_added_shard_has_started(planted: Planted) -> None:
    """The added one never has any, so it does not count."""
    directory = planted.directory
    add_shard(directory / CLUSTER, node_id=1, move_note=lambda: move_note(directory))
    assert list(Verification(directory, has_journals=True).violations()) == []
    shutil.rmtree(shard_in(directory).group_journal(1))
    (found,) = Verification(directory, has_journals=True).violations()
    assert str(found).startswith("group journal 1: is missing: what its transactions were answered is lost")


def damage_a_batch(shards: Shards) -> None:
    data = shards[1].data_logs_file.read_bytes()
    shards[1].data_logs_file.write_bytes(data.replace(b"two of 1", b"two of 9"))  # free pages have it, too


def damage_a_local_journal(shards: Shards) -> None:
    (segment,) = next(shards[1].local_journals.glob("t-*-1")).glob("*.journal")
    flip(segment, 0)


def damage_a_group_journal(shards: Shards) -> None:
    (segment,) = shards[1].group_journal(1).glob("*.journal")
    flip(segment, 0)


def copy_a_group_journal(shards: Shards) -> None:
    shutil.copytree(shards[0].group_journal(0), shards[1].group_journal(0))


def misplace_a_group_journal(shards: Shards) -> None:
    shards[1].group_journal(1).rename(shards[0].group_journal(1))


def leave_a_third_shard(shards: Shards) -> None:
    shutil.copytree(shards[1].data_logs, shards[0].path.parent / "2" / "datalog")


def copy_the_data_logs(shards: Shards) -> None:
    shutil.rmtree(shards[1].data_logs)
    shutil.copytree(shards[0].data_logs, shards[1].data_logs)


def lose_a_shard(shards: Shards) -> None:
    shutil.rmtree(shards[1].path)


def lose_all_shards(shards: Shards) -> None:
    shutil.rmtree(shards[0].path.parent)


def lose_the_data_logs(shards: Shards) -> None:
    shutil.rmtree(shards[1].data_logs)


def damage_the_groups(shards: Shards) -> None:
    logs = LmdbDataLogs.open(shards[1].data_logs, map_bytes=MAP_BYTES)
    with logs.write() as writer:
        writer.put_offsets(LogId.of_offsets(1), [GroupEntry("readers", b"no record")])
    logs.close()


def leave_a_stranger(shards: Shards) -> None:
    (shards[0].path.parent / "old").mkdir()


def allot_a_shard_to_nobody(shards: Shards) -> None:
    (shards[0].data_dir / "allotment").write_text('{"version": 1, "processes": [0]}')


PLANTED: list[tuple[Callable[[Shards], None], str]] = [
    (damage_a_batch, "-1 (t-"),
    (damage_a_local_journal, "shards/1/journals/local/t-"),
    (damage_a_group_journal, "shards/1/journals/group/1"),
    (copy_a_group_journal, "shards/1/journals/group/0: has the number of shards/0/journals/group/0"),
    (copy_the_data_logs, "is in shards/0 and in shards/1"),
    (lose_a_shard, "-1: is missing, though its topic is served"),
    (lose_a_shard, "shard 1: is missing, though it was started"),
    (misplace_a_group_journal, "shards/0/journals/group/1: is not the place of group journal 1, which belongs to"),
    (leave_a_third_shard, "shards/2: is none of the 2 shards of the cluster store"),
    (lose_a_shard, "group journal 1: is missing: what its transactions were answered is lost (invariant 5)"),
    (lose_all_shards, "has no shard"),
    (lose_the_data_logs, "shards/1/datalog/data.mdb"),
    (damage_the_groups, "o-offsets-1, byte "),
    (allot_a_shard_to_nobody, "allotment does not say which process serves which shard: remove it"),
    (leave_a_stranger, "shards/old: is not the directory of a shard"),
]


@pytest.mark.parametrize(("plant", "words"), PLANTED, ids=[plant.__name__ for plant, _ in PLANTED])
def test_damage_of_the_second_shard_is_found(shards: Shards, plant: Callable[[Shards], None], words: str) -> None:
    """It is named with its shard; what two shards both have is named, and what none has."""
    plant(shards)
    found = found_in(shards)
    assert any(words in each for each in found), found
