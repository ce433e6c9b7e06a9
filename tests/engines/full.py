"""Which tests of engines CI leaves out, since its run has a limit: those that carry `FULL`.

`python -m tests.engines` runs them too. What takes long in both modes runs in one of them on CI (`ONE_MODE_ON_CI`).
"""

from __future__ import annotations

import os

import pytest

from tests.clients.modes import Mode
from tests.lacking import TAKES_LONG

VARIABLE = "TESTS_ENGINES_FULL"

FULL = pytest.mark.skipif(VARIABLE not in os.environ, reason=TAKES_LONG + "`.venv/bin/python -m tests.engines` runs it")

ONE_MODE_ON_CI = pytest.mark.parametrize(
    "mode", [Mode.JOURNAL, pytest.param(Mode.MARKERS, marks=FULL)], ids=lambda mode: mode.value
)
