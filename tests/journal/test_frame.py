"""The frame codec: what it writes it reads, and it reads nothing else."""

from __future__ import annotations

import cbor2
import pytest
from crc32c import crc32c
from hypothesis import given
from hypothesis import strategies as st

from fairlog_types import JournalPosition, LeaderEpoch
from journal.frame import (
    ALIGNMENT,
    ENVELOPE_BYTES,
    HEADER_BYTES,
    BadFrame,
    Frame,
    claimed_frame_bytes,
    decode_frame_untrusted,
    encode_frame,
)

SALT = 0xC0FFEE
NOW_MS = 1_763_632_800_000

headers = st.lists(
    st.one_of(st.none(), st.booleans(), st.integers(-(2**63), 2**64 - 1), st.binary(max_size=40), st.text(max_size=20)),
    max_size=8,
)
payloads = st.lists(st.binary(max_size=200), max_size=4)
positions = st.integers(0, 2**60).map(lambda n: JournalPosition(n * ALIGNMENT))


def encode(
    position: int = 4096, *, durable: int = 0, payload: bytes = b"payload", salt: int = SALT, kind: int = 3
) -> bytes:
    return b"".join(
        encode_frame(
            position=JournalPosition(position),
            durable=JournalPosition(durable),
            leader_epoch=LeaderEpoch(9),
            timestamp_ms=NOW_MS,
            kind=kind,
            header=[1, b"two"],
            payload=[payload],
            salt=salt,
        )
    )


def decode(data: bytes | bytearray, position: int = 4096, *, salt: int = SALT) -> Frame | BadFrame:
    return decode_frame_untrusted(data, JournalPosition(position), salt=salt)


fields = st.fixed_dictionaries(
    {
        "leader_epoch": st.integers(0, 2**32 - 1),
        "timestamp_ms": st.integers(-(2**63), 2**63 - 1),
        "kind": st.integers(1, 255),
        "header": headers,
        "payload": payloads,
    }
)
salts = st.integers(0, 2**32 - 1)


@given(positions, st.data(), fields, salts)
def test_frame_encoded_decodes_to_the_same(position, data, given, salt) -> None:
    """Every field, the header and the payload come back as they went in, and the length is a multiple of 8."""
    durable = data.draw(st.integers(0, position))
    encoded = b"".join(encode_frame(position=position, durable=durable, salt=salt, **given))
    frame = decode_frame_untrusted(b"before.." + encoded + b"behind", position, salt=salt, offset=8)
    assert isinstance(frame, Frame)
    assert (frame.position, frame.durable, frame.leader_epoch) == (position, durable, given["leader_epoch"])
    assert (frame.timestamp_ms, frame.kind) == (given["timestamp_ms"], given["kind"])
    assert frame.header() == given["header"]
    assert bytes(frame.payload) == b"".join(given["payload"])
    assert frame.end == position + len(encoded)
    assert len(encoded) % ALIGNMENT == 0
    assert encoded[frame.payload_position - position :][: len(frame.payload)] == b"".join(given["payload"])


@given(positions, st.data(), fields, st.tuples(salts, salts).filter(lambda two: two[0] != two[1]))
def test_frame_in_two_segments_differs_in_its_local_envelope_alone(position, data, given, both) -> None:
    """Whatever the salts and the witnesses, the replicated part is the same bytes at the same place, and as long."""
    one, other = (
        b"".join(encode_frame(position=position, durable=data.draw(st.integers(0, position)), salt=salt, **given))
        for salt in both
    )
    assert one[ENVELOPE_BYTES:] == other[ENVELOPE_BYTES:]
    assert decode_frame_untrusted(one, position, salt=both[1]) is BadFrame.CHECK


@given(positions, st.data(), fields, salts)
def test_frame_with_any_byte_changed_is_refused(position, data, given, salt) -> None:
    """No single byte of either part, or of the padding, can change unnoticed, to whatever value."""
    encoded = bytearray(b"".join(encode_frame(position=position, durable=position, salt=salt, **given)))
    at = data.draw(st.integers(0, len(encoded) - 1))
    encoded[at] ^= data.draw(st.integers(1, 255))
    assert isinstance(decode_frame_untrusted(encoded, position, salt=salt), BadFrame)


def test_frame_with_a_large_payload_is_encoded_without_copying_it() -> None:
    """The payload's own buffer stands in the answer."""
    payload = bytearray(100_000)
    buffers = encode_frame(
        position=JournalPosition(0),
        durable=JournalPosition(0),
        leader_epoch=LeaderEpoch(0),
        timestamp_ms=0,
        kind=1,
        header=[],
        payload=[payload],
        salt=0,
    )
    assert any(buffer is payload for buffer in buffers)


def test_frame_with_any_bit_flipped_is_refused() -> None:
    """No single bit of a frame, padding included, can change unnoticed."""
    encoded = encode()
    assert isinstance(decode(encoded), Frame)
    for bit in range(len(encoded) * 8):
        damaged = bytearray(encoded)
        damaged[bit // 8] ^= 1 << bit % 8
        assert isinstance(decode(damaged), BadFrame), f"bit {bit}"


def test_frame_cut_short_anywhere_is_refused() -> None:
    """A frame that is not there to its last byte of padding is none."""
    encoded = encode()
    for length in range(len(encoded)):
        assert decode(encoded[:length]) is BadFrame.SHORT


@pytest.mark.parametrize(
    ("encoded", "position", "salt", "reason"),
    [
        (encode(4096), 4104, SALT, BadFrame.POSITION),
        (encode(4096), 4096, SALT + 1, BadFrame.CHECK),
        (bytes(64), 4096, SALT, BadFrame.POSITION),
        (bytes(64), 0, SALT, BadFrame.SIZE),
        (b"", 0, SALT, BadFrame.SHORT),
    ],
)
def test_frame_of_another_place_or_segment_is_refused(encoded, position, salt, reason) -> None:
    """Neither a frame of another position, nor one of another segment, nor zeros pass for a frame."""
    assert decode(encoded, position, salt=salt) is reason


@given(st.binary(max_size=100))
def test_frame_decoder_given_anything_never_raises(data) -> None:
    """Random bytes are answered with a reason."""
    assert isinstance(decode(data, 0), BadFrame)


def test_frame_claimed_length_counts_padding_and_needs_the_position() -> None:
    """A window reader learns how much to read, and only from what looks like the frame it wants."""
    encoded = encode()
    start = encoded[:HEADER_BYTES]
    assert claimed_frame_bytes(start, JournalPosition(4096)) == len(encoded)
    assert claimed_frame_bytes(start, JournalPosition(4104)) is None
    assert claimed_frame_bytes(start[:-1], JournalPosition(4096)) is None


@pytest.mark.parametrize(
    ("offset", "value"), [(4, 4104), (40, 0), (41, 1)], ids=["durable beyond its position", "kind 0", "reserved byte"]
)
def test_frame_with_an_impossible_field_is_refused(offset: int, value: int) -> None:
    """A frame with right sums is still refused if a field says what no frame says."""
    frame_bytes = HEADER_BYTES + len(cbor2.dumps([1, b"two"])) + len(b"payload")
    changed = bytearray(encode())
    width = 8 if offset == 4 else 1
    changed[offset : offset + width] = value.to_bytes(width, "little")
    changed[12:16] = crc32c(changed[16:frame_bytes]).to_bytes(4, "little")
    changed[:4] = crc32c(changed[4:24], SALT).to_bytes(4, "little")
    assert decode(changed) is BadFrame.FIELDS


def test_frame_header_that_is_no_array_raises_value_error() -> None:
    """A checksummed frame whose header is not a CBOR array is called what it is."""
    frame = decode(encode())
    assert isinstance(frame, Frame)
    broken = Frame(frame.position, 0, frame.durable, frame.leader_epoch, 0, 1, memoryview(b"\x01"), memoryview(b""))
    with pytest.raises(ValueError, match="not an array"):
        broken.header()
    broken = Frame(frame.position, 0, frame.durable, frame.leader_epoch, 0, 1, memoryview(b"\x81"), memoryview(b""))
    with pytest.raises(ValueError, match="not CBOR"):
        broken.header()
