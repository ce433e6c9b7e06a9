"""A client that has nothing to do with the strain: `python -m tests.limits.bystander HOST:PORT`.

    writer: AddPartitions ─▶ Produce ─▶ EndTxn(commit) ─▶ …        reader: ───────────── Fetch ─▶ seen

One transaction of one record after the other, and a plain reader that waits for each; behind what the last one of its
kind has left, if there was one. A line of JSON is said for each
round: when it began (CLOCK_MONOTONIC, which is one for all processes), how long the commit took from the first request
to the last answer, and how long until the reader had the record; seconds. It ends with its standard input, or with a
traceback if anything is not as it should be.

A process of its own, so that what the strain's clients compute is not in its way.
"""

from __future__ import annotations

import json
import struct
import subprocess
import sys
import threading
import time
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path

from tests.limits import wire
from tests.limits.wire import Wire

ROOT = Path(__file__).resolve().parent.parent.parent
TOPIC = "bystander"
PACE_S = 0.025
"""From the end of a round to the next: some thirty transactions a second disturb nobody."""

_VALUE = b"bystander" * 8


def run(address: str) -> None:
    """Rounds until standard input ends. Raises what keeps a round from being done right."""
    ended = threading.Event()
    threading.Thread(target=lambda: (sys.stdin.read(), ended.set()), daemon=True).start()
    with Wire(address) as writer, Wire(address) as reader:
        writer.call(wire.metadata([TOPIC]))
        who = wire.initialized(TOPIC, writer.call(wire.init_producer_id(TOPIC)))
        first = _end_offset(reader.call(wire.fetch([(TOPIC, [(0, 0)])], bytes_max=1)))
        for number in count(first):
            if ended.is_set():
                return
            began = time.monotonic()
            writer.call(wire.add_partition(who, TOPIC, 0))
            writer.call(wire.produce(TOPIC, 0, wire.batch(_VALUE, by=who, sequence=number - first), by=who))
            writer.call(wire.end(who, commit=True))
            committed = time.monotonic()
            asked = wire.fetch([(TOPIC, [(0, number)])], bytes_max=1 << 20, wait_ms=120_000)
            answer = reader.call(asked)
            seen = time.monotonic()
            if (base := _base_offset(answer)) != number:
                raise wire.Refused(f"the reader got offset {base} where {number} was due")
            sys.stdout.write(json.dumps([began, committed - began, seen - began]) + "\n")
            sys.stdout.flush()
            time.sleep(PACE_S)


_HIGH_WATERMARK_AT = 4 + 4 + 2 + len(TOPIC) + 4 + 4 + 2
"""In an answer for one partition of TOPIC: behind throttle, topics, name, partitions; index, code."""


def _end_offset(answer: bytes) -> int:
    return struct.unpack_from(">q", answer, _HIGH_WATERMARK_AT)[0]


def _base_offset(answer: bytes) -> int:
    """Of the answer's records."""
    # high watermark, last stable, aborted, length of the records
    return struct.unpack_from(">q", answer, _HIGH_WATERMARK_AT + 8 + 8 + 4 + 4)[0]


@dataclass(frozen=True, slots=True)
class Round:
    began: float
    commit_s: float
    seen_s: float


@dataclass(slots=True)
class Bystander:
    """The process, and what it has said so far."""

    address: str
    rounds: list[Round] = field(default_factory=list[Round])
    _child: subprocess.Popen[str] | None = None
    _reader: threading.Thread | None = None
    _errors: list[str] = field(default_factory=list[str])

    def start(self) -> None:
        """Start it, and return when its first round is done. Raises RuntimeError if there is none."""
        self._child = subprocess.Popen(
            [sys.executable, "-m", "tests.limits.bystander", self.address],
            cwd=ROOT,
            text=True,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        self._reader = threading.Thread(target=self._read)
        self._reader.start()
        self.wait_for(1)

    def wait_for(self, rounds: int, *, timeout_s: float = 120.0) -> None:
        """Return when so many more are done. Raises RuntimeError if it has failed, or takes longer."""
        wanted = len(self.rounds) + rounds
        deadline = time.monotonic() + timeout_s
        while len(self.rounds) < wanted:
            assert self._child is not None
            if self._child.poll() is not None:
                raise RuntimeError("the bystander has ended: " + "".join(self._errors))
            if time.monotonic() > deadline:
                raise RuntimeError(f"the bystander has done no more than {len(self.rounds)} rounds")
            time.sleep(0.005)

    def stop(self) -> list[str]:
        """End it, if that is not done yet; what it had to complain of."""
        if self._child is None or self._child.stdin is None or self._child.stdin.closed:
            return self._errors
        assert self._child.stderr is not None
        self._child.stdin.close()
        try:
            self._child.wait(150)
        except subprocess.TimeoutExpired:
            self._child.kill()
            self._child.wait()
            self._errors.append("a round did not end")
        if self._reader is not None:
            self._reader.join()
        if self._child.returncode:
            self._errors.append(self._child.stderr.read())
        self._child.stderr.close()
        assert self._child.stdout is not None
        self._child.stdout.close()
        return self._errors

    def between(self, since: float, until: float) -> list[Round]:
        """The rounds that were under way in this time, whole or in part."""
        return [each for each in list(self.rounds) if each.began < until and each.began + each.seen_s > since]

    def _read(self) -> None:
        assert self._child is not None
        assert self._child.stdout is not None
        for line in self._child.stdout:
            self.rounds.append(Round(*json.loads(line)))


if __name__ == "__main__":
    run(sys.argv[1])
