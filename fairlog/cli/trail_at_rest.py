"""Lines of the audit trail for commands that change the files of a node that does not run.

A node that runs writes the line itself, whoever asks it. Here the command does, if its settings say where the node's
trail is (`trail.file`, by `--config` or the environment). A trail that cannot be opened refuses the change, as it
refuses the start of a node. If the line cannot be written afterwards, because the disk is full, the command fails and
says that the change was made. A trail that is made by root belongs to whom the data directory belongs to, like what a
node makes. Root follows no link to it: whoever owns the trail's directory would choose a file of root's.
"""

from __future__ import annotations

import os
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fairlog.cli.errors import ClientError
from fairlog.config import Settings
from fairlog.trail import UNKNOWN, Action, Actor, Trail, TrailUnusable
from fairlog_types import StorageFailure

_OWNER = Actor("", "", "directory")


@dataclass(slots=True)
class Noted:
    """What the line is about."""

    on: str


@contextmanager
def noted(settings: Settings, action: Action, on: str, **more: Any) -> Generator[Noted]:
    """Write a line of what is done inside, if there is a trail: as refused if it raises ClientError, as unknown if the
    disk was the reason, or anything else has cut it short.

    Raises ClientError: before anything is done, if the trail cannot be opened; afterwards, if it has no line of what
    was done.
    """
    what = Noted(on)
    if settings.trail.file is None:
        yield what
        return
    trail = _opened(settings)
    try:
        yield what
    except ClientError as error:
        if isinstance(error.__cause__, StorageFailure):
            trail.note(_OWNER, action, what.on, UNKNOWN, **more, reason=str(error))
        else:
            trail.note(_OWNER, action, what.on, str(error), **more)
        raise
    except BaseException:
        trail.note(_OWNER, action, what.on, UNKNOWN, **more)
        raise
    else:
        if not trail.note(_OWNER, action, what.on, **more):
            raise ClientError(
                f"{action.value} {what.on}: done, but the audit trail {settings.trail.file} (trail.file) cannot be "
                "written, and has no line of it"
            )
    finally:
        trail.close()


def _opened(settings: Settings) -> Trail:
    file = settings.trail.file
    assert file is not None
    is_root = os.geteuid() == 0
    try:
        if is_root:
            _make_for_owner(file, settings.data_dir)
        return Trail(file, follows_links=not is_root, says_what_is_missing=False)
    except (OSError, TrailUnusable) as error:
        raise ClientError(f"{error}; nothing was changed") from error


def _make_for_owner(file: Path, data_dir: Path) -> None:
    """Make the file, if there is nothing of its name. Raises OSError."""
    owner = data_dir.stat()
    try:
        made = os.open(file, os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_WRONLY | os.O_CLOEXEC, 0o600)
    except FileExistsError:
        return
    try:
        os.fchown(made, owner.st_uid, owner.st_gid)
    finally:
        os.close(made)
