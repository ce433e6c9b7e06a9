"""The measuring parent's interface to a client in a process of its own.

    client = ClientProcess("benchmarks.transactions:Transactor", address=peer.address, partitions=2)
    seconds = client.call("run", transactions=500)     # Transactor.run(transactions=500), in the other process
    client.close()

Parent and child exchange one line of JSON for a call and one for its answer (worker.py), so a call takes about 0.1 ms.
Therefore a call measures many operations by the child's own clock, never one. All processes of a machine read the same
monotonic clock (`time.monotonic_ns`), so times of two children can be compared.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

SCRIPTS = Path(__file__).resolve().parent.parent
WAIT_S = 600.0


class ClientFailed(Exception):
    """The class in the child raised an error, or the child ended. The message contains the traceback."""


class ClientProcess:
    """One object of a class, in a process of its own; the class is `target`, "module:Class"."""

    def __init__(self, target: str, **arguments: object) -> None:
        """Start the process and create the object in it. Raises ClientFailed with the error of its creation."""
        self._target = target
        self._process = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.worker", target, json.dumps(arguments)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=os.environ | {"PYTHONPATH": os.pathsep.join([str(SCRIPTS), str(SCRIPTS.parent)])},
        )
        try:
            self.answer()
        except ClientFailed:
            self.kill()
            raise

    @property
    def pid(self) -> int:
        return self._process.pid

    def call(self, method: str, **arguments: object) -> Any:
        """The method's result, after its way through JSON."""
        self.ask(method, **arguments)
        return self.answer()

    def ask(self, method: str, **arguments: object) -> None:
        """Begin a call, so that other processes can work meanwhile. `answer` must follow before the next call."""
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps({"method": method, "arguments": arguments}) + "\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            raise ClientFailed(f"{self._target} has ended with status {self._process.wait()}") from None

    def answer(self, timeout_s: float = WAIT_S) -> Any:
        """The answer of the call that was begun. A child that is silent for `timeout_s` is killed: ClientFailed."""
        assert self._process.stdout is not None
        watchdog = threading.Timer(timeout_s, self._process.kill)
        watchdog.start()
        try:
            line = self._process.stdout.readline()
        finally:
            watchdog.cancel()
        if not line:
            status = self._process.wait()
            raise ClientFailed(f"{self._target} has ended with status {status}, or was killed after {timeout_s:.0f} s")
        message = json.loads(line)
        if "failed" in message:
            raise ClientFailed(f"{self._target}:\n{message['failed']}")
        return message["answer"]

    def kill(self) -> None:
        """Send SIGKILL: the client vanishes, with everything that it had open."""
        self._process.kill()
        self._end()

    def close(self) -> None:
        """End the process by closing its input; kill it if it does not end."""
        assert self._process.stdin is not None
        try:
            self._process.stdin.close()
            self._process.wait(10)
        except (BrokenPipeError, subprocess.TimeoutExpired):
            self._process.kill()
        self._end()

    def _end(self) -> None:
        self._process.wait()
        for stream in (self._process.stdin, self._process.stdout):
            if stream is not None and not stream.closed:
                stream.close()
