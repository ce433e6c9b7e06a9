"""The behaviour suites of data logs, run on the double in memory; and what a power cut leaves of it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from random import Random

import pytest

from datalog.interface import DataLogs
from tests.datalog.behaviour import ORDERS, append, mark
from tests.datalog.removal_behaviour import RemovalBehaviour
from tests.datalog.search_behaviour import SearchBehaviour
from tests.datalog.staging_behaviour import StagingBehaviour
from tests.datalog.transactions_behaviour import TransactionsBehaviour
from tests.simulation.memory_lmdb import MemoryEnvironment, open_memory_logs

NOWHERE = Path("/nowhere")


class TestMemoryDataLogs(RemovalBehaviour, SearchBehaviour, TransactionsBehaviour, StagingBehaviour):
    @pytest.fixture
    def open_logs(self) -> Callable[[], DataLogs]:
        env = MemoryEnvironment()
        return lambda: open_memory_logs(NOWHERE, env)


def test_power_cut_takes_at_most_the_last_commit_and_none_behind_a_sync() -> None:
    """What `metasync=False` promises: the last commit may vanish whole; what was synced may not."""
    found: set[int] = set()
    for seed in range(40):
        env = MemoryEnvironment()
        logs = open_memory_logs(NOWHERE, env)
        with logs.write() as writer:
            writer.create(ORDERS)
        for number in range(3):
            with logs.write() as writer:
                append(writer, ORDERS, number, [number])
                writer.put_mark(ORDERS, mark(number + 1, number + 1))
            if number == 1:
                logs.sync()
        after = open_memory_logs(NOWHERE, env.after_power_cut(Random(seed)))
        found.add(after.bounds(ORDERS).next_offset)
    assert found == {2, 3}
