"""Records of the node's small stores, whose values are CBOR: what all such stores share. Pure.

A small store is an LMDB environment with records in its main tree, and no tables: such as the
cluster store. Its record `format` identifies it: `[magic, version]`. A reader checks this record first, and refuses
an unknown version.

A value that does not read back as it was written is `CorruptStorage`, never a guess.
"""

from __future__ import annotations

from typing import cast

import cbor2

from fairlog_types import CorruptStorage


def encode_format(magic: str, version: int) -> bytes:
    return cbor2.dumps([magic, version])


def decode_format(value: bytes, magic: str) -> int:
    """The version. Raises CorruptStorage if this is not the format record of a store with this magic."""
    match load(value, "format"):
        case [str(found), int(version)] if found == magic:
            return version
        case other:
            raise CorruptStorage(f"the record 'format' reads {shown(other)}, not [{magic!r}, version]")


def load(value: bytes, name: str) -> object:
    """What the record of this name holds. Raises CorruptStorage if it is not CBOR."""
    try:
        return cast("object", cbor2.loads(value))
    except (cbor2.CBORDecodeError, ValueError) as error:
        raise CorruptStorage(f"the record {name!r} is not CBOR: {error}") from error


def shown(content: object) -> str:
    """What was found in place of what is due, for a message."""
    try:
        return f"{content!r:.1000}"
    except ValueError:
        return "a number of thousands of digits"  # which Python does not print
