"""`fairlog pipeline`: streaming SQL between topics, exactly once, on Spark.

In the order in which it runs: `plan` (what is to be done, checked before Spark is started), `session` (a Spark session
for it, and its log), `records` (records of a topic as rows of a table, and back), `steps` (a streaming query of each
step), `parquet` (the other place where rows can go), `running` (watch the queries until they end), `progress` (how far
they are), `reasons` (why one failed, in a sentence).
"""
