"""Rows of micro-batches as Parquet files, each batch written once (docs/formats/parquet-batches.md).

    DIR/batch=0/part-….parquet      what is there is whole, and stays as it is
    DIR/batch=1/part-….parquet
    DIR/_batch-2-<random>/…         being written; readers of Parquet pass over names that begin with _
    DIR/_fairlog.json               which query the batches are of

How it works. A batch is written below a name of its own, synced, and renamed to `batch=<id>`; the rename is the moment
at which it is there. Spark runs a batch again, under the same id, if it has not noted that the batch was done. So

    killed while it is written      the rest lies under another name; the next run clears it away, and writes the batch
    killed behind the rename        the batch runs again, finds its directory, and writes nothing: readers never see a
                                    batch change or vanish

Two runs at a time happen if a driver hangs and is replaced from another machine. The new run clears away what the old
one is writing; the old one notices, and publishes nothing, lest a batch be there in part.

A batch that runs again is still computed, because Spark keeps what a batch leaves in its state with the computing.

The ids are those of one checkpoint. Another one would begin at 0 again and find its batches "written", so
`_fairlog.json` names the query, which is stable over restarts, and another query is refused.

What it does not do: directories that are not in a file system that the driver and all executors have mounted.
"""

from __future__ import annotations

import json
import os
import shutil
import uuid
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from pyspark_fairlog.pipeline.plan import PlanError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

OWNER = "_fairlog.json"
OURS = "_ours"
"""In a batch that is being written: gone from there if another run has cleared it away."""
_DEAD = "_dead-"
_VERSION = 1


class ParquetBatches:
    """What `foreachBatch` calls, for one query at a time."""

    def __init__(self, directory: Path, query: Callable[[], str]) -> None:
        """`query` answers the id of the query that writes; it is asked when the first batch is there."""
        self._directory = directory
        self._query = query
        self._owned = False

    def __call__(self, rows: DataFrame, batch: int) -> None:
        """Write a batch, once. Raises PlanError, OSError; whatever was raised, the batch can be written again."""
        if not self._owned:
            own(self._directory, self._query())
            self._owned = True
        target = self._directory / f"batch={batch}"
        if target.exists():
            rows.write.format("noop").mode("overwrite").save()
            return
        written = self._directory / f"_batch-{batch}-{uuid.uuid4().hex}"
        written.mkdir()
        (written / OURS).touch()
        rows.write.mode("append").parquet(str(written.absolute()))
        try:
            (written / OURS).unlink()
        except FileNotFoundError:
            raise PlanError(
                f"batch {batch} was cleared away while it was written: another run writes to {self._directory}, and "
                "this one has to stop"
            ) from None
        publish(written, target)


def refuse_column_of_directories(columns: Iterable[str]) -> None:
    """Raises PlanError for a column `batch`: readers take the one of that name from `batch=<id>`, not from the file."""
    for name in columns:
        if name.lower() == "batch":
            raise PlanError(
                f"the SELECT has a column {name}, and readers of Parquet make one of that name of the directories "
                "batch=0, batch=1, …: name it otherwise, with AS"
            )


def own(directory: Path, query: str) -> None:
    """Make the directory `query`'s, and clear away what no run has finished. Raises PlanError if it is another's."""
    directory.mkdir(parents=True, exist_ok=True)
    note = directory / OWNER
    try:
        owner = _owner(note)
    except FileNotFoundError:
        if any(directory.glob("batch=*")):
            raise PlanError(f"{directory} holds batches and no {OWNER}: they are not of a pipeline") from None
        fresh = directory / f"{OWNER}-{uuid.uuid4().hex}"
        fresh.write_text(json.dumps({"version": _VERSION, "query": query}) + "\n", encoding="utf-8")
        publish(fresh, note)
        return
    if owner != query:
        raise PlanError(
            f"{directory} holds the batches of query {owner}, and this is query {query}, whose batches begin at 0 "
            "again: was the checkpoint deleted? Bring it back, or write to another directory"
        )
    # Under another name at once: whoever writes there still makes a new directory, in which OURS is missing.
    for unfinished in directory.glob("_batch-*"):
        unfinished.rename(directory / f"{_DEAD}{uuid.uuid4().hex}")
    for dead in directory.glob(f"{_DEAD}*"):
        shutil.rmtree(dead)


def _owner(note: Path) -> str:
    """The query that the note names. Raises FileNotFoundError, and PlanError if the note is not valid."""
    try:
        found: object = json.loads(note.read_text(encoding="utf-8"))
    except (ValueError, RecursionError):
        found = None
    match found:
        case {"version": int(version), "query": str(query)} if version == _VERSION:
            return query
        case {"version": int(version)} if version != _VERSION:
            raise PlanError(
                f"{note} is of version {version}, and {_VERSION} is known: use the release of Fairlog that has written "
                "it, or a later one"
            )
        case _:
            raise PlanError(f"{note} is damaged: it should name the query whose batches are here")


def publish(written: Path, target: Path) -> None:
    """Give a finished file or directory its name, durably: it is there whole, also after a power cut, or not at all."""
    for path in [written, *written.rglob("*")]:
        _sync(path)
    written.rename(target)
    _sync(target.parent)


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
