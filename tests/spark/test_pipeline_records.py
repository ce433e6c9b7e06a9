"""Records as rows of a table and rows as records, on Spark, without a broker."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import datetime
from typing import Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from pyspark_fairlog.pipeline.plan import PlanError, Step, pipeline_of_options
from pyspark_fairlog.pipeline.reasons import reason
from pyspark_fairlog.pipeline.records import records_of, rows_of, value_schema
from pyspark_fairlog.pipeline.steps import output_of

pytestmark = pytest.mark.slow

COLUMNS = "key binary, value binary, topic string, partition int, offset bigint, timestamp timestamp, timestampType int"
AT = datetime(2026, 11, 22, 9, 0, 0)
BAD = (
    "nonsense",
    '{"id": "x"}',
    "[1]",
    "5",
    "",
    '{"id": 99999999999999999999}',
    "\xff",
    '{"id": 1} {"id": 2}',
    '{"id": 1}, {"id": 2}',
    '{"id": 1}]}',
    '{"id": 1}, {"id": 2}]}',
    '{"id": 1}], "more": [1',
)

VALUES = (
    "timestamp'2026-01-01 00:00:00.123456'",
    "timestamp'+12026-01-01 00:00:00'",
    "timestamp_ntz'2026-01-01 00:00:00.123456'",
    "array(timestamp'1883-11-18 00:00:00.000001')",
    "date'2026-01-01'",
    "date'-0044-03-15'",
    "CAST('12345678901234567890.123456789' AS DECIMAL(38, 9))",
    "CAST(1e-18 AS DECIMAL(38, 18))",
    "CAST('abc' AS BINARY)",
    "CAST(0.1 AS FLOAT)",
    "CAST('4.9e-324' AS DOUBLE)",
    "CAST('NaN' AS DOUBLE)",
    "CAST('-Infinity' AS FLOAT)",
    "-9223372036854775807L - 1L",
    "CAST(-128 AS TINYINT)",
    "false",
    "CAST(NULL AS STRING)",
    "''",
    "'{\"a\": 1}'",
    "'a\\u0000\\n\\\\é😀'",
    "map('a', 1, 'b', NULL)",
    "named_struct('a', array(1, NULL), 'B', CAST(NULL AS INT))",
    "INTERVAL '1 02:03:04.000005' DAY TO SECOND",
)
"""Of each type that JSON can have, as SQL has them."""


@pytest.fixture
def records(spark: SparkSession) -> Callable[..., DataFrame]:
    """Records of the topic `my-orders` with these values, one after the other in partition 3."""

    def make(*values: str | None) -> DataFrame:
        rows = [
            (b"k%d" % n, None if v is None else bytearray(v.encode("latin-1")), "my-orders", 3, n, AT, 0)
            for n, v in enumerate(values)
        ]
        return spark.createDataFrame(rows, COLUMNS)

    return make


def step(**changes: object) -> Step:
    """The step of a pipeline that reads `my-orders`."""
    plan = {"from": "my-orders", "schema": "id bigint, amount double, at timestamp", "to": "out", **changes}
    return pipeline_of_options({}, {key: value for key, value in plan.items() if value is not None}).steps[0]


def rows(output: DataFrame) -> list[dict[str, Any]]:
    return [row.asDict() for row in output.collect()]


def test_table_has_the_schemas_columns_and_what_the_record_is_besides(records: Callable[..., DataFrame]) -> None:
    """Fields that the schema does not name are left out, missing ones are NULL; without a value all are."""
    source = records('{"id": 1, "amount": 2.5, "at": "2013-01-01T05:15", "more": 1}', '{"id": 2}', None)
    sql = (
        "SELECT _key AS key, id, amount, at, _partition AS p, _offset AS o, _topic AS t, _timestamp AS w FROM my_orders"
    )
    values: dict[str, Any] = {}
    made = rows(output_of(step(sql=sql), source, values))
    besides = {"p": 3, "t": "my-orders", "w": "2026-11-22T09:00:00.000000Z"}
    assert [(row["key"], json.loads(row["value"])) for row in made] == [
        ("k0", {"id": 1, "amount": 2.5, "at": "2013-01-01T05:15:00.000000Z", "o": 0} | besides),
        ("k1", {"id": 2, "amount": None, "at": None, "o": 1} | besides),
        ("k2", {"id": None, "amount": None, "at": None, "o": 2} | besides),
    ]
    assert values["out"].simpleString() == (
        "struct<id:bigint,amount:double,at:timestamp,p:int,o:bigint,t:string,w:timestamp>"
    )


@pytest.mark.parametrize("bad", BAD)
@pytest.mark.parametrize("sql", ["SELECT id FROM my_orders", "SELECT count(*) AS n FROM my_orders"])
def test_bad_value_ends_the_query_and_is_named(records: Callable[..., DataFrame], bad: str, sql: str) -> None:
    """Also where the SELECT looks at no column of it: a count would be wrong."""
    output = output_of(step(sql=sql), records('{"id": 1}', bad), {})
    with pytest.raises(PySparkException) as failed:
        output.collect()
    assert reason(str(failed.value)).startswith(
        "the value at offset 1 of my-orders, partition 3, is not of the schema:"
    )


def test_bad_values_set_aside_go_with_the_rows_and_say_where_they_stood(records: Callable[..., DataFrame]) -> None:
    """Their bytes are what they were; the rows are of the good ones alone."""
    source = records('{"id": 1}', *BAD, '{"id": 2}')
    output = output_of(step(sql="SELECT sum(id) AS total, count(*) AS n FROM my_orders", bad="trash"), source, {})
    made = rows(output)
    assert [json.loads(row["value"]) for row in made if row["topic"] == "out"] == [{"total": 3, "n": 2}]
    bad = [row for row in made if row["topic"] == "trash"]
    assert [bytes(row["value"]) for row in bad] == [text.encode("latin-1") for text in BAD]
    assert {each.key: bytes(each.value) for each in bad[1]["headers"]} == {
        "topic": b"my-orders",
        "partition": b"3",
        "offset": b"2",
    }
    assert [bytes(row["key"]) for row in bad[:2]] == [b"k1", b"k2"]


def test_values_that_a_step_writes_are_those_that_the_next_one_reads(spark: SparkSession) -> None:
    """Of every type, and at its edges: what goes through a topic between two steps is what the first one has made."""
    made = spark.sql("SELECT " + ", ".join(f"{value} AS c{number}" for number, value in enumerate(VALUES)))
    written = records_of(made)
    read = written.selectExpr(
        "CAST(key AS BINARY) AS key", "CAST(value AS BINARY) AS value", "'t' AS topic", "0 AS partition",
        "0L AS offset", "now() AS timestamp", "0 AS timestampType",
    )  # fmt: skip
    table = rows_of(read, value_schema(made.schema), leave_out_bad=False)
    as_text = [f"CAST({name} AS STRING) AS {name}" for name in made.columns]
    assert table.selectExpr(*as_text).first() == made.selectExpr(*as_text).first()


def test_raw_rows_are_the_records(records: Callable[..., DataFrame]) -> None:
    """Bytes in, bytes out."""
    raw = step(sql="SELECT key, value, partition FROM my_orders WHERE offset > 0", schema=None, raw=True)
    made = rows(output_of(raw, records("a", "\xff"), {}))
    assert [(bytes(row["key"]), bytes(row["value"]), row["partition"]) for row in made] == [(b"k1", b"\xff", 3)]


@pytest.mark.parametrize(
    ("sql", "changes", "sentence"),
    [
        ("SELECT id AS key FROM my_orders", {}, "no column for the value"),
        ("SELECT array(id) AS key, id FROM my_orders", {}, "the column key is of the type array<bigint>"),
        ("SELECT id, amount AS ID FROM my_orders", {}, "two columns of the name id: name one of them otherwise"),
        ("SELECT id FROM my_orders", {"schema": "id bigint, _offset int"}, "a schema has no column _offset"),
        ("SELECT id FROM my_orders", {"schema": "id bigint, ID int"}, "two columns of the name id"),
        ("SELECT id FROM my_orders", {"schema": "bigint"}, "has no columns"),
        ("SELECT id AS Batch FROM my_orders", {"to": "parquet:out"}, "the SELECT has a column Batch"),
        (
            "SELECT offset FROM my_orders",
            {"schema": None, "raw": True},
            "the SELECT has offset; raw records have value",
        ),
    ],
)
def test_rows_that_are_no_records_are_refused(
    records: Callable[..., DataFrame], sql: str, changes: dict[str, object], sentence: str
) -> None:
    """Before anything is read."""
    with pytest.raises(PlanError, match=sentence):
        output_of(step(sql=sql, **changes), records("{}"), {})
