"""Brings what groups want kept to the offsets logs, and tells them when it is there.

    Group ─▶ persist ─▶ due, by group: the newest wins ─▶ one write of all that is due ─▶ told

While a write is under way, what comes is gathered for the next: a hundred groups that rebalance together, as after a
loss of the network, share a few. What a group wants kept takes the place of what it wanted before, which then
is never written, and nobody is told of it: a group goes by the newest.

Not here: what is kept, and when (`machine.Group`); where (`groups_log`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Protocol

import structlog
import trio

from fairlog.groups.persisted_group import PersistedGroup

log = structlog.get_logger()

Told = Callable[[bool], None]
"""Called with whether it is kept, and durable. If not, it may be there at the next start all the same, or what was
there before: nobody was told of it."""


class Store(Protocol):
    """What is needed of the place where groups are kept; `groups_log.GroupsLog` has it."""

    async def write(self, changes: Mapping[str, PersistedGroup | None]) -> Mapping[str, str]: ...


class GroupPersister:
    """Keeps groups in a store; `run` has to run, or nothing is kept."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._due: dict[str, tuple[PersistedGroup | None, Told]] = {}
        self._writing: dict[str, tuple[PersistedGroup | None, Told]] = {}
        self._something_is_due = trio.Event()
        self._written = trio.Event()
        self._not_kept: dict[str, str] = {}
        """Why, by group, for those whose last write failed."""

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
        """Write what is due, until cancelled; nobody is told of what is being written then."""
        while True:
            await self._something_is_due.wait()
            self._something_is_due = trio.Event()
            self._writing, self._due = self._due, {}
            not_kept = await self._store.write({group_id: group for group_id, (group, _) in self._writing.items()})
            written, self._writing = self._writing, {}
            for group_id, (group, told) in written.items():
                self._note(group_id, group, not_kept.get(group_id))
                told(group_id not in not_kept)
            self._written.set()
            self._written = trio.Event()

    def _note(self, group_id: str, group: PersistedGroup | None, reason: str | None) -> None:
        before = self._not_kept.pop(group_id, None)
        if reason is None:
            return
        if reason != before and reason not in self._not_kept.values():  # once, not for each rebalance
            log.warning("groups cannot be kept, and get no new assignments", group=group_id, reason=reason)
        if group is not None:
            self._not_kept[group_id] = reason
