"""A query as a user gives it to `spark-submit`: topic to topic, exactly once.

It is one file, which imports nothing of the tests: `NODE CHECKPOINT HOLD DIRECTORY`. The task that comes to the record
`HOLD` says where it runs, in `DIRECTORY/reached`, and waits to be killed; the attempt after it says so in
`DIRECTORY/retried`.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path


def main(node: str, checkpoint: str, hold: str, directory: str) -> None:
    from pyspark.sql import SparkSession
    from pyspark.sql.functions import udf

    spark = SparkSession.builder.getOrCreate()
    reached, retried = Path(directory, "reached"), Path(directory, "retried")

    @udf("binary", useArrow=False)
    def held(value: bytes) -> bytes:
        # A task's working directory is its executor's, below that of the worker.
        if bytes(value) == hold.encode():
            if reached.exists():
                retried.write_text(str(Path.cwd()))
            else:
                reached.with_suffix(".new").write_text(str(Path.cwd()))
                reached.with_suffix(".new").rename(reached)
                time.sleep(3600)
        return value

    rows = (
        spark.readStream.format("fairlog")
        .option("kafka.bootstrap.servers", node)
        .option("subscribe", "orders")
        .option("startingOffsets", "earliest")
        .option("maxOffsetsPerTrigger", 4000)
        .load()
    )
    query = (
        rows.select(held("value").alias("value"))
        .writeStream.format("fairlog")
        .option("kafka.bootstrap.servers", node)
        .option("topic", "copies")
        .option("transactionalId", "copies")
        .option("checkpointLocation", checkpoint)
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()


if __name__ == "__main__":
    main(*sys.argv[1:])
