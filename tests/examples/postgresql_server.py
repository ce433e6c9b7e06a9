"""A PostgreSQL server of one's own, on a Unix socket: made, started, and stopped as if its processes were killed.

It refuses to run as root; then it runs as `nobody`, who needs a way to its directory: that is in TMPDIR, and not in a
test's own, which is closed to others.
"""

from __future__ import annotations

import os
import pwd
import shutil
import subprocess
import tempfile
from pathlib import Path

ROOT_USER, OTHER_USER = 0, "nobody"
WAIT_S = 120
"""Patience, for `pg_ctl` as well: mostly a tenth of a second."""


class PostgresqlServer:
    """A server, once `start` has been called."""

    def __init__(self, programs: Path) -> None:
        self._programs = programs
        self._home = Path(tempfile.mkdtemp(prefix="postgresql-"))
        self._user: str | None = None
        if os.geteuid() == ROOT_USER:
            self._user = OTHER_USER
            owner = pwd.getpwnam(OTHER_USER)
            os.chown(self._home, owner.pw_uid, owner.pw_gid)
        self._run("initdb", "--username=postgres", "--auth=trust", "--no-locale", "--encoding=UTF8", "--no-sync")

    @property
    def url(self) -> str:
        """How to connect, as libpq wants it."""
        return f"host={self._home} user=postgres dbname=postgres"

    def start(self) -> None:
        """Returns when it accepts connections."""
        options = f"-c listen_addresses='' -c unix_socket_directories='{self._home}'"
        self._ctl("start", "--wait", "--log", str(self._home / "log"), "--options", options)

    def crash(self) -> None:
        """End all of its processes at once, without a checkpoint: the next start recovers from the write-ahead log."""
        self._ctl("stop", "--mode", "immediate")

    def remove(self) -> None:
        """Stop it if it runs, and delete its files."""
        if (self._data / "postmaster.pid").exists():
            self.crash()
        shutil.rmtree(self._home)

    @property
    def _data(self) -> Path:
        return self._home / "data"

    def _ctl(self, verb: str, *arguments: str) -> None:
        self._run("pg_ctl", verb, "--timeout", str(WAIT_S), *arguments)

    def _run(self, program: str, *arguments: str) -> None:
        # To a file: what it starts would keep a pipe open.
        output = self._home / "output"
        with output.open("wb") as out:
            done = subprocess.run(
                [self._programs / program, *arguments, "--pgdata", self._data],
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
                user=self._user,
                group=self._user and pwd.getpwnam(self._user).pw_gid,
                extra_groups=None if self._user is None else (),
                cwd=self._home,
                env=os.environ | {"LC_ALL": "C"},
                check=False,
            )
        assert done.returncode == 0, f"{program} {arguments}: {output.read_text()}"
