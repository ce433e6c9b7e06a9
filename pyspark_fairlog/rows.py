"""From a data frame's rows to a producer's records.

The columns are the Kafka connector's: `value` (string or binary), and if there, `key` (string or binary), `topic`
(string), `partition` (int) and `headers` (array<struct<key:string,value:binary>>). Other columns are left alone, as the
connector does it, so that what was read from topics can be written as it is. The option `topic` wins over the column.

An Arrow batch becomes columns of Python objects at once, and then tuples in the order in which `Producer.produce` takes
its arguments, so that a row costs one tuple besides its call. Pure; Arrow's types come in with the batches.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import repeat
from typing import TYPE_CHECKING, Any, TypeAlias

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

KINDS = {
    "topic": ("string",),
    "key": ("string", "binary"),
    "value": ("string", "binary"),
    "partition": ("int",),
    "headers": ("array<struct<key:string,value:binary>>",),
}
"""The columns that are written, and which of Spark's types they may have."""

ANY_PARTITION = -1
"""The producer's partitioner decides, by the key."""

Record: TypeAlias = tuple[Any, ...]
"""(topic, value, key, partition), and with headers (…, None, None, 0, [(name, value), …]): `produce`'s arguments."""


class RowsRefused(ValueError):
    """The data frame cannot be written to topics; the sentence says why."""


@dataclass(frozen=True, slots=True)
class Columns:
    """Which of the columns there are."""

    topic: str | None
    """The topic of all rows; None: the column `topic` says it."""
    key: bool
    partition: bool
    headers: bool


def columns(schema: StructType, topic: str | None) -> Columns:
    """What is written of rows of this schema; `topic` is the option. Raises RowsRefused."""
    names = [field.name.lower() for field in schema.fields]
    twice = next((name for name in KINDS if names.count(name) > 1), None)
    if twice is not None:
        raise RowsRefused(
            f"there are two columns {twice!r}, as a join leaves them: select the one that is to be written"
        )
    kinds = dict(zip(names, (field.dataType.simpleString() for field in schema.fields), strict=True))
    found = {name: kind for name, kind in kinds.items() if name in KINDS}
    if "value" not in found:
        names = ", ".join(map(repr, schema.fieldNames())) or "none"
        raise RowsRefused(f"there is no column 'value' to write; the columns are {names}")
    if topic is None and "topic" not in found:
        raise RowsRefused("the topic is missing: there is neither an option 'topic' nor a column of this name")
    for name, kind in found.items():
        if kind not in KINDS[name]:
            raise RowsRefused(
                f"the column {name!r} is {kind}, and must be {' or '.join(KINDS[name])}: cast it in the query"
            )
    return Columns(topic, "key" in found, "partition" in found, "headers" in found)


def records(batch: Any, columns: Columns) -> Iterator[Record]:
    """The rows of a `pyarrow.RecordBatch` as the arguments of `produce`, in their order. Raises RowsRefused."""
    names = {name.lower(): index for index, name in enumerate(batch.schema.names)}

    def values(name: str) -> Sequence[Any]:
        return batch.column(names[name]).to_pylist()

    arguments: list[Iterable[Any]] = [
        repeat(columns.topic) if columns.topic is not None else _named(values("topic")),
        values("value"),
        values("key") if columns.key else repeat(None),
        _chosen(values("partition")) if columns.partition else repeat(ANY_PARTITION),
    ]
    if columns.headers:
        arguments += [repeat(None), repeat(None), repeat(0), map(_headers, values("headers"))]
    return zip(*arguments, strict=False)


def _named(topics: Sequence[str | None]) -> Sequence[str]:
    if None in topics:
        raise RowsRefused("a row has no topic: its column 'topic' is null; fill it, or set the option 'topic'")
    return topics  # pyright: ignore[reportReturnType]


def _chosen(partitions: Sequence[int | None]) -> Sequence[int]:
    least = min((each for each in partitions if each is not None), default=0)
    if least < 0:
        raise RowsRefused(
            f"a row's column 'partition' is {least}; partitions count from 0, and null lets the key decide"
        )
    return [ANY_PARTITION if each is None else each for each in partitions]


def _headers(headers: Sequence[dict[str, Any] | None] | None) -> list[tuple[str, bytes | None]]:
    """A row's headers as the producer takes them."""
    found: list[tuple[str, bytes | None]] = []
    for each in headers or ():
        if each is None or each["key"] is None:
            raise RowsRefused("a row has a header without a name; each needs a struct with a key that is not null")
        found.append((each["key"], each["value"]))
    return found
