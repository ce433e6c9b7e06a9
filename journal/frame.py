"""One frame of a journal: its bytes, and when bytes are a frame.

A frame is a 32-byte header, a CBOR array (the record's fields), a payload (a batch, opaque) and zeros up
to the next multiple of 8 (docs/formats/journal-segment.md):

    crc32c u32 | frame_bytes u32 | position u64 | durable u64 | leader_epoch u32 | kind u8 | 0 u8 | cbor_bytes u16

Two of the fields are there for the reader who comes after a crash. `position` is the frame's own place, so
a frame that lies where it was not written is not a frame, and later frames can be found behind a hole by
looking for words that equal their own position. `durable` is the position through which the journal was
known to be on disk when the frame was written: a *witness* that everything before it must be there
(`recovery` decides by it). The checksum starts from the segment's salt, so neither a batch that a client
made to look like a frame nor a frame left over from another segment can pass for one of ours.

Kinds are opaque here, but for 0, which no frame has (zeros must never be a frame), and `CLOSE`.
Pure: no I/O. A payload is never copied when encoding, and is a view of the buffer when decoding.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple, cast

import cbor2
from crc32c import crc32c

from fairlog_types import JournalPosition, LeaderEpoch

Buffer = bytes | bytearray | memoryview

HEADER = struct.Struct("<IIQQIBBH")
HEADER_BYTES = 32
assert HEADER.size == HEADER_BYTES
_AFTER_CRC = struct.Struct("<IQQIBBH")
_CRC = struct.Struct("<I")
_CRC_BYTES = 4

ALIGNMENT = 8
"""Frames begin at multiples of it, so that a search for frames looks at one word in eight."""

CBOR_BYTES_MAX = 0xFFFF
FRAME_BYTES_MAX = 0xFFFF_FFFF - ALIGNMENT

LARGE_FRAME_BYTES = 512 * 1024
"""From this size on room for a frame is allocated rather than filled with zeros, and its memory in the page cache is
given back when it has been copied: what either costs by the frame is less than what it saves by the byte
(docs/decisions/0034-large-frames.md)."""

CLOSE = 0xFF
"""The kind of the frame that a clean close leaves behind: the witness that all before it is on disk."""

_PADDING = tuple(bytes(n) for n in range(ALIGNMENT))


def padded(frame_bytes: int) -> int:
    """What a frame of `frame_bytes` takes up in its segment, in bytes."""
    return frame_bytes + -frame_bytes % ALIGNMENT


def encode_frame(
    *,
    position: JournalPosition,
    durable: JournalPosition,
    leader_epoch: LeaderEpoch,
    kind: int,
    header: Sequence[object],
    payload: Sequence[Buffer] = (),
    salt: int,
) -> list[Buffer]:
    """Encode one frame as buffers to be written one behind the other; their total is a multiple of 8.

    `kind` is 1…255, `header` the record's fields (anything that CBOR carries, at most 65,535 bytes encoded),
    `payload` the buffers that follow, of which no copy is made. `salt` is the u32 of the segment.
    """
    assert 0 < kind <= 0xFF, kind
    assert durable <= position, (durable, position)
    cbor = cbor2.dumps(header)
    assert len(cbor) <= CBOR_BYTES_MAX, f"a frame's header of {len(cbor)} bytes; at most {CBOR_BYTES_MAX}"
    payload_bytes = sum(map(len, payload))
    frame_bytes = HEADER_BYTES + len(cbor) + payload_bytes
    assert frame_bytes <= FRAME_BYTES_MAX, frame_bytes
    head = _AFTER_CRC.pack(frame_bytes, position, durable, leader_epoch, kind, 0, len(cbor)) + cbor
    crc = crc32c(head, salt)
    for part in payload:
        crc = crc32c(part, crc)
    padding = _PADDING[-frame_bytes % ALIGNMENT]
    if not payload_bytes:
        return [_CRC.pack(crc) + head + padding]
    return [_CRC.pack(crc) + head, *payload, padding]


@dataclass(frozen=True, slots=True)
class Frame:
    """A valid frame. `cbor` and `payload` are views of the buffer it was decoded from."""

    position: JournalPosition
    frame_bytes: int
    """Unpadded: header, CBOR and payload."""
    durable: JournalPosition
    leader_epoch: LeaderEpoch
    kind: int
    cbor: memoryview
    payload: memoryview

    @property
    def end(self) -> JournalPosition:
        """The position behind the frame and its padding: where the next frame begins."""
        return JournalPosition(self.position + padded(self.frame_bytes))

    @property
    def payload_position(self) -> JournalPosition:
        """Where the payload's first byte lies."""
        return JournalPosition(self.position + self.frame_bytes - len(self.payload))

    def header(self) -> list[object]:
        """The record's fields. Raises ValueError if they are not a CBOR array (with a right checksum: our bug)."""
        try:
            fields: object = cbor2.loads(self.cbor)
        except cbor2.CBORDecodeError as error:
            raise ValueError(f"the frame at {self.position} has a header that is not CBOR: {error}") from error
        if isinstance(fields, list):
            return cast("list[object]", fields)
        raise ValueError(f"the frame at {self.position} has a header that is not an array")


class BadFrame(Enum):
    """Why bytes are not a frame; the value completes "the bytes at … are not a frame: …"."""

    SHORT = "the buffer ends inside it"
    SIZE = "its length is impossible"
    POSITION = "it names another position"
    CHECKSUM = "its checksum is wrong"
    FIELDS = "a field has an impossible value"
    PADDING = "its padding is not zero"


class FrameHead(NamedTuple):
    """What the header of a valid frame says."""

    frame_bytes: int
    """Unpadded: header, CBOR and payload."""
    durable: int
    leader_epoch: int
    kind: int
    cbor_bytes: int


def decode_frame_untrusted(
    buffer: Buffer, position: JournalPosition, *, salt: int, offset: int = 0
) -> Frame | BadFrame:
    """Decode the frame that should begin at `buffer[offset]`, which is `position` of the journal.

    It is valid if and only if `check_frame_untrusted` says so. Never raises.
    """
    view = memoryview(buffer)
    head = check_frame_untrusted(view, position, salt=salt, offset=offset)
    if isinstance(head, BadFrame):
        return head
    cbor_start = offset + HEADER_BYTES
    return Frame(
        position=position,
        frame_bytes=head.frame_bytes,
        durable=JournalPosition(head.durable),
        leader_epoch=LeaderEpoch(head.leader_epoch),
        kind=head.kind,
        cbor=view[cbor_start : cbor_start + head.cbor_bytes],
        payload=view[cbor_start + head.cbor_bytes : offset + head.frame_bytes],
    )


def check_frame_untrusted(
    view: memoryview, position: JournalPosition, *, salt: int, offset: int = 0
) -> FrameHead | BadFrame:
    """Whether a frame begins at `view[offset]`, which is `position` of the journal; what its header says.

    It is valid if and only if: (1) it lies whole in the buffer, padding included; (2) its length holds at least
    the header and the CBOR; (3) it names `position`; (4) its checksum, begun with `salt`, is right; (5) its kind is
    not 0, the reserved byte is 0 and `durable` is not beyond `position`; (6) its padding is zeros. Never raises.
    A third of the work of decoding it: a start reads a journal's last segment frame by frame.
    """
    room = len(view) - offset
    if room < HEADER_BYTES:
        return BadFrame.SHORT
    crc, frame_bytes, own_position, durable, leader_epoch, kind, reserved, cbor_bytes = HEADER.unpack_from(view, offset)
    if own_position != position:
        return BadFrame.POSITION
    if not HEADER_BYTES + cbor_bytes <= frame_bytes <= FRAME_BYTES_MAX:
        return BadFrame.SIZE
    if padded(frame_bytes) > room:
        return BadFrame.SHORT
    end = offset + frame_bytes
    if crc32c(view[offset + _CRC_BYTES : end], salt) != crc:
        return BadFrame.CHECKSUM
    if kind == 0 or reserved != 0 or durable > position:
        return BadFrame.FIELDS
    if frame_bytes % ALIGNMENT and any(view[end : offset + padded(frame_bytes)]):
        return BadFrame.PADDING
    return FrameHead(frame_bytes, durable, leader_epoch, kind, cbor_bytes)


def claimed_frame_bytes(buffer: Buffer, position: JournalPosition, *, offset: int = 0) -> int | None:
    """How many bytes, padding included, the frame at `position` claims to take; None if there is no such claim.

    For a reader with a window over a segment: a frame that is `SHORT` in the window is read again with this length.
    """
    if len(buffer) - offset < HEADER_BYTES:
        return None
    _, frame_bytes, own_position, *_ = HEADER.unpack_from(buffer, offset)
    return padded(frame_bytes) if own_position == position and frame_bytes >= HEADER_BYTES else None
