"""Named points at which a crash test stops the node.

Code calls `reach("journal.flush.before")` where a crash would be interesting. Unarmed, that costs one `if`.
A crash test starts a node with

    FAIRLOG_FAILPOINT=<name>:<kill|fail>:<nth>

and the nth time (from 1) that the point is reached the process kills itself with SIGKILL, or the call raises
OSError(EIO) as a broken disk would. `fairlog serve` passes its environment to `arm`; importing this module arms
nothing. The names form one vocabulary, shared by unit tests and crash tests; an unknown name ends the node at its
start, with a sentence, rather than test nothing. A node of one shard never reaches those of BETWEEN_SHARDS.
"""

from __future__ import annotations

import errno
import os
import signal
import threading
from collections.abc import Mapping

FAILPOINTS: Mapping[str, str] = {
    "journal.append.after": "a frame is in the page cache, not on disk",
    "journal.flush.before": "in a flusher's thread, before a journal's fdatasync",
    "journal.flush.after": "the fdatasync returned, nobody has been told",
    "journal.make_room.before": "before room is made behind a segment's end",
    "journal.make_room.after": "the room is on disk, nobody has been told",
    "journal.roll.before_seal": "the next segment takes frames; the full one is not on disk",
    "journal.roll.before_publish": "the full segment is sealed; the next one has no name yet",
    "journal.roll.after_publish": "the next segment has its name",
    "journal.reclaim.before_delete": "before each deletion of a segment",
    "journal.reclaim.after_delete": "after each deletion of a segment",
    "journal.close.before": "before the close mark",
    "group.begin.appended": "BEGIN is in the group journal, not on disk",
    "group.prepare_commit.appended": "PREPARE_COMMIT is in the group journal, not on disk",
    "group.committed.appended": "COMMITTED is in the group journal, not on disk",
    "group.prepare_abort.appended": "PREPARE_ABORT is in the group journal, not on disk",
    "group.aborted.appended": "ABORTED is in the group journal, not on disk",
    "group.sink_prepare_commit.appended": "SINK_PREPARE_COMMIT is in the group journal, not on disk",
    "group.sink_committed.appended": "SINK_COMMITTED is in the group journal, not on disk",
    "group.sink_aborted.appended": "SINK_ABORTED is in the group journal, not on disk",
    "group.producer_state.appended": "a producer id or epoch is in the group journal, not on disk",
    "group.snapshot.before": "before SNAPSHOT_BEGIN",
    "group.snapshot.middle": "in the middle of a snapshot",
    "group.snapshot.after": "SNAPSHOT_END is on disk, the older segments are still there",
    "coordinator.prepared": "all participants have prepared",
    "coordinator.place.before": "before APPLY goes to the local journals",
    "coordinator.place.between_logs": "APPLY is in some of the transaction's local journals",
    "coordinator.place.after": "APPLY is in all local journals, nothing is copied",
    "copier.copy.before": "before the LMDB transaction of a chunk",
    "copier.copy.between_logs": "inside it, between two logs",
    "copier.copy.before_commit": "inside it, all is written",
    "copier.copy.after_commit": "the chunk is copied, nobody has been told",
    "copier.stage.before_commit": "inside the LMDB transaction of a stage: batches behind the logs' ends",
    "copier.stage.after_commit": "a stage of a large group is copied, others are not, and none is visible",
    "groups.keep.encoded": "before what is to be kept of groups goes to the journals of their offsets logs",
    "groups.keep.visible": "a generation is durable and copied, no member was told of it",
    "retention.delete.before_commit": "inside the LMDB transaction that moves a log's start",
    "retention.delete.after_commit": "a log starts later, and some of the batches before its start are gone",
    "retention.clean.before_commit": "inside the LMDB transaction of a cleaning's step",
    "retention.clean.after_commit": "a step of a cleaning is done, others are not",
    "retention.clean.before_mark": "a log is swept, but how far is not written",
    "shards.allot.before_name": "which process serves which shard is on disk, under another name",
    "shards.allot.after_name": "it is on disk under its name; a shard that is to be added is not there yet",
    "shards.add.before_commit": "inside the LMDB transaction that adds a shard, all is written",
    "shards.add.after_commit": "the shard is added, and nobody has been told",
}
"""The points of one shard, and of a change of the shards; and what is true there."""

BETWEEN_SHARDS: Mapping[str, str] = {
    "participant.begun": "a log has begun a transaction of another shard's coordinator, which has no answer",
    "participant.prepare.appended": "PREPARED is in a local journal, not on disk",
    "participant.prepare.flushed": "all PREPARED of a shard are on disk, the other shard's coordinator has no answer",
    "participant.applied": "what another shard's coordinator has decided is visible, and it has no answer",
    "participant.discarded": "what another shard's coordinator has aborted is discarded, not on disk",
    "participant.said_all.resumed": "what another shard's coordinator goes on with is taken up, the rest not aborted",
    "participant.said_all.done": "the rest is aborted, too, not on disk; nobody has been told",
    "participant.offsets_written": "offsets of a group are written for another shard's transaction, without an answer",
    "coordinator.log_added": "a log is added to a transaction for its leader in another shard, which has no answer",
    "coordinator.prepared_elsewhere": "all other shards have prepared; PREPARE_COMMIT may not be on disk",
    "coordinator.visible_everywhere": "a commit is visible in all shards; nothing says so on disk",
    "cuts.held": "a coordinator holds for a cut, and nothing is under way; who takes the cut has not heard",
    "cuts.taken": "all coordinators hold, and all ends are known; none has been released",
    "cuts.keep.before_commit": "inside the LMDB transaction that keeps a cut over all shards in one of them",
    "cuts.keep.after_commit": "a cut is kept in one shard, perhaps not in others",
}
"""The points of what several shards do together; and what is true there. These points can only kill."""

_KNOWN = {**FAILPOINTS, **BETWEEN_SHARDS}


class _Armed:
    """One failpoint, its action, and how often it is still to be passed."""

    def __init__(self, name: str, action: str, nth: int) -> None:
        self._name = name
        self._action = action
        self._left = nth
        self._lock = threading.Lock()

    @property
    def name(self) -> str:
        return self._name

    def reached(self, name: str) -> None:
        assert name in _KNOWN, f"no failpoint is registered as {name!r}"
        if name != self._name:
            return
        with self._lock:
            self._left -= 1
            due = self._left == 0
        if not due:
            return
        if self._action == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        raise OSError(errno.EIO, f"failpoint {name}")


_armed: _Armed | None = None


def arm(environment: Mapping[str, str]) -> None:
    """Arm the point that `environment` names; disarm everything if it names none.

    Raises ValueError if a name is unknown or the specification is not `<name>:<kill|fail>:<nth>`.
    """
    global _armed  # noqa: PLW0603 - the points are in all rooms: what is armed is the process's
    specification = environment.get("FAIRLOG_FAILPOINT")
    armed = None
    if specification is not None:
        name, _, rest = specification.partition(":")
        action, _, nth = rest.partition(":")
        actions = ("kill",) if name in BETWEEN_SHARDS else ("kill", "fail")
        if name not in _KNOWN or action not in actions or not nth.isdecimal() or int(nth) < 1:
            raise ValueError(
                f"FAIRLOG_FAILPOINT={specification!r} is not <name>:<kill|fail>:<nth>; names: {', '.join(_KNOWN)}"
            )
        armed = _Armed(name, action, int(nth))
    _armed = armed


def reach(name: str) -> None:
    """Say that execution is at `name`. Returns, unless armed: then it kills the process or raises OSError(EIO)."""
    if _armed is not None:
        _armed.reached(name)


def is_armed(*names: str) -> bool:
    """Whether a test waits for one of these points: then it must not be passed by."""
    return _armed is not None and _armed.name in names
