"""The entries of offsets logs as values, and their CBOR form: committed consumer offsets, and records of groups.

A group's commit is a list of entries, and so is the record of who is in the group. The list is one record of an offsets
log: it travels as a journal frame's payload, plain or inside a transaction, and the copier hands the decoded entries to
`DataLogWriter.put_offsets`, which keeps the newest per key. The list is never read back as a batch.

    payload := [ entry, … ]
    entry   := [group, topic, partition, value]
             | [group, record]
    value   := null (the key is deleted) | [offset, leader epoch, metadata, commit time in ms]
    record  := null (the key is deleted) | bytes, opaque here (fairlog/groups/persisted_group.py)

Pure. Format: docs/formats/data-log.md.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import cast

import cbor2

from fairlog_types import Offset

PARTITION_MAX = (1 << 32) - 1
"""What a key of the offsets table can hold."""

DIGEST_BYTES = 16


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


@dataclass(frozen=True, slots=True)
class GroupEntry:
    """Who is in a group from now on, in place of what was said before; `record` None: nothing is known any more."""

    group: str
    record: bytes | None


Entry = OffsetEntry | GroupEntry


def name_digest(name: str) -> bytes:
    """What stands for the name of a group or a topic in keys: names may be longer than an LMDB key (511 bytes)."""
    return blake2b(name.encode(), digest_size=DIGEST_BYTES).digest()


def encode_offset_entries(entries: Sequence[Entry]) -> bytes:
    """The payload of one record of an offsets log."""
    return cbor2.dumps([_to_plain(entry) for entry in entries])


def decode_offset_entries(payload: bytes | bytearray | memoryview) -> list[Entry]:
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
        entry = _from_plain(cbor2.loads(data))
    except (cbor2.CBORDecodeError, TypeError, ValueError) as error:
        raise MalformedEntries(f"not an offset entry: {error}") from error
    if isinstance(entry, GroupEntry):
        raise MalformedEntries("not an offset entry: the record of a group")
    return entry


def _to_plain(entry: Entry) -> list[object]:
    if isinstance(entry, GroupEntry):
        return [entry.group, entry.record]
    key, value = entry.key, entry.value
    plain: list[object] | None = None
    if value is not None:
        plain = [value.offset, value.leader_epoch, value.metadata, value.commit_timestamp_ms]
    return [key.group, key.topic, key.partition, plain]


def _from_plain(line: object) -> Entry:
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
        case [str(group), bytes() | None as record]:
            return GroupEntry(group, record)
        case _:
            raise ValueError("a group, a topic, a partition, and null or four fields were due, or a group and bytes")
