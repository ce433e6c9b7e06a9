"""Rows of micro-batches as records of a topic where Spark does not take its way through `writeStream`.

A sink that is written in Python is refused the output mode *update* by Spark, which asks sinks for an interface that
only Java code can have. `foreachBatch` knows all modes, and has a batch to write as any batch is written. So here the
stream's own writer is given to Spark as a batch's: the tasks write lanes, and the commit names them. Query, run and
batch are those of the stream, in whose name these jobs run; a batch that runs again finds the fence as it does with
`writeStream`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSource, DataSourceArrowWriter, WriterCommitMessage

from pyspark_fairlog.sink import StreamWriter

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.types import StructType

FORMAT = "fairlog-micro-batch"
BATCH = "batch"


class TopicBatches:
    """What `foreachBatch` calls; `options` are those of `format("fairlog")`, with the checkpoint's."""

    def __init__(self, options: Mapping[str, str]) -> None:
        self._options = dict(options)

    def __call__(self, rows: DataFrame, batch: int) -> None:
        """Write a batch, once. Raises what Spark makes of a SinkError."""
        rows.sparkSession.dataSource.register(MicroBatchSink)
        rows.write.format(FORMAT).mode("append").options(**self._options, **{BATCH: str(batch)}).save()


class MicroBatchSink(DataSource):
    """The data source behind it."""

    @classmethod
    def name(cls) -> str:
        return FORMAT

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceArrowWriter:
        return _MicroBatchWriter(self.options, schema, overwrite)


class _MicroBatchWriter(DataSourceArrowWriter):
    """A stream's writer, with the batch's id, which a batch's writer is not told."""

    def __init__(self, options: Mapping[str, str], schema: StructType, overwrite: bool) -> None:
        rest = dict(options)
        self._batch = int(rest.pop(BATCH))
        self._writer = StreamWriter(rest, schema, overwrite)

    def write(self, iterator: Iterator[Any]) -> WriterCommitMessage:
        return self._writer.write(iterator)

    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        self._writer.commit(messages, self._batch)

    def abort(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        self._writer.abort(messages, self._batch)
