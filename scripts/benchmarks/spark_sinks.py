"""Two additional sinks, to measure the cost of a micro-batch; Spark's Python processes find them by PYTHONPATH.

fairlog-timed `format("fairlog")`, which notes how long each commit took in the driver's Python nothing a sink in Python
that drops its rows: the time that Spark takes for any such sink
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSource, DataSourceStreamArrowWriter, WriterCommitMessage

from pyspark_fairlog import DefaultSource
from pyspark_fairlog.sink import StreamWriter

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pyspark.sql.types import StructType

TIMED, NOTHING = "fairlog-timed", "nothing"
TIMES = "benchmarkTimes"
"""The option that names the file for the commits' milliseconds, a line for each."""


class TimedSource(DefaultSource):
    """Like `format("fairlog")`, with another name, and with the times."""

    @classmethod
    def name(cls) -> str:
        return TIMED

    def streamWriter(self, schema: StructType, overwrite: bool) -> TimedWriter:  # noqa: N802 (Spark's name)
        return TimedWriter(self.options, schema, overwrite)


class TimedWriter(StreamWriter):
    """Notes the time of each commit that succeeds."""

    def __init__(self, options: Mapping[str, str], schema: StructType, overwrite: bool) -> None:
        super().__init__(options, schema, overwrite)
        self._times = Path(options[TIMES])

    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        started = time.perf_counter()
        super().commit(messages, batchId)
        taken_ms = (time.perf_counter() - started) * 1e3
        with self._times.open("a", encoding="ascii") as file:
            file.write(f"{taken_ms}\n")


class NothingSource(DataSource):
    """Writes nothing."""

    @classmethod
    def name(cls) -> str:
        return NOTHING

    def streamWriter(self, schema: StructType, overwrite: bool) -> NothingWriter:  # noqa: N802, ARG002
        return NothingWriter()


class NothingWriter(DataSourceStreamArrowWriter):
    """Consumes all rows, as a sink must."""

    def write(self, iterator: Iterator[Any]) -> WriterCommitMessage:
        for _ in iterator:
            pass
        return WriterCommitMessage()

    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        pass

    def abort(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        pass


def times_ms(file: Path) -> list[float]:
    """The times in the file, in the order of the commits; none if there is no file."""
    return [float(line) for line in file.read_text(encoding="ascii").splitlines()] if file.exists() else []
