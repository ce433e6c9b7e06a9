"""The journals of a shard in files of this machine: each journal by itself, flushed by fdatasync."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from fairlog_types import LeaderEpoch
from journal.flush import Flusher
from journal.journal import Journal, JournalKind, JournalSettings
from journal.recent import RecentPayloads
from journal.segment import Fsync


class JournalsOnFiles:
    """Opens them. Implements `journal.interface.Journals`."""

    def __init__(
        self, flusher: Flusher, settings: Mapping[JournalKind, JournalSettings], leader_epoch: LeaderEpoch
    ) -> None:
        """`leader_epoch` goes into every frame that is appended."""
        self._flusher = flusher
        self._settings = settings
        self._leader_epoch = leader_epoch
        self._recent = RecentPayloads()

    async def open(self, directory: Path, kind: JournalKind) -> Journal:
        return await Journal.open(
            directory,
            kind=kind,
            settings=self._settings[kind],
            flusher=self._flusher,
            leader_epoch=self._leader_epoch,
            recent=self._recent_of(kind),
        )

    def unbegun(self, directory: Path, kind: JournalKind) -> Journal:
        return Journal.unbegun(
            directory,
            kind=kind,
            settings=self._settings[kind],
            flusher=self._flusher,
            leader_epoch=self._leader_epoch,
            recent=self._recent_of(kind),
        )

    def _recent_of(self, kind: JournalKind) -> RecentPayloads | None:
        """Nobody copies what the group journals have.

        And where a loss of power may take what is durable in name only, it shall not be read ahead of the data logs.
        """
        is_wanted = kind is JournalKind.LOCAL and self._settings[kind].fsync is Fsync.COMMIT
        return self._recent if is_wanted else None
