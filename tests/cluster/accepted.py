"""A fold of the tests' own, by which the product's is judged: which changes of a metadata stream count."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from fairlog.cluster.metadata_entry import Base, Change, NotAnEntry, decode_entry_untrusted
from stream.engine import StreamPosition


def accepted_changes(entries: list[bytes]) -> Iterator[Mapping[bytes, bytes | None]]:
    """The changes of each accepted entry, of all entries that ever were in the stream."""
    accepted: Base | None = None
    cluster = None
    for position, data in enumerate(entries):
        entry = decode_entry_untrusted(data)
        if isinstance(entry, NotAnEntry) or not isinstance(entry.body, Change):
            continue
        if entry.base == accepted and cluster in (None, entry.cluster):
            accepted, cluster = Base(StreamPosition(position), entry.crc), entry.cluster
            yield entry.body.changes


def accepted_content(entries: list[bytes]) -> dict[bytes, bytes]:
    """The records that are there after all of them."""
    content: dict[bytes, bytes] = {}
    for changes in accepted_changes(entries):
        for key, value in changes.items():
            if value is None:
                content.pop(key, None)
            else:
                content[key] = value
    return content
