"""Power cuts of the store that keeps groups' members: true LMDB, without a node, so hundreds take a second or two.

A program opens the store as the starts of a node do, and keeps one generation after the other under the recorder. It
notes the trace's size when a write is begun and when it has returned; images are drawn at every sort of moment, many of
them in the midst of a commit, and opened as the next start would.
"""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from fairlog.groups.persisted_group import PersistedClassicGroup
from fairlog.groups.persisted_group_store import PersistedGroupStore
from fairlog_types import LeaderEpoch
from scripts import c_compiler
from tests.crash.rebuilding import Rebuilding
from tests.crash.recording import environment, read_trace

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(c_compiler.find() is None, reason=c_compiler.MISSING),
]

STARTS = 3
WRITES = 40
"""Of each start."""
IMAGES = 400
GROUPS = ("a", "b", "c")

PROGRAM = f"""
import json, os, sys
from pathlib import Path
from fairlog.groups import persisted_group_store
from fairlog.groups.persisted_group import PersistedClassicGroup, PersistedMember

data, trace = Path(sys.argv[1]), Path(sys.argv[2])
data.mkdir()
os.fsync(os.open(data.parent, os.O_RDONLY))  # as a node does, before it makes anything in it
{{planted}}

def group(number):
    name = "m%d" % number
    metadata, assignment = bytes(number * 97 % 3001), bytes(number * 7919 % 9001)
    member = PersistedMember(name, None, "", "", 1, 1, (("range", metadata),), assignment)
    return PersistedClassicGroup(number, "consumer", "range", name, (member,))

number = 0
for start in range(1, {STARTS} + 1):
    begun = trace.stat().st_size
    store, _ = persisted_group_store.PersistedGroupStore.open(data / "groups", start)
    print(json.dumps([begun, trace.stat().st_size, start, None]))
    for _ in range({WRITES}):
        number += 1
        # Two of the three at a time; now and then one is forgotten.
        ids = [name for index, name in enumerate({GROUPS}) if (number + index) % 3]
        gone = number % 7 == 0
        begun = trace.stat().st_size
        store.write({{{{name: None if gone and name == ids[0] else group(number) for name in ids}}}})
        noted = {{{{name: 0 if gone and name == ids[0] else number for name in ids}}}}
        print(json.dumps([begun, trace.stat().st_size, start, noted]))
    store.close()
"""
NOT_SYNCED = """
real = persisted_group_store.lmdb.open
persisted_group_store.lmdb.open = lambda *args, **more: real(*args, **more, sync=False)
"""
NO_META_SYNC = NOT_SYNCED.replace("sync=False", "metasync=False")


@dataclass(frozen=True)
class Step:
    """A start, or a write: which groups were kept in which generation; 0 if they were forgotten."""

    begun: int
    """The trace's size when it was asked for."""
    done: int
    """The trace's size when it had returned."""
    start: int
    kept: dict[str, int] | None
    """None: a start."""


class Recorded:
    """The program under the recorder, and its steps."""

    def __init__(self, directory: Path, planted: str = "") -> None:
        self.data, self.trace = directory.resolve() / "under" / "data", directory / "trace"
        self.data.parent.mkdir()
        done = subprocess.run(
            [sys.executable, "-c", PROGRAM.format(planted=planted), str(self.data), str(self.trace)],
            env={**os.environ, **environment(self.data, self.trace)},
            stdout=subprocess.PIPE,
            check=True,
        )
        self.steps = [Step(*json.loads(line)) for line in done.stdout.splitlines()]

    def wrong(self, scratch: Path, images: int) -> list[str]:
        """Opens so many images; what each of them that is not as it has to be holds."""
        ends = [event.end for event in read_trace(self.trace) if event.end > self.steps[0].done]
        rng = random.Random(1)
        answered = [step.done for step in self.steps]
        moments = sorted(rng.choices(ends, k=images // 2) + rng.choices(answered, k=images // 2))
        rebuilding = Rebuilding(self.data, self.trace)
        found: list[str] = []
        for number, moment in enumerate(moments):
            rebuilding.go_to(moment)
            place = scratch / str(number)
            rebuilding.write_image(place, rng)
            try:
                may_be, start = self.may_be(moment)
                store, groups = PersistedGroupStore.open(place / "groups", LeaderEpoch(start + 1))
                store.close()
                if (generations := _generations(groups)) not in may_be:
                    found.append(f"cut at {moment}: {generations}, where {may_be} was due")
            except Exception as error:  # noqa: BLE001 - a store that cannot be opened is what is looked for
                found.append(f"cut at {moment}: {error!r}")
        return found

    def may_be(self, moment: int) -> tuple[list[dict[str, int]], int]:
        """What may be kept after a cut at that moment: as of the last step that was done, or of one begun meanwhile.

        And the number of the last start that was begun, which the cluster store of a node has counted by then. One that
        was cut before it was noted here as well lets the next one forget everything.
        """
        state: dict[str, int] = {}
        may_be, start = [state], 0
        for step in self.steps:
            after = state if step.kept is None else {**state, **step.kept}
            if step.done <= moment:
                state, may_be, start = after, [after], step.start
            elif step.begun < moment:
                may_be.append({} if step.kept is None else after)
                start = step.start
        return [{name: number for name, number in each.items() if number} for each in may_be], start


def _generations(groups: dict[str, PersistedClassicGroup]) -> dict[str, int]:
    """The generation of each; only of such as are whole, as they were written."""
    for group in groups.values():
        member = group.members[0]
        assert (member.member_id, len(member.assignment)) == (f"m{group.generation}", group.generation * 7919 % 9001)
        assert len(member.protocols[0][1]) == group.generation * 97 % 3001
    return {group_id: group.generation for group_id, group in groups.items()}


def test_power_cut_anywhere_leaves_the_last_write_that_returned_or_the_whole_of_the_next(tmp_path: Path) -> None:
    """Whoever was told what he reads is in the group that is kept; half of a commit is never seen."""
    recorded = Recorded(tmp_path)
    assert len(recorded.steps) == STARTS * (1 + WRITES)
    assert recorded.wrong(tmp_path / "images", IMAGES) == []


@pytest.mark.parametrize("planted", [NOT_SYNCED, NO_META_SYNC], ids=["nothing", "no meta page"])
def test_power_cuts_see_a_store_that_does_not_sync(tmp_path: Path, planted: str) -> None:
    """Proof that they can fail: LMDB is told to leave its file, or the page that names the commit, to the system."""
    assert Recorded(tmp_path, planted).wrong(tmp_path / "images", IMAGES) != []
