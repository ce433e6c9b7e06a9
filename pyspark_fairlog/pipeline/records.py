"""Records of a topic as rows of a table, and rows of a SELECT as records. Data frames in, data frames out: they may be
streams or not.

A record has the columns of `format("fairlog")`. Its value is a JSON object; `rows_of` makes a table of the schema's
columns, and of what the record is besides:

    _key string, _topic string, _partition int, _offset bigint, _timestamp timestamp

A record without a value is a row of NULLs. A value that is not of the schema (no JSON object, or a field that is not of
its type) is *bad*: the query ends at it, with a sentence that says where it stands, unless bad ones are set aside.
Fields that the schema does not name are left out; those that the value does not have are NULL.

Of a SELECT's row the column `key`, if there is one, becomes the record's key, as text; all others become the value, a
JSON object in which NULLs are named, too. Raw records and rows go as they are.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql import functions
from pyspark.sql.types import ArrayType, AtomicType, BinaryType, BooleanType, StringType, StructField, StructType

from pyspark_fairlog.pipeline.plan import PlanError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

BESIDES = {
    "_key": "CAST(key AS STRING)",
    "_topic": "topic",
    "_partition": "partition",
    "_offset": "offset",
    "_timestamp": "timestamp",
}
RAW_COLUMNS = ("key", "value", "partition", "headers")
BAD_HEADERS = """array(
    named_struct('key', 'topic', 'value', CAST(topic AS BINARY)),
    named_struct('key', 'partition', 'value', CAST(CAST(partition AS STRING) AS BINARY)),
    named_struct('key', 'offset', 'value', CAST(CAST(offset AS STRING) AS BINARY)))"""
"""Where a bad value stood."""

JSON_OPTIONS = {
    "ignoreNullFields": "false",
    "timestampFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSSXXX",
    "timestampNTZFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSS",
}
"""Of what is written. Times have all the digits that Spark knows: by default it would cut them to milliseconds."""

_CORRUPT = "_corrupt"
_PARSED = "_parsed"
_VALUES = "_values"
_END = "_end"
_VALUE = f"get({_PARSED}.{_VALUES}, 0)"
_BAD = f"""value IS NOT NULL AND ({_PARSED}.{_CORRUPT} IS NOT NULL
    OR {_VALUE} IS NULL OR size({_PARSED}.{_VALUES}) <> 2 OR get({_PARSED}.{_VALUES}.{_END}, 1) IS NULL)"""
_WHERE_IT_STANDS = """concat('the value at offset ', offset, ' of ', topic, ', partition ', partition,
    ', is not of the schema: ', substr(CAST(value AS STRING), 1, 200))"""


def rows_of(records: DataFrame, schema: StructType, *, leave_out_bad: bool) -> DataFrame:
    """The table of the records' values. Raises PlanError if the schema has a column twice, or one of `BESIDES`."""
    names = [name.lower() for name in schema.names]
    for name in names:
        if name in (*BESIDES, _CORRUPT, _END):
            raise PlanError(f"a schema has no column {name}: the table has one of that name besides")
        if names.count(name) > 1:
            raise PlanError(f"the schema has two columns of the name {name}")
    parsed = _parsed(records, schema)
    if leave_out_bad:
        good = parsed.where(f"NOT ({_BAD})")
    else:
        # A filter, because a column that the SELECT does not use would not be looked at.
        good = parsed.where(f"CASE WHEN {_BAD} THEN CAST(raise_error({_WHERE_IT_STANDS}) AS BOOLEAN) ELSE TRUE END")
    columns = [functions.expr(_VALUE)[name].alias(name) for name in schema.names]
    return good.select(*columns, *(functions.expr(each).alias(name) for name, each in BESIDES.items()))


def bad_of(records: DataFrame, schema: StructType, topic: str) -> DataFrame:
    """Records for `topic`: the bad ones as they are, with headers that say where each one stood."""
    bad = _parsed(records, schema).where(_BAD)
    return bad.selectExpr("key", "value", f"{BAD_HEADERS} AS headers", f"'{topic}' AS topic")


def with_topic(records: DataFrame, topic: str) -> DataFrame:
    """JSON records with the columns that `bad_of` has, for both to be written as one."""
    headers = "CAST(NULL AS array<struct<key: string, value: binary>>) AS headers"
    return records.selectExpr(
        "CAST(key AS BINARY) AS key", "CAST(value AS BINARY) AS value", headers, f"'{topic}' AS topic"
    )


def records_of(rows: DataFrame) -> DataFrame:
    """Rows of a SELECT as records with a key and a JSON value. Raises PlanError for rows that cannot be such."""
    _refuse_doubles(rows)
    value = value_schema(rows.schema)
    if not value.fields:
        raise PlanError("the SELECT has no column for the value: besides key it needs one at least")
    key = next((field for field in rows.schema.fields if field.name.lower() == "key"), None)
    if key is not None and not isinstance(key.dataType, AtomicType | BinaryType):
        raise PlanError(f"the column key is of the type {key.dataType.simpleString()}, and must be a text or a number")
    return rows.select(
        (functions.lit(None) if key is None else functions.col("key")).cast(StringType()).alias("key"),
        functions.to_json(functions.struct(*map(_quoted, value.names)), JSON_OPTIONS).alias("value"),
    )


def raw_records_of(rows: DataFrame) -> DataFrame:
    """Rows of a SELECT that are records by themselves. Raises PlanError if they are not."""
    _refuse_doubles(rows)
    names = [name.lower() for name in rows.columns]
    if "value" not in names or not set(names) <= set(RAW_COLUMNS):
        raise PlanError(f"the SELECT has {', '.join(names)}; raw records have value, and {_others()} if wanted")
    return rows


def value_schema(rows: StructType) -> StructType:
    """The schema of the values that `records_of` makes of rows: what a later step may read them with."""
    return StructType([StructField(f.name, f.dataType) for f in rows.fields if f.name.lower() != "key"])


def _others() -> str:
    return ", ".join(name for name in RAW_COLUMNS if name != "value")


def _parsed(records: DataFrame, schema: StructType) -> DataFrame:
    # As the first of a list, with a mark of ours behind it: Spark's parser reads one JSON value, and does not look at
    # what stands behind that. A value that closes the list by itself, such as {"id": 1}]}, leaves the mark outside.
    listed_as = ArrayType(StructType([*schema.fields, StructField(_END, BooleanType())]))
    full = StructType([StructField(_VALUES, listed_as), StructField(_CORRUPT, StringType())])
    options = {"mode": "PERMISSIVE", "columnNameOfCorruptRecord": _CORRUPT}
    listed = functions.concat(
        functions.lit(f'{{"{_VALUES}":['),
        functions.col("value").cast("string"),
        functions.lit(f',{{"{_END}":true}}]}}'),
    )
    return records.withColumn(_PARSED, functions.from_json(listed, full, options))


def _refuse_doubles(rows: DataFrame) -> None:
    names = [name.lower() for name in rows.columns]
    for name in names:
        if names.count(name) > 1:
            raise PlanError(f"the SELECT has two columns of the name {name}: name one of them otherwise, with AS")


def _quoted(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"
