"""A query as a user gives it to `spark-submit`: topic to topic, exactly once.

It is one file, which imports nothing of the tests: `NODE TOPIC CHECKPOINT BATCH HOLD DIRECTORY`. A micro-batch takes
at most `BATCH` records. The first attempt that comes to the record `HOLD` says where it runs, in `DIRECTORY/reached`,
and waits for ever: it is killed, or another one is faster. The attempt after it says so in `DIRECTORY/retried`, and
goes on when there is `DIRECTORY/go`.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path


def main(node: str, topic: str, checkpoint: str, batch: str, hold: str, directory: str) -> None:
    from pyspark.sql import SparkSession
    from pyspark.sql.functions import udf

    spark = SparkSession.builder.getOrCreate()
    reached, retried, go = (Path(directory, name) for name in ("reached", "retried", "go"))

    def say_where(path: Path) -> None:
        # A task's working directory is its executor's, below that of the worker.
        path.with_suffix(".new").write_text(str(Path.cwd()))
        path.with_suffix(".new").rename(path)

    @udf("binary", useArrow=False)
    def held(value: bytes) -> bytes:
        if bytes(value) == hold.encode():
            is_first = not reached.exists()
            say_where(reached if is_first else retried)
            while is_first or not go.exists():
                time.sleep(0.05)
        return value

    rows = (
        spark.readStream.format("fairlog")
        .option("kafka.bootstrap.servers", node)
        .option("subscribe", "orders")
        .option("startingOffsets", "earliest")
        .option("maxOffsetsPerTrigger", batch)
        .load()
    )
    query = (
        rows.select(held("value").alias("value"))
        .writeStream.format("fairlog")
        .option("kafka.bootstrap.servers", node)
        .option("topic", topic)
        .option("transactionalId", topic)
        .option("checkpointLocation", checkpoint)
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()


if __name__ == "__main__":
    main(*sys.argv[1:])
