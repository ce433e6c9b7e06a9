"""How the last run of a node ended: did everything that it had written survive?

`DATA/last-run` holds two words: the system's boot id when the run began, and `open` or `closed`. What was
appended to a journal and not flushed survives if the node was closed in good order (it flushes first), or
if only its process died: the page cache belongs to the system, which lives on under the same boot id. After
a power loss, or where the system has no boot id, it may be gone.

The coordinator wants to know (docs/decisions): only with a tail that was kept can it tell which
transactional ids had a transaction open.

A run begins, for this file, when the node has recovered and before it serves: a crash in the midst of
recovery leaves the answer as it was.
"""

from __future__ import annotations

import os
from pathlib import Path

_FILE = "last-run"
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
_NO_BOOT_ID = "unknown"


def tail_kept(directory: Path) -> bool:
    """Is all that the last run wrote still there? A directory that was never used has lost nothing.

    Journals without the file are what a copy that left it out has, or a first start that was cut short: then
    nothing is known. Raises OSError if the file is there and cannot be read.
    """
    try:
        boot_id, ended = (directory / _FILE).read_text(encoding="ascii").split()
    except FileNotFoundError:
        return not (directory / "journals").exists()
    except ValueError:
        return False  # not what we write: then nothing is known, and that is the safe answer
    return ended == "closed" or (boot_id == _boot_id() and boot_id != _NO_BOOT_ID)


def begin_run(directory: Path) -> None:
    """Note that a run has begun to serve. Raises OSError."""
    _write(directory, f"{_boot_id()} open\n")


def end_run(directory: Path) -> None:
    """Note that the run ended in good order, after everything was flushed and closed. Raises OSError."""
    _write(directory, f"{_boot_id()} closed\n")


def _boot_id() -> str:
    try:
        return _BOOT_ID.read_text(encoding="ascii").strip() or _NO_BOOT_ID
    except OSError:
        return _NO_BOOT_ID


def _write(directory: Path, text: str) -> None:
    draft = directory / f"{_FILE}.new"
    with draft.open("w", encoding="ascii") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    draft.replace(directory / _FILE)
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
