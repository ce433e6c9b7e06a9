"""The secret by which the processes of a data directory know each other: `broker-secret`, 32 random bytes as hex text.

The file is readable by the node's user alone (0600), and is written under another name and then renamed. Who can read
it can speak for any shard, and so decide transactions; a file that others may read is therefore refused, not mended:
they may have read it. To get another secret, stop all processes, remove the file, and start them.
"""

from __future__ import annotations

import os
import secrets
import stat
from pathlib import Path

import structlog

from fairlog_types import StorageFailure

FILE_NAME = "broker-secret"

SECRET_BYTES = 32

log = structlog.get_logger()


def load_or_make(data_dir: Path) -> bytes:
    """The secret in `data_dir`'s file, which is made if it is missing: by the one process that has the directory.

    Blocks. Raises StorageFailure, in a sentence, if the file cannot be read or made, or must not be used.
    """
    file = data_dir / FILE_NAME
    try:
        if not file.exists():
            _make(file)
            log.info("broker secret made", file=str(file))
    except OSError as error:
        raise StorageFailure(f"the broker secret {file} cannot be made: {error}") from error
    return load(data_dir)


def load(data_dir: Path) -> bytes:
    """The secret in `data_dir`'s file. Blocks. Raises StorageFailure, as `load_or_make`, and if it is missing."""
    file = data_dir / FILE_NAME
    try:
        with file.open(encoding="ascii") as opened:
            mode = stat.S_IMODE(os.fstat(opened.fileno()).st_mode)
            text = opened.read(2 * SECRET_BYTES + 2).strip()
        secret = bytes.fromhex(text)
    except (OSError, ValueError) as error:
        raise StorageFailure(f"the broker secret {file} cannot be used: {error}") from error
    if mode & 0o077:
        raise StorageFailure(
            f"the broker secret {file} can be read by other users (mode {mode:o}): stop all processes of the data "
            "directory, remove the file, and start them for a new one"
        )
    if len(secret) != SECRET_BYTES:
        raise StorageFailure(
            f"the broker secret {file} has {len(secret)} bytes in place of {SECRET_BYTES}: stop all processes of the "
            "data directory, remove the file, and start them for a new one"
        )
    return secret


def _make(file: Path) -> None:
    draft = file.with_name(f"{file.name}.new")
    draft.unlink(missing_ok=True)  # left by a start that was killed
    descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "w", encoding="ascii") as opened:
        opened.write(secrets.token_hex(SECRET_BYTES) + "\n")
        opened.flush()
        os.fsync(descriptor)
    draft.replace(file)
