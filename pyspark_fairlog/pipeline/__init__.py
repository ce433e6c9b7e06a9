"""`fairlog pipeline`: streaming SQL between topics, exactly once, on Spark.

In the order in which it runs:

    plan                    what is to be done, checked before Spark is started
    checkpoints, session    a directory and a Spark session for it
    steps                   a streaming query of each step
    own_source              what it reads from, which it shares with no other
    records                 records of a topic as rows of a table, and rows as records
    parquet                 rows of micro-batches as files
    running                 watch the queries until they end
    progress, ends          how far they are
    reasons                 why one failed, in a sentence
"""
