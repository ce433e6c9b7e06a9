"""One sentence out of what Spark says when something fails. The messages are Spark 4.3's own."""

from __future__ import annotations

import pytest

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
        ("", "Spark does not say why"),
    ],
)
def test_reason_is_the_sentence_alone(message: str, sentence: str) -> None:
    """No class in brackets, no SQLSTATE, no plan, no stack."""
    assert reason(message) == sentence
