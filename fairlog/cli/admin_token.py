"""The admin token of a node on this machine, for calls that need it."""

from __future__ import annotations

from fairlog.cli.admin_client import AdminListener
from fairlog.cli.errors import ClientError
from fairlog.config import Settings


def token_or_user(settings: Settings, admin: AdminListener, what: str, *, is_own: bool) -> str | None:
    """The token for the listener `admin`; None if the client properties have a user for it, and nothing says that the
    data directory is that node's. `what` needs it, for messages. Raises ClientError.

    `is_own`: the data directory of `settings` is said to be that of the node, which may get its token then. Nobody else
    may: the one that is named may be anybody.
    """
    if settings.admin.token is not None or is_own:
        return token_of(settings, what)
    if admin.has_user:
        return None
    raise ClientError(
        f"{what} needs the admin token of the node that is asked: name its data directory with --data-dir, or set "
        "FAIRLOG_ADMIN_TOKEN; or name its listener as https://HOST:PORT, and a user with a password in "
        "--client-properties (an admin listener takes no token of an issuer)"
    )


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
