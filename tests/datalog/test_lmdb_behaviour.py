"""The behaviour suites, run on LMDB."""

from __future__ import annotations

import pytest

from tests.datalog.behaviour import OpenLogs
from tests.datalog.removal_behaviour import RemovalBehaviour
from tests.datalog.search_behaviour import SearchBehaviour
from tests.datalog.staging_behaviour import StagingBehaviour
from tests.datalog.transactions_behaviour import TransactionsBehaviour


class TestLmdbDataLogs(RemovalBehaviour, SearchBehaviour, TransactionsBehaviour, StagingBehaviour):
    @pytest.fixture
    def open_logs(self, open_lmdb: OpenLogs) -> OpenLogs:
        return open_lmdb
