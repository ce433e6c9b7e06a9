"""The two ways in which transactions reach a topic, for tests whose promise holds in both.

A test that carries `BOTH_MODES` runs once in each: the fixture `mode` says in which, and the topics of the fixture
`new_topic`, and of nodes made by `fresh_node`, are of it. What differs, tests say with `if mode is …`.
"""

from __future__ import annotations

from enum import Enum

import pytest


class Mode(Enum):
    """The values of the topic config `fairlog.transactions`."""

    JOURNAL = "journal"
    MARKERS = "markers"


MODE_CONFIG = "fairlog.transactions"

BOTH_MODES = pytest.mark.parametrize("mode", list(Mode), ids=lambda mode: mode.value)
