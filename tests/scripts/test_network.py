"""Hosts in a network of one's own: what is cut loses everything, without a word, and it arrives when it is joined."""

from __future__ import annotations

import subprocess

import pytest

from scripts.node_process import ROOT
from tests.lacking import refused
from tests.scripts.hosts import PROGRAM, REFUSED

RUN_S = 200.0


def test_what_is_cut_is_silent_until_it_is_joined() -> None:
    """Of the others nobody notices anything, and the connection lives on."""
    ran = subprocess.run(PROGRAM, cwd=ROOT, capture_output=True, text=True, timeout=RUN_S, check=False)
    if ran.stderr.startswith(REFUSED):
        pytest.skip(refused("a network of one's own", ran.stderr) or ran.stderr)
    assert ran.returncode == 0, ran.stderr
