"""The behaviour suite, run on LMDB."""

from __future__ import annotations

import pytest

from tests.datalog.behaviour import OpenLogs
from tests.datalog.transactions_behaviour import TransactionsBehaviour


class TestLmdbDataLogs(TransactionsBehaviour):
    @pytest.fixture
    def open_logs(self, open_lmdb: OpenLogs) -> OpenLogs:
        return open_lmdb
