"""A streaming query of each step: source, table, SELECT, records, sink.

All steps are *planned* before the first one is started: Spark judges schemas and SQL then, and reads nothing. A step
has a Spark session of its own, because a table is called like its topic, and two steps may read one topic with
different schemas; and the source is registered in it (`own_source.py`).

What makes a step exactly once is the source, which reads between two cuts that Spark's checkpoint notes before the
batch begins, and the sink, which commits all that a batch has written under the batch's id, once. Bad values that are
set aside are read beside the good ones and written in the same batch, so they are in the same commit.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from py4j.protocol import Py4JJavaError  # pyright: ignore[reportMissingTypeStubs]
from pyspark.errors import PySparkException
from pyspark.sql import functions
from pyspark.sql.types import StructType

from pyspark_fairlog.pipeline import records
from pyspark_fairlog.pipeline.own_source import OwnSource, session_of_step
from pyspark_fairlog.pipeline.parquet import ParquetBatches, refuse_column_of_directories
from pyspark_fairlog.pipeline.plan import Pipeline, PlanError, Step, ToParquet, ToTopic
from pyspark_fairlog.pipeline.progress import OUT
from pyspark_fairlog.pipeline.reasons import reason

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

FORMAT = "fairlog"

T = TypeVar("T")

REFUSALS = (PySparkException, Py4JJavaError)
"""What Spark raises: errors that Python knows of, and others as they are in Java."""


@dataclass(frozen=True, slots=True)
class PlannedStep:
    """A step that Spark has found to be sound."""

    step: Step
    pipeline: Pipeline
    output: DataFrame

    @property
    def reads(self) -> int:
        """How often each record is read: once more to find the bad values."""
        return 1 if self.step.bad is None else 2

    def start(self) -> StreamingQuery:
        """Start the query. Raises PlanError if Spark refuses it, as it does a mode that the SELECT does not allow."""
        step, checkpoint = self.step, Path(self.step.checkpoint).absolute()
        writer = self.output.writeStream.queryName(step.name).outputMode(step.mode)
        writer = writer.option("checkpointLocation", str(checkpoint))
        if self.pipeline.ends:
            writer = writer.trigger(availableNow=True)
        elif self.pipeline.trigger is not None:
            writer = writer.trigger(processingTime=self.pipeline.trigger)
        if isinstance(step.to, ToParquet):
            writer = writer.foreachBatch(ParquetBatches(Path(step.to.directory), lambda: query_id(checkpoint)))
        elif step.mode == "update":
            sink = {**_sink_options(self.pipeline, step), "checkpointLocation": str(checkpoint)}
            writer = writer.foreachBatch(_into_topics(sink))
        else:
            writer = writer.format(FORMAT).options(**_sink_options(self.pipeline, step))
        try:
            return writer.start()
        except REFUSALS as error:
            raise _refused(step, error) from error


def plan_steps(spark: SparkSession, pipeline: Pipeline) -> Sequence[PlannedStep]:
    """All steps, in the pipeline's order. Raises PlanError that names the step and what is wrong with it."""
    values: dict[str, StructType] = {}
    planned: list[PlannedStep] = []
    for step in pipeline.steps:
        try:
            read = session_of_step(spark).readStream.format(OwnSource.name())
            source = read.options(**_source_options(pipeline, step)).load()
            output = output_of(step, source, values)
        except PlanError as error:
            raise PlanError(f"step {step.name}: {error}") from error
        except REFUSALS as error:
            raise _refused(step, error) from error
        counted = output.observe(OUT, functions.count(functions.lit(1)).alias("rows"))
        planned.append(PlannedStep(step, pipeline, counted))
    return planned


def output_of(step: Step, source: DataFrame, values: dict[str, StructType]) -> DataFrame:
    """What the step writes, of the records that it reads. In the session of these, the table is made.

    `values` has the schemas of the topics that earlier steps write; this step's is added. Raises PlanError, and what
    Spark raises of schemas and SQL.
    """
    schema = None if step.raw else _schema(step, values)
    table = source if schema is None else records.rows_of(source, schema, leave_out_bad=step.bad is not None)
    watermark = step.watermark
    if watermark is not None:
        table = _judged("the watermark", lambda: table.withWatermark(watermark.column, watermark.delay))
    table.createOrReplaceTempView(step.table)
    selected = _judged(f"the SQL, whose table is called {step.table}", lambda: source.sparkSession.sql(step.sql))
    if not selected.isStreaming and source.isStreaming:
        raise PlanError(f"the SELECT does not read the table {step.table}")
    if isinstance(step.to, ToParquet):
        refuse_column_of_directories(selected.columns)
        return selected
    if schema is None:
        return records.raw_records_of(selected)
    output = records.records_of(selected)
    values[step.to.topic] = records.value_schema(selected.schema)
    if step.bad is None:
        return output
    return records.with_topic(output, step.to.topic).unionByName(records.bad_of(source, schema, step.bad))


def _into_topics(options: Mapping[str, str]) -> Callable[[DataFrame, int], None]:
    """For `foreachBatch`, because Spark refuses the mode *update* to a sink that is written in Python."""

    def write(rows: DataFrame, batch: int) -> None:
        rows.write.format(FORMAT).mode("append").options(**options).option("batchId", str(batch)).save()

    return write


def query_id(checkpoint: Path) -> str:
    """The id of the query whose checkpoint it is, which a query has from its first start on, over restarts."""
    return json.loads((checkpoint / "metadata").read_text(encoding="utf-8"))["id"]


def _schema(step: Step, values: Mapping[str, StructType]) -> StructType:
    if step.schema is None:
        return values[step.source]
    text = step.schema
    schema = _judged(f"the schema {text.strip()!r}", lambda: StructType.fromDDL(text))
    if not isinstance(schema, StructType):
        raise PlanError(f"the schema {step.schema!r} has no columns: it is a list of names with their types")
    return schema


def _judged(what: str, ask: Callable[[], T]) -> T:
    """What Spark makes of a text of the user's. Raises PlanError, which says of which one."""
    try:
        return ask()
    except REFUSALS as error:
        raise PlanError(f"{what}: {reason(str(error))}") from error


def _broker(pipeline: Pipeline) -> Mapping[str, str]:
    shown = {f"kafka.{name}": value for name, value in pipeline.client.items()}
    return {"kafka.bootstrap.servers": pipeline.bootstrap, **shown}


def _source_options(pipeline: Pipeline, step: Step) -> Mapping[str, str]:
    options = {**_broker(pipeline), "subscribe": step.source, "startingOffsets": "earliest"}
    if pipeline.records_per_batch is not None:
        options["maxOffsetsPerTrigger"] = str(pipeline.records_per_batch)
    if pipeline.skip_lost:
        options["failOnDataLoss"] = "false"
    return options


def _sink_options(pipeline: Pipeline, step: Step) -> Mapping[str, str]:
    options = {
        **_broker(pipeline),
        "transactionalId": step.transactional_id,
        # For tools that show how far behind a consumer group is; Spark goes on from its checkpoint.
        "commitGroup": step.transactional_id,
    }
    if isinstance(step.to, ToTopic) and step.bad is None:
        options["topic"] = step.to.topic
    return options


def _refused(step: Step, error: Exception) -> PlanError:
    return PlanError(f"step {step.name}: {reason(str(error))}")
