"""One node as a child process: start it, wait for it, stop it, kill it and start it again.

The quick start, the benchmark, the client tests and the crash test all run the node as a user does: `python -m
fairlog.cli serve`, a process of its own, with real sockets. They share this module. (The tests do not load the program
each time: `tests/forked_nodes.py`.) It knows only what a user knows about the node: the flags, the environment, the
line `fairlog ready on HOST:PORT` on standard output, and that SIGTERM ends it. Only to kill one of several processes,
and to know that all are gone, it looks at what the supervisor gives them.

Standard output and the log go to files beside the data directory, never to pipes: a pipe that is not read would stop
the node. Only the standard library is used.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
import weakref
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

READY_PREFIX = "fairlog ready on "
CONSOLE_PREFIX = "fairlog console on "
PROCESS_VARIABLE = b"FAIRLOG_PROCESS"
"""In the environment of each of several processes: its number."""
ROOT = Path(__file__).resolve().parent.parent
POLL_S = 0.005
START_S = STOP_S = 60.0
"""Maximum waits: both take less than a second if disk and processors have nothing else to do."""


def kept_waiting_s(pid: int) -> float:
    """Seconds in which the process's first thread was ready to run and no processor was free; 0 if the system does not
    report it.
    """
    try:
        return int(Path(f"/proc/{pid}/schedstat").read_text().split()[1]) / 1e9
    except (OSError, IndexError):
        return 0.0


def _processes_of(supervisor: int) -> dict[int, int]:
    """The id of each process that the supervisor has started and that has not ended, by its number."""
    # A child belongs to the thread that started it, and goes to another when that ends: perhaps to one whose children
    # were read a moment before. So they are read twice.
    children = [*_children_of(supervisor), *_children_of(supervisor)]
    found: dict[int, int] = {}
    for child in dict.fromkeys(children):
        try:
            environment = Path(f"/proc/{child}/environ").read_bytes().split(b"\0")
        except OSError:
            continue  # it ends just now
        # Nothing between fork and exec, when the environment is the supervisor's, and nothing of a zombie.
        for each in environment:
            name, _, told = each.partition(b"=")
            if name == PROCESS_VARIABLE:
                found[int(told)] = child
    return found


def _children_of(process: int) -> list[int]:
    children: list[int] = []
    for line in Path("/proc").glob(f"{process}/task/*/children"):
        with suppress(OSError):  # the thread ends just now
            children += map(int, line.read_text().split())
    return children


def has_ended(pid: int) -> bool:
    """Whether the process has let go of its files and locks. A zombie has: whoever is to reap it takes his time.

    But not as long as it has other threads: one that waits for the disk ends after the first one.
    """
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        return state in "ZX" and len(os.listdir(f"/proc/{pid}/task")) <= 1
    except OSError:
        return True


def _wait_for_end(pids: Sequence[int]) -> None:
    while not all(map(has_ended, pids)):
        time.sleep(POLL_S)


class NodeDidNotStart(Exception):
    """The node ended, or did not report in time that it is ready. The message contains the end of its log."""


class NodeNotReady(NodeDidNotStart):
    """It was not ready in time, but it runs: perhaps the machine had other work to do."""


class Child(Protocol):
    """A process that was started, as `subprocess.Popen` has it."""

    pid: int

    @property
    def returncode(self) -> int | None: ...

    def poll(self) -> int | None: ...

    def wait(self, timeout: float | None = None) -> int: ...

    def send_signal(self, sig: int) -> None: ...

    def kill(self) -> None: ...


class StartChild(Protocol):
    """Starts a process in a session of its own; what it writes is appended to two files that are there."""

    def __call__(
        self, command: Sequence[str], *, cwd: Path, environment: Mapping[str, str], output: Path, log: Path
    ) -> Child: ...


def start_program(
    command: Sequence[str], *, cwd: Path, environment: Mapping[str, str], output: Path, log: Path
) -> Child:
    """Start it as a shell does."""
    with output.open("ab") as stdout, log.open("ab") as stderr:
        return subprocess.Popen(
            command,
            cwd=cwd,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=stdout,
            stderr=stderr,
            start_new_session=True,  # Ctrl-C at the terminal is for the caller, who then stops the node in order
        )


start_child: StartChild = start_program
"""What starts a node here: the tests put another one in its place (`tests/forked_nodes.py`)."""


@dataclass(slots=True, weakref_slot=True)
class NodeProcess:
    """A node with the directory `data_dir`. It keeps its port over restarts, because clients that survive a crash need
    this.

    While the node is down, the system might assign its port to another program. So a socket is bound to it here as
    well, which never listens: clients are still refused, the node can listen, and no other program gets the port.

    With several `processes` it is a supervisor with so many brokers below it. Each has its port, kept in the same way,
    and all of them are in `address`, with commas between them. What is done to the node is done to the supervisor, and
    waits for all; `kill_process` kills one, which the supervisor starts again.

    `environment` is added to the caller's own, at each start, so it may be changed between two starts. `program` runs
    the node; the crash test uses it to put a lossy disk below the node.
    """

    data_dir: Path
    environment: dict[str, str] = field(default_factory=dict[str, str])
    arguments: Sequence[str] = ()
    program: Sequence[str] = ("-m", "fairlog.cli")
    address: str = "127.0.0.1:0"
    """HOST:PORT, port 0 for any; after the first start the address that the node gives to clients. With several
    processes the addresses of all, as clients take them, in the order of the processes.
    """
    console: str | None = None
    """The admin listener's URL, ending in a slash; None without one, which is the default here. With several processes
    the first one's.
    """
    processes: int = 1
    _child: Child | None = None
    _listening: str | None = None

    @property
    def listening(self) -> str:
        """HOST:PORT on which the node listens at each start; available before the first one. As many as processes, with
        commas between them.
        """
        if self._listening is None:
            given = self.address.split(",")
            held = [self._held(each) for each in (given * self.processes if len(given) == 1 else given)]
            if None in held:
                return self.address  # another program listens there: the node reports it
            self._listening = ",".join(filter(None, held))
        return self._listening

    def _held(self, address: str) -> str | None:
        """The address with a port that is held while this object lives; None if another program listens there."""
        host, _, port = address.rpartition(":")
        holder = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        with holder:
            # As the node's has it; else that could not listen.
            holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                holder.bind((host, int(port)))
            except OSError:
                return None
            bound = f"{host}:{holder.getsockname()[1]}"
            weakref.finalize(self, os.close, holder.detach())
        return bound

    @property
    def addresses(self) -> Sequence[str]:
        """The address of each process, in the order of their numbers."""
        return self.address.split(",")

    @property
    def log_path(self) -> Path:
        return self.data_dir.with_name(self.data_dir.name + ".log")

    @property
    def _output_path(self) -> Path:
        return self.data_dir.with_name(self.data_dir.name + ".out")

    @property
    def pid(self) -> int:
        assert self._child is not None, "the node was never started"
        return self._child.pid

    @property
    def running(self) -> bool:
        return self._child is not None and self._child.poll() is None

    @property
    def pids(self) -> Sequence[int]:
        """The ids of the processes that run, in the order of their numbers; without those that are just started anew.

        The supervisor is none of them: it is `pid`, which is the only one if there is no supervisor.
        """
        if self.processes == 1:
            return [self.pid] if self.running else []
        return [pid for _number, pid in sorted(_processes_of(self.pid).items())]

    def spawn(self) -> None:
        """Start the process and return at once."""
        assert not self.running, "the node is running already"
        self.data_dir.parent.mkdir(parents=True, exist_ok=True)
        command = [
            sys.executable, *self.program, "serve",
            "--data-dir", str(self.data_dir), "--listen", self.listening, *self._several, *self.arguments,
        ]  # fmt: skip
        self._output_path.write_bytes(b"")
        self.log_path.touch()
        self._child = start_child(
            command,
            cwd=ROOT,
            # Many nodes run side by side here, and would all want the one port of the default.
            environment=os.environ | {"FAIRLOG_ADMIN_LISTEN": "off"} | self.environment,
            output=self._output_path,
            log=self.log_path,
        )

    @property
    def _several(self) -> Sequence[str]:
        return () if self.processes == 1 else ("--processes", str(self.processes))

    def wait_ready(self, timeout_s: float = START_S) -> None:
        """Return once the node serves; `address` then names its port.

        Raises NodeDidNotStart if it ends first, NodeNotReady if it is silent for `timeout_s`. Time in which it only
        waited for a processor does not count.
        """
        assert self._child is not None
        started = time.monotonic()
        while True:
            ready, consoles = self._said()
            if len(ready) == self.processes:
                self.address = ",".join(ready)
                self.console = consoles[0] if consoles else None
                return
            if self._child.poll() is not None:
                raise NodeDidNotStart(f"the node ended with status {self._child.returncode}:\n{self.log_tail()}")
            passed_s = time.monotonic() - started
            if passed_s > timeout_s and passed_s - kept_waiting_s(self.pid) > timeout_s:
                raise NodeNotReady(f"the node was not ready after {timeout_s:.0f} s:\n{self.log_tail()}")
            time.sleep(POLL_S)

    def _said(self) -> tuple[list[str], list[str]]:
        """The addresses and the consoles on standard output."""
        lines = self._output_path.read_text(encoding="utf-8").splitlines(keepends=True)

        def after(prefix: str) -> list[str]:
            return [x.removeprefix(prefix).strip() for x in lines if x.startswith(prefix) and x.endswith("\n")]

        return after(READY_PREFIX), after(CONSOLE_PREFIX)

    def start(self, timeout_s: float = START_S) -> None:
        """Start the node and wait until it serves. Raises NodeDidNotStart; nothing is left running then."""
        self.spawn()
        try:
            self.wait_ready(timeout_s)
        except NodeDidNotStart:
            self.kill()
            raise

    def wait_end(self, timeout_s: float) -> int | None:
        """The exit status (negative: the signal) if the node ends within `timeout_s`, otherwise None."""
        assert self._child is not None
        try:
            return self._child.wait(timeout_s)
        except subprocess.TimeoutExpired:
            return None

    def terminate(self) -> None:
        """Send SIGTERM, without waiting."""
        if self._child is not None and self._child.poll() is None:
            self._child.send_signal(signal.SIGTERM)

    def stop(self, timeout_s: float = STOP_S) -> int:
        """Send SIGTERM, and return the exit status. A node that does not end in time is killed, which is an error."""
        if self._child is None:
            return 0
        self.terminate()
        status = self.wait_end(timeout_s)
        if status is None:
            self.kill()
            raise TimeoutError(f"the node did not end within {timeout_s:.0f} s of SIGTERM:\n{self.log_tail()}")
        return status

    def kill(self) -> None:
        """Send SIGKILL, and wait until the node has ended. Does nothing if it has ended already."""
        if self._child is not None:
            below = self.pids if self.processes > 1 and self.running else []
            self._child.kill()
            self._child.wait()
            _wait_for_end(below)

    def kill_process(self, number: int) -> None:
        """Send SIGKILL to the process of this shard, and wait until it has ended. The supervisor starts it again."""
        pid = self._pid_of(number)
        os.kill(pid, signal.SIGKILL)
        _wait_for_end([pid])

    def _pid_of(self, number: int) -> int:
        """Waits for a process that is just started anew."""
        deadline = time.monotonic() + START_S
        while (pid := _processes_of(self.pid).get(number)) is None:
            if time.monotonic() > deadline:
                raise TimeoutError(f"no process of shard {number} for {START_S:.0f} s:\n{self.log_tail()}")
            time.sleep(POLL_S)
        return pid

    def restart(self) -> None:
        self.stop()
        self.start()

    def log_tail(self, lines: int = 60) -> str:
        if not self.log_path.exists():
            return "(no log)"
        return "\n".join(self.log_path.read_text(encoding="utf-8", errors="replace").splitlines()[-lines:])

    def memory_bytes(self) -> int:
        """The resident memory of the node: of all its processes."""
        page = os.sysconf("SC_PAGE_SIZE")
        return sum(int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * page for pid in self._all_pids)

    def cpu_s(self) -> float:
        """CPU-seconds that the node has used, user and system: all its processes."""
        return sum(map(_cpu_s, self._all_pids))

    @property
    def _all_pids(self) -> Sequence[int]:
        return [self.pid] if self.processes == 1 else [self.pid, *self.pids]


def _cpu_s(pid: int) -> float:
    # Fields 14 and 15 of proc(5)'s stat; counted after the command's name, which may contain spaces.
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
