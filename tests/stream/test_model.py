"""The engine in memory keeps the contract: each promise when nothing happens, and random histories in its storms."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import pytest

from tests.stream import promises
from tests.stream.model_engine import CALM
from tests.stream.rigs import ModelRig, World
from tests.stream.trials import model_trial

SEEDS = 15
TRIAL_S = 8.0


@pytest.mark.parametrize("promise", promises.PROMISES, ids=lambda promise: promise.__name__)
def test_model_keeps_the_promise(promise: Callable[[World], Awaitable[None]]) -> None:
    """What `stream.engine` asks of an engine."""
    ModelRig().run(promise)


@pytest.mark.slow
def test_model_keeps_the_contract_in_storms() -> None:
    """Whatever the model does is allowed by the contract; and it does all of it."""
    unknown = landed = twice = 0
    for seed in range(SEEDS):
        histories = model_trial(seed, TRIAL_S)
        unknown += sum(history.unknown() for history in histories)
        landed += sum(history.landed_unknown() for history in histories)
        twice += sum(history.twice() for history in histories)
        findings = [finding for history in histories for finding in history.findings]
        assert not findings, f"seed {seed}: {findings[:5]}"
    assert unknown > landed > 0
    assert twice > 0


def test_model_answers_all_appends_when_nothing_happens() -> None:
    """A calm model has no unknown outcomes, and no entry twice."""
    for history in model_trial(0, TRIAL_S, CALM, disturbed=False):
        assert not history.findings
        assert history.unknown() == history.twice() == 0
        assert history.answered() > 100
