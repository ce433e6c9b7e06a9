"""A transaction that is copied in stages, on a real node: killed between them, verified, and started again."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Callable

import pytest

from copier.staging import STAGED_FROM_BYTES
from journal.failpoints import FAILPOINTS
from scripts.node_process import NodeProcess
from tests.limits import wire
from tests.limits.wire import Wire

pytestmark = pytest.mark.slow

NewNode = Callable[..., NodeProcess]

TOPIC = "large"
BATCHES = STAGED_FROM_BYTES // 1_000_000 + 2
"""Of a megabyte each: large enough."""
KILLS = [
    ("copier.stage.before_commit", 1, False),
    ("copier.stage.before_commit", 3, True),
    ("copier.stage.after_commit", 1, True),
    ("copier.stage.after_commit", 2, True),
    ("copier.copy.before_commit", 2, True),
    ("copier.copy.after_commit", 2, False),
]
"""And whether something is staged then. The first chunk is the fence of the log; the second is the last step."""


def test_every_point_of_a_stage_has_its_kill() -> None:
    """The crash test leaves them to this module."""
    assert {name for name in FAILPOINTS if name.startswith("copier.stage")} <= {point for point, *_ in KILLS}


def commit_a_large_one(address: str) -> None:
    """Write it and commit it; the node may die as soon as it has decided."""
    value = bytes(1_000_000)
    with Wire(address) as client:
        client.call(wire.create_topics([TOPIC], partitions=1))
        who = wire.initialized(TOPIC, client.call(wire.init_producer_id(TOPIC)))
        client.call(wire.add_partition(who, TOPIC, 0))
        client.call_all(
            wire.produce(TOPIC, 0, wire.batch(value, by=who, sequence=number), by=who) for number in range(BATCHES)
        )
        client.send(wire.end(who, commit=True))


def end_offset(address: str) -> int:
    with Wire(address) as client:
        answer = client.call(wire.fetch([(TOPIC, [(0, 0)])], bytes_max=1))
    # throttle, topics, name, partitions; index, code
    at = 4 + 4 + 2 + len(TOPIC) + 4 + 4 + 2
    return int.from_bytes(answer[at : at + 8], "big")


def verify(node: NodeProcess) -> str:
    """What is told of the files of a node that keep all invariants."""
    command = [sys.executable, "-m", "fairlog.cli", "verify", str(node.data_dir)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.parametrize(("point", "nth", "staged"), KILLS)
def test_kill_anywhere_in_a_large_copy_leaves_no_damage_and_the_restart_makes_it_visible(
    new_node: NewNode, point: str, nth: int, staged: bool
) -> None:
    """What is staged is told and is no violation; the next start copies all of it, once."""
    node = new_node(FAIRLOG_FAILPOINT=f"{point}:kill:{nth}")
    node.start()
    commit_a_large_one(node.address)
    assert node.wait_end(120) == -signal.SIGKILL
    told = verify(node)
    assert ("staged behind" in told) == staged, told
    del node.environment["FAIRLOG_FAILPOINT"]
    node.start()
    assert end_offset(node.address) == BATCHES
    node.stop()
    assert "staged behind" not in verify(node)
