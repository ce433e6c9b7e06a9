"""Brings what groups want kept to the store, and tells them when it is there.

    Group ─▶ persist ─▶ due, by group: the newest wins ─▶ one commit for all that is due ─▶ told

While a commit is under way, what comes is gathered for the next: a hundred groups that rebalance together, as after a
loss of the network, share a few commits. What a group wants kept takes the place of what it wanted before, which then
is never written, and nobody is told of it: a group goes by the newest.

Not here: what is kept, and when (`machine.Group`); how (`persisted_group_store`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Protocol

import structlog
import trio

from fairlog.groups.persisted_group import PersistedGroup
from fairlog_types import StorageFailure

log = structlog.get_logger()

Told = Callable[[bool], None]
"""Called with whether it is kept, and on disk; otherwise the store has refused it, and holds what it held."""


class Store(Protocol):
    """What is needed of the store; `persisted_group_store.PersistedGroupStore` has it."""

    def write(self, changes: Mapping[str, PersistedGroup | None]) -> None: ...


class GroupPersister:
    """Keeps groups in a store; `run` has to run, or nothing is kept."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._due: dict[str, tuple[PersistedGroup | None, Told]] = {}
        self._writing: dict[str, tuple[PersistedGroup | None, Told]] = {}
        self._something_is_due = trio.Event()
        self._written = trio.Event()
        self._refused = False

    def persist(self, group_id: str, group: PersistedGroup | None, told: Told) -> None:
        """Keep this of the group from now on, or (None) nothing. `told` is called on the event loop, once, unless
        something newer is to be kept of the same group before this was begun."""
        self._due[group_id] = group, told
        self._something_is_due.set()

    async def settled(self, group_id: str) -> None:
        """Return once nothing that was to be kept of the group is on its way to the store."""
        while group_id in self._due or group_id in self._writing:
            await self._written.wait()

    async def run(self) -> None:
        """Write what is due, until cancelled; what is being written then is on disk, or refused, when this ends."""
        while True:
            await self._something_is_due.wait()
            self._something_is_due = trio.Event()
            self._writing, self._due = self._due, {}
            is_kept = await self._write({group_id: group for group_id, (group, _) in self._writing.items()})
            written, self._writing = self._writing, {}
            for _, told in written.values():
                told(is_kept)
            self._written.set()
            self._written = trio.Event()

    async def _write(self, changes: Mapping[str, PersistedGroup | None]) -> bool:
        try:
            await trio.to_thread.run_sync(self._store.write, changes)
        except StorageFailure as failure:
            if not self._refused:  # once, not for each rebalance
                log.warning("groups cannot be kept, and get no new assignments", reason=str(failure))
            self._refused = True
            return False
        self._refused = False
        return True
