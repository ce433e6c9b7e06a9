"""When a micro-batch was planned, and how far it reads its topics: from the offset log of the query's checkpoint.

A sink is not told the source's offsets, nor could it work them out from the rows: filters drop rows, and shuffles mix
them. But Spark writes down how far each batch reads before it runs the batch, and reads it from there when the batch is
replayed. So `<checkpoint>/offsets/<batch id>` is true in each replay, and a batch of which it says something else was
planned anew, from a checkpoint that was set back:

    v1
    {"batchTimestampMs":1763,…}         the batch's metadata; among them when Spark has planned it
    {"orders": {"0": 42, "1": 40}}      a line for each source, in the sources' own form; "-": nothing yet

A source of topics writes {topic: {partition: next offset}}, Fairlog's and Spark's Kafka connector alike; what Fairlog's
says besides has names that no topic has (`positions.py`). Lines of other forms belong to other sources. A partition
that two sources read, in a join with itself, counts with the smaller offset.

Limits: the file must be readable where the driver runs: a path, or a URI of a file system that pyarrow knows. A source
that reads topics of *another* cluster cannot be told apart by its line.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, TypeAlias, cast
from urllib.parse import quote

from pyspark_fairlog.options import DIGITS_MAX, OURS

Ends: TypeAlias = tuple[tuple[str, int, int], ...]
"""(topic, partition, next offset)s, sorted."""

VERSION = "v1"
NOTHING_YET = "-"
TIME_MS_MAX = 2**63 - 1
"""A long of Java's."""


class OffsetLogRefused(ValueError):
    """The checkpoint does not say how far the batch reads; the sentence says why."""


def read_plan(checkpoint: str, query: str, batch: int) -> str:
    """The text of the offset log about this batch of the query. Raises OffsetLogRefused.

    `checkpoint` is the option checkpointLocation; that it is the query's is checked by the id in it.
    """
    if parse_query(_read(checkpoint, "metadata")) != query:
        raise OffsetLogRefused(f"the checkpoint {checkpoint} belongs to another query than {query}")
    return _read(checkpoint, f"offsets/{batch}")


def is_local(checkpoint: str) -> bool:
    """Whether it is read like any file, without asking a file system elsewhere."""
    return _local_path(checkpoint) is not None


def parse_query(text: str) -> str:
    """The query's id in a checkpoint's file `metadata`. Raises OffsetLogRefused."""
    match _json(text):
        case {"id": str(query)}:
            return query
        case _:
            raise OffsetLogRefused(f"a checkpoint's metadata holds no query id: {text[:200]!r}")


def parse_planned_ms(text: str) -> int | None:
    """When Spark has planned the batch, in ms since 1970; None if the file of the offset log does not say it."""
    match [_json(line) for line in text.split("\n", 2)[1:2]]:
        case [{"batchTimestampMs": int(planned_ms)}] if type(planned_ms) is int and 0 <= planned_ms <= TIME_MS_MAX:
            return planned_ms
        case _:
            return None


def parse_ends(text: str) -> Ends:
    """The topics' offsets in a file of the offset log. Raises OffsetLogRefused."""
    version, *lines = text.rstrip("\n").split("\n")
    if version != VERSION or len(lines) < 2:
        raise OffsetLogRefused(
            f"the offset log has the version {version!r}, and only {VERSION!r} is known; leave Spark's "
            "spark.sql.streaming.offsetLog.formatVersion at 1, or leave out commitGroup"
        )
    found: dict[tuple[str, int], int] = {}
    sources = [line for line in lines[1:] if line != NOTHING_YET]
    of_topics = [offsets for offsets in map(_topics, sources) if offsets is not None]
    if sources and not of_topics:
        raise OffsetLogRefused(f"none of the query's sources reads topics: {sources[0][:200]!r}")
    for offsets in of_topics:
        for key, offset in offsets.items():
            found[key] = min(offset, found.get(key, offset))
    return tuple(sorted((topic, partition, offset) for (topic, partition), offset in found.items()))


def _topics(line: str) -> dict[tuple[str, int], int] | None:
    """The offsets of a source that reads topics, None for another source's."""
    offsets = _json(line)
    if not isinstance(offsets, dict):
        return None
    found: dict[tuple[str, int], int] = {}
    for topic, partitions in cast("dict[str, object]", offsets).items():
        if topic.startswith(OURS):
            continue
        if not isinstance(partitions, dict):
            return None
        for partition, offset in cast("dict[str, object]", partitions).items():
            if not partition.isdecimal() or len(partition) > DIGITS_MAX or type(offset) is not int or offset < 0:
                return None
            found[topic, int(partition)] = offset
    return found


def _json(text: str) -> object:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


def _local_path(checkpoint: str) -> str | None:
    """The path of a checkpoint in the local file system: "/x", "file:/x" and "file:///x", as Hadoop writes them."""
    if checkpoint.startswith("file:"):
        return "/" + checkpoint.removeprefix("file:").lstrip("/")
    return None if "://" in checkpoint else checkpoint


def _read(checkpoint: str, name: str) -> str:
    try:
        local = _local_path(checkpoint)
        if local is not None:
            return Path(local, name).read_text(encoding="utf-8")
        import pyarrow.fs  # pyright: ignore[reportMissingTypeStubs]

        fs: Any = pyarrow.fs  # it has no types
        system, path = fs.FileSystem.from_uri(quote(f"{checkpoint.rstrip('/')}/{name}", safe=":/@"))
        with system.open_input_file(path) as stream:
            return str(stream.read(), "utf-8")
    except (OSError, ValueError, ImportError) as error:  # ValueError: of pyarrow, for a URI that it does not know
        raise OffsetLogRefused(f"{name} in the checkpoint {checkpoint} cannot be read: {error}") from error
