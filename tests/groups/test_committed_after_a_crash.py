"""What committed offsets are after a crash: those that were decided, none that was not, and nothing pending."""

from __future__ import annotations

from pathlib import Path

import pytest

from fairlog.groups.offset_values import CommitUnderWay, Sender
from tests.groups.desk import new
from tests.shard.runs import DATA_LOGS, A, is_waiting, transaction

T0 = transaction(7)


async def test_offsets_settled_are_there_after_a_crash(open_desk, tmp_path: Path) -> None:
    """With the groups that have them and when they committed, so that they expire as they would have."""
    async with open_desk() as desk:
        await desk.commit("g", new(1))
        desk.run.clock.ms += 5
        await desk.commit("h", new(2))
        crashed = desk.run.crash(tmp_path / "crashed")
    async with open_desk(crashed) as again:
        assert (await again.of_t("g"), await again.of_t("h")) == (1, 2)
        assert sorted(again.offsets.groups()) == ["g", "h"]
        assert again.offsets.last_commit_ms("h") - again.offsets.last_commit_ms("g") == 5


async def test_offsets_journaled_and_not_copied_are_copied_before_they_are_asked_for(open_desk, tmp_path: Path) -> None:
    """Plain and transactional ones alike; the index knows of them without having seen the commits."""
    async with open_desk() as desk:
        await desk.commit("g", new(1))
        await desk.commit("h", new(1))
        await desk.begin(T0, "g")
        await desk.commit_in(T0, "g", new(2))
        await desk.run.write(T0, A, b"v")
        log = desk.offsets.log_of("g")
        await desk.run.prepare(T0, A, log)
        desk.run.disk.hold()
        desk.run.place(T0, A, log)
        commit = await desk.offsets.commit("h", Sender(), [new(3)])
        assert isinstance(commit, CommitUnderWay)
        assert await is_waiting(lambda: desk.offsets.settled(commit))
        crashed = desk.run.crash(tmp_path / "crashed")
    async with open_desk(crashed) as again:
        assert (await again.of_t("g", stable=True), await again.of_t("h", stable=True)) == (2, 3)
        assert await again.run.values(A) == [b"v"]


async def test_offsets_of_an_open_transaction_are_neither_there_nor_pending_after_a_crash(
    open_desk, tmp_path: Path
) -> None:
    """It is aborted by the restart, so nobody has to wait for it; and its journal is not pinned."""
    async with open_desk() as desk:
        await desk.commit("g", new(1))
        await desk.begin(T0, "g")
        await desk.commit_in(T0, "g", new(2))
        crashed = desk.run.crash(tmp_path / "crashed")
    async with open_desk(crashed) as again:
        assert await again.fetched("g", stable=True) == {new(0).partition: 1}


@pytest.mark.parametrize("copied", [False, True])
async def test_offsets_of_a_prepared_transaction_are_applied_again_once(
    open_desk, tmp_path: Path, copied: bool
) -> None:
    """PREPARE_COMMIT without COMMITTED: the coordinator says it again, before or after it was placed."""
    async with open_desk() as desk:
        await desk.begin(T0, "g")
        await desk.commit_in(T0, "g", new(2))
        await desk.run.write(T0, A, b"v")
        log = desk.offsets.log_of("g")
        expected = await desk.run.prepare(T0, A, log)
        if copied:
            desk.run.place(T0, A, log)
            await desk.run.applied(T0)
        crashed = desk.run.crash(tmp_path / "crashed")
    async with open_desk(crashed, prepared=(T0, expected)) as again:
        assert await again.fetched("g", stable=True) == {new(0).partition: 2}
        assert await again.run.values(A) == [b"v"]


async def test_offsets_lost_with_the_power_keep_their_transaction_from_committing(open_desk, tmp_path: Path) -> None:
    """Nothing was flushed, nobody was answered: the log does not hold its one record, so all of it is aborted."""
    async with open_desk() as desk:
        log = desk.offsets.log_of("g")
        await desk.commit("g", new(1))
        older = desk.run.crash(tmp_path / "older")
        await desk.begin(T0, "g")
        await desk.commit_in(T0, "g", new(2))
        await desk.run.write(T0, A, b"v")
        expected = desk.run.seal(T0, A, log)
        assert {each: it.records for each, it in expected.items()} == {A: 1, log: 1}
        crashed = desk.run.crash(tmp_path / "crashed", losing={log: older})
    async with open_desk(crashed, refused=(T0, expected)) as again:
        assert await again.fetched("g", stable=True) == {new(0).partition: 1}
        assert await again.run.values(A) == []


async def test_offsets_deleted_stay_deleted(open_desk, tmp_path: Path) -> None:
    """A deletion is a record of the journal like a commit; replaying it over an older copy gives the same."""
    async with open_desk() as desk:
        await desk.commit("g", new(1), new(2, 1))
        older = desk.run.crash(tmp_path / "older")
        assert await desk.offsets.delete("g") is None
        await desk.commit("g", new(3, 1))
        crashed = desk.run.crash(tmp_path / "crashed")
    (crashed / DATA_LOGS / "data.mdb").write_bytes((older / DATA_LOGS / "data.mdb").read_bytes())
    async with open_desk(crashed) as again:
        assert await again.fetched("g") == {new(0, 1).partition: 3}
