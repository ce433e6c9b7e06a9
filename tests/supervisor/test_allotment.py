"""Which process serves which shard, on disk."""

from __future__ import annotations

from pathlib import Path

import pytest

from fairlog.supervisor import allotment
from fairlog_types import CorruptStorage, StorageFailure


def test_allotment_reads_back_as_it_is_written(tmp_path: Path) -> None:
    """What it has beyond the shards that there are is not read: a shard was about to be added."""
    allotment.save(tmp_path, [0, 2, 0])
    assert allotment.load(tmp_path, 3) == [0, 2, 0]
    assert allotment.load(tmp_path, 2) == [0, 2]
    allotment.save(tmp_path, [1, 1, 1])
    assert allotment.load(tmp_path, 3) == [1, 1, 1]
    assert [path.name for path in tmp_path.iterdir()] == ["allotment"]


def test_shard_has_the_process_of_its_number_unless_one_was_noted(tmp_path: Path) -> None:
    """As in every data directory in which no shard was moved."""
    assert list(allotment.load(tmp_path, 3)) == [0, 1, 2]


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        '{"version": 2, "processes": [0, 0]}',
        '{"version": 1, "processes": [0]}',
        '{"version": 1, "processes": [0, -1]}',
        '{"version": 1, "processes": [0, 64]}',
        '{"version": 1, "processes": [0, true]}',
        '{"version": 1, "processes": "01"}',
    ],
)
def test_allotment_that_is_none_is_refused_with_what_to_do(tmp_path: Path, text: str) -> None:
    """A guess could serve a shard elsewhere than an operator thinks."""
    (tmp_path / "allotment").write_text(text)
    with pytest.raises(CorruptStorage, match="does not say which process serves which shard: remove it"):
        allotment.load(tmp_path, 2)


def test_allotment_that_cannot_be_read_or_written_is_a_failure_of_the_disk(tmp_path: Path) -> None:
    """Named."""
    (tmp_path / "allotment").mkdir()
    with pytest.raises(StorageFailure, match=r"cannot read .*allotment: Is a directory"):
        allotment.load(tmp_path, 1)
    with pytest.raises(StorageFailure, match=r"cannot write .*allotment: Is a directory"):
        allotment.save(tmp_path, [0])
