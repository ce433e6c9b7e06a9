"""What is said of a peer's bytes when they cannot be what they should be."""

from __future__ import annotations


class Malformed(Exception):
    """The peer's bytes are not a message of the version they claim to be. The message says where."""
