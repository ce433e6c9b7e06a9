"""CBOR that nobody writes and that readers may meet: numbers without end, tags, an array that holds itself.

A bit that flips in the first byte of an item makes another kind of item of it, and chance seldom makes a whole one.
So the seeds have each of these in the place of each part of a right record.
"""

from __future__ import annotations

from collections.abc import Iterator

import cbor2

ODD_ITEMS = tuple(
    map(
        bytes.fromhex,
        (
            "c2590fa0" + "ff" * 4000,  # an integer of more digits than Python will print
            "1bffffffffffffffff",
            "3bffffffffffffffff",
            "20",
            "f6",
            "f7",
            "f5",
            "f97e00",
            "f8ff",
            "fb7fefffffffffffff",
            "40",
            "60",
            "80",
            "a0",
            "8180",
            "a18000",  # a map whose key is an array
            "d81c81d81d00",  # an array that holds itself
            "d9010281" + "00",  # a set
            "c482" + "1903e8" + "01",  # a decimal of a thousand digits
            "c4823b7fffffffffffffff01",
            "c58220" + "01",  # half of one
            "c11a514b67b0",  # a time
            "d82461" + "28",  # a MIME message
            "d8344405060708",  # an address
            "d81840",  # a tag that has no meaning here
            "7b3fffffffffffffff",  # a text that ends where no memory does
            "9b00000000ffffffff",
            "bb00000000ffffffff",
            "5f",
            "7f61ff",
        ),
    )
)


def with_odd_items(cbor: bytes) -> Iterator[bytes]:
    """The array with an odd item in the place of each of its parts, down to those of the arrays in it."""
    yield from _replaced(cbor2.loads(cbor))


def _replaced(item: object) -> Iterator[bytes]:
    yield from ODD_ITEMS
    if isinstance(item, list):
        parts = [cbor2.dumps(part) for part in item]
        head = cbor2.dumps([None] * len(item))[: -len(item)] if item else b"\x80"
        for index, part in enumerate(item):
            for odd in _replaced(part):
                yield head + b"".join([*parts[:index], odd, *parts[index + 1 :]])
    if isinstance(item, dict):
        for name in item:
            for odd in _replaced(item[name]):
                rest = {each: item[each] for each in item if each != name}
                yield bytes([0xA0 + len(item)]) + cbor2.dumps(rest)[1:] + cbor2.dumps(name) + odd
