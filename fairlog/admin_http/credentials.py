"""Names and passwords as callers of the admin listener send them: in a Basic header, or in a sign-in's body. Pure."""

from __future__ import annotations

import base64
import binascii
import json
from typing import cast

from fairlog.security.exchange import Refused
from fairlog.security.plain import NameAndPassword, of_possible_lengths_untrusted


class BadSignIn(ValueError):
    """A body that is no sign-in. Its text does not quote the body."""


def read_basic_untrusted(shown: str) -> NameAndPassword:
    """Name and password of a Basic header (RFC 7617), in UTF-8. Raises Refused."""
    try:
        name, colon, password = base64.b64decode(shown.strip(), validate=True).decode().partition(":")
    except (binascii.Error, ValueError):
        raise Refused("a Basic header that is not base64 of UTF-8") from None
    if not colon:
        raise Refused("a Basic header that is not NAME:PASSWORD")
    return of_possible_lengths_untrusted(name, password)


def read_sign_in_untrusted(body: bytes) -> tuple[str, str]:
    """Name and password, of any length, of the body of a sign-in. Raises BadSignIn."""
    try:
        document = cast("object", json.loads(body))
    except (ValueError, RecursionError):
        document = None
    match document:
        case {"user": str(name), "password": str(password)}:
            return name, password
        case _:
            raise BadSignIn('the body must be {"user": "…", "password": "…"}')
