"""Committed consumer offsets, as values, and their CBOR form.

A group's commit is a list of entries. The list is one record of an offsets log: it travels as a journal frame's
payload, plain or inside a transaction, and the copier hands the decoded entries to `DataLogWriter.put_offsets`, which
keeps the newest per key. The list is never read back as a batch.

    payload := [ entry, … ]
    entry   := [group, topic, partition, value]
    value   := null (the key is deleted) | [offset, leader epoch, metadata, commit time in ms]

Pure. Format: docs/formats/data-log.md.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import cast

import cbor2

from fairlog_types import Offset

PARTITION_MAX = (1 << 32) - 1
"""What a key of the offsets table can hold."""


class MalformedEntries(ValueError):
    """Bytes that should contain offset entries do not."""


@dataclass(frozen=True, slots=True, order=True)
class OffsetKey:
    """The key of a committed offset. `topic` is the text that the caller uses to name topics."""

    group: str
    topic: str
    partition: int


@dataclass(frozen=True, slots=True)
class CommittedOffset:
    """A group's position in a partition: the next record that it will read."""

    offset: Offset
    leader_epoch: int
    """-1 if the client did not say."""
    metadata: str
    commit_timestamp_ms: int


@dataclass(frozen=True, slots=True)
class OffsetEntry:
    """One line of a commit; `value` None deletes the key."""

    key: OffsetKey
    value: CommittedOffset | None


def encode_offset_entries(entries: Sequence[OffsetEntry]) -> bytes:
    """The payload of one record of an offsets log."""
    return cbor2.dumps([_to_plain(entry) for entry in entries])


def decode_offset_entries(payload: bytes | bytearray | memoryview) -> list[OffsetEntry]:
    """Read what `encode_offset_entries` wrote. Raises MalformedEntries on anything else."""
    try:
        return [_from_plain(line) for line in cast("list[object]", cbor2.loads(payload))]
    except (cbor2.CBORDecodeError, TypeError, ValueError) as error:
        raise MalformedEntries(f"not a list of offset entries: {error}") from error


def encode_offset_entry(entry: OffsetEntry) -> bytes:
    """One entry alone: the value under its key in the offsets table."""
    return cbor2.dumps(_to_plain(entry))


def decode_offset_entry(data: bytes | bytearray | memoryview) -> OffsetEntry:
    """Read what `encode_offset_entry` wrote. Raises MalformedEntries on anything else."""
    try:
        return _from_plain(cbor2.loads(data))
    except (cbor2.CBORDecodeError, TypeError, ValueError) as error:
        raise MalformedEntries(f"not an offset entry: {error}") from error


def _to_plain(entry: OffsetEntry) -> list[object]:
    key, value = entry.key, entry.value
    plain: list[object] | None = None
    if value is not None:
        plain = [value.offset, value.leader_epoch, value.metadata, value.commit_timestamp_ms]
    return [key.group, key.topic, key.partition, plain]


def _from_plain(line: object) -> OffsetEntry:
    """Raises ValueError if it is not a result of `_to_plain`."""
    match line:
        case [str(group), str(topic), int(partition), None] if 0 <= partition <= PARTITION_MAX:
            return OffsetEntry(OffsetKey(group, topic, partition), None)
        case [
            str(group),
            str(topic),
            int(partition),
            [int(offset), int(leader_epoch), str(metadata), int(commit_timestamp_ms)],
        ] if 0 <= partition <= PARTITION_MAX:
            value = CommittedOffset(Offset(offset), leader_epoch, metadata, commit_timestamp_ms)
            return OffsetEntry(OffsetKey(group, topic, partition), value)
        case _:
            raise ValueError("a group, a topic, a partition, and null or four fields were due")
