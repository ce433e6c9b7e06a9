"""The Spark data source `format("fairlog")`: topics as data frames, read in consistent cuts, written exactly once.

PySpark imports every top-level module whose name begins with `pyspark_`, and registers the `DefaultSource` that it
finds there. So this module is light: what reads and writes is imported when it is asked for. Executors need pyarrow,
confluent-kafka and cbor2; nothing of the node.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSource

from pyspark_fairlog.options import read_options
from pyspark_fairlog.schema import ddl

if TYPE_CHECKING:
    from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter
    from pyspark.sql.types import StructType

    from pyspark_fairlog.source import BatchReader, StreamReader


class DefaultSource(DataSource):
    """Topics of a Fairlog node. Options are checked in `pyspark_fairlog/options.py`."""

    @classmethod
    def name(cls) -> str:
        return "fairlog"

    def schema(self) -> str:
        """The columns of a topic. Asked when a query is made up, so that wrong options are refused there."""
        return ddl(headers=read_options(self.options).headers)

    def reader(self, schema: StructType) -> BatchReader:
        from pyspark_fairlog.source import BatchReader

        return BatchReader(read_options(self.options), schema)

    def streamReader(self, schema: StructType) -> StreamReader:  # noqa: N802 (Spark's name)
        from pyspark_fairlog.source import StreamReader

        return StreamReader(read_options(self.options), schema)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceArrowWriter:
        from pyspark_fairlog.sink import BatchWriter

        return BatchWriter(self.options, schema, overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamArrowWriter:  # noqa: N802 (Spark's name)
        from pyspark_fairlog.sink import StreamWriter

        return StreamWriter(self.options, schema, overwrite)
