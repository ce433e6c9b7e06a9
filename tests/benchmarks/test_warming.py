"""Warming up: long enough for a virtual machine to compile, short where nothing is for quoting."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import pytest
from benchmarks.scenario import Bench
from benchmarks.warming import warm_up
from peers.interface import Peer


class FakeClient:
    """Answers at once, and notes how long it was to work."""

    def __init__(self, seconds: list[float]) -> None:
        self._seconds = seconds

    def ask(self, _method: str, *, timeout_s: float, **_: object) -> None:
        self._seconds.append(timeout_s)

    def call(self, _method: str, *, seconds: float, **_: object) -> None:
        self._seconds.append(seconds)

    def answer(self) -> None: ...


class FakeBench(Bench):
    """Has no processes."""

    def __init__(self, quick: bool) -> None:
        super().__init__(quick, rounds=1, directory=Path())
        self.seconds: list[float] = []

    def client(self, peer: Peer, target: str, role: str = "", **arguments: object) -> Any:
        return FakeClient(self.seconds)


class FakePeer:
    name = "fake"
    transactional_isolation = "read_committed"

    def __init__(self, *, durable: bool) -> None:
        self.durable = durable

    def create_topics(self, names: list[str], partitions: int) -> None: ...


@pytest.mark.parametrize(
    ("quick", "durable", "seconds"), [(False, True, [20.0, 20.0]), (True, True, [1.0, 1.0]), (False, False, [])]
)
def test_broker_is_warmed_up_for_twenty_seconds(quick: bool, durable: bool, seconds: list[float]) -> None:
    """Reader and writer work side by side that long; a second in a quick run, and never against the mock."""
    bench = FakeBench(quick)
    warm_up(bench, cast("Peer", FakePeer(durable=durable)))
    assert bench.seconds == seconds
