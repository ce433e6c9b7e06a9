"""Fixtures of the simulation's tests."""

from __future__ import annotations

import pytest

for suite in ("behaviour", "removal_behaviour", "search_behaviour", "transactions_behaviour"):
    pytest.register_assert_rewrite(f"tests.datalog.{suite}")
