"""How the last run of a node ended: did everything that it had written survive?

`DATA/last-run` has three words: the system's boot id when the run began; `open`, `closed` or `lost`; and the leader
epoch of the last start that could not trust what the run before it had left, 0 if all could. Of several shards each has
its own, `DATA/shards/<number>/last-run`. Frames that were appended to a journal and not flushed survive if the node was
closed cleanly (it flushes first), or if only its process died: the page cache belongs to the system, which continues
under the same boot id. After a power loss, or if the system has no boot id, they may be gone.

They may also be gone if a write or a flush has failed, although the boot id is the same: Linux marks the lost pages
clean, and may drop them. And some are gone if a journal's torn tail has to be cut. The journals report this
(`journal.flush.TailWatcher`), and it is noted as `lost`: at a failure, so that the next start knows; before a cut, so
that a crash after it hides nothing. Only a kill in the middle of a write leaves a torn tail and loses nothing else: the
last frame is there in part, under the same boot id, and no client was answered for it.

The coordinator needs to know (decision 4): only with a tail that was kept can it tell which transactional ids had a
transaction open. Other shards' coordinators have transactions that began here in an earlier run. Nothing of these is
missing if they began since that leader epoch (`whole_since`).

For this file a run begins when the node has recovered and before it serves: a crash in the middle of recovery leaves
the answer as it was.
"""

from __future__ import annotations

import os
import threading
from pathlib import Path

import structlog

from fairlog.data_directory import LAST_RUN
from fairlog_types import LeaderEpoch, ShardNumber
from shard.directory import ShardDirectory, shard_directories, shard_directory

_log = structlog.get_logger()

_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
_NO_BOOT_ID = "unknown"
_ALWAYS = LeaderEpoch(0)


class LastRun:
    """The note of one node or shard, and what is added to it. Blocking; for any thread. A `TailWatcher`."""

    def __init__(self, directory: Path, *, tail_kept: bool, killed: bool, whole_since: LeaderEpoch = _ALWAYS) -> None:
        self._directory = directory
        self._tail_kept = tail_kept
        self._whole_since = whole_since
        """Of the runs up to the last one."""
        self._killed = killed
        self._failed = False
        self._noted_lost = False
        self._lock = threading.Lock()

    @classmethod
    def read(cls, data_dir: Path, shard: ShardDirectory | None = None) -> LastRun:
        """Read what the last run has left. Raises OSError if the file is there and cannot be read.

        `shard` is one of several, each of which has a note of its own. None: the only one.
        """
        directory, shards = (data_dir, shard_directories(data_dir)) if shard is None else (shard.path, [shard])
        try:
            boot_id, ended, *others = (directory / LAST_RUN).read_text(encoding="ascii").split()
            (since,) = others or [str(_ALWAYS)]  # versions that wrote two words had one shard only
            whole_since = LeaderEpoch(int(since))
        except FileNotFoundError:
            return cls(
                directory,
                tail_kept=not any(each.journals.exists() for each in shards),
                killed=False,
            )
        except ValueError:
            # Not what we write: then nothing is known, and that is the safe answer.
            return cls(directory, tail_kept=False, killed=False)
        killed = ended == "open" and boot_id == _boot_id() and boot_id != _NO_BOOT_ID
        return cls(directory, tail_kept=killed or ended == "closed", killed=killed, whole_since=whole_since)

    @property
    def tail_kept(self) -> bool:
        """Is all that the last run wrote still there? To be asked once all journals are open.

        A directory that was never used has lost nothing. Journals without the file are what a copy that left it out
        has, or a first start that was cut short: then nothing is known.
        """
        return self._tail_kept

    def whole_since(self, leader_epoch: LeaderEpoch) -> LeaderEpoch:
        """Since which leader epoch nothing that was written has been lost; `leader_epoch` is that of this start.

        It is this one if the tail was not kept. To be asked once all journals are open.
        """
        return self._whole_since if self._tail_kept else leader_epoch

    def tail_cut(self, interrupted: bool) -> None:
        """Note that a tail is about to be cut, unless a kill has left it so (`interrupted`). Raises OSError."""
        with self._lock:
            if not self._noted_lost and not (interrupted and self._killed):
                self._write("lost")
                self._tail_kept, self._noted_lost = False, True

    def failed(self) -> None:
        """Note that a write has failed in this run: what is in memory may be lost, however the run ends."""
        with self._lock:
            if self._failed:
                return
            self._failed = True
            try:
                self._write("lost")
            except OSError as error:
                _log.warning("a failed write is not noted, so the next start may trust the tail", reason=str(error))

    def begin(self, leader_epoch: LeaderEpoch) -> None:
        """Note that a run has begun to serve, in this leader epoch. Raises OSError."""
        with self._lock:
            self._whole_since = self.whole_since(leader_epoch)
            if not self._failed:
                self._write("open")

    def end(self) -> None:
        """Note that the run ended in good order, after everything was flushed and closed. Raises OSError."""
        with self._lock:
            if not self._failed:
                self._write("closed")

    def _write(self, ended: str) -> None:
        _write(self._directory, f"{_boot_id()} {ended} {self._whole_since}\n")


def move_note(data_dir: Path) -> None:
    """Give the note of a node's only shard to shard 0 of several, durably; again does nothing. Raises OSError.

    To be called before a second shard is in the cluster store. After a crash in between, the next start of the one
    shard finds no note, and trusts no tail. What it then notes replaces the one that was moved when this is called
    again, and so does a cut of a tail. In the other order, a note that stayed behind could replace a newer one.
    """
    note, shard = data_dir / LAST_RUN, shard_directory(data_dir, ShardNumber(0))
    if note.exists():
        note.replace(shard.path / LAST_RUN)
    _sync(shard.path)
    _sync(data_dir)


def _boot_id() -> str:
    try:
        return _BOOT_ID.read_text(encoding="ascii").strip() or _NO_BOOT_ID
    except OSError:
        return _NO_BOOT_ID


def _write(directory: Path, text: str) -> None:
    draft = directory / f"{LAST_RUN}.new"
    with draft.open("w", encoding="ascii") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    draft.replace(directory / LAST_RUN)
    _sync(directory)


def _sync(directory: Path) -> None:
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
