"""A journal that gets the frames of another one: the same bytes but for the local envelope, and room for each."""

from __future__ import annotations

import cbor2
import pytest
from crc32c import crc32c
from hypothesis import example, given
from hypothesis import strategies as st

from fairlog_types import JournalPosition, LeaderEpoch, StorageFailure
from journal.frame import (
    ALIGNMENT,
    ENVELOPE_BYTES,
    REPLICATED_HEADER_BYTES,
    BadFrame,
    Frame,
    decode_frame_untrusted,
    decode_replicated_untrusted,
    encode_frame,
    encode_replicated,
    in_envelope,
)
from journal.journal import Fsync, NoRoom
from tests.journals_on_files import numbers

U32 = st.integers(0, 2**32 - 1)
PLACES = st.integers(0, 2**40).map(lambda n: JournalPosition(n * ALIGNMENT))


def replicated(position: int, number: int = 0, payload: bytes = b"payload") -> bytes:
    parts = encode_replicated(
        position=JournalPosition(position),
        leader_epoch=LeaderEpoch(3),
        timestamp_ms=77,
        kind=5,
        header=[number],
        payload=[payload],
    )
    return b"".join(parts)


@given(PLACES, U32, st.integers(-(2**63), 2**63 - 1), st.integers(1, 255), st.binary(max_size=600), U32)
def test_frame_in_an_envelope_is_the_frame_of_that_file(
    position: JournalPosition, epoch: int, timestamp_ms: int, kind: int, payload: bytes, salt: int
) -> None:
    """What is received and written is what would have been appended there; it is read back in either form."""
    fields = {
        "position": position,
        "leader_epoch": LeaderEpoch(epoch),
        "timestamp_ms": timestamp_ms,
        "kind": kind,
        "header": ["a", 1],
        "payload": [payload],
    }
    durable = JournalPosition(position // 2)
    part = b"".join(encode_replicated(**fields))  # type: ignore[arg-type]
    whole = b"".join(in_envelope((part,), position=position, durable=durable, salt=salt))
    assert whole == b"".join(encode_frame(**fields, durable=durable, salt=salt))  # type: ignore[arg-type]
    assert whole[ENVELOPE_BYTES : ENVELOPE_BYTES + len(part)] == part
    frame, received = decode_frame_untrusted(whole, position, salt=salt), decode_replicated_untrusted(part)
    assert isinstance(frame, Frame)
    assert isinstance(received, Frame)
    assert (received.position, received.end, received.frame_bytes) == (position, frame.end, frame.frame_bytes)
    assert (received.leader_epoch, received.timestamp_ms, received.kind) == (epoch, timestamp_ms, kind)
    assert (received.header(), bytes(received.payload)) == (["a", 1], payload)
    assert received.payload_position == frame.payload_position


@given(st.binary(max_size=80))
@example(replicated(64))
@example(replicated(64)[:-1])
def test_replicated_part_of_any_bytes_is_decoded_without_an_error(data: bytes) -> None:
    """Whatever an entry holds, decoding it answers."""
    frame = decode_replicated_untrusted(data)
    if isinstance(frame, Frame):
        assert len(data) == frame.frame_bytes - ENVELOPE_BYTES


def test_replicated_part_with_any_bit_flipped_is_none() -> None:
    """The checksum covers all of it, and is covered by itself."""
    part = replicated(64, 9, b"some bytes of a payload")
    for bit in range(len(part) * 8):
        flipped = bytearray(part)
        flipped[bit // 8] ^= 1 << bit % 8
        assert isinstance(decode_replicated_untrusted(flipped), BadFrame), bit


def _summed(part: bytes, at: int, to: int) -> bytes:
    """The part with another byte, and the checksum that fits."""
    changed = part[:at] + bytes([to]) + part[at + 1 :]
    return crc32c(changed[4:]).to_bytes(4, "little") + changed[4:]


@pytest.mark.parametrize(
    ("part", "why"),
    [
        (replicated(64)[: REPLICATED_HEADER_BYTES - 1], BadFrame.SHORT),
        (replicated(64) + b"\0", BadFrame.SIZE),
        (replicated(64)[:-1], BadFrame.SIZE),
        (_summed(replicated(64), 30, 0xFF), BadFrame.SIZE),
        (replicated(64)[:-1] + b"?", BadFrame.CHECKSUM),
        (_summed(replicated(64), 28, 0), BadFrame.FIELDS),
        (_summed(replicated(64), 29, 1), BadFrame.FIELDS),
        (replicated(63), BadFrame.FIELDS),
    ],
)
def test_replicated_part_is_refused_with_a_reason(part: bytes, why: BadFrame) -> None:
    """Each rule once."""
    assert decode_replicated_untrusted(part) is why


async def test_copy_of_a_journal_has_the_same_frames_at_the_same_positions(open_journal) -> None:
    """Whatever segments either has begun, and when; also after a restart of the copy."""
    original = await open_journal("original", segment_bytes_max=256 * 1024)
    copy = await open_journal("copy", segment_bytes_max=70_000, fsync=Fsync.NEVER)
    for number in range(60):
        payload = bytes([number]) * (number * 97)
        part = replicated(original.end, number, payload)
        if not original.has_room(len(payload)):
            await original.make_room(len(payload))
        position = original.append(5, [number], [payload], timestamp_ms=77)
        assert position == copy.end
        assert copy.append_received(part) == position
        assert copy.end == original.end
        if number == 30:
            await copy.close()
            copy = await open_journal("copy", segment_bytes_max=70_000, fsync=Fsync.NEVER)
    assert numbers(copy) == numbers(original) == list(range(60))
    for ours, theirs in zip(copy.frames(JournalPosition(0)), original.frames(JournalPosition(0)), strict=True):
        assert (ours.position, ours.end, ours.header) == (theirs.position, theirs.end, theirs.header)
        assert (ours.timestamp_ms, ours.kind, ours.leader_epoch) == (77, 5, 3)
        size = ours.end - ours.position
        assert copy.read_payload(ours.position, size) == original.read_payload(ours.position, size)
    await copy.close()
    await original.close()


async def test_large_frame_that_is_received_waits_for_room_on_the_spot(open_journal) -> None:
    """It counts already: there may be no room for it, but it cannot be refused."""
    journal = await open_journal(segment_bytes_max=256 * 1024)
    payload = bytes(150_000)
    with pytest.raises(NoRoom):
        journal.append(5, [0], [payload], timestamp_ms=0)
    for number in range(3):
        journal.append_received(replicated(journal.end, number, payload))
    assert numbers(journal) == [0, 1, 2]
    await journal.close()
    journal = await open_journal(segment_bytes_max=256 * 1024)
    assert numbers(journal) == [0, 1, 2]
    await journal.close()


async def test_frame_of_another_position_is_not_written(open_journal) -> None:
    """Whoever reads the journal later would take it for damage."""
    journal = await open_journal()
    await journal.make_room(100)
    journal.append_received(replicated(0))
    end = journal.end
    with pytest.raises(AssertionError):
        journal.append_received(replicated(0))
    with pytest.raises(AssertionError):
        journal.append_received(replicated(end + 8))
    assert journal.end == end
    await journal.close()
    with pytest.raises(StorageFailure):
        journal.append_received(replicated(end))


def test_header_that_is_no_array_is_told() -> None:
    """The checksum is right, so it was written like that: by nobody we know."""
    frame = decode_replicated_untrusted(_with_cbor(cbor2.dumps({"a": 1})))
    assert isinstance(frame, Frame)
    with pytest.raises(ValueError, match="not an array"):
        frame.header()


def _with_cbor(cbor: bytes) -> bytes:
    part = bytearray(replicated(0, 0, b"")[:REPLICATED_HEADER_BYTES] + cbor)
    part[20:24] = len(part).to_bytes(4, "little")
    part[30:32] = len(cbor).to_bytes(2, "little")
    part[:4] = crc32c(part[4:]).to_bytes(4, "little")
    return bytes(part)
