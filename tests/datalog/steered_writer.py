"""A process that has data logs open and does with them what it is told, one line at a time: the node of these tests.

    python steered_writer.py <directory>

Each line on standard input is Python: a call of one of the functions below. The answer is the line of what it returns.
LMDB allows an environment to be open once in a process, so whoever tests a reader needs a writer elsewhere.
"""

from __future__ import annotations

import gzip
import subprocess
import sys
from pathlib import Path
from types import TracebackType
from uuid import UUID

from datalog.environment import LmdbDataLogs
from fairlog_types import LogId, Offset

VALUE_BYTES = 3000


def log_of(number: int) -> LogId:
    return LogId.of_topic(UUID(int=number), 0)


class SteeredWriter:
    """The other end: starts the process, tells it what to do, ends it."""

    def __init__(self, directory: Path, map_bytes: int = 1 << 30) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.datalog.steered_writer", str(directory), str(map_bytes)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=Path(__file__).parents[2],
        )
        self.pid = self._process.pid
        self.tell("None")

    def __enter__(self) -> SteeredWriter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.end()

    def tell(self, call: str) -> object:
        """Have it done, and answer what it returns."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(call + "\n")
        self._process.stdin.flush()
        answer = self._process.stdout.readline()
        assert answer, f"the writer died of {call}"
        return eval(answer)

    def end(self) -> None:
        self._process.communicate(timeout=30)


def main(directory: Path, map_bytes: int) -> None:
    from tests.datalog.batches import batch, records

    logs = LmdbDataLogs.open(directory, map_bytes=map_bytes, sync=False)

    def create(*numbers: int) -> None:
        with logs.write() as writer:
            for number in numbers:
                writer.create(log_of(number))

    def drop(number: int) -> None:
        with logs.write() as writer:
            writer.drop(log_of(number))

    def append(*numbers: int, value: bytes = b"v", times: int = 1) -> None:
        """A batch of two records to each log, in one write, so many times."""
        for _ in range(times):
            with logs.write() as writer:
                for number in numbers:
                    at = logs.bounds(log_of(number)).next_offset
                    writer.append(log_of(number), at, 2, 2, batch(at, [1, 2], value=value))

    def append_compressed(number: int, codec: int) -> None:
        with logs.write() as writer:
            data = batch(0, [1, 2], attributes=codec, payload=gzip.compress(records([1, 2])))
            writer.append(log_of(number), Offset(0), 2, 2, data)

    def append_damaged(number: int) -> None:
        with logs.write() as writer:
            data = batch(0, [1, 2], value=b"value")
            data[-3] ^= 1
            writer.append(log_of(number), Offset(0), 2, 2, data)

    def delete_before(number: int, offset: int) -> None:
        with logs.write() as writer:
            writer.delete_before(log_of(number), Offset(offset))

    def sync() -> None:
        logs.sync()

    def restart(map_bytes: int = map_bytes) -> None:
        nonlocal logs
        logs.close()
        logs = LmdbDataLogs.open(directory, map_bytes=map_bytes, sync=False)

    def readers() -> list[int]:
        """The process ids in LMDB's reader table that stand at a transaction."""
        lines = logs._env.readers().splitlines()[1:]
        return [int(line.split()[0]) for line in lines if line.split()[2] != "-"]

    def file_bytes() -> int:
        return (directory / "data.mdb").stat().st_size

    known = dict(locals())
    for line in sys.stdin:
        print(repr(eval(line, known)), flush=True)  # noqa: T201  the parent reads it
    logs.close()


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
