"""The admin token of a node on this machine, for calls that need it."""

from __future__ import annotations

from fairlog.cli.errors import ClientError
from fairlog.config import Settings


def token_of(settings: Settings, what: str) -> str:
    """The token in the settings, or in the data directory. `what` needs it, for messages. Raises ClientError."""
    from fairlog.admin_http.admin_token import FILE_NAME

    if settings.admin.token is not None:
        return settings.admin.token.text
    file = settings.data_dir / FILE_NAME
    try:
        return file.read_text(encoding="ascii").strip()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is no token"
        raise ClientError(
            f"{what} needs the admin token of the node that is asked, and {file} cannot be read: {reason}; name the "
            "node's data directory with --data-dir, or set FAIRLOG_ADMIN_TOKEN"
        ) from error
