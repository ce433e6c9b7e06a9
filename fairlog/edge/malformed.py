"""The error for a peer's bytes that are not valid."""

from __future__ import annotations


class Malformed(Exception):
    """The peer's bytes are not a message of the version they claim to be. The message says where."""
