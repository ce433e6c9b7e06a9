"""What a journal is to those who write into it and read it back, wherever its frames are kept.

Two kinds of journals have it: `journal.Journal`, in files of this machine, and `streamed.StreamedJournal`, on a
replicated log, with files of this machine as its copy. `Journal` says what each method promises; *on disk* means kept
by the replicated log for the other one.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Protocol

from fairlog_types import JournalPosition, StorageFailure
from journal.frame import Buffer
from journal.reading import FrameAt
from journal.segment import Fsync, JournalKind


class OpenJournal(Protocol):
    """A journal that is open for appending and reading. Used on the event loop, but for `read_payload` and `let_go`."""

    @property
    def failed(self) -> StorageFailure | None: ...

    @property
    def begun(self) -> bool: ...

    @property
    def begun_with(self) -> Fsync: ...

    @property
    def may_have_another_owner(self) -> bool:
        """Whether another process may append by now, so that what is appended here is not accepted."""
        ...

    async def confirm(self) -> None:
        """Return once it is certain that no other process owned it when this was called. Raises StorageFailure."""
        ...

    @property
    def gets_tail_again(self) -> bool:
        """Whether frames that this machine has lost will come again, at their positions."""
        ...

    @property
    def start(self) -> JournalPosition: ...

    @property
    def end(self) -> JournalPosition: ...

    @property
    def durable(self) -> JournalPosition: ...

    def append(
        self, kind: int, header: Sequence[object], payload: Sequence[Buffer] = (), *, timestamp_ms: int
    ) -> JournalPosition: ...

    def has_room(self, payload_bytes: int) -> bool: ...

    async def make_room(self, payload_bytes: int) -> None: ...

    def start_flush(self) -> None: ...

    async def flush(self, through: JournalPosition) -> None: ...

    async def sync(self, through: JournalPosition | None = None) -> None: ...

    async def begin(self) -> None: ...

    async def roll(self) -> JournalPosition: ...

    async def advance(self, to: JournalPosition) -> None: ...

    async def begin_under_present_setting(self) -> None: ...

    async def reclaim(self, before: JournalPosition) -> None: ...

    async def close(self) -> None: ...

    def frames(self, start: JournalPosition) -> Iterator[FrameAt]: ...

    def read_payload(self, position: JournalPosition, frame_bytes: int) -> bytearray: ...

    def recent_payload(self, position: JournalPosition) -> bytearray | None: ...

    def let_go(self, position: JournalPosition, frame_bytes: int) -> None: ...


class Journals(Protocol):
    """Opens the journals of a shard."""

    async def open(self, directory: Path, kind: JournalKind) -> OpenJournal:
        """The journal in `directory`, recovered. See `Journal.open`."""
        ...

    def unbegun(self, directory: Path, kind: JournalKind) -> OpenJournal:
        """What `open` answers where there is no `directory`."""
        ...
