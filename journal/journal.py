"""(being built: the public face that the other rooms call)"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

from fairlog_types import JournalPosition, LeaderEpoch, StorageFailure
from journal.flush import Flusher
from journal.frame import Buffer


class JournalKind(Enum):
    """Whose journal it is; stands in every segment's header."""

    LOCAL = 1
    GROUP = 2


class Fsync(Enum):
    """When appended frames go to disk (`journal.fsync`); the value is the setting's text."""

    COMMIT = "commit"
    INTERVAL = "interval"
    NEVER = "never"


class NoRoom(StorageFailure):
    """The frame does not fit into the preallocated room; `make_room` first (it fails if the disk is full)."""


@dataclass(frozen=True, slots=True)
class JournalSettings:
    fsync: Fsync = Fsync.COMMIT
    fsync_interval_ms: int = 100
    segment_bytes_max: int = 32 * 2**20


@dataclass(frozen=True, slots=True)
class FrameAt:
    """A frame as `Journal.frames` yields it: what it says, and where its payload lies."""

    position: JournalPosition
    end: JournalPosition
    """Behind the frame and its padding; `end - position` is the `frame_bytes` that `read_payload` takes."""
    kind: int
    leader_epoch: LeaderEpoch
    header: list[object]
    payload_position: JournalPosition
    payload_bytes: int


@dataclass(frozen=True, slots=True)
class Recovered:
    """A torn tail that `open` cut: `bytes_cut` from `position` in `file`, with `frames_cut` whole frames in it."""

    file: Path
    position: JournalPosition
    bytes_cut: int
    frames_cut: int


class Journal:
    kind: JournalKind
    leader_epoch: LeaderEpoch
    recovered: Recovered | None
    failed: StorageFailure | None

    @classmethod
    async def open(
        cls,
        directory: Path,
        *,
        kind: JournalKind,
        settings: JournalSettings,
        flusher: Flusher,
        leader_epoch: LeaderEpoch,
    ) -> Journal:
        raise NotImplementedError

    @property
    def start(self) -> JournalPosition:
        raise NotImplementedError

    @property
    def end(self) -> JournalPosition:
        raise NotImplementedError

    @property
    def durable(self) -> JournalPosition:
        raise NotImplementedError

    def append(self, kind: int, header: Sequence[object], payload: Sequence[Buffer] = ()) -> JournalPosition:
        """Position of the frame; afterwards `end - position` is its `frame_bytes`."""
        raise NotImplementedError

    def has_room(self, payload_bytes: int) -> bool:
        """For a payload of so many bytes with its header (no need to reckon the frame's overhead)."""
        raise NotImplementedError

    async def make_room(self, payload_bytes: int) -> None:
        raise NotImplementedError

    def start_flush(self) -> None:
        raise NotImplementedError

    async def flush(self, through: JournalPosition) -> None:
        raise NotImplementedError

    async def sync(self) -> None:
        """Put all that is appended on disk, whatever `fsync` says (for a group journal's snapshot)."""
        raise NotImplementedError

    async def roll(self) -> JournalPosition:
        """Begin a new segment now; answers its base position (for a group journal's snapshot)."""
        raise NotImplementedError

    def frames(self, start: JournalPosition) -> Iterator[FrameAt]:
        raise NotImplementedError

    def read_payload(self, position: JournalPosition, frame_bytes: int) -> bytearray:
        raise NotImplementedError

    async def reclaim(self, before: JournalPosition) -> None:
        """Delete whole segments that end at or before `before`."""
        raise NotImplementedError

    async def close(self) -> None:
        raise NotImplementedError
