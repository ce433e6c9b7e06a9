"""One frame of a journal: its bytes, and when bytes are a frame.

A frame is a local envelope and a replicated part, then zeros up to the next multiple of 8
(docs/formats/journal-segment.md):

    check u32 | durable u64                                                                  local envelope, 12 bytes
    crc32c u32 | position u64 | timestamp_ms i64 | length u32 | leader_epoch u32 | kind u8 | 0 u8 | cbor_bytes u16
    | CBOR, the record's fields | payload, opaque                                            replicated part

The *replicated part* is the same, byte for byte, in every copy of a journal. `position` is the frame's own place, so
a frame that lies where it was not written is not a frame, and later frames can be found after a hole by looking for
words that equal their own position. `timestamp_ms` is the writer's clock: no reader needs a clock of its own.

The *local envelope* is this file's. `durable` is the position through which this node's journal was known to be on disk
when the frame was written: a *witness* that everything before it must be there (`recovery` decides by it). `check`
starts from the segment's salt, so neither a batch that a client made to look like a frame nor a frame left over from
another segment can pass for one of ours. It covers the witness and the replicated part's checksum, so a payload is
summed once.

Kinds are opaque here, but for 0, which no frame has: zeros must never be a frame.
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

HEADER = struct.Struct("<IQIQqIIBBH")
"""Both parts of a frame, up to its CBOR."""
HEADER_BYTES = 44
assert HEADER.size == HEADER_BYTES
ENVELOPE_BYTES = 12
"""The local envelope; the replicated part follows."""
REPLICATED_HEADER_BYTES = HEADER_BYTES - ENVELOPE_BYTES
POSITION_OFFSET = 16
"""Where in a frame its position stands."""

_AFTER_CHECKSUM = struct.Struct("<QqIIBxH")
_CHECKED = struct.Struct("<QIQ")
_ENVELOPE = struct.Struct("<IQ")
assert _ENVELOPE.size == ENVELOPE_BYTES
_REPLICATED = struct.Struct("<IQqIIBBH")
assert _REPLICATED.size == REPLICATED_HEADER_BYTES
_REPLICATED_START = struct.Struct("<IQ")
_CHECKSUM_BYTES = 4
_JOINED_BYTES_MAX = 512
"""Up to this size a copy costs less than one buffer more to write."""
_CHECK_BYTES = 4
_CHECKED_END = _CHECK_BYTES + _CHECKED.size

ALIGNMENT = 8
"""Frames begin at multiples of it, so that a search for frames looks at one word in eight."""

CBOR_BYTES_MAX = 0xFFFF
REPLICATED_BYTES_MAX = 0xFFFF_FFFF

LARGE_FRAME_BYTES = 512 * 1024
"""From this size on room for a frame is allocated rather than filled with zeros, and its memory in the page cache is
given back when it has been copied: what either costs by the frame is less than what it saves by the byte
(docs/decisions/0034-large-frames.md)."""

_PADDING = tuple(bytes(n) for n in range(ALIGNMENT))


def padded(frame_bytes: int) -> int:
    """What a frame of `frame_bytes` takes up in its segment, in bytes."""
    return frame_bytes + -frame_bytes % ALIGNMENT


def encode_frame(
    *,
    position: JournalPosition,
    durable: JournalPosition,
    leader_epoch: LeaderEpoch,
    timestamp_ms: int,
    kind: int,
    header: Sequence[object],
    payload: Sequence[Buffer] = (),
    salt: int,
) -> list[Buffer]:
    """Encode one frame as buffers to be written one after the other; their total is a multiple of 8.

    As `encode_replicated`. `durable` and `salt`, the u32 of the segment, go into the local envelope.
    """
    replicated = encode_replicated(
        position=position,
        leader_epoch=leader_epoch,
        timestamp_ms=timestamp_ms,
        kind=kind,
        header=header,
        payload=payload,
    )
    return in_envelope(replicated, position=position, durable=durable, salt=salt)


def encode_replicated(
    *,
    position: JournalPosition,
    leader_epoch: LeaderEpoch,
    timestamp_ms: int,
    kind: int,
    header: Sequence[object],
    payload: Sequence[Buffer] = (),
) -> list[Buffer]:
    """Encode the replicated part of a frame, as buffers to be written one after the other; the first has the head.

    `kind` is 1…255, `header` the record's fields (anything that CBOR carries, at most 65,535 bytes encoded),
    `payload` the buffers that follow, of which no copy is made.
    """
    assert 0 < kind <= 0xFF, kind
    cbor = cbor2.dumps(header)
    cbor_bytes = len(cbor)
    assert cbor_bytes <= CBOR_BYTES_MAX, f"a frame's header of {cbor_bytes} bytes; at most {CBOR_BYTES_MAX}"
    length = REPLICATED_HEADER_BYTES + cbor_bytes + (sum(map(len, payload)) if payload else 0)
    assert length <= REPLICATED_BYTES_MAX, length
    summed = _AFTER_CHECKSUM.pack(position, timestamp_ms, length, leader_epoch, kind, cbor_bytes) + cbor
    crc = crc32c(summed)
    for part in payload:
        crc = crc32c(part, crc)
    return [crc.to_bytes(4, "little") + summed, *payload]


def in_envelope(
    replicated: Sequence[Buffer], *, position: JournalPosition, durable: JournalPosition, salt: int
) -> list[Buffer]:
    """A frame of this file, of its replicated part, whose first buffer has the head. Large parts are not copied."""
    crc, own_position = _REPLICATED_START.unpack_from(replicated[0])
    assert durable <= position == own_position, (durable, position, own_position)
    check = crc32c(_CHECKED.pack(durable, crc, position), salt)
    length = sum(map(len, replicated))
    padding = _PADDING[-(ENVELOPE_BYTES + length) % ALIGNMENT]
    envelope = _ENVELOPE.pack(check, durable)
    if length <= _JOINED_BYTES_MAX:
        return [b"".join((envelope, *replicated, padding))]
    return [envelope, *replicated, padding]


@dataclass(frozen=True, slots=True)
class Frame:
    """A valid frame. `cbor` and `payload` are views of the buffer it was decoded from."""

    position: JournalPosition
    frame_bytes: int
    """Unpadded: both parts."""
    durable: JournalPosition
    leader_epoch: LeaderEpoch
    timestamp_ms: int
    kind: int
    cbor: memoryview
    payload: memoryview

    @property
    def end(self) -> JournalPosition:
        """The position after the frame and its padding: where the next frame begins."""
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
    CHECK = "its local check is wrong"
    CHECKSUM = "its checksum is wrong"
    FIELDS = "a field has an impossible value"
    PADDING = "its padding is not zero"


class FrameHead(NamedTuple):
    """What the header of a valid frame says."""

    frame_bytes: int
    """Unpadded: both parts."""
    durable: int
    leader_epoch: int
    timestamp_ms: int
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
        timestamp_ms=head.timestamp_ms,
        kind=head.kind,
        cbor=view[cbor_start : cbor_start + head.cbor_bytes],
        payload=view[cbor_start + head.cbor_bytes : offset + head.frame_bytes],
    )


def check_frame_untrusted(
    view: memoryview, position: JournalPosition, *, salt: int, offset: int = 0
) -> FrameHead | BadFrame:
    """Whether a frame begins at `view[offset]`, which is `position` of the journal; what its header says.

    It is valid if and only if: (1) it lies whole in the buffer, padding included; (2) its length holds at least
    the header and the CBOR; (3) it names `position`; (4) its check, begun with `salt`, is right; (5) its checksum is
    right; (6) its kind is not 0, the reserved byte is 0 and `durable` is not beyond `position`; (7) its padding is
    zeros. Never raises.
    A third of the work of decoding it: a start reads a journal's last segment frame by frame.
    """
    room = len(view) - offset
    if room < HEADER_BYTES:
        return BadFrame.SHORT
    check, durable, crc, own_position, timestamp_ms, length, leader_epoch, kind, reserved, cbor_bytes = (
        HEADER.unpack_from(view, offset)
    )
    if own_position != position:
        return BadFrame.POSITION
    if length < REPLICATED_HEADER_BYTES + cbor_bytes:
        return BadFrame.SIZE
    frame_bytes = ENVELOPE_BYTES + length
    if padded(frame_bytes) > room:
        return BadFrame.SHORT
    end, after_checksum = offset + frame_bytes, offset + POSITION_OFFSET
    if crc32c(view[offset + _CHECK_BYTES : offset + _CHECKED_END], salt) != check:
        return BadFrame.CHECK
    if crc32c(view[after_checksum:end]) != crc:
        return BadFrame.CHECKSUM
    if kind == 0 or reserved != 0 or durable > position:
        return BadFrame.FIELDS
    if frame_bytes % ALIGNMENT and any(view[end : offset + padded(frame_bytes)]):
        return BadFrame.PADDING
    return FrameHead(frame_bytes, durable, leader_epoch, timestamp_ms, kind, cbor_bytes)


def claimed_frame_bytes(buffer: Buffer, position: JournalPosition, *, offset: int = 0) -> int | None:
    """How many bytes, padding included, the frame at `position` claims to take; None if there is no such claim.

    For a reader with a window over a segment: a frame that is `SHORT` in the window is read again with this length.
    """
    if len(buffer) - offset < HEADER_BYTES:
        return None
    _, _, _, own_position, _, length, *_ = HEADER.unpack_from(buffer, offset)
    if own_position != position or length < REPLICATED_HEADER_BYTES:
        return None
    return padded(ENVELOPE_BYTES + length)


def decode_replicated_untrusted(replicated: Buffer) -> Frame | BadFrame:
    """Decode the replicated part of a frame, which is all of these bytes; as a frame that nobody has on disk yet.

    It is valid if and only if its length, its checksum and its fields are, as `check_frame_untrusted` has them. Never
    raises.
    """
    view = memoryview(replicated)
    if len(view) < REPLICATED_HEADER_BYTES:
        return BadFrame.SHORT
    crc, position, timestamp_ms, length, leader_epoch, kind, reserved, cbor_bytes = _REPLICATED.unpack_from(view)
    if length != len(view) or length < REPLICATED_HEADER_BYTES + cbor_bytes:
        return BadFrame.SIZE
    if crc32c(view[_CHECKSUM_BYTES:]) != crc:
        return BadFrame.CHECKSUM
    if kind == 0 or reserved != 0 or position % ALIGNMENT:
        return BadFrame.FIELDS
    payload_start = REPLICATED_HEADER_BYTES + cbor_bytes
    return Frame(
        position=JournalPosition(position),
        frame_bytes=ENVELOPE_BYTES + length,
        durable=JournalPosition(0),
        leader_epoch=LeaderEpoch(leader_epoch),
        timestamp_ms=timestamp_ms,
        kind=kind,
        cbor=view[REPLICATED_HEADER_BYTES:payload_start],
        payload=view[payload_start:],
    )
