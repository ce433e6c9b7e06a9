"""How far a copy says that it is."""

from __future__ import annotations

from fairlog_types import LeaderEpoch
from shard.progress import CopyProgress, CopyReport, Role
from stream.engine import StreamPosition
from stream.fold import NOTHING_READ, FoldState


def state(position: int, epoch: int = 3) -> FoldState:
    return FoldState(StreamPosition(position), LeaderEpoch(epoch))


def report(role: Role, taken: int, synced: int, epoch: int = 3) -> CopyReport:
    return CopyReport(role, LeaderEpoch(epoch), StreamPosition(taken), StreamPosition(synced))


def test_copy_is_reported_through_its_roles() -> None:
    """Its mark when it begins to follow is the one that it had; a copy that is made has none."""
    told: list[Role | None] = []
    progress = CopyProgress(lambda: told.append(None if progress.report is None else progress.report.role))
    assert progress.report is None
    progress.joins(NOTHING_READ)
    assert progress.report == report(Role.JOINING, -1, -1, epoch=0)
    progress.joins(StreamPosition(70))
    assert progress.report == report(Role.JOINING, 70, -1, epoch=0)
    now, caught_up, recovered = state(70), False, False
    progress.follows(lambda: now, lambda: caught_up)
    now = state(80)
    assert progress.report == report(Role.JOINING, 80, 70)
    caught_up = True
    assert progress.report == report(Role.REPLICA, 80, 70)
    progress.saved(state(75))
    progress.opens(lambda: now)
    assert progress.report == report(Role.OPENING, 80, 75)
    progress.owns(lambda: now, lambda: recovered)
    assert progress.report == report(Role.OPENING, 80, 75)
    recovered, now = True, state(90, 4)
    assert progress.report == report(Role.OWNER, 90, 75, epoch=4)
    progress.ends()
    progress.ends()
    assert progress.report is None
    assert told == [Role.JOINING, Role.JOINING, Role.JOINING, Role.OPENING, Role.OPENING, None]
