"""What a pipeline is to do, read from options and files, and what is wrong with it."""

from __future__ import annotations

import pytest

from pyspark_fairlog.pipeline.plan import (
    PlanError,
    Step,
    ToParquet,
    ToTopic,
    Watermark,
    pipeline_of_file,
    pipeline_of_options,
)
from pyspark_fairlog.pipeline.steps import _source_options

ONE = {"from": "orders", "schema": "id bigint", "sql": "SELECT id FROM orders", "to": "totals"}

TWO_STEPS = """
name = "sales"
bootstrap = "broker:9092"
trigger = "5 seconds"
records_per_batch = 1000

[spark]
sql.shuffle.partitions = 4
"driver.memory" = "2g"
ui.enabled = true

[[step]]
name = "days"
from = "hours"
sql = "SELECT 1"
to = "parquet:out/days/"

[[step]]
name = "hours"
from = "sales-raw"
schema = "amount double, at timestamp"
watermark = "at 10 minutes"
mode = "update"
sql = "SELECT 2"
to = "hours"
bad = "not-sales"
"""

ONE_DIRECTORY = """
name = "x"
step = [
    { name = "a", from = "t", raw = true, sql = "SELECT 1", to = "parquet:out" },
    { name = "b", from = "u", raw = true, sql = "SELECT 1", to = "parquet:out/" },
]
"""


def test_options_make_a_pipeline_of_one_step_named_after_its_topics() -> None:
    """One line is enough: name, checkpoint and transactional id follow from the topics."""
    pipeline = pipeline_of_options({}, ONE)
    assert pipeline.name == "orders-to-totals"
    assert pipeline.checkpoint == "fairlog-pipelines/orders-to-totals"
    assert (pipeline.bootstrap, pipeline.master, pipeline.ends) == ("127.0.0.1:9092", "local[*]", False)
    (step,) = pipeline.steps
    assert step == Step(
        name="orders-to-totals",
        source="orders",
        sql="SELECT id FROM orders",
        to=ToTopic("totals"),
        schema="id bigint",
        transactional_id="orders-to-totals",
        checkpoint="fairlog-pipelines/orders-to-totals/orders-to-totals",
    )


def test_name_given_names_the_sink_and_the_checkpoint() -> None:
    """Two pipelines between the same topics are told apart by their names."""
    pipeline = pipeline_of_options({"name": "mine", "checkpoint": "/var/cp/"}, ONE)
    (step,) = pipeline.steps
    assert (step.transactional_id, step.checkpoint) == ("mine", "/var/cp/mine")


def test_records_that_are_lost_end_a_pipeline_unless_it_is_told_to_skip_them() -> None:
    """The source's `failOnDataLoss`, which is true by itself."""
    for told, given in (({}, None), ({"skip_lost": True}, "false")):
        pipeline = pipeline_of_options(told, ONE)
        assert _source_options(pipeline, pipeline.steps[0]).get("failOnDataLoss") == given


def test_file_of_several_steps_puts_writers_before_readers() -> None:
    """A step that reads what another one writes needs no schema, and comes behind it, wherever it stands."""
    pipeline = pipeline_of_file(TWO_STEPS, where="sales.toml", overrides={"master": "local[2]"})
    assert [step.name for step in pipeline.steps] == ["hours", "days"]
    hours, days = pipeline.steps
    assert (hours.source, hours.table, hours.transactional_id) == ("sales-raw", "sales_raw", "sales.hours")
    assert (hours.watermark, hours.mode, hours.bad) == (Watermark("at", "10 minutes"), "update", "not-sales")
    assert (days.to, days.schema) == (ToParquet("out/days"), None)
    assert (pipeline.topics_read, pipeline.topics_written) == (("sales-raw",), ("hours", "not-sales"))
    assert (pipeline.bootstrap, pipeline.master, pipeline.records_per_batch) == ("broker:9092", "local[2]", 1000)
    assert pipeline.spark == {
        "spark.sql.shuffle.partitions": "4",
        "spark.driver.memory": "2g",
        "spark.ui.enabled": "true",
    }


@pytest.mark.parametrize(
    ("settings", "step", "sentence"),
    [
        ({}, {"sql": ""}, "step 1: sql|orders-to-totals: sql: a text that is not empty is needed"),
        ({}, {"to": "a topic"}, "'a topic' is no name of a topic"),
        ({}, {"to": "parquet:s3a://bucket/x"}, "s3a://bucket/x is no directory"),
        ({}, {"watermark": "10 minutes"}, "is not a column and how late it may be, as in 'at 10 minutes'"),
        ({}, {"mode": "complete"}, "'complete' is neither append"),
        ({}, {"schema_": "x"}, "nothing is called schema_; did you mean schema?"),
        ({}, {"raw": True}, "leave out the schema"),
        ({}, {"bad": "orders"}, "bad values of orders cannot go to orders itself"),
        ({}, {"bad": "b", "to": "parquet:x"}, "goes with an output topic only"),
        ({}, {"to": "orders"}, "run in a circle, which never ends: orders-to-orders → orders-to-orders"),
        ({"trigger": "now"}, {}, "trigger: 'now' is neither available-now nor an interval"),
        ({"name": "a/b"}, {}, "'a/b' is no name"),
        ({"records_per_batch": 0}, {}, "a whole number from 1 is needed"),
        ({"checkpoint": "hdfs://x/y"}, {}, "hdfs://x/y is no directory"),
        ({"skip_lost": "yes"}, {}, "skip_lost: true or false is needed"),
        (
            {"master": "127.0.0.1:7077"},
            {},
            r"master: '127\.0\.0\.1:7077' is none of Spark's: local\[2\], .*spark://HOST",
        ),
    ],
)
def test_wrong_setting_is_refused_by_name(settings: dict[str, object], step: dict[str, object], sentence: str) -> None:
    """Whatever is wrong is said before Spark is started: where, and what would be right."""
    with pytest.raises(PlanError, match=sentence):
        pipeline_of_options(settings, ONE | step)


@pytest.mark.parametrize(
    "master",
    ["local", "local[*]", "local[2,3]", "local-cluster[2,1,1024]", "spark://a:1,b:1", "yarn", "k8s://https://x"],
)
def test_master_is_one_of_sparks(master: str) -> None:
    """What spark-submit takes."""
    assert pipeline_of_options({"master": master}, ONE).master == master


@pytest.mark.parametrize("missing", ["from", "to", "sql"])
def test_missing_setting_is_named(missing: str) -> None:
    """Nothing is guessed."""
    with pytest.raises(PlanError, match=f"{missing} is missing"):
        pipeline_of_options({}, {key: value for key, value in ONE.items() if key != missing})


def test_values_that_no_step_writes_need_a_schema() -> None:
    """A schema can be left out only where one other step, and no more, says what it writes."""
    with pytest.raises(PlanError, match=r"which columns do the values of orders have\? Give a schema, or say raw"):
        pipeline_of_options({}, {key: value for key, value in ONE.items() if key != "schema"})


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("name = ", "f.toml is no TOML"),
        ('name = "x"', r"f.toml: there is no \[\[step\]\]"),
        ("step = [1]", r"f.toml: there is no \[\[step\]\]"),
        ('[[step]]\nfrom="a"\nto="b"\nsql="s"\nschema="x int"', "f.toml: name is missing"),
        (TWO_STEPS.replace('from = "sales-raw"', 'from = "hours"'), "circle"),
        (TWO_STEPS.replace('name = "days"', 'name = "hours"'), "two steps have the name hours"),
        (TWO_STEPS.replace('trigger = "5 seconds"', 'triger = "5 seconds"'), "did you mean trigger"),
        (ONE_DIRECTORY, "two steps write to one directory"),
        (TWO_STEPS.replace("sql.shuffle.partitions = 4", "sql.shuffle.partitions = [4]"), "must be a text, a number"),
    ],
)
def test_wrong_file_is_refused_by_name(text: str, sentence: str) -> None:
    """The sentence begins with the file."""
    with pytest.raises(PlanError, match=sentence) as refused:
        pipeline_of_file(text, where="f.toml", overrides={})
    assert str(refused.value).startswith("f.toml")
