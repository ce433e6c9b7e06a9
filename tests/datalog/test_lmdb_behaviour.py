"""The behaviour suite, run on LMDB."""

from __future__ import annotations

import pytest

from tests.datalog.behaviour import DataLogsBehaviour, OpenLogs


class TestLmdbDataLogs(DataLogsBehaviour):
    @pytest.fixture
    def open_logs(self, open_lmdb: OpenLogs) -> OpenLogs:
        return open_lmdb
