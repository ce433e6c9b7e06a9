"""The bytes of a stream's entries: golden, round, and untrusted."""

from __future__ import annotations

import re
from pathlib import Path

import cbor2
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from fairlog_types import LeaderEpoch
from stream.entry import (
    ENTRY_HEADER_BYTES,
    JOURNAL_NAME_BYTES_MAX,
    Entry,
    EntryKind,
    JournalFrame,
    NotAnEntry,
    Owner,
    Seen,
    decode_entry_untrusted,
    decode_fence_untrusted,
    decode_frames_untrusted,
    decode_hand_over_untrusted,
    encode_entry,
    encode_fence,
    encode_frames,
    encode_hand_over,
    join_chains,
)
from tests.stream.golden_entries import CUT, EPOCH, FRAMES, GOLDEN, KINDS, OWNER, SEEN, dump, golden_bytes

PAGE = Path(__file__).parents[2] / "docs" / "formats" / "stream-entry.md"

U32, U64 = st.integers(0, 2**32 - 1), st.integers(0, 2**64 - 1)
NODES = st.text(max_size=20)
NAMES = st.text(st.characters(max_codepoint=0x7F), min_size=1, max_size=JOURNAL_NAME_BYTES_MAX)
BODIES = st.binary(max_size=60)
CBOR_SAMPLES = [
    bytes.fromhex(each)
    for each in (
        "5bffffffffffffffff",  # a string of 2^64 - 1 bytes
        "9bffffffffffffffff",  # an array of as many items
        "9b0000000100000000",
        "bb00000000ffffffff",
        "c1fb7ff0000000000000",  # the time "infinity"
        "c1fb7e37e43c8800759c",
        "c06161",
        "c482c3410000",
        "c4821bffffffffffffffff01",
        "c5821b7fffffffffffffff01",
        "d81e820100",  # the fraction 1/0
        "d81e8201f6",
        "d81c81d81d00",  # a list that holds itself
        "d81d05",
        "d8236128",  # the regular expression "("
        "d82461ff",
        "d8256100",
        "d9010481",
        "d90105a1410118ff",
        "d864" + "1b" + "7f" * 8,  # a date far away
        "a18001",
        "a1a001",
        "f818",
        "ff",
        "",
    )
] + [b"\x81" * 100_000, b"\xd8\x1c" * 50_000]


def test_golden_entries_are_what_the_code_writes() -> None:
    """The format does not change by accident."""
    assert dump() == GOLDEN.read_text()


def test_golden_entries_are_what_the_code_reads() -> None:
    """Every field of every kind is read as it is documented, and each entry follows the one before it."""
    chains: dict[int, int] = {-1: 0}
    entries: list[Entry] = []
    for (_, kind, sequence, body, continued), data in zip(KINDS, golden_bytes(), strict=True):
        entry = decode_entry_untrusted(data)
        assert isinstance(entry, Entry)
        assert (entry.kind, entry.continued, entry.epoch, entry.sequence) == (kind, continued, EPOCH, sequence)
        assert entry.body == body
        assert entry.follows(chains[sequence - 1])
        assert not entry.follows(chains[sequence - 1] ^ 1)
        chains[sequence] = join_chains(SEEN.chain, entry.chain) if sequence == 0 else entry.chain
        entries.append(entry)
    fence, frames, beginning, rest, heartbeat, hand_over, to_anybody = entries
    assert decode_fence_untrusted(fence.body) == (OWNER, SEEN)
    assert decode_frames_untrusted(frames.body) == FRAMES
    assert len(beginning.body) == CUT
    assert decode_frames_untrusted(bytes(beginning.body) + bytes(rest.body)) == FRAMES
    assert not heartbeat.body
    assert decode_hand_over_untrusted(hand_over.body) == ("fairlog-0",)
    assert decode_hand_over_untrusted(to_anybody.body) == (None,)


def test_golden_entries_are_what_the_page_shows() -> None:
    """The dump in the documentation is the golden file."""
    shown = re.search(r"^```\n(FENCE\n.*?)^```", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    assert shown is not None
    assert shown[1] == GOLDEN.read_text()


@given(st.sampled_from(EntryKind), U32, U64, U32, BODIES, st.booleans())
def test_entry_encoded_is_decoded(
    kind: EntryKind, epoch: int, sequence: int, chain: int, body: bytes, continued: bool
) -> None:
    """What is written is read, and follows what it was written after."""
    continued = continued and kind is EntryKind.FRAMES
    data, own = encode_entry(kind, LeaderEpoch(epoch), sequence, chain, body, continued=continued)
    entry = decode_entry_untrusted(data)
    assert entry == Entry(kind, continued, LeaderEpoch(epoch), sequence, own, memoryview(body))
    assert entry.follows(chain)


@given(st.binary(max_size=80))
@example(golden_bytes()[0])
@example(b"FLGS")
@example(b"FLGS\x01\x02\x00\x01" + bytes(20))
def test_entry_of_any_bytes_is_decoded_without_an_error(data: bytes) -> None:
    """Whatever lies in the stream, decoding it answers."""
    entry = decode_entry_untrusted(data)
    if isinstance(entry, Entry):
        assert bytes(entry.body) == data[ENTRY_HEADER_BYTES:]
        entry.follows(0)


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (b"", NotAnEntry.SHORT),
        (b"FL", NotAnEntry.SHORT),
        (b"FLGS\x01\x03" + bytes(17), NotAnEntry.SHORT),
        (b"XLGS" + bytes(10), NotAnEntry.MAGIC),
        (b"XLGS\x01\x03" + bytes(18), NotAnEntry.MAGIC),
        (b"FLGS\x02\x03" + bytes(18), NotAnEntry.VERSION),
        (b"FLGS\x01\x00" + bytes(18), NotAnEntry.KIND),
        (b"FLGS\x01\x05" + bytes(18), NotAnEntry.KIND),
        (b"FLGS\x01\x02\x02" + bytes(17), NotAnEntry.FLAGS),
        (b"FLGS\x01\x03\x01" + bytes(17), NotAnEntry.FLAGS),
        (b"FLGS\x01\x02\x00\x01" + bytes(16), NotAnEntry.FLAGS),
    ],
)
def test_bytes_that_are_no_entry_are_told_apart(data: bytes, why: NotAnEntry) -> None:
    """Each rule of the format has a reason of its own."""
    assert decode_entry_untrusted(data) is why
    assert why.is_of_a_newer_version is (why in (NotAnEntry.VERSION, NotAnEntry.KIND, NotAnEntry.FLAGS))


@pytest.mark.parametrize("index", range(len(KINDS)), ids=[name for name, *_ in KINDS])
def test_entry_with_any_bit_flipped_does_not_follow(index: int) -> None:
    """No single bit changes without notice: the bytes are no entry, or not the one that was written."""
    data = golden_bytes()[index]
    sequence = KINDS[index][2]
    before = (
        0
        if sequence == 0
        else next(_chain(golden_bytes()[n]) for n in range(len(KINDS)) if KINDS[n][2] == sequence - 1)
    )
    if sequence == 1:
        before = join_chains(SEEN.chain, before)
    assert decode_entry_untrusted(data).follows(before)  # type: ignore[union-attr]
    for bit in range(len(data) * 8):
        flipped = bytearray(data)
        flipped[bit // 8] ^= 1 << bit % 8
        entry = decode_entry_untrusted(flipped)
        assert isinstance(entry, NotAnEntry) or not entry.follows(before), bit


def _chain(data: bytes) -> int:
    entry = decode_entry_untrusted(data)
    assert isinstance(entry, Entry)
    return entry.chain


@given(NODES, st.binary(min_size=16, max_size=16), st.none() | st.tuples(U32, U64, U32))
def test_fence_encoded_is_decoded(node: str, incarnation: bytes, seen: tuple[int, int, int] | None) -> None:
    """A FENCE says whose it is, and what its writer had read."""
    owner, before = Owner(node, incarnation), None if seen is None else Seen(LeaderEpoch(seen[0]), *seen[1:])
    assert decode_fence_untrusted(encode_fence(owner, before)) == (owner, before)


@given(st.none() | NODES)
def test_hand_over_encoded_is_decoded(successor: str | None) -> None:
    """A HAND_OVER says to whom."""
    assert decode_hand_over_untrusted(encode_hand_over(successor)) == (successor,)


@given(st.lists(st.tuples(NAMES, BODIES)))
def test_frames_encoded_are_decoded(frames: list[tuple[str, bytes]]) -> None:
    """Frames keep their order, their journals and their bytes."""
    body = b"".join(encode_frames(JournalFrame(*frame) for frame in frames))
    assert decode_frames_untrusted(body) == frames


@given(st.binary(max_size=60))
@example(b"\x00\x00\x00\x00\x00")
@example(b"\x01\x80\x00\x00\x00\x00")
@example(b"\x01a\x02\x00\x00\x00x")
def test_bodies_of_any_bytes_are_decoded_without_an_error(body: bytes) -> None:
    """Whatever is in an entry, decoding it answers; what it accepts as frames is what would be written."""
    frames = decode_frames_untrusted(body)
    if not isinstance(frames, NotAnEntry):
        assert decode_frames_untrusted(b"".join(encode_frames(frames))) == frames
    decode_fence_untrusted(body)
    decode_hand_over_untrusted(body)


@pytest.mark.parametrize(
    "body",
    [
        b"\x01",
        b"\x01a\0\0\0",
        b"\x09a\0\0\0\0",
        b"\x01a\x02\0\0\0x",
        b"\x01a\xff\xff\xff\xff",
        b"\x01a\0\0\0\0\0",
        b"\0\0\0\0\0",
        b"\x01\x80\0\0\0\0",
    ],
    ids=[
        "no name",
        "half a length",
        "half a name",
        "half a frame",
        "4 GiB",
        "half a second one",
        "of none",
        "not ASCII",
    ],
)
def test_frames_that_are_not_whole_are_no_body(body: bytes) -> None:
    """Each frame has its journal, its length, and as many bytes."""
    assert decode_frames_untrusted(body) is NotAnEntry.BODY


@pytest.mark.parametrize("body", CBOR_SAMPLES, ids=range(len(CBOR_SAMPLES)))
def test_cbor_that_no_object_comes_of_is_no_body(body: bytes) -> None:
    """CBOR can claim sizes, and has tags that raise errors of many kinds; an entry may hold any of it."""
    assert decode_fence_untrusted(body) is NotAnEntry.BODY
    assert decode_hand_over_untrusted(body) is NotAnEntry.BODY
    assert decode_fence_untrusted(b"\x83aa" + body) is NotAnEntry.BODY
    assert decode_hand_over_untrusted(b"\x81" + body) is NotAnEntry.BODY


@given(st.recursive(st.none() | st.integers() | st.text(max_size=3) | st.binary(max_size=17), st.lists, max_leaves=6))
def test_cbor_of_another_shape_is_no_body(value: object) -> None:
    """A body has its fields, and no others."""
    fence, hand_over = decode_fence_untrusted(cbor2.dumps(value)), decode_hand_over_untrusted(cbor2.dumps(value))
    if not isinstance(fence, NotAnEntry):
        assert cbor2.loads(encode_fence(*fence)) == value
    if not isinstance(hand_over, NotAnEntry):
        assert cbor2.loads(encode_hand_over(*hand_over)) == value
