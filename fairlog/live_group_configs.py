"""The current configs of consumer groups: what clients have set, over the node's settings.

Clients set them with AlterConfigs and IncrementalAlterConfigs, for any group, whether it exists or not, and whatever
its protocol; only groups of the new protocol (KIP-848) use them. The cluster store keeps them, so a change is durable
when it is answered, and survives a restart and the deletion of the group, until it is deleted itself.

A group reads them with each request of its members (`consumer_settings`), so a change takes effect with the next
heartbeat.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

import structlog

from fairlog.cluster.interface import ClusterStore
from fairlog.config import GroupSettings
from fairlog.group_configs import HEARTBEAT_INTERVAL_MS, SESSION_TIMEOUT_MS, value_of, why_refused
from fairlog.groups.consumer.settings import ConsumerGroupSettings
from fairlog.topic_config_changes import BadChange

log = structlog.get_logger()

GROUPS_MAX = 100_000
"""So many groups may have configs of their own. With the longest ids they take half of the cluster store's map."""


class LiveGroupConfigs:
    """The configs of all groups."""

    def __init__(self, settings: GroupSettings, cluster: ClusterStore) -> None:
        """`settings` are those of the node's start; none of them changes later."""
        self._settings = settings
        self._cluster = cluster
        self._of_all = ConsumerGroupSettings(
            session_timeout_ms=settings.consumer_session_timeout_ms,
            heartbeat_interval_ms=settings.consumer_heartbeat_interval_ms,
            members_max=settings.members_max,
            classic_session_timeout_min_ms=settings.min_session_timeout_ms,
            classic_session_timeout_max_ms=settings.max_session_timeout_ms,
        )

    def of(self, group_id: str) -> Mapping[str, str]:
        """What clients have set for a group: Kafka's names, values as text."""
        return self._cluster.group_configs(group_id)

    def consumer_settings(self, group_id: str) -> ConsumerGroupSettings:
        """What a group of the new protocol goes by."""
        own = self._cluster.group_configs(group_id)
        if not own:
            return self._of_all
        return replace(
            self._of_all,
            session_timeout_ms=value_of(SESSION_TIMEOUT_MS, own, self._settings),
            heartbeat_interval_ms=value_of(HEARTBEAT_INTERVAL_MS, own, self._settings),
        )

    async def alter(
        self, group_id: str, change: Callable[[Mapping[str, str]], Mapping[str, str]], *, validate_only: bool
    ) -> None:
        """Change what clients have set for a group: `change` makes the new configs of the old.

        With `validate_only` they are checked and not kept. Raises BadChange, and what `change` raises; StorageFailure.
        Cancelled: the change was made, or it was not.
        """

        def checked(own: Mapping[str, str]) -> Mapping[str, str]:
            new = change(own)
            problem = why_refused(new, own, self._settings)
            if problem is not None:
                raise BadChange(problem)
            if not own and len(self._cluster.configured_groups()) >= GROUPS_MAX:
                raise BadChange(f"{GROUPS_MAX} groups have configs of their own already")
            return own if validate_only else new

        if await self._cluster.alter_group_configs(group_id, checked):
            log.info("group configs changed", group=group_id, configs=dict(self.of(group_id)))
