"""A small store in readable form: all its records, each by a function that knows them. Pure.

A record that does not read back is shown as damage with the byte where it is, and the next record follows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import cbor2

from datalog.lmdb_pages import DamagedPage, LmdbFile
from fairlog.inspection.lines import Line
from fairlog_types import CorruptStorage


def show_small_store(name: str, file: LmdbFile, show: Callable[[bytes, bytes], Line]) -> Iterator[Line]:
    """All records, in the order of their keys. `show` gets key and value, and may raise CorruptStorage or cbor2's."""
    yield Line(name, {"transaction": file.meta.transaction, "page_bytes": file.meta.page_bytes})
    try:
        for item in file.items(file.meta.main):
            yield _line(item.key, bytes(item.value), item.at, show)
    except DamagedPage as error:
        yield Line("records", {}, str(error))


def _line(key: bytes, value: bytes, byte: int, show: Callable[[bytes, bytes], Line]) -> Line:
    try:
        return show(key, value)
    except (CorruptStorage, cbor2.CBORDecodeError, ValueError) as error:
        return Line(key.decode(errors="replace"), {}, f"byte {byte}: {error}")
