"""A few power cuts of a recorded node, for the test suite; `python -m tests.crash.images` makes hundreds.

And the proof that they can fail, and what a power cut may leave of a node's very first start.
"""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from datalog.environment import LmdbDataLogs
from fairlog.cluster.embedded import EmbeddedStore
from scripts import c_compiler
from scripts.node_process import NodeProcess
from tests.crash import recording
from tests.crash.harness import SMALL
from tests.crash.images import ImageFailed, run
from tests.crash.rebuilding import Rebuilding
from tests.shards import shard_in

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(c_compiler.find() is None, reason=c_compiler.MISSING),
]

IMAGES = 6
IMAGES_TILL_RED = 240
"""At most: a run ends with the first that is red."""
LOAD_S = 1.0


def test_power_cuts_of_a_loaded_node_keep_every_promise(tmp_path: Path) -> None:
    """Cut at any moment, verified, started and read: what was answered is there, and nothing else."""
    totals = run(IMAGES, "fixed", tmp_path.resolve(), load_s=LOAD_S, say=print)
    print(totals)  # noqa: T201 - `pytest -rP` shows what was lost
    assert totals["images"] >= IMAGES
    assert totals["commits that had been answered"] > 0


def test_power_cuts_see_a_participant_that_was_not_flushed(tmp_path: Path) -> None:
    """Proof that they can fail: prepare answers without flushing one journal."""
    with pytest.raises(ImageFailed) as red:
        run(
            IMAGES_TILL_RED,
            "planted",
            tmp_path.resolve(),
            load_s=LOAD_S,
            planted_bug="skip-flush-of-one-participant",
            after_commits=True,
            say=print,
        )
    print(red.value)  # noqa: T201


@pytest.fixture(scope="module")
def first_start(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path, int]:
    """A node's directory and trace, from its first start to when it was ready, and the trace's size then."""
    directory = tmp_path_factory.mktemp("first").resolve()
    data, trace = directory / "node" / "data", directory / "trace"
    data.parent.mkdir()
    node = NodeProcess(data, SMALL | recording.environment(data, trace), program=recording.PROGRAM)
    node.start()
    ready = trace.stat().st_size
    assert node.stop() == 0
    return data, trace, ready


def test_first_start_has_put_every_name_on_disk(first_start: tuple[Path, Path, int]) -> None:
    """Regression: the data directory's own name, and that of the data logs' file, were left to luck."""
    data, trace, ready = first_start
    rebuilding = Rebuilding(data, trace)
    rebuilding.go_to(ready)
    assert [name for name in rebuilding.disk.unsettled_names() if name in rebuilding.disk.nodes] == []


def test_first_start_cut_anywhere_leaves_no_half_of_an_lmdb_file(
    first_start: tuple[Path, Path, int], tmp_path: Path
) -> None:
    """Regression: LMDB makes a file in steps, and the next start refused what a power cut left of one."""
    data, trace, ready = first_start
    ends = [event.end for event in recording.read_trace(trace) if event.end <= ready]
    rng = random.Random(1)
    for number in range(400):
        rebuilding = Rebuilding(data, trace)
        rebuilding.go_to(rng.choice(ends))
        place = tmp_path / str(number)
        rebuilding.write_image(place, rng)
        EmbeddedStore.open(place / "cluster", node_id=1, group_journal_count=2).close()
        LmdbDataLogs.open(shard_in(place).data_logs, map_bytes=1 << 28, sync=False).close()
