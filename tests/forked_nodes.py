"""Nodes that are forked from a process which has imported them: most of a node's start is its imports, and the tests
start more than a thousand nodes.

    NodeProcess.spawn ──▶ start ──▶ the fork server of `multiprocessing`, which has imported all ──▶ fork ──▶ `_run`

A forked node is a process like any other, with arguments, environment, files and a session of its own. It does what
`python -m fairlog.cli` does once that is loaded; if it is to be of several processes, it starts them as it always does.
Programs with planted faults, and nodes with variables that are not theirs, are started as programs: those may be for
the interpreter, or for the loader of libraries.
"""

from __future__ import annotations

import multiprocessing
import os
import runpy
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from scripts.node_process import Child, start_program

_NODE: Final = ("-m", "fairlog.cli")
_MODULES: Final = ("fairlog.cli.serve", "fairlog.node", "fairlog.preparation", "fairlog.admin_http.server")
_OF_THE_NODE: Final = "FAIRLOG_"

_server = multiprocessing.get_context("forkserver")
_server.set_forkserver_preload(list(_MODULES))


def start(command: Sequence[str], *, cwd: Path, environment: Mapping[str, str], output: Path, log: Path) -> Child:
    """Start the node as `start_program` does, which is called for all that cannot be forked."""
    own = {name for name in environment.keys() | os.environ.keys() if environment.get(name) != os.environ.get(name)}
    is_node = tuple(command[:3]) == (sys.executable, *_NODE)
    if is_node and all(name.startswith(_OF_THE_NODE) for name in own):
        return _Forked(command, cwd, environment, output, log)
    return start_program(command, cwd=cwd, environment=environment, output=output, log=log)


class _Forked:
    """As `subprocess.Popen`, as far as a `Child` goes. It ends with the tests."""

    def __init__(
        self, command: Sequence[str], cwd: Path, environment: Mapping[str, str], output: Path, log: Path
    ) -> None:
        self._command = list(command)
        self._process = _server.Process(
            target=_run, args=(self._command, str(cwd), dict(environment), str(output), str(log)), daemon=True
        )
        self._process.start()
        assert self._process.pid is not None
        self.pid = self._process.pid

    @property
    def returncode(self) -> int | None:
        return self._process.exitcode

    def poll(self) -> int | None:
        return self._process.exitcode

    def wait(self, timeout: float | None = None) -> int:
        self._process.join(timeout)
        if self._process.exitcode is None:
            assert timeout is not None
            raise subprocess.TimeoutExpired(self._command, timeout)
        return self._process.exitcode

    def send_signal(self, sig: int) -> None:
        if self._process.exitcode is None:
            os.kill(self.pid, sig)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


def _run(command: list[str], cwd: str, environment: dict[str, str], output: str, log: str) -> None:
    """The forked process: it becomes what `command` says."""
    os.setsid()
    os.chdir(cwd)
    os.environ.clear()
    os.environ.update(environment)
    time.tzset()
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
