"""Lines of the audit trail for commands that change the files of a node that does not run.

A node that runs writes the line itself, whoever asks it. Here the command does, if its settings say where the node's
trail is (`trail.file`, by `--config` or the environment). A trail that cannot be written refuses the change, as it
refuses the start of a node. One that is made by root belongs to whom the data directory belongs to, like what a node
makes.
"""

from __future__ import annotations

import os
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
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
    disk was the reason.

    Raises ClientError, before anything is done, if the trail cannot be written.
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
    else:
        trail.note(_OWNER, action, what.on, **more)
    finally:
        trail.close()


def _opened(settings: Settings) -> Trail:
    file = settings.trail.file
    assert file is not None
    is_new = not file.exists()
    try:
        trail = Trail(file)
        if is_new and os.geteuid() == 0:
            owner = settings.data_dir.stat()
            os.chown(file, owner.st_uid, owner.st_gid)
    except (OSError, TrailUnusable) as error:
        raise ClientError(f"{error}; nothing was changed") from error
    return trail
