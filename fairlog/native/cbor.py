"""Reads the CBOR of untrusted requests: the part of RFC 8949 that requests need, in bounded memory and time.

It reads integers of 64 bits, texts, arrays, maps with texts as keys, `true`, `false` and `null`, all of definite length
and without tags. A request is read depth first. Before an array or a map is begun its items are counted, and lengths
are compared with the rest of the frame, so the reader never allocates because the peer says so: an item of one byte
becomes an object of a hundred, and takes half a microsecond. All other CBOR (floats, byte strings, tags, indefinite
lengths) is refused by name.

Why not cbor2, which writes our answers: it accepts 16 million items in a frame of 16 MiB, a gigabyte of lists, and
interprets tags (regular expressions, references, decimals with a billion digits). The tests compare this module with
it.

Pure.
"""

from __future__ import annotations

from typing import TypeAlias

from fairlog.edge.malformed import Malformed

Item: TypeAlias = "int | str | bool | list[Item] | dict[str, Item] | None"

DEPTH_MAX = 8
"""The depth of nested arrays and maps. The deepest request has five: commit's offsets."""

ITEMS_MAX = 100_000
"""Items in one request, as in a request of Kafka's (`fairlog.kafka.wire.ELEMENTS_MAX`): 65 ms of reading."""

_KINDS = ("an integer", "an integer", "a byte string", "a text", "an array", "a map", "a tag", "a simple value")
_ARGUMENT_BYTES = {24: 1, 25: 2, 26: 4, 27: 8}
_SIMPLE: dict[int, bool | None] = {20: False, 21: True, 22: None}


def read_untrusted(data: bytes | bytearray | memoryview) -> Item:
    """The one item in `data`. Raises Malformed, whose message names the byte."""
    reader = _Reader(bytes(data))
    item = reader.item(DEPTH_MAX)
    reader.end()
    return item


class _Reader:
    __slots__ = ("_data", "_items_left", "_position")

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._position = 0
        self._items_left = ITEMS_MAX

    def item(self, depth_left: int) -> Item:
        begins_at = self._position
        major, argument = self._head()
        if major == 0:
            return argument
        if major == 1:
            return -1 - argument
        if major == 3:
            return self._text(argument)
        if major == 4:
            self._enter(argument, argument, depth_left, begins_at)
            return [self.item(depth_left - 1) for _ in range(argument)]
        if major == 5:
            self._enter(argument, 2 * argument, depth_left, begins_at)
            return self._map(argument, depth_left - 1)
        if major == 7 and argument in _SIMPLE and self._position == begins_at + 1:
            return _SIMPLE[argument]
        raise Malformed(f"byte {begins_at}: {_KINDS[major]}, which no request contains")

    def end(self) -> None:
        if self._position < len(self._data):
            raise Malformed(f"byte {self._position}: more than one CBOR item")

    def _map(self, length: int, depth_left: int) -> dict[str, Item]:
        found: dict[str, Item] = {}
        for _ in range(length):
            begins_at = self._position
            key = self.item(0)
            if not isinstance(key, str):
                raise Malformed(f"byte {begins_at}: a map key that is not a text")
            if key in found:
                raise Malformed(f"byte {begins_at}: the key {key[:100]!r} occurs twice")
            found[key] = self.item(depth_left)
        return found

    def _head(self) -> tuple[int, int]:
        """An item's major type and its argument: a number, a length, or a simple value."""
        (initial,) = self._take(1)
        major, argument = initial >> 5, initial & 31
        if argument < 24:
            return major, argument
        size = _ARGUMENT_BYTES.get(argument)
        if size is None or major == 7:
            what = "an indefinite length" if argument == 31 else _KINDS[major]
            raise Malformed(f"byte {self._position - 1}: {what}, which no request contains")
        return major, int.from_bytes(self._take(size), "big")

    def _text(self, length: int) -> str:
        begins_at = self._position
        try:
            return self._take(length).decode()
        except UnicodeDecodeError as error:
            raise Malformed(f"byte {begins_at + error.start}: a text that is not UTF-8") from None

    def _enter(self, length: int, items: int, depth_left: int, begins_at: int) -> None:
        if depth_left == 0:
            raise Malformed(f"byte {begins_at}: nested more than {DEPTH_MAX} deep, or a map key that is not a text")
        if items > len(self._data) - self._position:
            raise Malformed(f"byte {begins_at}: {length} elements, but the frame ends before them")
        self._items_left -= items
        if self._items_left < 0:
            raise Malformed(f"byte {begins_at}: more than {ITEMS_MAX} items")

    def _take(self, size: int) -> bytes:
        end = self._position + size
        if end > len(self._data):
            raise Malformed(f"byte {self._position}: the frame ends within an item")
        taken = self._data[self._position : end]
        self._position = end
        return taken
