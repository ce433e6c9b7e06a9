"""The audit trail: who has changed or ended something, from where, and whether it was refused. A line for each.

    a handler that changes something ──▶ `note` ──▶ the file of `trail.file`, or the node's own log

Lines are JSON objects in a file of their own, readable by the node's user only; without one they are lines of the log,
of the event `trail`. `docs/audit-trail.md` describes the fields. A line is written at once, in one call, to the end of
the file: so the processes of a node share it, and it can be moved away while they run; they make another one. Nobody
waits for the disk: what the system had not written yet is lost with its power, as with the log.

If the file cannot be written, what was asked for is done nevertheless, and the log says once that lines are missing.
A client can be refused as often as it likes, so its refusals are limited in rate like log lines
(`fairlog/edge/log_limiter.py`). So are offsets that clients commit without being members of the group: an operator who
resets a group does so, and so does each consumer that assigns its partitions itself. So are transactions that a new
instance of a producer has ended. All else that was done has its line, also if its client is cut off meanwhile; then
the line may say that the outcome is not known.

As with the log, there is one trail in a process, which `set_up` opens.
"""

from __future__ import annotations

import errno
import json
import os
import time
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from enum import Enum
from pathlib import Path
from typing import NamedTuple, cast

import structlog

from fairlog.edge.log_limiter import LogLimiter

log = structlog.get_logger()

DONE = "done"
"""The outcome of what was not refused."""
UNKNOWN = "unknown"
"""The outcome of what was begun, and whose end nobody has seen: it may have been done."""

TEXT_CHARACTERS_MAX = 300
ITEMS_MAX = 50
"""Of a text, and of a list, in a line: clients choose them."""


class Action(Enum):
    """What can be done, as the trail calls it."""

    CREATE_TOPIC = "create topic"
    DELETE_TOPIC = "delete topic"
    CREATE_PARTITIONS = "create partitions"
    DELETE_RECORDS = "delete records"
    ALTER_CONFIGS = "alter configs"
    DELETE_GROUP = "delete group"
    RESET_OFFSETS = "reset offsets"
    DELETE_OFFSETS = "delete offsets"
    ABORT_TRANSACTION = "abort transaction"
    FORGET_SINK = "forget sink"
    REMOVE_MEMBER = "remove member"
    UPDATE_FEATURES = "update features"
    CREATE_ACL = "create acl"
    DELETE_ACL = "delete acl"
    ALTER_USER = "alter user"
    DELETE_USER = "delete user"
    ALTER_QUOTAS = "alter quotas"
    ADD_SHARD = "add shard"
    MOVE_SHARD = "move shard"


class Actor(NamedTuple):
    """Who made the request."""

    principal: str
    """`User:alice`; `Token:admin` for who has the token of the admin listener, `Token:process` for another process of
    the node; empty for a caller of it who has shown nothing that is right, and for commands in the data directory."""
    peer: str
    """Address and port."""
    by: str
    """The protocol: `kafka`, `native`, `http`, or `directory` for a command in the data directory."""
    client_id: str = ""


class TrailUnusable(Exception):
    """The file cannot be opened. The message is one sentence."""


class Trail:
    """Writes the lines of a process."""

    def __init__(
        self,
        file: Path | None = None,
        *,
        follows_links: bool = True,
        says_what_is_missing: bool = True,
        now_s: Callable[[], float] = time.monotonic,
        wall_s: Callable[[], float] = time.time,
    ) -> None:
        """`file` is made if it is missing; without one, lines go to the log. Raises TrailUnusable.

        `follows_links`: the file may be a symbolic link. `says_what_is_missing`: the log says when lines cannot be
        written.
        """
        self._path = file
        self._more_flags = 0 if follows_links else os.O_NOFOLLOW
        self._says_what_is_missing = says_what_is_missing
        self._wall_s = wall_s
        self._refusals = LogLimiter(now_s)
        self._missing = 0
        """Lines that could not be written since the last one that could."""
        self._is_torn = False
        """Whether the last one was written in part: the next one begins on a line of its own."""
        self._descriptor: int | None = None
        self._inode = (0, 0)
        if file is not None:
            try:
                self._open(file)
            except OSError as error:
                is_link = not follows_links and error.errno == errno.ELOOP
                reason = "it is a symbolic link" if is_link else error.strerror or error
                raise TrailUnusable(f"the audit trail {file} (trail.file) cannot be written: {reason}") from error

    def close(self) -> None:
        """Close the file; again does nothing."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None

    def note(
        self, actor: Actor, action: Action, on: str, refused: str | None = None, *, often: bool = False, **more: object
    ) -> bool:
        """Write a line, unless there have been too many; False if it cannot be written.

        `on` is the name of what it was done to; `refused` says in a word why it was not done, None if it was, and
        UNKNOWN if that is not known.

        `often` limits the rate even when it was done, since clients do so all the time. Of `more`, what can be called
        is called if the line is written.
        """
        suppressed = {}
        is_refused = refused not in (None, UNKNOWN)
        if is_refused or often:
            event = f"{action.value}, refused" if is_refused else action.value
            admitted = self._refusals.admit(actor.peer.rpartition(":")[0], event)
            if admitted is None:
                return True
            suppressed = dict(admitted)
        line: dict[str, object] = {
            "action": action.value,
            "on": _bounded(on),
            "outcome": refused or DONE,
            "principal": actor.principal,
            "peer": actor.peer,
            "by": actor.by,
            **({"client_id": actor.client_id} if actor.client_id else {}),
            **{name: _bounded(value() if callable(value) else value) for name, value in more.items()},
            **suppressed,
        }
        if self._path is None:
            log.info("trail", **line)
            return True
        at = datetime.fromtimestamp(self._wall_s(), UTC).isoformat(timespec="milliseconds")
        return self._write(self._path, {"time": at.replace("+00:00", "Z"), **line})

    def _write(self, path: Path, line: dict[str, object]) -> bool:
        if self._missing:
            line["lines_missing"] = self._missing
        data = json.dumps(line, ensure_ascii=False, default=str).encode(errors="replace") + b"\n"
        if self._is_torn:
            data = b"\n" + data
        try:
            self._put(path, data)
        except OSError as error:
            if self._missing == 0 and self._says_what_is_missing:
                log.error("the audit trail is not written", file=str(path), reason=error.strerror or str(error))  # noqa: TRY400
            self._missing += 1
            return False
        if self._missing:
            log.info("the audit trail is written again", file=str(path), lines_missing=self._missing)
        self._missing = 0
        return True

    def _put(self, path: Path, data: bytes) -> None:
        """Raises OSError. The file is opened anew if it was moved away, or could not be opened before."""
        try:
            found = path.stat()
        except FileNotFoundError:
            found = None
        descriptor = self._descriptor
        if descriptor is None or found is None or (found.st_dev, found.st_ino) != self._inode:
            self.close()
            descriptor = self._open(path)
        written = os.write(descriptor, data)
        self._is_torn = 0 < written < len(data) or (self._is_torn and written == 0)
        if written < len(data):
            raise OSError(f"only {written} of {len(data)} bytes were taken")

    def _open(self, path: Path) -> int:
        descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | self._more_flags, 0o600)
        opened = os.fstat(descriptor)
        self._descriptor, self._inode = descriptor, (opened.st_dev, opened.st_ino)
        return descriptor


def _bounded(value: object) -> object:
    """A text or a list that is not longer than a line should be."""
    if isinstance(value, str):
        cut = value[:TEXT_CHARACTERS_MAX]
        return cut if len(cut) == len(value) else f"{cut}… ({len(value)} characters)"
    if isinstance(value, list | tuple):
        items = cast("Sequence[object]", value)
        cut_items = [_bounded(item) for item in items[:ITEMS_MAX]]
        return cut_items if len(items) <= ITEMS_MAX else [*cut_items, f"… ({len(items)} in all)"]
    return value


_trail = Trail()


def set_up(file: Path | None) -> None:
    """Write to `file` from now on; None: to the log. Once, before the node starts. Raises TrailUnusable."""
    global _trail  # noqa: PLW0603 (like the log, it is the process' own)
    opened = Trail(file)
    _trail.close()
    _trail = opened


def note(
    actor: Actor, action: Action, on: str, refused: str | None = None, *, often: bool = False, **more: object
) -> None:
    """See `Trail.note`."""
    _trail.note(actor, action, on, refused, often=often, **more)
