"""PLAIN (RFC 4616): the name and the password themselves, in one message. The message is read here. Pure."""

from __future__ import annotations

from typing import NamedTuple

from fairlog.security.exchange import Refused, shown
from fairlog.security.users import NAME_CHARACTERS_MAX

PASSWORD_BYTES_MAX = 1024


class NameAndPassword(NamedTuple):
    """What a client has sent."""

    name: str
    password: str

    def __repr__(self) -> str:
        return f"NameAndPassword({self.name!r})"


def parse_untrusted(message: bytes) -> NameAndPassword:
    """Read `[authzid] NUL name NUL password`. Raises Refused, which does not quote the message.

    As in Kafka, an authorization id may be left out, or be the name.
    """
    parts = message.split(b"\0", 3)
    if len(parts) != 3:
        raise Refused("a PLAIN message that is not [authzid] NUL name NUL password")
    try:
        authorization_id, name, password = (part.decode() for part in parts)
    except UnicodeDecodeError:
        raise Refused("a PLAIN message is not UTF-8") from None
    if authorization_id not in ("", name):
        raise Refused("somebody else's authorization id", shown(name))
    return of_possible_lengths_untrusted(name, password)


def of_possible_lengths_untrusted(name: str, password: str) -> NameAndPassword:
    """What may be a name and a password. Raises Refused, also for what is no text in UTF-8."""
    try:
        name.encode()
        password_bytes = len(password.encode())
    except UnicodeEncodeError:
        raise Refused("a name or a password with half a character") from None
    if not 0 < len(name) <= NAME_CHARACTERS_MAX or not 0 < password_bytes <= PASSWORD_BYTES_MAX:
        raise Refused("a name or a password that is longer than there are, or empty", shown(name))
    return NameAndPassword(name, password)
