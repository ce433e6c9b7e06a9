"""The Spark data source `format("fairlog")`: topics as data frames, read in consistent cuts, written exactly once.

PySpark imports every top-level module whose name begins with `pyspark_`, and registers the `DefaultSource` that it finds
there. So this module is light: what reads and writes is imported when it is asked for. Executors need pyarrow,
confluent-kafka and cbor2; nothing of the node.
"""
