"""No sequence of raw requests commits a part of what was answered (`raw_rule`), whatever happens in between.

Programs are drawn by hypothesis, anew in each run; a failure prints the smallest program that it has found, as one that
can be put into this file, and the seed.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from random import SystemRandom

import pytest
from hypothesis import Phase, given, seed, settings
from hypothesis import strategies as st

from partition.modes import JOURNAL, MARKERS, TransactionMode
from tests.node import raw_programs as raw
from tests.node.raw_programs import End, Init, Restart, Wait, Which, Write
from tests.node.raw_requests import carry_out
from tests.node.raw_rule import BrokenRule
from tests.simulation.mutations import plant

BOTH_MODES = pytest.mark.parametrize("mode", [JOURNAL, MARKERS], ids=lambda mode: mode.name)
EXAMPLES = 100

LOG = st.integers(0, len(raw.LOGS) - 1)
ID = st.sampled_from((0, 0, 0, 1))
CONNECTION = st.sampled_from((0, 0, 0, 1))

DISTURBANCES = (
    *[st.builds(Restart, st.sampled_from(("kill", "stop", "power cut")))] * 2,
    st.builds(Restart, st.sampled_from(("kill", "power cut")), long=st.booleans(), again_at=st.integers(1, 120)),
    *[st.just(Wait(long=True))] * 2,
    st.just(Wait(long=False)),
    st.builds(raw.AbortOpen, ID),
    st.builds(raw.AbortByMarker, ID, LOG),
    st.builds(raw.Reconnect, ID, CONNECTION),
    st.builds(raw.DieLater, st.sampled_from(("kill", "power cut")), st.integers(1, 60)),
)


def requests(id: st.SearchStrategy[int], connection: st.SearchStrategy[int]) -> Sequence[st.SearchStrategy[raw.Step]]:
    """Requests that do not end a transaction, unless they are InitProducerId."""
    of = {"id": id, "connection": connection, "back": st.sampled_from((0, 0, 0, 0, 0, 0, 1))}
    return (
        *[st.builds(Write, **of, log=LOG)] * 4,
        st.builds(raw.Add, **of, logs=st.lists(LOG, max_size=3, unique=True).map(tuple)),
        st.builds(raw.Produce, **of, log=LOG, which=st.sampled_from(Which)),
        st.builds(raw.AddOffsets, **of),
        st.builds(raw.CommitOffsets, **of),
    )


def mixed(*bags: tuple[int, Sequence[st.SearchStrategy[raw.Step]]]) -> st.SearchStrategy[raw.Step]:
    """A step of one of the bags, which are drawn from so often."""
    chosen = [bag for weight, bag in bags for _ in range(weight)]
    return st.sampled_from(chosen).flatmap(st.sampled_from).flatmap(lambda strategy: strategy)


@st.composite
def transactions(draw: st.DrawFn) -> list[raw.Step]:
    """Most requests are of one id on one connection, and the last one ends its transaction."""
    own = {"id": st.just(draw(ID)), "connection": st.just(draw(CONNECTION))}
    grants = st.just(draw(st.booleans()))
    end = st.builds(End, **own, commit=st.sampled_from((True, True, True, False)), grants=grants)
    others = (
        *requests(ID, CONNECTION),
        st.builds(End, ID, CONNECTION, commit=st.booleans(), grants=grants),
        st.builds(Init, ID, CONNECTION, named=st.booleans(), keeps=st.booleans()),
    )
    beside = st.one_of(
        st.builds(raw.Add, **own, logs=st.tuples(LOG)),
        st.builds(raw.Produce, **own, log=LOG),
        st.builds(raw.CommitOffsets, **own),
    )
    steps = draw(st.lists(mixed((5, requests(**own)), (2, DISTURBANCES), (1, others)), min_size=2, max_size=9))
    return [*steps, draw(end | st.builds(raw.Together, end, beside, st.integers(0, 30)))]


@st.composite
def programs(draw: st.DrawFn) -> list[raw.Step]:
    return list(chain.from_iterable(draw(st.lists(transactions(), min_size=1, max_size=5))))


@pytest.mark.slow
@BOTH_MODES
def test_raw_requests_in_any_sequence_commit_all_of_what_was_answered_or_nothing(mode: TransactionMode) -> None:
    """With restarts, losses of power, time-outs and operators in between; each run of the suite tries new programs."""
    number = SystemRandom().getrandbits(40)
    print(f"raw requests with seed({number})")  # noqa: T201 (shown if it fails)

    @seed(number)
    @settings(max_examples=EXAMPLES, database=None, derandomize=False, print_blob=True)
    @given(program=programs(), fence_on_timeout=st.booleans())
    def run(program: list[raw.Step], fence_on_timeout: bool) -> None:
        carry_out(program, mode=mode, fence_on_timeout=fence_on_timeout)

    run()


@pytest.mark.slow
@BOTH_MODES
def test_raw_requests_find_a_client_that_was_told_and_begins_anew(mode: TransactionMode) -> None:
    """The planted bug: the second half of a transaction is committed on the connection that was told of the abort."""

    @seed(1)
    @settings(max_examples=100, database=None, report_multiple_bugs=False, phases=[Phase.generate])
    @given(program=programs())
    def run(program: list[raw.Step]) -> None:
        carry_out(program, mode=mode, fence_on_timeout=False)

    with plant("told-client-begins-anew"), pytest.raises(BrokenRule, match="and so was its commit"):
        run()


FIRST_HALF = [Write(0, log=0), raw.AddOffsets(0), raw.CommitOffsets(0)]
WAYS_TO_ABORT = pytest.mark.parametrize(
    "aborted_by", [Wait(long=True), Restart("power cut"), raw.AbortOpen(0)], ids=["time-out", "power cut", "operator"]
)
WAYS_TO_ADD = pytest.mark.parametrize("add", [raw.Add(0, logs=(1,)), raw.AddOffsets(0)], ids=["partitions", "offsets"])


@BOTH_MODES
@WAYS_TO_ABORT
@WAYS_TO_ADD
def test_raw_requests_after_an_abort_by_the_broker_commit_nothing(
    mode: TransactionMode, aborted_by: raw.Step, add: raw.Step
) -> None:
    """Once refused, and asked again on the same connection: it is still the aborted transaction."""
    second_half = [add, Write(0, log=2), raw.AddOffsets(0), raw.CommitOffsets(0), End(0)]
    counts = carry_out([*FIRST_HALF, aborted_by, *second_half], mode=mode, fence_on_timeout=False)
    assert counts.get("commits", 0) == 0
    assert counts["refusals"] == 6


@BOTH_MODES
@WAYS_TO_ABORT
def test_raw_requests_after_the_client_has_aborted_begin_the_next_transaction(
    mode: TransactionMode, aborted_by: raw.Step
) -> None:
    """EndTxn(abort) is what the client has to say; the epoch goes on."""
    program = [*FIRST_HALF, aborted_by, End(0, commit=False), *FIRST_HALF, End(0)]
    counts = carry_out(program, mode=mode, fence_on_timeout=False)
    assert (counts["aborts"], counts["commits"], counts.get("refusals", 0)) == (1, 1, 0)


@BOTH_MODES
@pytest.mark.parametrize("kind", ["kill", "stop"])
@pytest.mark.parametrize("connection", [0, 1])
def test_raw_requests_over_a_restart_go_on_with_the_transaction(
    mode: TransactionMode, kind: str, connection: int
) -> None:
    """Both halves, and the offsets, are committed; on whichever connection of the new run."""
    second_half = [Write(0, connection, log=1), raw.CommitOffsets(0, connection), End(0, connection)]
    counts = carry_out([*FIRST_HALF, Restart(kind), *second_half], mode=mode, fence_on_timeout=True)
    assert (counts["commits"], counts.get("refusals", 0)) == (1, 0)


@BOTH_MODES
@pytest.mark.parametrize("restart", [[], [Restart("kill")], [Restart("stop")]], ids=["at once", "kill", "stop"])
@pytest.mark.parametrize("commit", [True, False])
def test_raw_requests_of_a_successor_end_what_was_kept(
    mode: TransactionMode, restart: list[raw.Step], commit: bool
) -> None:
    """All of it or nothing, with its offsets; the epoch that the end grants has a transaction of its own."""
    keeps = Init(0, connection=1, keeps=True)
    program = [*FIRST_HALF, keeps, *restart, End(0, commit=commit, grants=True), *FIRST_HALF, End(0, grants=True)]
    counts = carry_out(program, mode=mode, fence_on_timeout=True)
    assert (counts["kept"], counts.get("refusals", 0)) == (1, 0)
    assert (counts["commits"], counts.get("aborts", 0)) == ((2, 0) if commit else (1, 1))


def test_raw_requests_after_an_abort_marker_and_a_restart_commit_nothing() -> None:
    """An administrator has ended the transaction in one log: it can be committed nowhere, in a later run neither."""
    carry_out(
        [Write(0, log=0), Write(0, log=1), raw.AbortByMarker(0, 0), Restart("kill"), End(0)],
        mode=MARKERS,
        fence_on_timeout=True,
    )
