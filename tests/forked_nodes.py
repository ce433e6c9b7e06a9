"""Nodes that are forked from a process which has imported them: most of a node's start is its imports, and the tests
start more than a thousand nodes.

    NodeProcess.spawn ──▶ start ──▶ the fork server of `multiprocessing`, which has imported all ──▶ fork ──▶ `_run`

A forked node is a process like any other, with arguments, environment, files and a session of its own. It does what
`python -m fairlog.cli` does once that is loaded; if it is to be of several processes, it starts them as it always does.
But it does not take the interpreter down: it ends when `main` has returned. That is left to what is started as a
program:

- programs with planted faults, and the processes of a supervisor;
- nodes whose environment has variables that are not theirs and that the tests' process has not: those may be for the
  interpreter, or for the loader of libraries.
"""

from __future__ import annotations

import atexit
import multiprocessing
import os
import resource
import runpy
import signal
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Mapping, Sequence
from contextlib import suppress
from multiprocessing import connection
from pathlib import Path
from typing import Final

import trio

from scripts.node_process import Child, start_program

_NODE: Final = ("-m", "fairlog.cli")
_MODULES: Final = ("fairlog.cli.serve", "fairlog.node", "fairlog.preparation", "fairlog.admin_http.server")
_OF_THE_NODE: Final = "FAIRLOG_"

_server = multiprocessing.get_context("forkserver")
_server.set_forkserver_preload([*_MODULES, __name__])

_one_at_a_time = threading.Lock()
"""`multiprocessing` asks all of its processes for their status when it starts one, and two may not ask the same."""


def start(command: Sequence[str], *, cwd: Path, environment: Mapping[str, str], output: Path, log: Path) -> Child:
    """Start the node as `start_program` does, which is called for all that cannot be forked."""
    own = {name for name in environment.keys() | os.environ.keys() if environment.get(name) != os.environ.get(name)}
    is_node = tuple(command[:3]) == (sys.executable, *_NODE)
    if is_node and all(name.startswith(_OF_THE_NODE) for name in own):
        with suppress(EOFError, ConnectionError):  # the server has ended: a module cannot be imported
            return _Forked(command, cwd, environment, output, log)
    return start_program(command, cwd=cwd, environment=environment, output=output, log=log)


class _Forked:
    """As `subprocess.Popen`, as far as a `Child` goes. It ends with the tests at the latest."""

    def __init__(
        self, command: Sequence[str], cwd: Path, environment: Mapping[str, str], output: Path, log: Path
    ) -> None:
        self._command = list(command)
        limits = resource.getrlimit(resource.RLIMIT_NOFILE)
        self._process = _server.Process(
            target=_run, args=(self._command, str(cwd), dict(environment), str(output), str(log), limits), daemon=True
        )
        with _one_at_a_time:
            self._process.start()
        assert self._process.pid is not None
        self.pid = self._process.pid
        _started.add(self)

    @property
    def returncode(self) -> int | None:
        return self.poll()

    def poll(self) -> int | None:
        with _one_at_a_time:
            return self._process.exitcode

    def wait(self, timeout: float | None = None) -> int:
        connection.wait([self._process.sentinel], timeout)
        status = self.poll()
        if status is None:
            assert timeout is not None
            raise subprocess.TimeoutExpired(self._command, timeout)
        return status

    def send_signal(self, sig: int) -> None:
        if self.poll() is None:
            with suppress(ProcessLookupError):  # the server has heard of its end, and has not said so yet
                os.kill(self.pid, sig)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


_started: weakref.WeakSet[_Forked] = weakref.WeakSet()


@atexit.register  # after `multiprocessing` has been imported, so before it waits for the end of all
def _kill_those_left() -> None:
    for each in _started:
        each.kill()


def _run(
    command: list[str], cwd: str, environment: dict[str, str], output: str, log: str, limits: tuple[int, int]
) -> None:
    """The forked process: it becomes what `command` says."""
    os.setsid()
    os.chdir(cwd)
    os.environ.clear()
    os.environ.update(environment)
    time.tzset()
    resource.setrlimit(resource.RLIMIT_NOFILE, limits)
    trio._core._run._r.seed()  # it shuffles tasks by this: with one seed all nodes would do it in the same way
    for descriptor, path, flags in (
        (0, os.devnull, os.O_RDONLY),
        (1, output, os.O_WRONLY | os.O_APPEND),
        (2, log, os.O_WRONLY | os.O_APPEND),
    ):
        opened = os.open(path, flags)
        os.dup2(opened, descriptor)
        os.close(opened)
    sys.orig_argv = command
    sys.argv = command[len(_NODE) :]
    runpy.run_module(_NODE[1], run_name="__main__", alter_sys=True)
