"""Micro-batches as Parquet files: each once, whole, in spite of kills at any point."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import pyarrow.parquet
import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from pyspark_fairlog.pipeline import parquet
from pyspark_fairlog.pipeline.parquet import OWNER, ParquetBatches, own
from pyspark_fairlog.pipeline.plan import PlanError
from pyspark_fairlog.pipeline.reasons import reason
from pyspark_fairlog.pipeline.steps import query_id

ROOT = Path(__file__).resolve().parents[2]


class Killed(Exception):
    """Stands for the end of the process: nothing behind it is done."""


class Bench:
    """A query that counts words of text files by word, into Parquet batches; made anew like a restarted process."""

    def __init__(self, spark: SparkSession, directory: Path) -> None:
        self.spark = spark
        self.input, self.output, self.checkpoint = (directory / name for name in ("in", "out", "checkpoint"))
        self.input.mkdir()
        self.files = 0

    def add(self, *words: str) -> None:
        fresh = self.input / f".{self.files}"
        fresh.write_text("\n".join(words) + "\n", encoding="utf-8")
        fresh.rename(self.input / f"{self.files}.txt")
        self.files += 1

    def start(self, write: Callable[[DataFrame, int], None]) -> StreamingQuery:
        counts = self.spark.readStream.text(str(self.input)).groupBy("value").count()
        writer = counts.writeStream.outputMode("update").option("checkpointLocation", str(self.checkpoint))
        return writer.trigger(availableNow=True).foreachBatch(write).start()

    def batches(self) -> ParquetBatches:
        return ParquetBatches(self.output, lambda: query_id(self.checkpoint))

    def run(self) -> None:
        query = self.start(self.batches())
        query.awaitTermination()

    def fail(self, write: Callable[[DataFrame, int], None]) -> str:
        """Run, and answer the reason for which it ended."""
        query = self.start(write)
        with pytest.raises(StreamingQueryException) as failed:
            query.awaitTermination()
        return reason(str(failed.value))

    def seen(self) -> dict[int, dict[str, int]]:
        """By batch: what a reader of Parquet finds."""
        if not self.output.exists():
            return {}
        found: dict[int, dict[str, int]] = {}
        for path in sorted(self.output.glob("batch=*/*.parquet")):
            rows: list[dict[str, Any]] = pyarrow.parquet.ParquetFile(path).read().to_pylist()
            assert not set(found.setdefault(int(path.parent.name[6:]), {})) & {row["value"] for row in rows}
            found[int(path.parent.name[6:])] |= {row["value"]: row["count"] for row in rows}
        return found


@pytest.fixture
def bench(spark: SparkSession, tmp_path: Path) -> Bench:
    return Bench(spark, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("at", ["before the write", "mid-write", "before the rename", "behind the rename"])
def test_kill_at_any_point_leaves_each_batch_once(bench: Bench, at: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The state goes on, no row is doubled, none is missing, and what was there does not change."""
    bench.add("a", "b", "a")
    bench.run()
    bench.add("b", "c")
    batches, real = bench.batches(), parquet.publish

    def dies(rows: DataFrame, batch: int) -> None:
        if at == "before the write":
            raise Killed
        if at == "mid-write":
            rest = bench.output / "_batch-1-abc"
            rest.mkdir()
            (rest / "part-0.parquet").write_bytes(b"half")
            raise Killed
        batches(rows, batch)

    def publish(written: Path, target: Path) -> None:
        if target.name == "batch=1" and at == "behind the rename":
            real(written, target)
        if target.name == "batch=1":
            raise Killed
        real(written, target)

    monkeypatch.setattr(parquet, "publish", publish)
    bench.fail(dies)
    before = bench.seen()
    assert before == ({0: {"a": 2, "b": 1}} | ({1: {"b": 2, "c": 1}} if at == "behind the rename" else {}))
    files = {path: path.stat().st_ino for path in bench.output.rglob("batch=*/*")}
    monkeypatch.setattr(parquet, "publish", real)

    bench.run()
    assert bench.seen() == {0: {"a": 2, "b": 1}, 1: {"b": 2, "c": 1}}
    assert files.items() <= {path: path.stat().st_ino for path in bench.output.rglob("batch=*/*")}.items()
    bench.add("a")
    bench.run()
    assert bench.seen()[2] == {"a": 3}
    assert Counter(path.name.partition("=")[0] for path in bench.output.iterdir()) == {"batch": 3, OWNER: 1}
    whole = bench.spark.read.parquet(str(bench.output))
    assert {(row["batch"], row["value"], row["count"]) for row in whole.collect()} == {
        (0, "a", 2), (0, "b", 1), (1, "b", 2), (1, "c", 1), (2, "a", 3),
    }  # fmt: skip


@pytest.mark.slow
def test_directory_of_another_checkpoint_is_refused(bench: Bench) -> None:
    """A deleted checkpoint begins at batch 0 again: its batches would be taken for written."""
    bench.add("a")
    bench.run()
    owner = query_id(bench.checkpoint)
    bench.checkpoint = bench.checkpoint.with_name("another")
    said = bench.fail(bench.batches())
    assert said.startswith(f"{bench.output} holds the batches of query {owner}, and this is query ")
    assert said.endswith("Bring it back, or write to another directory")
    assert bench.seen() == {0: {"a": 1}}


def test_directory_that_is_nobodys_is_refused(tmp_path: Path) -> None:
    """Batches without an owner, or with a note that cannot be read, are not written among."""
    (tmp_path / "batch=0").mkdir()
    with pytest.raises(PlanError, match="holds batches and no _fairlog\\.json"):
        own(tmp_path, "q")
    for damaged in ("{", "[]", '{"query": "q"}', '{"version": 1, "query": 1}'):
        (tmp_path / OWNER).write_text(damaged)
        with pytest.raises(PlanError, match="is damaged"):
            own(tmp_path, "q")


def test_note_is_written_as_the_golden_file_and_the_page_have_it(tmp_path: Path) -> None:
    """And it is read back; one of another version may mean something else, and is refused."""
    query = "3f1c2b6e-9d0a-4a57-8a44-0d1f6f1f7b11"
    own(tmp_path, query)
    text = (tmp_path / OWNER).read_text(encoding="utf-8")
    assert text == (ROOT / "tests" / "golden" / "parquet-batches-1.json").read_text(encoding="utf-8")
    assert text in (ROOT / "docs" / "formats" / "parquet-batches.md").read_text(encoding="utf-8")
    own(tmp_path, query)
    (tmp_path / OWNER).write_text(text.replace('"version": 1', '"version": 2'))
    with pytest.raises(PlanError, match="is of version 2, and 1 is known"):
        own(tmp_path, query)


def test_owner_is_kept_and_leftovers_are_cleared_away(tmp_path: Path) -> None:
    """Owning again changes nothing that readers see."""
    own(tmp_path, "q")
    (tmp_path / "_batch-3-x").mkdir()
    (tmp_path / "batch=2").mkdir()
    own(tmp_path, "q")
    assert sorted(path.name for path in tmp_path.iterdir()) == [OWNER, "batch=2"]
    assert json.loads((tmp_path / OWNER).read_text()) == {"version": 1, "query": "q"}


class ReplacedInMidWrite:
    """A data frame of two files, between which another run begins."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    @property
    def write(self) -> ReplacedInMidWrite:
        return self

    def mode(self, _: str) -> ReplacedInMidWrite:
        return self

    def parquet(self, path: str) -> None:
        for number in range(2):
            Path(path).mkdir(parents=True, exist_ok=True)  # as Spark's tasks do
            Path(path, f"part-{number}.parquet").touch()
            if number == 0:
                own(self._directory, "query")


def test_run_that_was_replaced_in_mid_write_publishes_no_half_batch(tmp_path: Path) -> None:
    """The new run has cleared away a part of it, and would take the rest for the batch."""
    with pytest.raises(PlanError, match=r"batch 0 was cleared away.*another run"):
        ParquetBatches(tmp_path, lambda: "query")(cast("DataFrame", ReplacedInMidWrite(tmp_path)), 0)
    assert not (tmp_path / "batch=0").exists()
