"""The Spark session of an audit that was started from the command line."""

from __future__ import annotations

import os
import sys
from collections.abc import Generator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_SETTINGS = {
    "spark.ui.enabled": "false",
    "spark.sql.session.timeZone": "UTC",
    "spark.ui.showConsoleProgress": "false",
}
_LOCAL_SETTINGS = {"spark.driver.bindAddress": "127.0.0.1", "spark.driver.host": "127.0.0.1"}


class SparkUnavailable(Exception):
    """There is no Spark to run the job on, or it has given the job up. The message says what is missing, or why."""


@contextmanager
def spark_session(master: str) -> Generator[SparkSession]:
    """A session on `master`, stopped at the end; a setting of `spark-defaults.conf` gives way to those made here.

    Python workers are those of this interpreter's path. Raises SparkUnavailable, also for what Spark raises in the
    block.
    """
    try:
        from py4j.protocol import Py4JError, Py4JNetworkError  # pyright: ignore[reportMissingTypeStubs]
        from pyspark.errors import PySparkException
        from pyspark.sql import SparkSession

        from pyspark_fairlog.pipeline.reasons import reason
    except ImportError as error:
        raise SparkUnavailable(f"{error.name} is not installed: pip install 'fairlog[spark]'") from error
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    builder = SparkSession.builder.master(master).appName("fairlog audit")
    for name, value in {**_SETTINGS, **(_LOCAL_SETTINGS if master.startswith("local") else {})}.items():
        builder = builder.config(name, value)
    try:
        session = builder.getOrCreate()
    except (PySparkException, Py4JError, OSError) as error:  # of Py4J: a session that is not there converts none yet
        raise SparkUnavailable(
            f"Spark could not be started ({reason(str(error))}): it needs Java 17 or newer, on the path or in "
            f"JAVA_HOME, and to reach the master {master}"
        ) from error
    try:
        session.sparkContext.setLogLevel("ERROR")
        yield session
    except (PySparkException, Py4JError, ConnectionError) as error:  # the last two: the JVM is gone
        raise SparkUnavailable(f"Spark has given the job up: {reason(str(error))}") from error
    finally:
        with suppress(Py4JNetworkError, ConnectionRefusedError, ConnectionResetError):  # it is gone already
            session.stop()
