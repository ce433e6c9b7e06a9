"""The columns of a topic as a data frame, which are those of Spark's Kafka connector.

One table says for each column what it is in Spark and in Arrow; both schemas are made from it. Spark compares the Arrow
schema of what a reader yields with its own to the letter, so what is written here is what Spark makes of its types:
`tests/spark/test_source_batch.py` compares the two. A query may name fewer columns by a schema of its own
(`spark.read.schema("value binary")`): those that it leaves out are not even built.

Pure but for the two libraries, which are imported when they are asked for.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

HEADERS = "headers"
DDL = {
    "key": "binary",
    "value": "binary",
    "topic": "string",
    "partition": "int",
    "offset": "bigint",
    "timestamp": "timestamp",
    "timestampType": "int",
    HEADERS: "array<struct<key:string,value:binary>>",
}
"""Each column and its type, in their order; `headers` is there when `includeHeaders` asks for it."""


class SchemaRefused(ValueError):
    """A schema that topics do not have; the sentence says what they have."""


def ddl(*, headers: bool) -> str:
    """The schema as Spark's `schema()` takes it."""
    return ", ".join(f"{name} {kind}" for name, kind in DDL.items() if headers or name != HEADERS)


def columns(schema: StructType, *, headers: bool) -> tuple[str, ...]:
    """The names of the schema's columns, which must be some of ours, with our types, in any order.

    Raises SchemaRefused, naming the column that is not.
    """
    for field in schema.fields:
        kind = field.dataType.simpleString()
        if field.name not in DDL or (field.name == HEADERS and not headers):
            hint = " unless the option includeHeaders is true" if field.name == HEADERS else ""
            raise SchemaRefused(f"topics have no column {field.name!r}{hint}; they have {ddl(headers=headers)}")
        if kind != DDL[field.name]:
            raise SchemaRefused(
                f"the column {field.name!r} of a topic is {DDL[field.name]}, and the schema says {kind}: "
                "read it as it is, and cast it in the query"
            )
    return tuple(field.name for field in schema.fields)


def arrow_schema(names: Sequence[str]) -> Any:
    """The `pyarrow.Schema` of these columns."""
    import pyarrow  # pyright: ignore[reportMissingTypeStubs]

    pa: Any = pyarrow
    header = pa.struct([pa.field("key", pa.string()), pa.field("value", pa.binary())])
    types = {
        "key": pa.binary(),
        "value": pa.binary(),
        "topic": pa.string(),
        "partition": pa.int32(),
        "offset": pa.int64(),
        "timestamp": pa.timestamp("us", tz="UTC"),
        "timestampType": pa.int32(),
        HEADERS: pa.list_(header),
    }
    return pa.schema([pa.field(name, types[name]) for name in names])
