"""The token that changing calls need: from the settings, or from a file that is created at the first start.

The file `admin-token` in the data directory has one line, is readable by the node's user alone (0600), and is written
under another name and then renamed. A user that can read it can stop the node anyway. To change the token, delete the
file and restart the node.
"""

from __future__ import annotations

import hmac
import os
import secrets
import stat
from pathlib import Path

import structlog

from fairlog.config_values import SECRET_CHARACTERS_MIN
from fairlog_types import StorageFailure

FILE_NAME = "admin-token"

log = structlog.get_logger()


def load_or_make(data_dir: Path) -> str:
    """The token in `data_dir`'s file, which is made if it is missing. Blocks.

    Raises StorageFailure, in a sentence, if the file cannot be read or made, or holds no token.
    """
    file = data_dir / FILE_NAME
    try:
        if not file.exists():
            _make(file)
            log.info("admin token made", file=str(file))
        mode = stat.S_IMODE(file.stat().st_mode)
        if mode & 0o077:
            log.warning("admin token could be read by others; change it", file=str(file), mode=oct(mode))
            file.chmod(0o600)
        token = file.read_text(encoding="ascii").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise StorageFailure(f"the admin token {file} cannot be used: {error}") from error
    if len(token) < SECRET_CHARACTERS_MIN:
        raise StorageFailure(
            f"the admin token {file} has fewer than {SECRET_CHARACTERS_MIN} characters: remove the file for a new one"
        )
    return token


def _make(file: Path) -> None:
    draft = file.with_name(f"{file.name}.new")
    draft.unlink(missing_ok=True)  # left by a start that was killed
    descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "w", encoding="ascii") as opened:
        opened.write(secrets.token_urlsafe(24) + "\n")
        opened.flush()
        os.fsync(descriptor)
    draft.replace(file)


def reading_key(token: str) -> str:
    """What the node's processes show each other: it is made of the token, which stays at home, and lets see only."""
    return hmac.digest(token.encode(), b"another process of the node", "sha256").hex()


def matches(token: str, given: str) -> bool:
    """Whether `given` is the token; in a time that does not tell how much of it is right."""
    return hmac.compare_digest(token.encode(), given.encode())
