"""Through which entry of its stream a shard's directory holds everything: the file `stream-mark`.

    FLSM | version u8 | 3 zeros | checksum u32 | CBOR [stream, position, epoch, owner, sequence, chain, handed over]

All frames that were accepted up to there are in the journals, on disk. A start reads the stream from there on. The file
is replaced as a whole, after the journals were synced. Format: docs/formats/stream-mark.md.

Blocking; for a worker thread.
"""

from __future__ import annotations

import os
import struct
from pathlib import Path
from typing import cast

import cbor2
from crc32c import crc32c

from fairlog_types import CorruptStorage, LeaderEpoch
from journal.segment_file import OpenFile, read_range, sync_directory, write_all
from stream.engine import StreamPosition
from stream.entry import Owner
from stream.fold import FoldState

MAGIC = b"FLSM"
_VERSION = 1
_HEAD = struct.Struct("<4sB3xI")


def encode_mark(stream: str, state: FoldState) -> bytes:
    """The content of the file."""
    owner = None if state.owner is None else list(state.owner)
    body = cbor2.dumps(
        [
            stream,
            state.position,
            state.epoch,
            owner,
            state.sequence,
            state.chain,
            state.handed_over,
        ]
    )
    return _HEAD.pack(MAGIC, _VERSION, crc32c(body)) + body


def write_mark(path: Path, stream: str, state: FoldState) -> None:
    """Replace the mark at `path`, on disk when this returns. Raises OSError; then the old one is there, or the new."""
    draft = path.with_suffix(".new")
    file = OpenFile(draft, os.O_WRONLY | os.O_CREAT)
    os.ftruncate(file.fd, 0)
    write_all(file.fd, encode_mark(stream, state), 0)
    os.fsync(file.fd)
    draft.rename(path)
    sync_directory(path.parent)


def read_mark(path: Path, stream: str) -> FoldState | None:
    """The mark at `path`; None if there is none.

    Raises CorruptStorage if it is damaged, or if the directory belongs to another stream; OSError.
    """
    try:
        file = OpenFile(path, os.O_RDONLY)
    except FileNotFoundError:
        return None
    state = decode_mark_untrusted(bytes(read_range(file.fd, 0, os.fstat(file.fd).st_size)))
    if state is None:
        raise CorruptStorage(f"{path} is damaged. Move the shard's directory away: it is made again from another copy")
    found, mark = state
    if found != stream:
        raise CorruptStorage(
            f"{path}: the shard's directory is a copy of the stream {found}, not of {stream}. Move it away, or start "
            "with the cluster that it belongs to"
        )
    return mark


def decode_mark_untrusted(data: bytes) -> tuple[str, FoldState] | None:
    """The stream's name and the state, of the content of a file; None if it is not what was written."""
    if len(data) < _HEAD.size:
        return None
    magic, version, checksum = _HEAD.unpack_from(data)
    body = data[_HEAD.size :]
    if (magic, version, checksum) != (MAGIC, _VERSION, crc32c(body)):
        return None
    match cast("object", cbor2.loads(body)):
        case [
            str(stream),
            int(position),
            int(epoch),
            None | [str(), bytes()] as owner,
            int(sequence),
            int(chain),
            bool(handed_over),
        ]:
            return stream, FoldState(
                StreamPosition(position),
                LeaderEpoch(epoch),
                None if owner is None else Owner(*cast("tuple[str, bytes]", owner)),
                sequence,
                chain,
                handed_over,
            )
        case _:
            return None
