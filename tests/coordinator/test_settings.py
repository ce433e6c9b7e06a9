from __future__ import annotations

import pytest

from coordinator.settings import CoordinatorSettings


@pytest.mark.parametrize(
    "wrong",
    [
        {"check_interval_ms": 0},
        {"min_timeout_ms": 0},
        {"min_timeout_ms": 5_000, "max_timeout_ms": 4_999},
        {"transactional_id_expiration_ms": 900_000},
    ],
)
def test_settings_that_contradict_each_other_are_refused(wrong):
    """The message names the setting."""
    with pytest.raises(ValueError, match=next(iter(wrong))):
        CoordinatorSettings(**wrong)
