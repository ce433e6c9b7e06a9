"""A transaction that is open for days, by the node's clock, while others write and their journals are given back.

At full size, on a node of its own and by the true clock, but for a minute: `python -m tests.limits --only long`.
"""

from __future__ import annotations

import pytest
import trio

from copier.reclaim import Reclaimer
from fairlog_types import LogId
from partition.answers import Appended
from shard.partitions import EXPIRY_CHECK_MS
from tests.shard.runs import JOURNALS, A, B, Run, transaction

pytestmark = pytest.mark.slow

HOUR_MS = 3_600_000
STEPS, STEP_MS = 10, 5 * HOUR_MS
"""Twice as long as a producer without a transaction is remembered."""
VALUE = bytes(200_000)
PER_STEP = 6
"""More than a segment of the journal."""
FIRST = f"{0:020}.journal"


def segments(run: Run, log: LogId) -> list[str]:
    return sorted(path.name for path in (run.directory / JOURNALS / str(log)).glob("*.journal"))


async def pass_hours(run: Run, reclaimer: Reclaimer) -> None:
    """What is written is copied, hours pass, idle producers are looked for, and space is given back."""
    await run.partitions.drain()
    run.clock.ms += STEP_MS
    await trio.sleep(2 * EXPIRY_CHECK_MS / 1000)
    await run.partitions.drain()
    await reclaimer.reclaim()


async def test_transaction_open_for_days_is_kept_and_commits_while_other_journals_are_cut(
    open_run, autojump_clock
) -> None:
    """Nothing of it is forgotten, nobody waits for it; only the journals that it has written to wait to be cut."""
    async with open_run(timeout_s=float("inf")) as run:
        await run.start(A, B, copying=False)
        copier = run.partitions._copier
        run.nursery.start_soon(copier.run)
        run.nursery.start_soon(run.partitions._forget_idle_producers)
        reclaimer = Reclaimer(copier, run.data_logs, run.partitions._journal_of)
        long = transaction(5)
        await run.begin(long, A)
        await run.write(long, A, b"first")
        for step in range(STEPS):
            for log in (A, B):
                for _ in range(PER_STEP):
                    await run.plain(log, VALUE)
            await pass_hours(run, reclaimer)
            assert len(segments(run, B)) <= 3, "the other journal is cut"
            assert segments(run, A)[0] == FIRST, "what is open is kept"
            assert len(segments(run, A)) > step
            assert len(await run.values(A)) == (step + 1) * PER_STEP, "others are visible"
        assert await run.write(long, A, b"last", sequence=1) == Appended(None, None)
        await run.prepare(long, A)
        run.place(long, A)
        await run.applied(long)
        assert (await run.values(A))[-2:] == [b"first", b"last"]
        await run.plain(A, VALUE)
        await pass_hours(run, reclaimer)
        assert len(segments(run, A)) <= 3, "and then its own is cut, too"
