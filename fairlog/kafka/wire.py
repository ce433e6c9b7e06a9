"""The primitives of Kafka's protocol: a reader of untrusted requests and a writer of answers.

Integers are big-endian and of fixed size. Strings, byte strings and arrays have two encodings: the *legacy* one (int16
or int32 length, -1 is null) and the *compact* one of flexible versions (unsigned varint of length + 1, 0 is null), in
which every structure also ends with tagged fields (KIP-482). `Reader` and `Writer` are told once which of the two to
use, so one piece of code decodes and encodes a message in all its versions: `reader.string()`,
`reader.end_of_fields()`.

A reader never allocates because the peer says so. Lengths are compared with what is left of the frame; elements of
arrays and tagged fields are counted over the whole frame, because a two-byte element becomes a Python object of a
hundred bytes, and takes its microsecond. Records are returned as views of the frame, not copied.

Why no existing codec: kio's native parser allocates memory for as many elements as the frame *says*, so eleven forged
bytes abort the whole process (`memory allocation of 34359738352 bytes failed`, kio 0.6.5). The tests compare the users
of this module with kio's schemas and kafka-python's.

No I/O.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar
from uuid import UUID

from fairlog.edge.malformed import Malformed

Buffer = bytes | bytearray | memoryview

TopicKey = str | UUID | None
"""What identifies a topic, depending on the API's version: its name, or its id; None is the zero id."""

T = TypeVar("T")

ELEMENTS_MAX = 100_000
"""Elements that all arrays of one request may have together, its tagged fields included.

Kafka's own limit of partitions in one request is 2,000 (`max.request.partition.size.limit`); this one only keeps a
100 MB frame from becoming 10 GB of objects, or seconds of skipping."""

STRING_BYTES_MAX = 32_767
"""What a legacy string can hold. Kafka accepts no more in flexible versions either: what one client sends there, such
as a group's member id, is sent to others in versions that could not carry it.
"""

MESSAGE_CHARACTERS_MAX = 1000
"""The characters of an error message in an answer."""

INLINE_BYTES_MAX = 4_096
"""Byte strings up to this size are copied into the answer: cheaper than one more buffer to send."""

ZERO_UUID = UUID(int=0)
"""The value in the protocol for no UUID."""

_INT8 = struct.Struct(">b")
_INT16 = struct.Struct(">h")
_INT32 = struct.Struct(">i")
_INT64 = struct.Struct(">q")
_FLOAT64 = struct.Struct(">d")


class Reader:
    """Reads one request, field by field. Every method may raise Malformed and nothing else."""

    __slots__ = ("_buffer", "_elements", "_end", "_position", "flexible")

    def __init__(self, buffer: Buffer, *, flexible: bool = False) -> None:
        self._buffer = memoryview(buffer)
        self._end = len(self._buffer)
        self._position = 0
        self._elements = 0
        self.flexible = flexible

    @property
    def position(self) -> int:
        """Bytes read so far, from the start of the frame (after its length)."""
        return self._position

    @staticmethod
    def _number(shape: struct.Struct) -> Callable[[Reader], int]:
        """The method that reads a number. A request has dozens of them, so none takes a call more than it must."""
        unpack_from, size = shape.unpack_from, shape.size

        def read(self: Reader) -> int:
            try:
                (value,) = unpack_from(self._buffer, self._position)
            except struct.error:
                raise Malformed(f"the frame ends within a number, at byte {self._position} of {self._end}") from None
            self._position += size
            return value

        return read

    int8 = _number(_INT8)
    int16 = _number(_INT16)
    int32 = _number(_INT32)
    int64 = _number(_INT64)

    def float64(self) -> float:
        try:
            (value,) = _FLOAT64.unpack_from(self._buffer, self._position)
        except struct.error:
            raise Malformed(f"the frame ends within a number, at byte {self._position} of {self._end}") from None
        self._position += _FLOAT64.size
        return value

    def boolean(self) -> bool:
        return self.int8() != 0

    def uuid(self) -> UUID | None:
        """A UUID; None for the zero one, which means that there is none."""
        value = UUID(bytes=bytes(self._take(16)))
        return None if value == ZERO_UUID else value

    def topic_key(self, *, by_id: bool) -> TopicKey:
        """What identifies a topic, where a version has either the name or the id."""
        return self.uuid() if by_id else self.string()

    def string(self) -> str:
        """A string that must not be null."""
        value = self.nullable_string()
        if value is None:
            raise Malformed(f"null instead of a string at byte {self._position}")
        return value

    def nullable_string(self) -> str | None:
        length = self._unsigned_varint() - 1 if self.flexible else self.int16()
        if length > STRING_BYTES_MAX:
            raise Malformed(f"a string of {length} bytes; at most {STRING_BYTES_MAX} are taken")
        return self._text(length)

    def legacy_nullable_string(self) -> str | None:
        """A string in the legacy encoding in every version: only the client id of the request header."""
        return self._text(self.int16())

    def nullable_records(self) -> memoryview | None:
        """A view of the frame's bytes; it keeps the whole frame alive."""
        length = self._unsigned_varint() - 1 if self.flexible else self.int32()
        if length == -1:
            return None
        return self._take(length)

    def byte_string(self) -> memoryview:
        """Bytes that must not be null, as a view: it keeps the whole frame alive."""
        value = self.nullable_records()
        if value is None:
            raise Malformed(f"null instead of bytes at byte {self._position}")
        return value

    def array(self, element: Callable[[], T]) -> tuple[T, ...]:
        """An array that must not be null; `element` reads one of its elements."""
        elements = self.nullable_array(element)
        if elements is None:
            raise Malformed(f"null instead of an array at byte {self._position}")
        return elements

    def nullable_array(self, element: Callable[[], T]) -> tuple[T, ...] | None:
        length = self._unsigned_varint() - 1 if self.flexible else self.int32()
        if length == -1:
            return None
        if length < 0 or length > self._end - self._position:
            raise Malformed(f"an array of {length} elements does not fit the frame, at byte {self._position}")
        self._count_elements(length)
        return tuple([element() for _ in range(length)])

    def end_of_fields(self) -> None:
        """Call it after the last field of each structure: skips the tagged fields of a flexible version."""
        if not self.flexible:
            return
        if self._position < self._end and self._buffer[self._position] == 0:
            self._position += 1  # no tagged fields: almost always
            return
        for _ in self.tagged_fields():
            pass

    def tagged_fields(self) -> Iterator[tuple[int, memoryview]]:
        """The tagged fields of a structure, as (tag, encoded value). The caller must exhaust it."""
        count = self._unsigned_varint()
        if count > self._end - self._position:
            raise Malformed(f"{count} tagged fields do not fit the frame, at byte {self._position}")
        self._count_elements(count)
        for _ in range(count):
            tag = self._unsigned_varint()
            yield tag, self._take(self._unsigned_varint())

    def _count_elements(self, count: int) -> None:
        self._elements += count
        if self._elements > ELEMENTS_MAX:
            raise Malformed(f"more than {ELEMENTS_MAX} elements in one request, at byte {self._position}")

    def _unsigned_varint(self) -> int:
        value = shift = 0
        position = self._position
        for byte in self._buffer[position : position + 5]:
            position += 1
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                self._position = position
                return value
            shift += 7
        raise Malformed(f"a length that does not end, at byte {self._position} of {self._end}")

    def _take(self, length: int) -> memoryview:
        start, end = self._position, self._position + length
        if length < 0 or end > self._end:
            raise Malformed(f"{length} bytes at byte {start} do not fit a frame of {self._end}")
        self._position = end
        return self._buffer[start:end]

    def _text(self, length: int) -> str | None:
        if length == -1:
            return None
        try:
            return str(self._take(length), "utf-8")
        except UnicodeDecodeError:
            raise Malformed(f"a string is not UTF-8, at byte {self._position - length}") from None


class Writer:
    """Writes one answer. Small fields are gathered; byte strings are passed through without a copy."""

    __slots__ = ("_bytes", "_errors", "_parts", "flexible")

    def __init__(self, *, flexible: bool, errors: dict[int, int] | None = None) -> None:
        """`errors` counts, by code, the errors that are written."""
        self._bytes = bytearray()
        self._parts: list[Buffer] = []
        self._errors = errors
        self.flexible = flexible

    @property
    def size_bytes(self) -> int:
        """What is written so far."""
        return sum(map(len, self._parts)) + len(self._bytes)

    def int8(self, value: int) -> None:
        self._bytes += _INT8.pack(value)

    def int16(self, value: int) -> None:
        """A number, or an error code: the member of an enumeration. Error codes are counted here, so that no handler
        can forget it.
        """
        self._bytes += _INT16.pack(value)
        if type(value) is not int and value and self._errors is not None:
            code = int(value)
            self._errors[code] = self._errors.get(code, 0) + 1

    def int32(self, value: int) -> None:
        self._bytes += _INT32.pack(value)

    def int64(self, value: int) -> None:
        self._bytes += _INT64.pack(value)

    def float64(self, value: float) -> None:
        self._bytes += _FLOAT64.pack(value)

    def boolean(self, value: bool) -> None:
        self._bytes.append(1 if value else 0)

    def uuid(self, value: UUID | None) -> None:
        self._bytes += (value or ZERO_UUID).bytes

    def topic_key(self, value: TopicKey) -> None:
        """A topic's name or id, whichever the request used."""
        if isinstance(value, str):
            self.string(value)
        else:
            self.uuid(value)

    def string(self, value: str) -> None:
        self.nullable_string(value)

    def nullable_string(self, value: str | None) -> None:
        if value is None:
            self._length(-1, _INT16)
            return
        encoded = value.encode()
        self._length(len(encoded), _INT16)
        self._bytes += encoded

    def message(self, value: str | None) -> None:
        """An error message for people. It is cut, because it may quote a string of any length."""
        self.nullable_string(None if value is None else value[:MESSAGE_CHARACTERS_MAX])

    def records(self, batches: Iterable[Buffer]) -> None:
        """One field of record batches, each a buffer of its own."""
        parts = list(batches)
        self._length(sum(map(len, parts)), _INT32)
        if parts:
            self._parts += [self._bytes, *parts]
            self._bytes = bytearray()

    def byte_string(self, value: Buffer) -> None:
        """One field of bytes; long ones are passed through without a copy."""
        if len(value) > INLINE_BYTES_MAX:
            self.records((value,))
        else:
            self._length(len(value), _INT32)
            self._bytes += value

    def array(self, elements: Iterable[T], element: Callable[[T], None]) -> None:
        """An array; `element` writes one of its elements."""
        items = list(elements)
        self.array_length(len(items))
        for item in items:
            element(item)

    def array_length(self, length: int) -> None:
        """Begins an array whose elements the caller writes, so that it can let others run in between."""
        self._length(length, _INT32)

    def null_array(self) -> None:
        self._length(-1, _INT32)

    def int32_array(self, values: Iterable[int]) -> None:
        self.array(values, self.int32)

    def end_of_fields(self) -> None:
        """Call it after the last field of each structure: no tagged fields."""
        if self.flexible:
            self._bytes.append(0)

    def tagged_fields(self, fields: Iterable[tuple[int, bytes]]) -> None:
        """Call it after the last field of a structure of a flexible version: (tag, encoded value), by ascending tag."""
        assert self.flexible, "only flexible versions have tagged fields"
        items = list(fields)
        self.unsigned_varint(len(items))
        for tag, value in items:
            self.unsigned_varint(tag)
            self.unsigned_varint(len(value))
            self._bytes += value

    def unsigned_varint(self, value: int) -> None:
        while value >= 0x80:
            self._bytes.append(value & 0x7F | 0x80)
            value >>= 7
        self._bytes.append(value)

    def parts(self) -> list[Buffer]:
        """All that was written, in order. The writer is not used afterwards."""
        return [*self._parts, self._bytes]

    def _length(self, length: int, legacy: struct.Struct) -> None:
        if self.flexible:
            self.unsigned_varint(length + 1)
        else:
            self._bytes += legacy.pack(length)
