"""The reader of untrusted CBOR, against cbor2 and against whatever bytes there may be."""

from __future__ import annotations

import tracemalloc

import cbor2
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairlog.edge.malformed import Malformed
from fairlog.native.cbor import DEPTH_MAX, ITEMS_MAX, read_untrusted
from fairlog.native.messages import FRAME_BYTES_MAX

SCALARS = st.none() | st.booleans() | st.integers(-(2**64), 2**64 - 1) | st.text(max_size=40)
ITEMS = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=5) | st.dictionaries(st.text(max_size=5), inner, max_size=5),
    max_leaves=20,
)


def depth(item: object) -> int:
    if isinstance(item, dict):
        return 1 + max(map(depth, item.values()), default=0)
    return 1 + max(map(depth, item), default=0) if isinstance(item, list) else 0


@given(ITEMS)
def test_what_requests_are_made_of_is_read_as_cbor2_wrote_it(item):
    """Every item of the types that a request may have, in any nesting that is allowed."""
    data = cbor2.dumps(item)
    if depth(item) > DEPTH_MAX:
        with pytest.raises(Malformed, match="nested"):
            read_untrusted(data)
    else:
        assert read_untrusted(data) == item


@given(st.binary(max_size=200))
def test_any_bytes_are_an_item_or_malformed(data):
    """And if they are an item, it is the one that cbor2 finds in them."""
    try:
        item = read_untrusted(data)
    except Malformed:
        return
    assert item == cbor2.loads(data)


@given(ITEMS, st.data())
def test_what_is_cut_short_or_goes_on_is_malformed(item, data):
    """A frame is one whole item."""
    whole = cbor2.dumps(item)
    cut = data.draw(st.integers(0, len(whole) - 1))
    for wrong in (whole[:cut], whole + b"\0"):
        with pytest.raises(Malformed):
            read_untrusted(wrong)


@pytest.mark.parametrize(
    ("wrong", "why"),
    [
        (cbor2.dumps(1.5), "byte 0: a simple value, which no request contains"),
        (cbor2.dumps(b"bytes"), "byte 0: a byte string, which no request contains"),
        (cbor2.dumps(2**64), "byte 0: a tag, which no request contains"),
        (b"\xd8\x23\x64(a+)", "byte 0: a tag"),  # a regular expression
        (b"\x9f\xff", "byte 0: an indefinite length"),
        (b"\x7f\x61a\xff", "byte 0: an indefinite length"),
        (b"\xf8\x14", "byte 0: a simple value"),  # false, written at length
        (b"\xf7", "byte 0: a simple value"),  # undefined
        (b"\x1c", "byte 0: an integer"),  # reserved
        (b"\xa1\x01\x02", "byte 1: a map key that is not a text"),
        (b"\xa1\x80\x02", "byte 1: nested more than 8 deep, or a map key that is not a text"),
        (b"\xa2\x61a\x01\x61a\x02", "byte 4: the key 'a' occurs twice"),
        (b"\x61\xff", "byte 1: a text that is not UTF-8"),
        (b"", "byte 0: the frame ends"),
        (b"\x19\x01", "byte 1: the frame ends within an item"),
    ],
)
def test_other_cbor_is_refused_by_name(wrong, why):
    """The message says at which byte and what."""
    with pytest.raises(Malformed, match=f"^{why.replace('(', '[(]')}"):
        read_untrusted(wrong)


@pytest.mark.parametrize(
    "announced", [b"\x9b" + b"\xff" * 8, b"\xbb" + b"\x7f" * 8, b"\x7b" + b"\xff" * 8, b"\x9a\x7f\xff\xff\xff"]
)
def test_length_announced_takes_no_memory(announced):
    """What is not there is not made room for."""
    tracemalloc.start()
    try:
        with pytest.raises(Malformed, match="ends"):
            read_untrusted(announced + bytes(100))
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("element", [b"\x00", b"\x80", b"\xa0"])
def test_frame_of_small_items_is_refused_before_they_are_made(element):
    """The largest frame, full of the smallest items: a gigabyte of objects otherwise."""
    count = FRAME_BYTES_MAX - 5
    data = b"\x9a" + count.to_bytes(4, "big") + element * count
    tracemalloc.start()
    try:
        with pytest.raises(Malformed, match=f"more than {ITEMS_MAX} items"):
            read_untrusted(data)
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()


def test_items_are_counted_over_the_whole_request():
    """Not array by array: many small arrays are as many objects as one large one."""
    data = cbor2.dumps([[[0] * 1000] * 10] * 10)
    with pytest.raises(Malformed, match="items"):
        read_untrusted(data)
    assert read_untrusted(cbor2.dumps([0] * ITEMS_MAX)) == [0] * ITEMS_MAX


def test_deep_nesting_is_refused_where_it_becomes_too_deep():
    """A million brackets cost eight steps."""
    with pytest.raises(Malformed, match=f"byte {DEPTH_MAX}: nested"):
        read_untrusted(b"\x81" * 1_000_000)


@pytest.mark.parametrize(("partitions", "limited"), [(33_000, False), (14_000, True)])
def test_cut_of_as_many_partitions_as_the_page_says_fits_and_hardly_more(partitions: int, limited: bool) -> None:
    """docs/spark.md says how many a query can read, without a limit and with one; also of the longest name."""

    def cut(count: int) -> bytes:
        places = [["t" * 249, number] for number in range(count)]
        starts = [[*place, 1 << 62] for place in places]
        asked = {"partitions": places} | ({"starts": starts, "limit": 1 << 62} if limited else {})
        return cbor2.dumps([1 << 62, "cut", asked])

    assert len(cut(partitions)) <= FRAME_BYTES_MAX
    read_untrusted(cut(partitions))
    with pytest.raises(Malformed, match=f"more than {ITEMS_MAX} items"):
        read_untrusted(cut(partitions * 103 // 100))
