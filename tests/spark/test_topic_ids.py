"""A stream's planning over a real node whose topic is deleted and made anew: no Spark, as it has no part in it."""

from __future__ import annotations

import json
from typing import Any

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows
from pyspark.sql.types import BinaryType, StructField, StructType

from pyspark_fairlog.losses import DataLost
from pyspark_fairlog.options import read_options
from pyspark_fairlog.source import StreamReader
from scripts.node_process import NodeProcess
from tests.spark import topics

pytestmark = pytest.mark.slow

SCHEMA = StructType([StructField("value", BinaryType())])


def new_reader(node: NodeProcess, name: str, **more: str) -> StreamReader:
    asked = {"kafka.bootstrap.servers": node.address, "subscribe": name, "startingOffsets": "earliest"}
    return StreamReader(read_options(asked | more), SCHEMA)


def as_stored(position: Any) -> Any:
    """As it comes out of a checkpoint."""
    return json.loads(json.dumps(position))


@pytest.mark.parametrize("limit", [ReadAllAvailable(), ReadMaxRows(2)], ids=["all", "limited"])
def test_topic_made_anew_is_noticed_by_its_id_over_restarts_of_query_and_node(node: NodeProcess, limit: Any) -> None:
    """The new topic has as many records, so its offsets tell nothing."""
    name = topics.make(node.address, f"anew-{type(limit).__name__}")
    topics.produce(node.address, name, [b"old"] * 3)
    first = new_reader(node, name)
    at = as_stored(first.latestOffset(as_stored(first.initialOffset()), limit))
    first.stop()

    node.stop()
    node.start()
    same = new_reader(node, name)
    end = as_stored(same.latestOffset(at, ReadAllAvailable()))
    assert end["#topicIds"] == at["#topicIds"]
    same.stop()

    topics.delete(node.address, name)
    topics.make(node.address, name)
    topics.produce(node.address, name, [b"new"] * 4)
    strict, lenient = new_reader(node, name), new_reader(node, name, failOnDataLoss="false")
    with pytest.raises(DataLost, match=f"{name}-0 is another one than the query had read, up to 3"):
        strict.latestOffset(end, limit)
    after = as_stored(lenient.latestOffset(end, ReadAllAvailable()))
    assert [(task.value.start, task.value.end) for task in lenient.partitions(end, after)] == [(0, 4)]
    assert strict.latestOffset(after, limit) == after
    for reader in (strict, lenient):
        reader.stop()
