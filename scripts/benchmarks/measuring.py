"""What every scenario gets and gives: a bench to start nodes on, and figures with their spread."""

from __future__ import annotations

import shutil
import statistics
import tempfile
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from confluent_kafka.admin import AdminClient, NewTopic
from node_process import NodeProcess

WAIT_S = 120.0


@dataclass(frozen=True, slots=True)
class Figure:
    """One measured quantity: a value per round."""

    scenario: str
    name: str
    unit: str
    rounds: tuple[float, ...]

    @property
    def median(self) -> float:
        return statistics.median(self.rounds)


@dataclass(slots=True)
class Bench:
    """Where a scenario runs. `scale` is 1 for a full run and 0.1 for a quick one."""

    scale: float
    rounds: int
    directory: Path
    figures: list[Figure] = field(default_factory=list[Figure])

    def amount(self, full: int) -> int:
        return max(1, int(full * self.scale))

    def note(self, scenario: str, name: str, unit: str, rounds: Sequence[float]) -> None:
        self.figures.append(Figure(scenario, name, unit, tuple(rounds)))

    @contextmanager
    def node(self, **environment: str) -> Generator[NodeProcess]:
        """A node with the default configuration but for `environment`, on an empty directory; gone afterwards."""
        directory = Path(tempfile.mkdtemp(dir=self.directory))
        node = NodeProcess(directory / "data", {"FAIRLOG_LOG_LEVEL": "warning", **environment})
        try:
            node.start()
            yield node
        finally:
            node.kill()
            shutil.rmtree(directory, ignore_errors=True)


def make_topics(address: str, names: Sequence[str], partitions: int) -> None:
    admin = AdminClient({"bootstrap.servers": address})
    for future in admin.create_topics([NewTopic(name, partitions, 1) for name in names]).values():
        future.result(timeout=WAIT_S)


def quantile(values: Sequence[float], share: float) -> float:
    """The smallest value that at least `share` of all are not above."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]
