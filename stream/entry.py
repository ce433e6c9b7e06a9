"""One entry of a shard's stream: its bytes, and when bytes are an entry.

    magic u32 | version u8 | kind u8 | flags u8 | 0 u8 | epoch u32 | sequence u64 | chain u32 | body

An *epoch* begins with a FENCE, which has sequence 0; its owner numbers what it appends 1, 2, 3, … The *chain* is a
CRC-32C over all of the entry but itself. It starts from the chain of the accepted entry before, and from 0 in a FENCE
(`fold` joins the chains of two epochs), so an entry that was lost or changed cannot go unnoticed.

| kind | body | written by |
|---|---|---|
| FENCE | CBOR: the new owner, and the last entry of the epoch before that it has read | whoever wants to be the owner |
| FRAMES | frames of the shard's journals, in the order in which they were appended | the owner |
| HEARTBEAT | nothing | the owner, if it has nothing else to say |
| HAND_OVER | CBOR: who is to be the next owner | the owner, as its last entry |

FRAMES that do not fit into one entry are *continued* in the next one, and count as one with it.

Format: docs/formats/stream-entry.md. Pure: no I/O. What is in a frame is not known here.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import Enum, IntEnum
from typing import NamedTuple, cast

import cbor2
from crc32c import crc32c

from fairlog_types import LeaderEpoch

Buffer = bytes | bytearray | memoryview

MAGIC = 0x53474C46
"""`FLGS` in the file's order of bytes."""
VERSION = 1

_HEADER = struct.Struct("<IBBBBIQI")
ENTRY_HEADER_BYTES = _HEADER.size
_BEFORE_CHAIN = struct.Struct("<IBBBBIQ")
_FRAME_BYTES = struct.Struct("<I")
_CONTINUED = 1
_INCARNATION_BYTES = 16
JOURNAL_NAME_BYTES_MAX = 0xFF


class EntryKind(IntEnum):
    """What an entry is. See the module's head."""

    FENCE = 1
    FRAMES = 2
    HEARTBEAT = 3
    HAND_OVER = 4


class Owner(NamedTuple):
    """Who may own a shard."""

    node: str
    """Its name in the cluster."""
    incarnation: bytes
    """16 random bytes for each attempt: nobody goes on in an epoch of which he may have forgotten something."""


class Seen(NamedTuple):
    """An entry that was read: where an epoch was, as far as its reader knew."""

    epoch: LeaderEpoch
    sequence: int
    chain: int


class JournalFrame(NamedTuple):
    """A frame of one of the shard's journals."""

    journal: str
    """The journal's name in the shard: at most 255 bytes of ASCII."""
    data: Buffer
    """Its replicated part (docs/formats/journal-segment.md)."""


@dataclass(frozen=True, slots=True)
class Entry:
    """A valid entry, but for its chain, which only the fold can check. `body` is a view of what it was decoded from."""

    kind: EntryKind
    continued: bool
    epoch: LeaderEpoch
    sequence: int
    chain: int
    body: memoryview

    def follows(self, chain: int) -> bool:
        """Whether its chain starts from `chain`, and it is as it was written."""
        return self.chain == _chain(_head(self.kind, self.epoch, self.sequence, self.continued), self.body, chain)


_KINDS = frozenset(EntryKind)


class NotAnEntry(Enum):
    """Why bytes are not an entry that is known; the value completes "the bytes at … are not an entry: …"."""

    SHORT = "they are too few"
    MAGIC = "they do not begin as one"
    VERSION = "they have another version"
    KIND = "their kind is unknown"
    FLAGS = "a reserved bit is set"
    BODY = "the body is not one of this kind"

    @property
    def is_of_a_newer_version(self) -> bool:
        """They begin as an entry does: somebody has written there who knows more than we do."""
        return self in (NotAnEntry.VERSION, NotAnEntry.KIND, NotAnEntry.FLAGS)


def encode_entry(
    kind: EntryKind, epoch: LeaderEpoch, sequence: int, chain: int, body: Buffer = b"", *, continued: bool = False
) -> tuple[bytes, int]:
    """An entry and its chain; `chain` is that of the entry before it in the epoch (0 for a FENCE)."""
    head = _head(kind, epoch, sequence, continued)
    own = _chain(head, body, chain)
    return b"".join((head, own.to_bytes(4, "little"), body)), own


def _head(kind: EntryKind, epoch: LeaderEpoch, sequence: int, continued: bool) -> bytes:
    return _BEFORE_CHAIN.pack(MAGIC, VERSION, kind, _CONTINUED if continued else 0, 0, epoch, sequence)


def _chain(head: bytes, body: Buffer, before: int) -> int:
    return crc32c(body, crc32c(head, before))


def decode_entry_untrusted(data: Buffer) -> Entry | NotAnEntry:
    """Decode an entry. Never raises. Its chain is not checked yet, nor what its body holds."""
    if len(data) < ENTRY_HEADER_BYTES:
        return NotAnEntry.SHORT if data[:4] == MAGIC.to_bytes(4, "little")[: len(data)] else NotAnEntry.MAGIC
    magic, version, kind, flags, reserved, epoch, sequence, chain = _HEADER.unpack_from(data)
    if magic != MAGIC:
        return NotAnEntry.MAGIC
    if version != VERSION:
        return NotAnEntry.VERSION
    if kind not in _KINDS:
        return NotAnEntry.KIND
    if flags & ~_CONTINUED or reserved or (flags and kind != EntryKind.FRAMES):
        return NotAnEntry.FLAGS
    view = memoryview(data)
    return Entry(
        EntryKind(kind), bool(flags & _CONTINUED), LeaderEpoch(epoch), sequence, chain, view[ENTRY_HEADER_BYTES:]
    )


def join_chains(before: int, fence: int) -> int:
    """What the chain of a new epoch starts from: the last accepted chain before its FENCE, and that of the FENCE."""
    return crc32c(before.to_bytes(4, "little"), fence)


def encode_fence(owner: Owner, seen: Seen | None) -> bytes:
    """The body of a FENCE by which `owner` becomes the owner; `seen` is the last entry that it has folded, if any."""
    return cbor2.dumps([owner.node, owner.incarnation, None if seen is None else list(seen)])


def decode_fence_untrusted(body: Buffer) -> tuple[Owner, Seen | None] | NotAnEntry:
    """Decode what `encode_fence` wrote. Never raises."""
    match _cbor(body):
        case [str(node), bytes(incarnation), None] if len(incarnation) == _INCARNATION_BYTES:
            return Owner(node, incarnation), None
        case [str(node), bytes(incarnation), [int(epoch), int(sequence), int(chain)]] if (
            len(incarnation) == _INCARNATION_BYTES
        ):
            return Owner(node, incarnation), Seen(LeaderEpoch(epoch), sequence, chain)
        case _:
            return NotAnEntry.BODY


def encode_hand_over(successor: str | None) -> bytes:
    """The body of a HAND_OVER to the node `successor`; None: to whoever comes first."""
    return cbor2.dumps([successor])


def decode_hand_over_untrusted(body: Buffer) -> tuple[str | None] | NotAnEntry:
    """Decode what `encode_hand_over` wrote. Never raises."""
    match _cbor(body):
        case [str() | None as successor]:
            return (successor,)
        case _:
            return NotAnEntry.BODY


def _cbor(body: Buffer) -> object:
    try:
        return cast("object", cbor2.loads(body))
    except (cbor2.CBORDecodeError, UnicodeDecodeError, ValueError, TypeError, RecursionError):
        return None


def encode_frames(frames: Iterable[JournalFrame]) -> list[Buffer]:
    """The body of FRAMES, as buffers to be joined: for each frame its journal's name, unless it is the one before."""
    parts: list[Buffer] = []
    before: str | None = None
    for journal, data in frames:
        name = b"" if journal == before else journal.encode("ascii")
        parts.append(bytes((len(name),)) + name + _FRAME_BYTES.pack(len(data)))
        parts.append(data)
        before = journal
    return parts


def decode_frames_untrusted(body: Buffer) -> Sequence[JournalFrame] | NotAnEntry:
    """Decode the body of FRAMES; the frames are views of it. Never raises."""
    view, frames, at, journal = memoryview(body), list[JournalFrame](), 0, ""
    while at < len(view):
        name_end = at + 1 + view[at]
        start = name_end + _FRAME_BYTES.size
        if start > len(view):
            return NotAnEntry.BODY
        if name_end > at + 1:
            try:
                journal = str(view[at + 1 : name_end], "ascii")
            except UnicodeDecodeError:
                return NotAnEntry.BODY
        at = start + _FRAME_BYTES.unpack_from(view, name_end)[0]
        if not journal or at > len(view):
            return NotAnEntry.BODY
        frames.append(JournalFrame(journal, view[start:at]))
    return frames
