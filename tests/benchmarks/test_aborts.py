"""Which transactions the scenario `aborts` aborts."""

from __future__ import annotations

from itertools import groupby

import pytest
from benchmarks.aborts import PERCENT, outcomes


@pytest.mark.parametrize("percent", PERCENT)
@pytest.mark.parametrize("committed", [9, 90])
def test_outcomes_are_exactly_the_share_that_was_asked_for(committed: int, percent: int) -> None:
    """The number of commits is always the same, and aborts are `percent` of all."""
    commits = list(outcomes(committed, percent))
    assert sum(commits) == committed
    assert commits.count(False) * 100 == percent * len(commits)


@pytest.mark.parametrize("percent", PERCENT)
def test_outcomes_are_even_and_end_with_a_commit(percent: int) -> None:
    """Aborts lie evenly between commits, and the log's last record is one that is delivered."""
    commits = list(outcomes(90, percent))
    assert commits[-1] is True
    runs = {
        committing: [len(list(run)) for value, run in groupby(commits) if value is committing]
        for committing in (False,)
    }
    lengths = runs[False]
    assert not lengths or max(lengths) - min(lengths) <= 1
