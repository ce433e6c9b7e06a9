"""Where everything of a shard lies."""

from __future__ import annotations

from pathlib import Path

from fairlog_types import LogId, ShardNumber
from shard.directory import earlier_directory, shard_directories, shard_directory, strangers_among_shards

SEVENTH = ShardNumber(7)


def test_what_belongs_to_a_shard_lies_in_the_directory_of_its_number() -> None:
    """The layout of docs/operating.md: none of it changes by accident."""
    shard = shard_directory(Path("data"), SEVENTH)
    assert {
        "data logs": str(shard.data_logs_file),
        "groups of an earlier version": str(shard.earlier_groups),
        "local journal": str(shard.local_journal(LogId.of_offsets(3))),
        "group journal": str(shard.group_journal(12)),
    } == {
        "data logs": "data/shards/7/datalog/data.mdb",
        "groups of an earlier version": "data/shards/7/groups",
        "local journal": "data/shards/7/journals/local/o-offsets-3",
        "group journal": "data/shards/7/journals/group/12",
    }


def test_names_of_what_is_in_a_shard_begin_at_the_data_directory() -> None:
    """So that a message reads the same wherever the directory is, and tells which shard it is about."""
    shard = shard_directory(Path("/var/lib/fairlog"), SEVENTH)
    assert (shard.name, shard.name_of(shard.group_journal(3))) == ("shards/7", "shards/7/journals/group/3")


def test_shards_of_a_directory_are_found_by_number(tmp_path: Path) -> None:
    """In the order of their numbers; what is no number is no shard."""
    assert list(shard_directories(tmp_path)) == []
    for name in ("10", "2", "0", "01", "x", "-1", "²"):
        (tmp_path / "shards" / name).mkdir(parents=True)
    assert [shard.number for shard in shard_directories(tmp_path)] == [0, 2, 10]
    assert list(strangers_among_shards(tmp_path)) == ["shards/-1", "shards/01", "shards/x", "shards/²"]


def test_backup_of_an_earlier_version_has_its_one_shard_at_the_top(tmp_path: Path) -> None:
    """As long as its data logs lie there, also if a restore has begun to make room for them."""
    (tmp_path / "datalog").mkdir()
    (tmp_path / "shards" / "0").mkdir(parents=True)
    assert list(shard_directories(tmp_path)) == [earlier_directory(tmp_path)]
    (shard,) = shard_directories(tmp_path)
    assert (shard.number, shard.data_logs_file) == (0, tmp_path / "datalog" / "data.mdb")
