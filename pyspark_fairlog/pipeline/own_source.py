"""The data source of a step, which no other query of the driver uses.

Spark (4.3) keeps a map of environment variables with each data source that is written in Python. To that of a source
which it has found by itself, as it finds `fairlog`, every streaming query of the driver adds the same four when it is
started, in its own thread and without a lock. If the first two do so at one moment, the map may count an entry that it
has lost, and no query can be serialized from then on ("Task not serializable", caused by "Illegal size 5 of
collection, expected 6"). What is registered in a session has a map of its own, and a step has a session of its own.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark_fairlog import DefaultSource

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class OwnSource(DefaultSource):
    """`fairlog` under another name: Spark lets nobody register one again that it has found by itself."""

    @classmethod
    def name(cls) -> str:
        return "fairlog_step"


def session_of_step(spark: SparkSession) -> SparkSession:
    """A new session, in which the format `OwnSource.name()` is a source of its own."""
    session = spark.newSession()
    session.dataSource.register(OwnSource)
    return session
