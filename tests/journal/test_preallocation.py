"""Where room is made next, how much, and of what."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from journal.frame import LARGE_FRAME_BYTES
from journal.preallocation import STEP_BYTES_MAX, STEP_BYTES_MIN, Growth, Space, Target, plan_growth
from journal.segment import SEGMENT_HEADER_BYTES

LIMIT = 32 * 2**20


def plan(active: Space | None, spare: Space | None = None, *, needed: int = 1000, limit: int = LIMIT) -> Growth | None:
    return plan_growth(active, spare, needed_bytes=needed, limit_bytes=limit)


def test_growth_of_a_new_journal_begins_small() -> None:
    """A journal that is first written to takes 64 KiB: a thousand of them are cheap."""
    assert plan(None) == Growth(Target.NEW_SPARE, STEP_BYTES_MIN)


def test_growth_of_the_active_segment_doubles_up_to_the_largest_step() -> None:
    """Steps grow with the file, to 4 MiB."""
    assert plan(Space(128 * 1024, 0)) == Growth(Target.ACTIVE, 128 * 1024)
    assert plan(Space(8 * 2**20, 0)) == Growth(Target.ACTIVE, STEP_BYTES_MAX)


def test_growth_for_a_large_frame_is_as_large_as_it_needs() -> None:
    """One step suffices for one frame, also in a small file."""
    assert plan(Space(64 * 1024, 4096), needed=1_000_000) == Growth(Target.ACTIVE, 995_904 // 4096 * 4096 + 4096)


def test_growth_at_the_limit_makes_a_spare() -> None:
    """A segment that may not grow to what is needed gets a successor."""
    assert plan(Space(LIMIT, 500)) == Growth(Target.NEW_SPARE, STEP_BYTES_MAX)
    assert plan(Space(LIMIT - 4096, 500), needed=10_000) == Growth(Target.NEW_SPARE, STEP_BYTES_MAX)


def test_growth_with_a_spare_extends_only_the_spare() -> None:
    """Once there is a spare the active segment is not touched: it may be sealed at any moment."""
    assert plan(Space(64 * 1024, 0), Space(64 * 1024, 60_000)) is None
    assert plan(Space(64 * 1024, 0), Space(64 * 1024, 60_000), needed=61_000) == Growth(Target.SPARE, 4096)


def test_growth_for_large_frames_is_allocated_and_for_others_written() -> None:
    """Whichever file grows, the size of the frames to come says of what the room is; without one it is zeros."""
    full, spare = Space(LIMIT, 0), Space(64 * 1024, 0)
    for active, other, needed in ((None, None, 1000), (Space(2**20, 0), None, 1000), (full, None, 1), (full, spare, 1)):
        for frame_bytes, allocated in ((LARGE_FRAME_BYTES, True), (LARGE_FRAME_BYTES - 1, False), (0, False)):
            growth = plan_growth(active, other, needed_bytes=needed, limit_bytes=LIMIT, frame_bytes=frame_bytes)
            assert growth is not None
            assert growth.allocated is allocated


spaces = st.builds(lambda size, share: Space(size, int((size - 64) * share)), st.integers(4096, LIMIT), st.floats(0, 1))


@given(st.none() | spaces, st.none() | spaces, st.integers(1, 2 * LIMIT), st.integers(4096, LIMIT))
def test_growth_as_planned_makes_the_frame_fit_and_keeps_the_limit(active, spare, needed, limit) -> None:
    """After one growth there is room; and no file passes the limit unless one frame demands it."""
    growth = plan(active, spare, needed=needed, limit=limit)
    if growth is None:
        assert spare is not None
        assert needed <= spare.free_bytes
        return
    assert growth.more_bytes > 0
    match growth.target:
        case Target.ACTIVE:
            assert spare is None
            assert active.file_bytes + growth.more_bytes <= limit
            assert needed <= active.free_bytes + growth.more_bytes
        case Target.SPARE:
            assert needed <= spare.free_bytes + growth.more_bytes
        case Target.NEW_SPARE:
            assert needed <= growth.more_bytes - SEGMENT_HEADER_BYTES
            assert growth.more_bytes <= max(limit, needed + SEGMENT_HEADER_BYTES + 4096)
