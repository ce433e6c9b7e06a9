"""Rows become a producer's records: columns, types, nulls."""

from __future__ import annotations

import pyarrow as pa
import pytest
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from pyspark_fairlog.rows import Columns, RowsRefused, columns, records

HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))


def schema(**columns: DataType) -> StructType:
    return StructType([StructField(name, kind) for name, kind in columns.items()])


def test_columns_of_what_was_read_from_topics_can_be_written_as_they_are() -> None:
    read = schema(
        key=BinaryType(),
        value=BinaryType(),
        topic=StringType(),
        partition=IntegerType(),
        offset=LongType(),
        timestamp=TimestampType(),
    )
    assert columns(read, None) == Columns(None, key=True, partition=True, headers=False)


@pytest.mark.parametrize(
    ("given", "topic", "said"),
    [
        (schema(key=StringType()), "t", "no column 'value'"),
        (schema(value=StringType()), None, "topic is missing"),
        (schema(value=IntegerType()), "t", "'value' is int, and must be string or binary"),
        (schema(value=StringType(), key=LongType()), "t", "'key' is bigint"),
        (schema(value=StringType(), partition=LongType()), "t", "'partition' is bigint, and must be int"),
        (schema(value=StringType(), headers=MapType(StringType(), BinaryType())), "t", "'headers' is map<string,"),
        (schema(value=StringType(), headers=ArrayType(StringType())), "t", "'headers' is array<string>"),
        (schema(value=StringType(), topic=BinaryType()), "t", "'topic' is binary"),
        (schema(value=StringType(), Value=StringType()), "t", "two columns 'value', as a join leaves them"),
    ],
)
def test_columns_that_cannot_be_written_are_refused_by_name(given: StructType, topic: str | None, said: str) -> None:
    with pytest.raises(RowsRefused, match=said):
        columns(given, topic)


def test_records_keep_their_order_and_nulls() -> None:
    batch = pa.record_batch(
        {
            "topic": pa.array(["a", "b", "a"]),
            "key": pa.array(["k", None, ""]),
            "value": pa.array([b"1", b"", None]),
            "partition": pa.array([None, 3, 0], pa.int32()),
            "offset": pa.array([7, 8, 9]),
        }
    )
    made = records(batch, Columns(None, key=True, partition=True, headers=False))
    assert list(made) == [("a", b"1", "k", -1), ("b", b"", None, 3), ("a", None, "", 0)]


def test_option_topic_wins_over_the_column() -> None:
    batch = pa.record_batch({"topic": pa.array([None]), "value": pa.array([b"1"])})
    assert list(records(batch, Columns("t", key=False, partition=False, headers=False))) == [("t", b"1", None, -1)]


def test_headers_are_pairs_in_their_order() -> None:
    headers = [[{"key": "h", "value": b"1"}, {"key": "h", "value": None}], None]
    batch = pa.record_batch({"value": pa.array([b"1", b"2"]), "headers": pa.array(headers, HEADERS)})
    made = [each[-1] for each in records(batch, Columns("t", key=False, partition=False, headers=True))]
    assert made == [[("h", b"1"), ("h", None)], []]


@pytest.mark.parametrize(
    ("column", "value", "kind", "said"),
    [
        ("topic", None, pa.string(), "no topic"),
        ("partition", -2, pa.int32(), "-2"),
        ("partition", -1, pa.int32(), "null lets the key decide"),
        ("headers", [{"key": None, "value": b""}], HEADERS, "header without a name"),
        ("headers", [None], HEADERS, "header without a name"),
    ],
)
def test_row_that_cannot_be_written_is_refused(column: str, value: object, kind: pa.DataType, said: str) -> None:
    batch = pa.record_batch({"value": pa.array([b"1"]), column: pa.array([value], kind)})
    found = Columns(
        None if column == "topic" else "t", key=False, partition=column == "partition", headers=column == "headers"
    )
    with pytest.raises(RowsRefused, match=said):
        list(records(batch, found))
