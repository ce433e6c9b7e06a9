"""Fixtures of the simulation's tests."""

from __future__ import annotations

import pytest

pytest.register_assert_rewrite("tests.datalog.behaviour")
