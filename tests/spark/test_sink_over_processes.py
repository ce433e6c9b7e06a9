"""`writeStream.format("fairlog")` to a topic over three processes, each of which is killed meanwhile."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from scripts.node_process import NodeProcess
from tests.spark.shared_sink import write_while

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.slow


def test_each_record_is_there_once_and_each_batch_whole(
    spark: SparkSession, three: NodeProcess, tmp_path: Path
) -> None:
    """A run that has lost its lanes with a process ends; the next one goes on."""
    kills = [partial(three.kill_process, number) for number in range(3)]
    write_while(spark, three.address, tmp_path, disturbances=kills)
