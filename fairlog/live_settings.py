"""The node's current settings: those of its start, and on top of them what clients have changed since.

    flags, environment, file ──▶ `of_start` ──▶ configs of all brokers ──▶ configs of this broker ──▶ `current`

Clients change a broker's configs as in Kafka (KIP-226): under Kafka's names, for this broker or for all, by
AlterConfigs and IncrementalAlterConfigs. `fairlog.broker_configs` says which. The cluster store keeps them, so a change
is durable when it is answered, survives a restart, and overrides the settings of the next start. With several brokers
on one store, each hears of what clients have changed at another one (`follow`).

Code that uses such a setting reads `current` each time, and never keeps the value. Code that sleeps for such a time
also waits for `changed`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import structlog
import trio

from fairlog.broker_configs import settings_with
from fairlog.cluster.interface import ClusterStore
from fairlog.config import ConfigError, Settings
from fairlog.topic_config_changes import BadChange

log = structlog.get_logger()

ALL_BROKERS = ""
"""What Kafka calls all brokers together, where one is called by its id."""


class LiveSettings:
    """The settings of one node."""

    def __init__(self, of_start: Settings, cluster: ClusterStore) -> None:
        """Raises ConfigError if what clients have set does not fit the settings of this start."""
        self._of_start = of_start
        self._cluster = cluster
        self._current = settings_with(of_start, *map(cluster.broker_configs, self._resources()))
        self._changing = trio.Lock()
        self._changed = trio.Event()

    @property
    def current(self) -> Settings:
        """The settings as they are now."""
        return self._current

    @property
    def of_start(self) -> Settings:
        """The settings that the node was started with."""
        return self._of_start

    def changed_for(self, resource: str) -> Mapping[str, str]:
        """What clients have set for a broker, by its id, or for `ALL_BROKERS`: Kafka's names, values as text."""
        return self._cluster.broker_configs(resource)

    async def wait_changed(self) -> None:
        """Wait for the next change."""
        await self._changed.wait()

    async def alter(
        self, resource: str, change: Callable[[Mapping[str, str]], Mapping[str, str]], *, validate_only: bool
    ) -> None:
        """Change what clients have set for a broker, or for `ALL_BROKERS`: `change` makes the new configs of the old.

        With `validate_only` they are checked and not kept. Raises BadChange, and what `change` raises; StorageFailure.
        Cancelled: the change was made, or it was not.
        """
        async with self._changing:
            settings = self._current

            def checked(own: Mapping[str, str]) -> Mapping[str, str]:
                nonlocal settings
                new = change(own)
                layers = [new if each == resource else self._cluster.broker_configs(each) for each in self._resources()]
                try:
                    settings = settings_with(self._of_start, *layers)
                except ConfigError as error:
                    raise BadChange(str(error)) from error
                return own if validate_only else new

            with trio.CancelScope(shield=True):
                if not await self._cluster.alter_broker_configs(resource, checked):
                    return
                self._become(settings)
        log.info("broker configs changed", brokers=resource or "all", configs=dict(self.changed_for(resource)))

    async def follow(self) -> None:
        """Take in what clients have other brokers of the cluster change; until cancelled."""
        while True:
            changed = self._cluster.changed()
            try:
                settings = settings_with(self._of_start, *map(self._cluster.broker_configs, self._resources()))
            except ConfigError as error:  # the settings of the other process differ
                log.warning("configs that clients have set do not fit this broker and are left out", reason=str(error))
            else:
                if settings != self._current:
                    self._become(settings)
            await changed.wait()

    def _become(self, settings: Settings) -> None:
        self._current = settings
        self._changed.set()
        self._changed = trio.Event()

    def _resources(self) -> tuple[str, str]:
        """Whose configs hold here, the weaker first."""
        return ALL_BROKERS, str(self._cluster.node_id)
