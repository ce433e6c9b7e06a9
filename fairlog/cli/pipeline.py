"""`fairlog pipeline`: streaming SQL between topics, exactly once, on Spark.

Thin: options in, a plan (`pyspark_fairlog/pipeline/plan.py`), a Spark session, progress until it ends. Spark is loaded
when the command runs; it is in the extra `spark`, because nothing else needs it.
"""

from __future__ import annotations

import importlib.util
import sys
from dataclasses import replace
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fairlog.cli.bootstrap import Bootstrap
from fairlog.cli.client_properties import current
from fairlog.cli.errors import ClientError, Interrupted
from fairlog.cli.output import say
from fairlog.config_values import Address

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pyspark_fairlog.pipeline.plan import Pipeline
    from pyspark_fairlog.pipeline.progress import StepProgress

EXAMPLES = """
\b
Examples:
  fairlog pipeline --from orders --schema 'country string, amount double' \
--sql 'SELECT country, amount FROM orders WHERE amount > 100' --to large-orders
  fairlog pipeline --from orders --schema 'country string, amount double, at timestamp' --watermark 'at 10 minutes' \
--sql "SELECT country, sum(amount) AS total FROM orders GROUP BY country, window(at, '1 hour')" --to totals
  fairlog pipeline --from orders --schema 'id bigint' --sql 'SELECT * FROM orders' --to parquet:orders \
--trigger available-now
  fairlog pipeline examples/flights/pipeline.toml
\b
docs/pipelines.md tells more.
"""


class Mode(Enum):
    """When a row of an aggregation is written."""

    APPEND = "append"
    UPDATE = "update"


def pipeline(
    context: typer.Context,
    bootstrap: Bootstrap,
    file: Annotated[
        Path | None, typer.Argument(metavar="FILE.toml", help="A file that describes the pipeline.", show_default=False)
    ] = None,
    source: Annotated[
        str | None, typer.Option("--from", metavar="TOPIC", help="The topic to read, from its first record.")
    ] = None,
    schema: Annotated[
        str | None, typer.Option(metavar="COLUMNS", help="The columns of its JSON values, as in CREATE TABLE.")
    ] = None,
    raw: Annotated[
        bool, typer.Option("--raw", help="No JSON: input and result have the records' own columns.")
    ] = False,
    sql: Annotated[
        str | None, typer.Option(metavar="SELECT", help="The query; its table has the topic's name.")
    ] = None,
    to: Annotated[str | None, typer.Option(metavar="TOPIC|parquet:DIR", help="Where to write the rows.")] = None,
    watermark: Annotated[
        str | None, typer.Option(metavar="'COLUMN DELAY'", help="How late a row may be, as in 'at 10 minutes'.")
    ] = None,
    mode: Annotated[
        Mode | None,
        typer.Option(help="Write a row once, when it is final, or each time it changes.", show_default="append"),
    ] = None,
    bad: Annotated[
        str | None,
        typer.Option(
            metavar="TOPIC", help="Where to write values that do not fit the schema. Without it they end the pipeline."
        ),
    ] = None,
    name: Annotated[
        str | None, typer.Option(metavar="NAME", help="The pipeline's name at the broker and in checkpoints.")
    ] = None,
    checkpoint: Annotated[
        str | None,
        typer.Option(
            metavar="DIR", help="The directory of Spark's checkpoints.", show_default="fairlog-pipelines/NAME"
        ),
    ] = None,
    trigger: Annotated[
        str | None,
        typer.Option(
            metavar="INTERVAL|available-now", help="How often to begin a batch; or process what is there, and end."
        ),
    ] = None,
    records_per_batch: Annotated[
        int | None, typer.Option(min=1, metavar="COUNT", help="Read about this number of records in a batch.")
    ] = None,
    skip_lost: Annotated[
        bool, typer.Option("--skip-lost", help="Continue if records were deleted before they were read.")
    ] = False,
    master: Annotated[
        str | None, typer.Option(metavar="URL", help="The Spark to run on.", show_default="local[*]")
    ] = None,
    conf: Annotated[
        list[str] | None, typer.Option(metavar="KEY=VALUE", help="A setting of Spark; may be repeated.")
    ] = None,
) -> None:
    """Run streaming SQL between topics, exactly once, until Ctrl-C: one step from options, or several from a file.

    After a stop, a crash or a failure the same command continues where the last run ended.
    """
    step: Mapping[str, object] = _given(
        {
            "from": source,
            "schema": schema,
            "raw": raw or None,
            "sql": sql,
            "to": to,
            "watermark": watermark,
            "mode": None if mode is None else mode.value,
            "bad": bad,
        }
    )
    if file is not None and step:
        raise typer.BadParameter(
            "not allowed with a file, which contains the steps", param_hint=f"--{next(iter(step))}"
        )
    settings: Mapping[str, object] = _given(
        {
            "name": name,
            "checkpoint": checkpoint,
            "trigger": trigger,
            "records_per_batch": records_per_batch,
            "skip_lost": skip_lost or None,
            "master": master,
            "bootstrap": _bootstrap(context, bootstrap, file),
        }
    )
    if importlib.util.find_spec("pyspark") is None:
        raise ClientError("pipeline needs Spark: pip install 'fairlog[spark]'")
    from pyspark_fairlog.pipeline.plan import PlanError
    from pyspark_fairlog.pipeline.running import StepFailed

    try:
        planned = replace(_plan(file, settings, step), client=current().security.settings)
        _run(planned, dict(_pair(each) for each in conf or ()))
    except (PlanError, StepFailed) as error:
        raise ClientError(str(error)) from error


def _plan(file: Path | None, settings: Mapping[str, object], step: Mapping[str, object]) -> Pipeline:
    from pyspark_fairlog.pipeline.plan import pipeline_of_file, pipeline_of_options

    if file is None:
        missing = [option for option in ("from", "sql", "to") if option not in step]
        if missing:
            raise typer.BadParameter(f"--{missing[0]} is missing; give it, or a file", param_hint="FILE.toml")
        return pipeline_of_options(settings, step)
    try:
        text = file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ClientError(f"cannot read {file}: {error}") from error
    return pipeline_of_file(text, where=str(file), overrides=settings)


def _run(planned: Pipeline, conf: Mapping[str, str]) -> None:
    from fairlog.cli.interrupts import told_to_stop
    from fairlog.cli.pipeline_output import shown_progress
    from pyspark_fairlog.pipeline.checkpoints import held
    from pyspark_fairlog.pipeline.ends import TopicEnds
    from pyspark_fairlog.pipeline.running import run_pipeline
    from pyspark_fairlog.pipeline.session import check_java, spark_session

    where = planned.checkpoint
    check_java()
    _make_topics(planned)
    settings = {**planned.spark, **conf}
    try:
        with held(Path(where), on_wait=lambda: _tell(f"waiting until another run in {where} ends")) as log:
            _tell(f"starting Spark on {planned.master}; its log is {log.name}")
            with (
                spark_session(planned.name, planned.master, settings, log) as spark,
                told_to_stop() as stop,  # behind Spark's start, which takes SIGINT for itself
                shown_progress() as show,
                TopicEnds(planned.bootstrap, current().security) as ask_ends,
            ):
                reached = run_pipeline(spark, planned, stop, show=show, ask_ends=ask_ends)
    except KeyboardInterrupt:
        raise Interrupted("interrupted before the end; the same command continues from here") from None
    for step in reached:
        say(_summary(step))
    if planned.ends and stop.is_set():
        raise Interrupted("interrupted before the end; the same command continues from here")


def _make_topics(planned: Pipeline) -> None:
    """Create missing topics that the pipeline writes. Topics that it only reads must exist: a name may be misspelt."""
    from fairlog.cli import topics_admin
    from fairlog.cli.brokers import connect_to_all

    try:
        address = Address.parse(planned.bootstrap)
    except ValueError as error:
        raise ClientError(f"bootstrap {planned.bootstrap!r}: {error}") from error
    with connect_to_all(address) as brokers:
        for topic in planned.topics_read:
            if topics_admin.partition_count(brokers, topic) is None:
                raise ClientError(f"there is no topic {topic}; create it with: fairlog topic create {topic}")
        for topic in planned.topics_written:
            if topics_admin.partition_count(brokers, topic) is None:
                partitions = topics_admin.create_topic(brokers.first, topic, None, {})
                _tell(f"created topic {topic} with {partitions} partition{'s' if partitions != 1 else ''}")


def _tell(sentence: str) -> None:
    sys.stderr.write(f"{sentence}\n")
    sys.stderr.flush()


def _summary(step: StepProgress) -> str:
    if step.batch is None:
        return f"{step.name}: nothing to do"
    return f"{step.name}: {step.rows_in:,} rows read, {step.rows_out:,} written, up to batch {step.batch}"


def _given(values: Mapping[str, object]) -> Mapping[str, object]:
    return {name: value for name, value in values.items() if value is not None}


def _bootstrap(context: typer.Context, bootstrap: Address, file: Path | None) -> str | None:
    """The address from the options, or else the file's own."""
    source = context.get_parameter_source("bootstrap")
    return None if file is not None and source is not None and source.name.startswith("DEFAULT") else str(bootstrap)


def _pair(text: str) -> tuple[str, str]:
    key, separator, value = text.partition("=")
    if not key or not separator:
        raise typer.BadParameter(f"{text!r} is not KEY=VALUE", param_hint="--conf")
    if not key.startswith("spark."):
        raise typer.BadParameter(f"Spark's settings begin with spark.: did you mean spark.{key}?", param_hint="--conf")
    return key, value
