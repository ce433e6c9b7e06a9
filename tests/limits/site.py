"""Where a strain happens: a real node with a bystander beside it, and somebody who writes down what they are like.

    undisturbed ──▶ the strain ──▶ undisturbed again
        └─ before      └─ peak, during     └─ after

Memory is the node's *anonymous* memory (`RssAnon` of /proc/PID/status): what it has taken for itself. Pages of the data
logs' file and of journals, which are the system's to take back, are not in it. It is looked at 50 times a second, so a
shorter peak may be missed. The bystander's undisturbed rounds are those on both sides of the strain.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from scripts.node_process import NodeProcess
from tests.limits.bystander import Bystander, Round

SAMPLE_S = 0.02
SETTLE_S = 10.0
"""After a strain: so long what is given back may take, reclaiming of journals included."""

_FAULT_LINES = ("by a fault of the node", "Traceback")


@dataclass(frozen=True, slots=True)
class Delay:
    """What rounds took, from the first request of a transaction until the reader had its record; seconds."""

    rounds: int
    median_s: float
    p99_s: float
    longest_s: float

    @classmethod
    def of(cls, rounds: Sequence[Round]) -> Delay:
        took = sorted(each.seen_s for each in rounds)
        if not took:
            return cls(0, 0.0, 0.0, 0.0)
        return cls(len(took), took[len(took) // 2], took[min(len(took) - 1, len(took) * 99 // 100)], took[-1])


@dataclass(slots=True)
class Seen:
    """What was seen of the node and of the bystander."""

    memory_before: int = 0
    memory_peak: int = 0
    memory_after: int = 0
    files_before: int = 0
    files_peak: int = 0
    files_after: int = 0
    undisturbed: Delay = field(default_factory=lambda: Delay(0, 0.0, 0.0, 0.0))
    during: Delay = field(default_factory=lambda: Delay(0, 0.0, 0.0, 0.0))
    strain_s: float = 0.0
    faults: list[str] = field(default_factory=list[str])

    @property
    def grown_bytes(self) -> int:
        return self.memory_peak - self.memory_before


class Site:
    """A node in a new directory, with a bystander; made by `open_site`."""

    def __init__(self, node: NodeProcess, bystander: Bystander, *, undisturbed_s: float, settle_s: float) -> None:
        self.node = node
        self.bystander = bystander
        self.seen = Seen()
        self._undisturbed_s = undisturbed_s
        self._settle_s = settle_s

    @property
    def address(self) -> str:
        return self.node.address

    def memory_bytes(self) -> int:
        """Anonymous, of the node."""
        status = Path(f"/proc/{self.node.pid}/status").read_text(encoding="ascii")
        return int(status.split("RssAnon:")[1].split()[0]) << 10

    def files(self) -> int:
        """Descriptors that the node holds."""
        return len(os.listdir(f"/proc/{self.node.pid}/fd"))

    @contextmanager
    def strained(self) -> Generator[None]:
        """Around the strain itself: what is to be prepared is prepared before, what is looked at is looked at after."""
        seen, bystander = self.seen, self.bystander
        quiet_from = time.monotonic()
        time.sleep(self._undisturbed_s)
        bystander.wait_for(2)
        seen.memory_before, seen.files_before = self.memory_bytes(), self.files()
        seen.memory_peak, seen.files_peak = seen.memory_before, seen.files_before
        ended = threading.Event()
        sampler = threading.Thread(target=self._sample, args=(ended,))
        sampler.start()
        since = time.monotonic()
        try:
            yield
            bystander.wait_for(2)
        finally:
            until = time.monotonic()
            ended.set()
            sampler.join()
            seen.strain_s = until - since
        time.sleep(self._settle_s)
        quiet_again = time.monotonic()
        time.sleep(self._undisturbed_s)
        bystander.wait_for(2)
        seen.memory_after, seen.files_after = self.memory_bytes(), self.files()
        before = bystander.between(quiet_from, since)
        seen.undisturbed = Delay.of(before + bystander.between(quiet_again, time.monotonic()))
        seen.during = Delay.of(bystander.between(since, until))

    def _sample(self, ended: threading.Event) -> None:
        while not ended.wait(SAMPLE_S):
            try:
                self.seen.memory_peak = max(self.seen.memory_peak, self.memory_bytes())
                self.seen.files_peak = max(self.seen.files_peak, self.files())
            except OSError:
                return  # the node has ended; whoever talks to it will find out

    def kill_and_start(self) -> float:
        """Kill the node and start it again, with a new bystander; how long the start took, in seconds.

        Behind the strain. What the node takes then counts as if it had grown by it.
        """
        self.seen.faults.extend(self.bystander.stop())
        self.node.kill()
        began = time.monotonic()
        self.node.start(120)
        took = time.monotonic() - began
        self.bystander = Bystander(self.node.address)
        self.bystander.start()
        self.seen.memory_peak = max(self.seen.memory_peak, self.memory_bytes())
        return took

    def look_back(self) -> None:
        """Whether the node is well; stops it."""
        faults = self.seen.faults
        if not self.node.running:
            faults.append(f"the node has died:\n{self.node.log_tail()}")
            return
        faults.extend(self.bystander.stop())
        if self.node.stop(60) != 0:
            faults.append("the node did not end well")
        log = self.node.log_path.read_text(encoding="utf-8", errors="replace")
        faults.extend(f"the log has: {each}" for each in _FAULT_LINES if each in log)


@contextmanager
def open_site(
    directory: Path,
    environment: dict[str, str],
    *,
    everywhere: bool = False,
    undisturbed_s: float,
    settle_s: float,
) -> Generator[Site]:
    """Start a node with these settings, and a bystander. What is wrong at the end stands in `seen.faults`.

    `everywhere`: it listens on all interfaces.
    """
    node = NodeProcess(
        directory / "data",
        environment={"FAIRLOG_LOG_FORMAT": "console", **environment},
        arguments=("--advertised", "127.0.0.1:0"),
        address="0.0.0.0:0" if everywhere else "127.0.0.1:0",
    )
    node.start(60)
    bystander = Bystander(node.address)
    site = Site(node, bystander, undisturbed_s=undisturbed_s, settle_s=settle_s)
    try:
        bystander.start()
        yield site
        site.look_back()
    finally:
        node.kill()
        site.bystander.stop()
