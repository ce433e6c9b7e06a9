"""The primitives: what the writer writes the reader reads, and no bytes make the reader do anything but refuse."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairlog.edge.malformed import Malformed
from fairlog.kafka.wire import ELEMENTS_MAX, Reader, Writer

FLEXIBLE = pytest.mark.parametrize("flexible", [False, True])


@given(
    st.booleans(),
    st.integers(-(2**15), 2**15 - 1),
    st.integers(-(2**31), 2**31 - 1),
    st.integers(-(2**63), 2**63 - 1),
    st.none() | st.text(),
    st.lists(st.text(max_size=5), max_size=5),
    st.uuids(),
    st.lists(st.binary(max_size=300), min_size=1, max_size=4),
)
def test_message_of_every_type_round_trips(flexible, int16, int32, int64, text, texts, uuid, batches):
    """Whatever is written is read back the same, in both encodings, to the last byte."""
    writer = Writer(flexible=flexible)
    writer.int16(int16)
    writer.int32(int32)
    writer.int64(int64)
    writer.nullable_string(text)
    writer.records(batches)
    writer.array(texts, writer.string)
    writer.uuid(uuid)
    writer.boolean(True)
    writer.null_array()
    writer.end_of_fields()
    encoded = b"".join(writer.parts())
    reader = Reader(encoded, flexible=flexible)
    assert (reader.int16(), reader.int32(), reader.int64()) == (int16, int32, int64)
    assert reader.nullable_string() == text
    assert bytes(reader.nullable_records()) == b"".join(batches)
    assert reader.array(reader.string) == tuple(texts)
    assert (reader.uuid(), reader.boolean()) == (uuid, True)
    assert reader.nullable_array(reader.int8) is None
    reader.end_of_fields()
    assert reader.position == len(encoded)


def test_records_written_are_not_copied():
    """The very buffers that were handed over are among the parts: a Fetch of megabytes costs no copy."""
    writer = Writer(flexible=True)
    batch = bytes(1000)
    writer.int32(1)
    writer.records([batch])
    writer.int32(2)
    assert any(part is batch for part in writer.parts())


def test_records_read_are_views_of_the_frame():
    """A batch of a Produce request is handed on without a copy."""
    frame = bytearray(struct.pack(">i", 3) + b"abc")
    records = Reader(frame).nullable_records()
    frame[4:5] = b"x"
    assert bytes(records) == b"xbc"


@FLEXIBLE
@given(data=st.binary(max_size=64), calls=st.lists(st.integers(0, 10), max_size=12))
def test_reader_on_any_bytes_reads_or_refuses(flexible, data, calls):
    """No bytes make a reader raise anything but Malformed, or read behind the end."""
    reader = Reader(data, flexible=flexible)
    methods = [
        reader.int8,
        reader.int16,
        reader.int32,
        reader.int64,
        reader.boolean,
        reader.string,
        reader.nullable_string,
        reader.nullable_records,
        reader.uuid,
        reader.end_of_fields,
        lambda: reader.array(reader.int16),
    ]
    try:
        for call in calls:
            methods[call]()
    except Malformed:
        pass
    assert reader.position <= len(data)


@FLEXIBLE
def test_array_with_forged_length_is_refused_before_anything_is_made(flexible):
    """Two thousand million elements in a frame of ten bytes are refused by the count alone."""
    length = b"\xff\xff\xff\xff\x07" if flexible else struct.pack(">i", 2**31 - 1)
    made = []
    with pytest.raises(Malformed, match="does not fit the frame"):
        Reader(length + bytes(5), flexible=flexible).array(lambda: made.append(1))
    assert made == []


def test_arrays_with_too_many_elements_in_all_are_refused():
    """A large frame of tiny elements must not become a hundred times as much memory."""
    half = ELEMENTS_MAX // 2 + 1
    reader = Reader((struct.pack(">i", half) + bytes(half)) * 2)
    assert len(reader.array(reader.int8)) == half
    with pytest.raises(Malformed, match="elements in one request"):
        reader.array(reader.int8)


def test_tagged_fields_count_as_elements():
    """Millions of empty ones would be skipped one by one, while everybody else waits."""
    writer = Writer(flexible=True)
    writer.tagged_fields((tag, b"") for tag in range(ELEMENTS_MAX + 1))
    with pytest.raises(Malformed, match="elements in one request"):
        Reader(b"".join(writer.parts()), flexible=True).end_of_fields()
    writer = Writer(flexible=True)
    writer.tagged_fields((tag, b"") for tag in range(ELEMENTS_MAX))
    Reader(b"".join(writer.parts()), flexible=True).end_of_fields()


@pytest.mark.parametrize(
    ("data", "flexible"),
    [
        (struct.pack(">h", -2), False),
        (struct.pack(">h", 2) + b"\xff\xff", False),
        (struct.pack(">h", 9) + b"short", False),
        (b"\xff\xff\xff\xff\xff\xff", True),
        (b"\x81\x80\x02" + bytes(32_768), True),
        (b"\x00", True),
        (b"", True),
    ],
)
def test_string_that_is_none_is_refused(data, flexible):
    """Negative lengths, bad UTF-8, ends in the middle, endless varints, nulls and over 32,767 bytes are no strings."""
    with pytest.raises(Malformed):
        Reader(data, flexible=flexible).string()


def test_tagged_fields_unknown_to_us_are_skipped():
    """A newer client may add tagged fields to a message that we know (KIP-482)."""
    writer = Writer(flexible=True)
    writer.tagged_fields([(0, b"abc"), (300, b"")])
    writer.int8(7)
    reader = Reader(b"".join(writer.parts()), flexible=True)
    reader.end_of_fields()
    assert reader.int8() == 7
