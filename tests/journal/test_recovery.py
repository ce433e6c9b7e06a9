"""The decision tables, case by case, and the scan against crashes of every kind, in memory."""

from __future__ import annotations

import itertools
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fairlog_types import JournalPosition, LeaderEpoch
from journal.frame import Frame, decode_frame_untrusted, encode_frame
from journal.recovery import (
    PAGE_BYTES,
    SEALED_TABLE,
    TAIL_TABLE,
    Head,
    Joint,
    Rest,
    Tail,
    Verdict,
    content_bytes,
    scan_tail,
)
from journal.segment import CLOSE_MARK_OFFSET, SEGMENT_HEADER_BYTES, encode_close_mark, file_offset

BASE = JournalPosition(8000)
SALT = 77
SECTOR_BYTES = 512


class Image:
    """A last segment in memory: what was appended, and through where it was synced."""

    def __init__(self, size: int = 16 * 1024) -> None:
        self.data = bytearray(size)
        self.data[:CLOSE_MARK_OFFSET] = b"h" * CLOSE_MARK_OFFSET
        self.on_disk = bytearray(self.data)
        self.end = BASE
        self.durable = BASE
        self.frames: list[tuple[JournalPosition, bytes]] = []

    def append(self, payload: bytes = b"payload") -> JournalPosition:
        encoded = b"".join(
            encode_frame(
                position=self.end,
                durable=self.durable,
                leader_epoch=LeaderEpoch(1),
                timestamp_ms=0,
                kind=1,
                header=[],
                payload=[payload],
                salt=SALT,
            )
        )
        position = self.end
        offset = file_offset(position, BASE)
        assert offset + len(encoded) <= len(self.data), "the image is too small for this test"
        self.data[offset : offset + len(encoded)] = encoded
        self.frames.append((position, payload))
        self.end = JournalPosition(position + len(encoded))
        return position

    def flush(self) -> None:
        self.on_disk[:] = self.data
        self.durable = self.end

    def close(self) -> None:
        """Flush, then mark; the mark reaches the disk, or a crash takes it."""
        self.flush()
        self.data[CLOSE_MARK_OFFSET:SEGMENT_HEADER_BYTES] = encode_close_mark(self.end, salt=SALT)

    def damage(self, position: int, count: int = 1) -> None:
        offset = file_offset(JournalPosition(position), BASE)
        for index in range(offset, offset + count):
            self.data[index] ^= 0x55

    def zero(self, start: int, end: int) -> None:
        first, last = file_offset(JournalPosition(start), BASE), file_offset(JournalPosition(end), BASE)
        self.data[first:last] = bytes(last - first)

    def scan(self) -> Tail:
        return scan_tail(self.data, base=BASE, salt=SALT)

    def crash(self, lost: random.Random, survival: float) -> None:
        """Lose any subset of the sectors that were written and not synced."""
        for start in range(0, len(self.data), SECTOR_BYTES):
            sector = slice(start, start + SECTOR_BYTES)
            if lost.random() >= survival:
                self.data[sector] = self.on_disk[sector]
        self.on_disk[:] = self.data

    def recover(self) -> Tail:
        """What `reopen` does with a torn tail: cut, zero, sync; the kept frames are durable then."""
        tail = self.scan()
        assert TAIL_TABLE[Head.WHOLE, tail.rest].verdict in (Verdict.KEEP, Verdict.CUT)
        self.zero(tail.hole, tail.content_end)
        self.end = tail.hole
        self.frames = [frame for frame in self.frames if frame[0] < tail.hole]
        self.flush()
        return tail


def test_tail_table_has_a_row_for_every_case() -> None:
    """Head times rest: nothing is left to chance."""
    assert set(TAIL_TABLE) == set(itertools.product(Head, Rest))


def test_sealed_table_has_a_row_for_every_case() -> None:
    """Head times joint: nothing is left to chance."""
    assert set(SEALED_TABLE) == set(itertools.product(Head, Joint))


@pytest.mark.parametrize(("head", "rest"), list(itertools.product(Head, Rest)))
def test_tail_verdict_keeps_whole_and_refuses_what_was_durable(head: Head, rest: Rest) -> None:
    """Only a whole header lets frames be kept or cut, and only a hole without witness is cut."""
    expected = {
        (Head.WHOLE, Rest.ZEROS): Verdict.KEEP,
        (Head.WHOLE, Rest.GARBAGE): Verdict.CUT,
        (Head.WHOLE, Rest.UNWITNESSED): Verdict.CUT,
        (Head.UNREADABLE, Rest.ZEROS): Verdict.RENEW,
    }
    assert TAIL_TABLE[head, rest].verdict is expected.get((head, rest), Verdict.REFUSE)


@pytest.mark.parametrize(("head", "joint"), list(itertools.product(Head, Joint)))
def test_sealed_verdict_keeps_only_what_is_whole_and_meets_the_next(head: Head, joint: Joint) -> None:
    """A segment with a successor is whole, or the start is refused."""
    keeps = head is Head.WHOLE and joint is Joint.MEETS
    assert SEALED_TABLE[head, joint].verdict is (Verdict.KEEP if keeps else Verdict.REFUSE)


def test_scan_of_an_empty_segment_finds_a_clean_end() -> None:
    """Only zeros behind the header: the segment ends where it begins."""
    tail = Image().scan()
    assert (tail.hole, tail.rest, tail.closed) == (BASE, Rest.ZEROS, False)


def test_scan_of_whole_frames_finds_their_end_and_their_witness() -> None:
    """The end is behind the last frame; the witness is the furthest durable position that a frame names."""
    image = Image()
    image.append()
    image.flush()
    image.append()
    image.append()
    tail = image.scan()
    assert (tail.hole, tail.rest) == (image.end, Rest.ZEROS)
    assert tail.witnessed == image.durable


def test_scan_of_a_closed_segment_says_so() -> None:
    """A close mark of the end is a clean close; with frames after it, it is history, and still a witness."""
    image = Image()
    image.append()
    image.close()
    closed_at = image.end
    assert image.scan().closed
    assert image.scan().witnessed == closed_at
    image.durable = BASE
    image.append()
    tail = image.scan()
    assert (tail.closed, tail.rest, tail.witnessed) == (False, Rest.ZEROS, closed_at)


def test_scan_of_a_closed_segment_that_lost_its_end_finds_the_witness() -> None:
    """The mark lies apart from the frames, so zeros at the end of a closed journal are no clean end."""
    image = Image()
    image.append()
    lost = image.append()
    image.close()
    image.zero(lost, image.end)
    tail = image.scan()
    assert (tail.hole, tail.rest, tail.later_witness) == (lost, Rest.WITNESSED, image.end)


@pytest.mark.parametrize("index", range(CLOSE_MARK_OFFSET, SEGMENT_HEADER_BYTES))
def test_scan_with_a_torn_close_mark_goes_by_the_frames(index: int) -> None:
    """A mark that is not valid says nothing: it was being written, when all else was on disk."""
    image = Image()
    image.append()
    image.close()
    image.data[index] ^= 1
    tail = image.scan()
    assert (tail.hole, tail.rest, tail.closed, tail.witnessed) == (image.end, Rest.ZEROS, False, BASE)


def test_scan_of_a_torn_last_frame_finds_garbage() -> None:
    """A half-written last frame is a torn tail that begins where the frame does."""
    image = Image()
    image.append()
    torn = image.append(b"x" * 100)
    image.zero(torn + 60, image.end)
    tail = image.scan()
    assert (tail.hole, tail.rest, tail.later_frames) == (torn, Rest.GARBAGE, 0)


@given(small=st.integers(1, 5000), large=st.integers(5000, 11_000), data=st.data())
def test_scan_of_a_write_that_was_interrupted_at_a_page_knows_it(small: int, large: int, data: st.DataObject) -> None:
    """A kill leaves whole pages of the last frame, at whichever page it came, and zeros after them."""
    image = Image(32 * 1024)
    image.append(b"x" * small)
    hole = image.append(b"y" * large)
    start, end = file_offset(hole, BASE), file_offset(image.end, BASE)
    pages = range(-(-(start + 1) // PAGE_BYTES), -(-end // PAGE_BYTES))
    cut = data.draw(st.sampled_from(pages)) * PAGE_BYTES
    image.data[cut:] = bytes(len(image.data) - cut)
    tail = image.scan()
    assert (tail.hole, tail.rest, tail.interrupted) == (hole, Rest.GARBAGE, True)


@pytest.mark.parametrize("payload_bytes", [100, 6000])
def test_scan_of_damage_within_the_last_frame_is_no_interrupted_write(payload_bytes: int) -> None:
    """All of its pages are there, so something else has happened to it."""
    image = Image(16 * 1024)
    image.append()
    hole = image.append(b"y" * payload_bytes)
    image.damage(hole + 50)
    tail = image.scan()
    assert (tail.hole, tail.rest, tail.interrupted) == (hole, Rest.GARBAGE, False)


def test_scan_of_garbage_behind_the_last_frame_is_no_interrupted_write() -> None:
    """What does not begin like a frame was not written by a journal."""
    image = Image(16 * 1024)
    image.append()
    start = file_offset(image.end, BASE)
    image.data[start : start + 100] = b"\xa5" * 100
    assert not image.scan().interrupted


def test_scan_of_a_hole_before_unsynced_frames_finds_no_witness() -> None:
    """Later frames that never knew the hole durable do not forbid to cut; they are counted."""
    image = Image()
    image.append()
    image.flush()
    hole = image.append(b"x" * 100)
    image.append()
    image.append()
    image.zero(hole, hole + 64)
    tail = image.scan()
    assert (tail.hole, tail.rest, tail.later_frames) == (hole, Rest.UNWITNESSED, 2)
    assert tail.content_end > image.end - 8


def test_scan_of_a_damaged_durable_frame_finds_the_witness() -> None:
    """A later frame that was written when the hole was on disk is a witness: this is damage, not a crash."""
    image = Image()
    image.append()
    damaged = image.append(b"x" * 100)
    image.flush()
    image.append()
    image.damage(damaged + 50)
    tail = image.scan()
    assert (tail.hole, tail.rest) == (damaged, Rest.WITNESSED)
    assert tail.later_witness == image.durable


def test_scan_of_any_damage_in_a_cleanly_closed_segment_finds_the_witness() -> None:
    """After a clean close no byte of a frame can change unnoticed."""
    image = Image()
    for number in range(4):
        image.append(bytes([number]) * 20)
    image.close()
    for position in range(BASE, image.end):
        image.damage(position)
        tail = image.scan()
        assert tail.rest is Rest.WITNESSED, position
        assert tail.hole <= position
        image.damage(position)
    assert image.scan().closed


def test_scan_of_frames_within_a_payload_does_not_count_them() -> None:
    """What a payload holds is not searched for frames while the frame around it is whole."""
    image = Image()
    hole = image.append(b"x" * 40)
    outer = JournalPosition(image.end)
    inner = b"".join(
        encode_frame(
            position=JournalPosition(outer + 48),
            durable=JournalPosition(outer),
            leader_epoch=LeaderEpoch(1),
            timestamp_ms=0,
            kind=1,
            header=[],
            payload=[],
            salt=SALT,
        )
    )
    image.append(b"123" + inner)
    assert (
        decode_frame_untrusted(
            image.data, JournalPosition(outer + 48), salt=SALT, offset=file_offset(JournalPosition(outer + 48), BASE)
        ).__class__
        is Frame
    )
    image.damage(hole + 35)
    tail = image.scan()
    assert (tail.rest, tail.later_frames) == (Rest.UNWITNESSED, 1)


def test_scan_of_a_forged_frame_without_the_salt_finds_garbage() -> None:
    """A client who puts a well-made frame into a batch cannot make a torn tail look like damage."""
    image = Image()
    hole = image.append(b"x" * 40)
    forged_at = JournalPosition(image.end + 48)
    forged = b"".join(
        encode_frame(
            position=forged_at,
            durable=image.end,
            leader_epoch=LeaderEpoch(1),
            timestamp_ms=0,
            kind=1,
            header=[],
            payload=[],
            salt=0,
        )
    )
    outer = image.append(b"123" + forged)
    image.damage(hole + 35)
    image.damage(outer)
    assert image.scan().rest is Rest.GARBAGE


@pytest.mark.parametrize(
    "size", [SEGMENT_HEADER_BYTES, SEGMENT_HEADER_BYTES + 7, SEGMENT_HEADER_BYTES + 8, SEGMENT_HEADER_BYTES + 17]
)
def test_scan_of_a_short_file_of_garbage_ends(size: int) -> None:
    """A file that ends in the middle of a word is scanned to its end and no further."""
    tail = scan_tail(b"\xff" * size, base=BASE, salt=SALT)
    assert tail.hole == BASE
    assert tail.rest is (Rest.ZEROS if size == SEGMENT_HEADER_BYTES else Rest.GARBAGE)


@given(st.binary(max_size=300), st.integers(0, 200_000))
def test_content_bytes_strips_zeros_and_nothing_else(data: bytes, zeros: int) -> None:
    """The content ends behind the last byte that is not zero, however many blocks of zeros follow."""
    assert content_bytes(data + bytes(zeros)) == len(data.rstrip(b"\0"))


@given(st.integers(0, 10**6), st.integers(0, 2), st.data())
def test_scan_after_any_damage_of_the_tail_never_yields_a_changed_frame(seed: int, flushes: int, data) -> None:
    """Whatever is flipped or cut, each frame that the scan keeps is one that was written, unchanged."""
    chance = random.Random(seed)
    image = Image(4096)
    for _ in range(6):
        image.append(chance.randbytes(chance.randrange(120)))
        if chance.random() < flushes / 3:
            image.flush()
    position = data.draw(st.integers(BASE, image.end - 1))
    if data.draw(st.booleans()):
        image.damage(position)
    else:
        image.zero(position, len(image.data) - SEGMENT_HEADER_BYTES + BASE)
    tail = image.scan()
    assert tail.hole in [frame[0] for frame in image.frames] + [image.end]
    # Zeroing may hit zeros only (padding); then nothing has changed.
    assert tail.hole <= position or bytes(image.data).rstrip(b"\0") == bytes(
        image.data[: file_offset(image.end, BASE)]
    ).rstrip(b"\0")


@settings(max_examples=300)
@given(st.integers(0, 2**32))
def test_scan_after_crashes_loses_nothing_durable_and_yields_nothing_unwritten(seed: int) -> None:
    """Three lives, each with appends and flushes, some closed, each ending in a crash that loses any subset of unsynced
    sectors:

    what is kept is a prefix of what was written in this history and holds all that was durable; no crash alone is
    ever taken for damage; and what a cut removed never comes back.
    """
    chance = random.Random(seed)
    image = Image(16 * 1024)
    for _ in range(3):
        for _ in range(chance.randrange(8)):
            image.append(chance.randbytes(chance.choice([0, 5, 60, 600])))
            if chance.random() < 0.3:
                image.flush()
        if chance.random() < 0.3:
            image.close()
        written, durable = list(image.frames), image.durable
        image.crash(chance, survival=chance.choice([0.0, 0.5, 0.9, 1.0]))
        tail = image.recover()
        assert tail.hole >= durable
        kept = []
        position = BASE
        while position < tail.hole:
            frame = decode_frame_untrusted(image.data, position, salt=SALT, offset=file_offset(position, BASE))
            assert isinstance(frame, Frame)
            kept.append((frame.position, bytes(frame.payload)))
            position = frame.end
        assert kept == written[: len(kept)]


@settings(max_examples=200)
@given(st.integers(0, 2**32))
def test_scan_of_damage_to_a_witnessed_frame_always_refuses(seed: int) -> None:
    """One flipped byte anywhere before a position that a surviving later frame knew durable is found."""
    chance = random.Random(seed)
    image = Image()
    for _ in range(chance.randrange(1, 6)):
        image.append(chance.randbytes(chance.randrange(200)))
    image.flush()
    for _ in range(chance.randrange(1, 4)):
        image.append(chance.randbytes(chance.randrange(200)))
    image.damage(chance.randrange(BASE, image.durable))
    assert TAIL_TABLE[Head.WHOLE, image.scan().rest].verdict is Verdict.REFUSE
