"""`fairlog audit` of transactions over two shards, without the local journals that tell what is prepared."""

from __future__ import annotations

from pathlib import Path

import pytest
import trio
from pyspark.sql import SparkSession

from fairlog.audit.job import audit
from partition.modes import JOURNAL
from tests.verify.over_shards import make_images, put_together

pytestmark = pytest.mark.slow


def test_transactions_over_shards_are_audited(spark: SparkSession, tmp_path: Path) -> None:
    """At each stage nothing is found; what is committed and missing in one shard is found, and what was aborted."""
    images = trio.run(make_images, tmp_path, JOURNAL)
    for name in ("other lags", "own lags", "committed"):
        assert list(audit(spark, images[name], has_journals=True, findings_max=10).findings) == [], name
    lost = put_together(tmp_path / "lost", images["committed"], images["in doubt"])
    aborted = put_together(tmp_path / "undone", images["aborted"], images["committed"])
    kinds = [set(audit(spark, each, has_journals=True, findings_max=10).kinds) for each in (lost, aborted)]
    assert kinds == [{"place behind the end"}, {"never committed"}]
