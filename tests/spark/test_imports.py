"""What the data source imports, and when: PySpark imports it in each Python process that looks for data sources."""

from __future__ import annotations

import subprocess
import sys

import pytest

from scripts.node_process import ROOT

NODE = ("trio", "lmdb", "structlog", "kio", "fairlog", "stream", "journal", "datalog", "coordinator", "copier")


SERVING = ("trio", "structlog", "kio", "typer")


def run(code: str) -> None:
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.slow
def test_looking_for_the_source_imports_nothing_that_reads_or_writes() -> None:
    """Whoever has it installed pays for it in every session, also without a topic."""
    heavy = "{'confluent_kafka', 'cbor2', 'pyspark_fairlog.native', 'pyspark_fairlog.source'}"
    run(f"import sys, pyspark_fairlog; found = {heavy} & sys.modules.keys(); assert not found, found")


@pytest.mark.slow
def test_executors_need_nothing_of_the_node() -> None:
    """Reading works where the node's packages, and what they need, are not installed."""
    run(
        f"import sys; sys.modules.update(dict.fromkeys({NODE})); import pyspark_fairlog.reading, pyspark_fairlog.source"
    )


@pytest.mark.slow
def test_tasks_of_the_audit_need_nothing_that_serves() -> None:
    """They read files by the node's own modules; what runs a node is not started in each of Spark's processes."""
    run(
        f"import sys; sys.modules.update(dict.fromkeys({SERVING})); "
        "import fairlog.audit.reading, fairlog.audit.checking"
    )
