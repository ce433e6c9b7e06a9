"""An audit without a Spark that it could run on says so in a sentence; Spark itself is not started."""

from __future__ import annotations

import pytest
from py4j.protocol import Py4JError  # pyright: ignore[reportMissingTypeStubs]
from pyspark.sql import SparkSession

from fairlog.audit.session import SparkUnavailable, spark_session

NO_MASTER = """An error occurred while calling None.org.apache.spark.api.java.JavaSparkContext.
: org.apache.spark.SparkException: Could not parse Master URL: 'nowhere'
\tat org.apache.spark.SparkContext$.org$apache$spark$SparkContext$$createTaskScheduler(SparkContext.scala:3371)
\tat org.apache.spark.SparkContext.<init>(SparkContext.scala:605)
"""


def test_master_that_is_none_is_said_in_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    """Before there is a session, what Spark raises is Py4J's error, with the stack of Java's calls in it."""

    def refuse(_: object) -> SparkSession:
        raise Py4JError(NO_MASTER)

    monkeypatch.setattr(SparkSession.Builder, "getOrCreate", refuse)
    with pytest.raises(SparkUnavailable) as refused, spark_session("nowhere"):
        pass
    said = str(refused.value)
    assert said.startswith("Spark could not be started (Could not parse Master URL: 'nowhere'): it needs Java 17")
    assert said.endswith("to reach the master nowhere")


class Gone:
    """A session whose JVM has been killed."""

    @property
    def sparkContext(self) -> Gone:  # noqa: N802 (Spark's name)
        return self

    def setLogLevel(self, level: str) -> None:  # noqa: N802
        pass

    def stop(self) -> None:
        raise ConnectionRefusedError("there is no JVM to be stopped")


def test_jvm_that_is_gone_is_said_in_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    """Killed for want of memory, for instance; to stop the session fails as well, which is no news."""
    monkeypatch.setattr(SparkSession.Builder, "getOrCreate", lambda _: Gone())
    with pytest.raises(SparkUnavailable, match=r"given the job up: there is no answer$"), spark_session("local[1]"):
        raise Py4JError("there is no answer")
