"""Programs in other languages, run as processes: told what to do and asked for JSON lines, or kept running under kills.

What a program says on standard error goes to a file, whose end is in each message of failure.
"""

from __future__ import annotations

import json
import queue
import subprocess
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import IO, Any

POLL_S = 0.2
WAIT_S = 120.0
"""Patience. A JVM and its first request take a second, where processors have nothing else to do."""


def run(command: Sequence[str], *, text: str = "", environment: Mapping[str, str] | None = None) -> str:
    """Standard output of a program that ends by itself with status 0."""
    done = subprocess.run(
        list(command), input=text, capture_output=True, text=True, timeout=WAIT_S, check=False, env=environment
    )
    assert done.returncode == 0, f"{command[-3:]} ended with {done.returncode}:\n{done.stdout[-2000:]}{done.stderr}"
    return done.stdout


def run_json(command: Sequence[str]) -> list[dict[str, Any]]:
    """The objects that such a program has printed, one a line."""
    return [json.loads(line) for line in run(command).splitlines()]


class Conversation:
    """A program that answers each line that it is told with a JSON object."""

    def __init__(self, command: Sequence[str], log: Path) -> None:
        self._log = log
        with log.open("ab") as stderr:
            self._child = subprocess.Popen(
                list(command), stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=stderr, text=True
            )
        self._answers: queue.Queue[str] = queue.Queue()
        assert self._child.stdout is not None
        self._listener = threading.Thread(target=self._listen, args=(self._child.stdout,), daemon=True)
        self._listener.start()

    def __enter__(self) -> Conversation:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.kill()

    def tell(self, *words: object) -> None:
        """Say a line, and do not wait for its answer."""
        assert self._child.stdin is not None
        self._child.stdin.write("\t".join(map(str, words)) + "\n")
        self._child.stdin.flush()

    def answer(self) -> dict[str, Any]:
        """The next answer, whatever it says."""
        try:
            line = self._answers.get(timeout=WAIT_S)
        except queue.Empty:
            raise AssertionError(f"no answer after {WAIT_S} s:\n{tail(self._log)}") from None
        assert line, f"the program ended with {self._child.wait()}:\n{tail(self._log)}"
        return json.loads(line)

    def ask(self, *words: object) -> dict[str, Any]:
        """The answer to a line; fails the test if it is an error."""
        self.tell(*words)
        answer = self.answer()
        assert "error" not in answer, f"{words[0]}: {answer}\n{tail(self._log)}"
        return answer

    def refused(self, *words: object) -> dict[str, Any]:
        """The answer to a line that is to fail."""
        self.tell(*words)
        answer = self.answer()
        assert "error" in answer, f"{words[0]} succeeded: {answer}"
        return answer

    def kill(self) -> None:
        """SIGKILL, and wait."""
        self._child.kill()
        self._child.wait()
        self._listener.join()
        for pipe in (self._child.stdin, self._child.stdout):
            assert pipe is not None
            pipe.close()

    def _listen(self, stdout: IO[str]) -> None:
        for line in stdout:
            self._answers.put(line)
        self._answers.put("")


class Workers:
    """Processes that are to run all the time: whoever has ended, or was killed, is started again."""

    def __init__(
        self, commands: Sequence[Sequence[str]], log: Path, environment: Mapping[str, str] | None = None
    ) -> None:
        self._commands = commands
        self._environment = environment
        self._log = log
        self._children = [self._start(command) for command in commands]

    def __enter__(self) -> Workers:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for child in self._children:
            child.kill()
            child.wait()

    def tend(self) -> None:
        """Start again who has ended by itself."""
        for slot, child in enumerate(self._children):
            if child.poll() is not None:
                self._children[slot] = self._start(self._commands[slot])

    def kill(self, slot: int) -> None:
        """SIGKILL one, and start it again."""
        self._children[slot].kill()
        self._children[slot].wait()
        self._children[slot] = self._start(self._commands[slot])

    def stop(self) -> None:
        """SIGTERM, and wait until all of them have ended in order."""
        for child in self._children:
            child.terminate()
        for child in self._children:
            child.wait(WAIT_S)

    def run_until(self, done: Callable[[], bool], what: str, *, limit_s: float = WAIT_S) -> None:
        """Tend them until `done`; fails the test after the limit."""
        deadline = time.monotonic() + limit_s
        while not done():
            assert time.monotonic() < deadline, f"{what}: not within {limit_s:.0f} s:\n{self.log_tail()}"
            self.tend()
            time.sleep(POLL_S)

    def log_tail(self) -> str:
        return tail(self._log)

    def _start(self, command: Sequence[str]) -> subprocess.Popen[bytes]:
        with self._log.open("ab") as log:
            return subprocess.Popen(
                list(command), stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=self._environment
            )


def tail(log: Path, lines: int = 40) -> str:
    """The end of a log."""
    if not log.exists():
        return "(no output)"
    return "\n".join(log.read_text(encoding="utf-8", errors="replace").splitlines()[-lines:])
