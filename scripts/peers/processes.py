"""A broker's process: start it with its output in a file, stop it, and read its resource use.

Output goes to a file and never to a pipe: a pipe that is not read would stop the broker. Figures are read from /proc,
so they are available only on Linux.
"""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

_BLOCK_BYTES = 512  # the unit of st_blocks, whatever the file system's own


@dataclass(slots=True)
class Program:
    """One program that can be run several times. Its output is appended to `output_path`."""

    command: Sequence[str]
    output_path: Path
    _child: subprocess.Popen[bytes] | None = None

    @property
    def running(self) -> bool:
        return self._child is not None and self._child.poll() is None

    @property
    def pid(self) -> int:
        assert self._child is not None, "the program was never started"
        return self._child.pid

    @property
    def status(self) -> int | None:
        """The exit status (negative: the signal); None while it runs."""
        assert self._child is not None, "the program was never started"
        return self._child.poll()

    def spawn(self) -> None:
        assert not self.running, "the program is running already"
        self.output_path.parent.mkdir(parents=True, exist_ok=True)
        with self.output_path.open("ab") as output:
            self._child = subprocess.Popen(
                self.command,
                cwd=self.output_path.parent,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,  # Ctrl-C at the terminal is for the caller, who then ends it in order
            )

    def stop(self, timeout_s: float) -> None:
        """Send SIGTERM, and wait. A process that does not end in time is killed, which is an error."""
        if self._child is None or not self.running:
            return
        self._child.send_signal(signal.SIGTERM)
        try:
            self._child.wait(timeout_s)
        except subprocess.TimeoutExpired:
            self.kill()
            raise TimeoutError(
                f"{self.command[0]} did not end within {timeout_s:.0f} s of SIGTERM:\n{self.output_tail()}"
            ) from None

    def kill(self) -> None:
        """Send SIGKILL, and wait for its end."""
        if self._child is not None:
            self._child.kill()
            self._child.wait()

    def send(self, number: signal.Signals) -> None:
        """Send it a signal, if it runs."""
        if self.running and self._child is not None:
            self._child.send_signal(number)

    def output_tail(self, lines: int = 40) -> str:
        if not self.output_path.exists():
            return "(no output)"
        return "\n".join(self.output_path.read_text(encoding="utf-8", errors="replace").splitlines()[-lines:])


def cpu_s(pid: int) -> float:
    """CPU-seconds of all threads of the process, user and system, including ended ones."""
    # Fields 14 and 15 of proc(5)'s stat; counted after the command's name, which may contain spaces.
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def memory_bytes(pid: int) -> int:
    """Resident memory, with the pages of mapped files that are resident."""
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def written_bytes(pid: int) -> int:
    """The bytes that the process has passed to write(2) and related calls; 0 where the system does not report it.

    This includes answers to clients (about 100 bytes per request when producing): Java sends them with write(2), and so
    does Fairlog, except large ones. When records are fetched, the figure says nothing about the disk, for either.

    Not `write_bytes` of the same file: that counts the pages made dirty, and where the page cache keeps a file in large
    folios (ext4 on Linux 6.16 and newer) one write of 16 KB makes up to 2 MB dirty, of which 16 KB reach the disk.
    """
    try:
        lines = Path(f"/proc/{pid}/io").read_text().splitlines()
    except OSError:
        return 0
    return int(dict(line.split(": ") for line in lines)["wchar"])


def disk_bytes(directory: Path) -> int:
    """Allocated blocks of all files below `directory`, as du counts them. Files may come and go meanwhile."""
    total = 0
    for path in directory.rglob("*"):
        try:
            status = path.lstat()
        except FileNotFoundError:
            continue
        total += status.st_blocks * _BLOCK_BYTES
    return total
