"""The group journals of a shard, and when nothing is written to them any more.

A journal that fails closes its groups until a restart; participants that fail close all of them. Then no record is
appended, and whoever waits is woken, to be told (`on_refusing`).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Sequence
from typing import Protocol, TypeVar

import structlog
import trio

from coordinator.group_journal import GroupJournal
from coordinator.group_records import GroupRecord
from coordinator.messages import Stopped
from fairlog_types import JournalPosition
from journal.journal import NoFiles

T = TypeVar("T")

_log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)


class Recorded(Protocol):
    """What has records in a group journal: a transactional id, or a sink."""

    @property
    def journal(self) -> int: ...

    appended: JournalPosition
    """After its last record."""


class GroupJournals:
    """The journals, by number, and why their groups are refused."""

    def __init__(
        self,
        journals: Sequence[GroupJournal],
        *,
        on_failure: Callable[[str], None],
        on_refusing: Callable[[], None],
    ) -> None:
        """`on_failure` hears why a journal is closed; `on_refusing` is called when requests begin to be refused."""
        self.failures: list[Exception | None] = [None] * len(journals)
        """Of each journal: why its groups are refused."""
        self.all_refused: Exception | None = None
        """Why all are refused: the participants cannot write."""
        self._journals = journals
        self._on_failure = on_failure
        self._on_refusing = on_refusing

    def __len__(self) -> int:
        return len(self._journals)

    def __iter__(self) -> Iterator[GroupJournal]:
        return iter(self._journals)

    def __getitem__(self, number: int) -> GroupJournal:
        return self._journals[number]

    def is_refusing(self, recorded: Recorded) -> bool:
        """Whether nothing can be written for this id, or sink, until a restart."""
        return self.all_refused is not None or self.failures[recorded.journal] is not None

    @property
    def is_stopping(self) -> bool:
        """Whether nothing is written any more because this shard stops: no disk has failed."""
        return isinstance(self.all_refused, Stopped)

    async def append(self, recorded: Recorded, record: GroupRecord) -> None:
        """Append for this id, or sink, as soon as there is room. Raises StorageFailure."""
        await self.room(recorded, record)
        self.append_now(recorded, record)

    async def room(self, recorded: Recorded, record: GroupRecord) -> None:
        """Return in a step in which there is room for the record. Raises StorageFailure."""
        journal = self._journals[recorded.journal]
        while not journal.has_room(record):
            try:
                await shielded(journal.make_room(record))
            except NoFiles:
                break  # what is kept for decisions may take it

    def append_now(self, recorded: Recorded, record: GroupRecord) -> None:
        """Append in this step, after `room`. Raises StorageFailure."""
        recorded.appended = self._journals[recorded.journal].append(record)

    def refuse(self, number: int, failure: Exception) -> None:
        """The journal is closed for writing: its groups are refused until a restart."""
        if isinstance(failure, Stopped):
            self.refuse_all(failure)
        elif self.failures[number] is None:
            self.failures[number] = failure
            _log.error(
                "group journal failed; its groups are refused until the shard starts again", failure=str(failure)
            )
            self._on_refusing()
            self._on_failure(str(failure))

    def refuse_all(self, failure: Exception) -> None:
        """The participants cannot write, or this shard stops: nothing is placed, and all is refused until a restart."""
        if self.all_refused is None:
            self.all_refused = failure
            if isinstance(failure, Stopped):
                _log.info("transactions are refused here: the shard stops", reason=str(failure))
            else:
                _log.error(
                    "partitions cannot be written; transactions are refused until the shard starts again",
                    failure=str(failure),
                )
            self._on_refusing()


async def shielded(waiting: Awaitable[T]) -> T:
    """Wait for a disk, whoever gives up meanwhile. Around what waits only: a scope costs as much as a record."""
    with trio.CancelScope(shield=True):
        return await waiting
    raise AssertionError("nobody cancels this scope")
