"""One sentence out of what Spark says when something fails. The messages are Spark 4.3's own."""

from __future__ import annotations

import re

import pytest

from pyspark_fairlog.losses import ADVICE
from pyspark_fairlog.pipeline.reasons import reason

STREAM = "\n=== Streaming Query ===\nIdentifier: m3 [id = a91bad18, runId = d40ebb76]\nCurrent State: ACTIVE"


@pytest.mark.parametrize(
    ("message", "sentence"),
    [
        (
            "[UNRESOLVED_COLUMN.WITH_SUGGESTION] A column, variable, or function parameter with name `nope` cannot be "
            "resolved. Did you mean one of the following? [`at`, `id`]. SQLSTATE: 42703; line 1 pos 7;\n"
            "'Project ['nope]\n+- ~SubqueryAlias t2",
            "A column, variable, or function parameter with name `nope` cannot be resolved. Did you mean one of the "
            "following? [`at`, `id`]. line 1 pos 7",
        ),
        (
            "\n[PARSE_SYNTAX_ERROR] Syntax error at or near 'SELEC'. SQLSTATE: 42601 (line 1, pos 0)\n\n"
            "== SQL ==\nSELEC 1",
            "Syntax error at or near 'SELEC'. (line 1, pos 0)",
        ),
        (
            "[USER_RAISED_EXCEPTION] the value at offset 3 is bad: nonsense SQLSTATE: P0001" + STREAM,
            "the value at offset 3 is bad: nonsense",
        ),
        (
            "[STREAM_FAILED] Query [id = 1f, runId = 2e] terminated with exception: [USER_RAISED_EXCEPTION] bad one "
            "SQLSTATE: P0001 SQLSTATE: XXKST" + STREAM,
            "bad one",
        ),
        (
            "An exception was raised by the Python Proxy. Return Message: Traceback (most recent call last):\n"
            '  File "/x/clientserver.py", line 644, in _call_proxy\n    return_value = f(*params)\n'
            "pyspark_fairlog.pipeline.plan.PlanError: /out holds the batches of query 1\n" + STREAM,
            "/out holds the batches of query 1",
        ),
        (
            "[PYTHON_DATA_SOURCE_ERROR] Failed to commit Python data source fairlog: "
            "Traceback (most recent call last):\n"
            '  File "/x/native.py", line 1, in _checked\n    raise NativeError(kind, sentence)\n'
            "pyspark_fairlog.native.NativeError: sink a belongs to query b (another-query)\n\nThe above exception was\n"
            " SQLSTATE: 38000",
            "sink a belongs to query b (another-query)",
        ),
        (
            "[PYTHON_DATA_SOURCE_ERROR] Failed: Traceback (most recent call last):\n"
            '  File "/x/native.py", line 1\nConnectionError: refused\n\nThe above exception was the cause of the '
            "following exception:\n\nTraceback (most recent call last):\n"
            '  File "/x/sink.py", line 1\npyspark_fairlog.writing.SinkError: batch 3 is not committed: refused\n\n'
            "\tat org.apache.spark.X.y(X.scala:1)",
            "batch 3 is not committed: refused",
        ),
        (
            "An error occurred while calling o66.start.\n: java.io.IOException: mkdir of file:/ck/a failed\n"
            "\tat org.apache.hadoop.fs.FileSystem.x(FileSystem.java:1)",
            "mkdir of file:/ck/a failed",
        ),
        (
            "[STREAM_FAILED] Query terminated with exception: Traceback (most recent call last):\n"
            f"pyspark_fairlog.losses.DataLost: the records 0 to 2 of a-0 are deleted. {ADVICE}\n" + STREAM,
            "the records 0 to 2 of a-0 are deleted. Give --skip-lost, or skip_lost = true in the file, to go on with "
            "what there is",
        ),
        (
            "[TABLE_OR_VIEW_NOT_FOUND] The table or view `ordres` cannot be found. Verify the spelling and correctness "
            "of the schema and catalog.\nSearch path: [`system`.`builtin`, `spark_catalog`.`default`]\nIf you did not "
            "qualify the name with a schema, verify the current_schema() output. SQLSTATE: 42P01; line 1 pos 15;\n'P",
            "The table or view `ordres` cannot be found.",
        ),
        ("", "Spark does not say why"),
    ],
)
def test_reason_is_the_sentence_alone(message: str, sentence: str) -> None:
    """No class in brackets, no SQLSTATE, no plan, no stack."""
    assert reason(message) == sentence


@pytest.mark.parametrize(
    ("message", "sentence", "advice"),
    [
        (
            "[STREAM_FAILED] Query [id = 1f, runId = 2e] terminated with exception: Job aborted due to stage failure: "
            "Task 0 in stage 3.0 failed 1 times, most recent failure: Lost task 0.0 in stage 3.0 (TID 5) (127.0.0.1 "
            "executor driver): org.apache.spark.SparkException: Python worker failed to connect back.\n"
            "\tat org.apache.spark.api.python.PythonWorkerFactory.create(PythonWorkerFactory.scala:1)",
            "Python worker failed to connect back: ",
            r"PYSPARK_PYTHON.*docs/spark.md.*127\.0\.0\.1.*localhost",
        ),
        (
            "java.util.concurrent.TimeoutException: Timed out while waiting for the Python worker to connect back\n"
            "\tat org.apache.spark.X.y(X.scala:1)",
            "Timed out while waiting for the Python worker to connect back: ",
            "PYSPARK_PYTHON",
        ),
        (
            'java.io.IOException: Cannot run program "/opt/none/python": error=2, No such file or directory\n'
            "\tat java.base/java.lang.ProcessBuilder.start(ProcessBuilder.java:1143)",
            'Cannot run program "/opt/none/python": error=2, No such file or directory: ',
            "PYSPARK_PYTHON",
        ),
        (
            "An error occurred while calling None.org.apache.spark.api.java.JavaSparkContext.\n"
            ": java.lang.IllegalStateException: Cannot call methods on a stopped SparkContext.\n"
            "This stopped SparkContext was created at:\n\norg.apache.spark.api.java.JavaSparkContext.<init>(J.scala:5)",
            "Cannot call methods on a stopped SparkContext: ",
            "no master answers at the URL",
        ),
    ],
)
def test_reason_of_sparks_own_processes_says_what_to_do(message: str, sentence: str, advice: str) -> None:
    """That one could not be started is no help to who does not know what it is for."""
    found = reason(message)
    assert found.startswith(sentence)
    assert re.search(advice, found.removeprefix(sentence))
