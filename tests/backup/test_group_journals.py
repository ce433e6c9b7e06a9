"""What group journals tell around a cut: all of the time since the first reading, or there is another cut."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Generator, Iterable
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

import pytest

from coordinator.group_history import PART, SNAPSHOT_BEGIN, SNAPSHOT_END
from coordinator.group_records import (
    ExpiredRecord,
    GroupRecord,
    SinkAbortedRecord,
    SinkForgottenRecord,
    SinkRecord,
    encode_group,
)
from fairlog.backup import group_journals
from fairlog.backup.fences import ToldOfSinks
from fairlog.backup.group_journals import GroupJournalsAround
from fairlog_types import CorruptStorage, JournalPosition, LeaderEpoch, LogId, Offset, Placement, StorageFailure
from journal.frame import encode_frame
from journal.segment import Fsync, JournalKind
from journal.segment_file import begin_at
from tests.shards import shard_in

FENCE = SinkRecord("totals", "q", 3, (Placement(LogId.of_offsets(0), Offset(0), 1),), 0)
LATER = SinkRecord("totals", "q", 1_000_000, (Placement(LogId.of_offsets(0), Offset(70_000), 1),), 0)
"""A snapshot of it is longer, so it ends elsewhere."""
ABORTED, FORGOTTEN, OF_AN_ID = SinkAbortedRecord("totals", 4, 0), SinkForgottenRecord("totals"), ExpiredRecord("id")


def write(data_dir: Path, snapshot: Iterable[GroupRecord], *behind: GroupRecord, number: int = 0) -> None:
    """A group journal anew: a snapshot, and what stands behind it."""
    directory = shard_in(data_dir).group_journal(number)
    shutil.rmtree(directory, ignore_errors=True)
    parts = [encode_group(record) for record in snapshot]
    framed = [
        (SNAPSHOT_BEGIN, [0, 0], b""),
        *((PART | kind, header, payload) for kind, header, payload in parts),
        (SNAPSHOT_END, [len(parts)], b""),
        *(encode_group(record) for record in behind),
    ]

    def frames(salt: int) -> bytes:
        written = b""
        for kind, header, payload in framed:
            at, start = JournalPosition(len(written)), JournalPosition(0)
            frame = encode_frame(
                position=at, durable=start, leader_epoch=LeaderEpoch(1), timestamp_ms=0, kind=kind, header=header,
                payload=(payload,), salt=salt,
            )  # fmt: skip
            written += b"".join(frame)
        return written

    begin_at(directory, JournalKind.GROUP, Fsync.COMMIT, JournalPosition(0), frames)


class Cuts:
    """Data logs of which transactions begin; `meanwhile` is what the node does behind the beginning of each."""

    def __init__(self, *meanwhile: Callable[[], None]) -> None:
        self._meanwhile = meanwhile
        self.begun = 0
        self.ended = 0

    @contextmanager
    def begin(self) -> Generator[tuple[int]]:
        if self.begun < len(self._meanwhile):
            self._meanwhile[self.begun]()
        self.begun += 1
        yield (self.begun,)
        self.ended += 1


def around(data_dir: Path, cuts: Cuts) -> tuple[object, list[ToldOfSinks]]:
    """The transaction that is used, and what the journals tell of its moment."""
    journals = GroupJournalsAround([shard_in(data_dir)])
    with journals.begin(cast("Any", cuts.begin)) as (transaction,):
        assert cuts.ended == cuts.begun - 1, "of all transactions that were begun one is held"
        return transaction, list(journals.told)


def nothing() -> None:
    pass


def test_node_without_sinks_is_read_once(tmp_path: Path) -> None:
    """Most have none: the first cut does."""
    write(tmp_path, [OF_AN_ID], OF_AN_ID)
    assert around(tmp_path, Cuts()) == (1, [])
    assert around(tmp_path / "nothing", Cuts()) == (1, [])


def test_what_stands_behind_the_first_reading_is_not_known_before_the_cut(tmp_path: Path) -> None:
    """Of each journal, in the order of the directories; records of transactional ids are left out."""
    write(tmp_path, [FENCE, OF_AN_ID], OF_AN_ID, ABORTED)
    write(tmp_path, [], number=1)
    cuts = Cuts(nothing, lambda: write(tmp_path, [FENCE, OF_AN_ID], OF_AN_ID, ABORTED, FORGOTTEN))
    told = [ToldOfSinks([FENCE, ABORTED, FORGOTTEN], 2), ToldOfSinks([], 0)]
    assert around(tmp_path, cuts) == (2, told)


def test_snapshot_between_the_readings_is_met_by_another_cut(tmp_path: Path) -> None:
    """It tells of the last batch only, and that may be behind the cut."""
    write(tmp_path, [FENCE], ABORTED)
    cuts = Cuts(nothing, lambda: write(tmp_path, [LATER]))
    assert around(tmp_path, cuts) == (3, [ToldOfSinks([LATER], 1)])


def test_snapshots_beside_every_cut_end_in_a_sentence(tmp_path: Path) -> None:
    """And not in a fence that may be wrong."""
    write(tmp_path, [FENCE])
    turns = [lambda: write(tmp_path, [FENCE]), lambda: write(tmp_path, [LATER])] * 5
    with pytest.raises(StorageFailure, match="change faster than they can be read; try again"):
        around(tmp_path, Cuts(*turns))


def test_segment_that_gets_its_name_while_the_files_are_listed_is_not_missed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A list of files may have neither the old name nor the new one: what stands there was written long before."""
    write(tmp_path, [FENCE])
    (segment,) = shard_in(tmp_path).group_journal(0).iterdir()
    open_read_only, aside = group_journals.open_read_only, tmp_path / "aside"

    def unlucky_open(directory: Path, *, kind: JournalKind) -> object:
        nameless = directory / "spare-0.new"
        if not nameless.exists():
            return open_read_only(directory, kind=kind)
        nameless.rename(aside)
        journal = open_read_only(directory, kind=kind)
        aside.rename(segment)
        return journal

    def publish_under_the_reading() -> None:
        segment.rename(segment.with_name("spare-0.new"))

    monkeypatch.setattr(group_journals, "open_read_only", unlucky_open)
    cuts = Cuts(publish_under_the_reading, publish_under_the_reading)
    assert around(tmp_path, cuts) == (2, [ToldOfSinks([FENCE], 1)])


@pytest.mark.parametrize("error", [CorruptStorage("half a frame"), FileNotFoundError("it has got its name")])
def test_reading_that_the_node_disturbs_is_repeated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    """As its files change under the reader. What fails again and again is damage, and the sentence says where."""
    write(tmp_path, [FENCE])
    open_read_only, disturbed = group_journals.open_read_only, 3

    def disturbed_open(directory: Path, *, kind: JournalKind) -> object:
        nonlocal disturbed
        disturbed -= 1
        if disturbed >= 0:
            raise error
        return open_read_only(directory, kind=kind)

    monkeypatch.setattr(group_journals, "open_read_only", disturbed_open)
    assert around(tmp_path, Cuts()) == (2, [ToldOfSinks([FENCE], 1)])
    disturbed = 1_000
    with pytest.raises(
        StorageFailure, match=f"the group journal {tmp_path}/shards/0/journals/group/0 cannot be read: {error}"
    ):
        around(tmp_path, Cuts())
