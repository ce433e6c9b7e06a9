"""Every strain in a small version, on a real node; at full size by `python -m tests.limits`."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.limits.catalogue import STRAINS, endure
from tests.limits.strain import Strain


@pytest.mark.slow
@pytest.mark.parametrize("strain", [pytest.param(each, id=each.name) for each in STRAINS])
def test_node_under_a_strain_stays_small_and_serves_others(strain: Strain, tmp_path: Path):
    """Its memory stays within a bound, a bystander's transactions go on, and what was asked of it ends as it should."""
    why_not = strain.needs()
    if why_not is not None:
        pytest.skip(why_not)
    result = endure(strain, tmp_path, small=True)
    assert not result.wrong, result.wrong
