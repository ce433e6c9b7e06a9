"""Many histories, one for each seed, in a directory: a long run that can be stopped, and gone on with.

A history comes into the directory, as `SEED.jsonl`, when it is whole; a seed that has one is passed over. So whoever
was stopped begins the seed anew. If the broker or the workload fails, or a history has violations, what the run left is
kept beside it, for people, and the run ends there.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Iterable
from pathlib import Path

from tests.history.checker import Verdict, check
from tests.history.history_file import read_history

Record = Callable[[int, Path, Path], None]
"""Records the history of a seed into a file; all else that it writes goes into a directory."""


class Found(Exception):
    """A history has violations. The message says where it is, and what the run left."""


def history_of(seed: int, directory: Path) -> Path:
    """Where its history is, or will be."""
    return directory / f"{seed}.jsonl"


def verdict_of(path: Path) -> Verdict:
    """Raises BadHistory, OSError."""
    with path.open(encoding="utf-8") as lines:
        return check(read_history(lines))


def collect(seeds: Iterable[int], directory: Path, record: Record, say: Callable[[str], None]) -> None:
    """Record what is not there yet. Raises Found, and what `record` raises."""
    directory.mkdir(parents=True, exist_ok=True)
    for seed in seeds:
        path = history_of(seed, directory)
        if path.exists():
            continue
        scratch = Path(tempfile.mkdtemp(prefix=f"fairlog-history-{seed}-"))
        written = scratch / path.name
        try:
            record(seed, written, scratch / "run")
        except Exception:
            say(f"seed {seed}: what the run left is in {scratch}")
            raise
        except BaseException:
            shutil.rmtree(scratch)
            raise
        verdict = verdict_of(written)
        shutil.copy(written, path.with_suffix(".part"))
        path.with_suffix(".part").rename(path)
        if not verdict.valid:
            raise Found(f"{path} has violations; what the run left is in {scratch}")
        shutil.rmtree(scratch)
        say(f"seed {seed}: {sum(verdict.operations.values()):,} operations, no violation")
