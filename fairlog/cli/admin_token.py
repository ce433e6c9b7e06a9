"""The admin listener of a node on this machine, and its token, for calls that need it."""

from __future__ import annotations

from fairlog.cli import admin_client
from fairlog.cli.errors import ClientError
from fairlog.config import Settings


def own_listener(settings: Settings) -> str | None:
    """Where the node with these settings listens, as `admin_client` takes it; None if it does not."""
    admin = settings.admin
    if admin.listen is None:
        return None
    return f"https://{admin.listen}" if admin.protocol.is_encrypted else str(admin.listen)


def token_or_user(settings: Settings, admin: str, what: str, *, is_own: bool) -> str | None:
    """The token for the listener `admin`; None if the client properties have a user for it, and nothing says that the
    data directory is that node's (`is_own`). `what` needs it, for messages. Raises ClientError.
    """
    if settings.admin.token is None and not is_own and admin_client.has_user(admin):
        return None
    return token_of(settings, what)


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
