"""A data log that is gone or empty: made again from the journal, or refused where that no longer reaches back."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from fairlog_types import CorruptStorage
from tests.shard.runs import DATA_LOGS, JOURNALS, A, open_run

VALUE = bytes(300_000)
RECORDS = 9


def empty(data_logs: Path) -> None:
    (data_logs / "data.mdb").write_bytes(b"")


async def write(directory: Path, *, give_back: bool) -> None:
    async with open_run(directory, leader_epoch=1) as run:
        await run.start(A)
        for _ in range(RECORDS):
            await run.plain(A, VALUE)
        await run.partitions.drain()
        if give_back:
            found = run.data_logs.mark(A)
            assert found is not None
            await run.partitions.by_log[A].journal.reclaim(found.replay_from)  # the reclaimer's own round comes late


@pytest.mark.parametrize("lose", [shutil.rmtree, empty], ids=["gone", "empty"])
async def test_data_logs_lost_are_made_again_from_whole_journals(tmp_path: Path, lose) -> None:
    """A crash may leave an empty file when it was being made; nothing is missing as long as the journals begin at 0."""
    await write(tmp_path, give_back=False)
    lose(tmp_path / DATA_LOGS)
    async with open_run(tmp_path, leader_epoch=2) as run:
        await run.start(A)
        assert await run.values(A) == [VALUE] * RECORDS


@pytest.mark.parametrize("lose", [shutil.rmtree, empty], ids=["gone", "empty"])
async def test_data_logs_lost_behind_a_reclaimed_journal_are_refused(tmp_path: Path, lose) -> None:
    """What only the data log had is not taken for never written: the refusal has the journal's name and positions."""
    await write(tmp_path, give_back=True)
    lose(tmp_path / DATA_LOGS)
    with pytest.RaisesGroup(
        pytest.RaisesExc(
            CorruptStorage, match=rf"{JOURNALS}/.*position 0 on are needed, but the journal goes from [1-9]"
        ),
        flatten_subgroups=True,
    ):
        async with open_run(tmp_path, leader_epoch=2) as run:
            await run.start(A)
