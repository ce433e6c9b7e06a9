"""The quotas that the cluster's store has now, as one broker enforces them.

    ClusterStore.access(QUOTAS) ──▶ Limits ──▶ Meters: of producers, of consumers, of connections
                                                  ▲
         Produce, Fetch, a new connection ────────╯ ──▶ seconds for which the client is not heard

As in Kafka each broker enforces them by itself: a client of three brokers may have three times as much. Meters of a
kind are there only while somebody has such a quota, so without one a request costs one look at an attribute. A change
holds at once at the broker that made it, and at the others when they hear of it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import structlog

from fairlog.cluster.interface import ClusterStore
from fairlog.edge.statistics import ThrottleStatistics
from fairlog.security import quota_changes
from fairlog.security.meters import Meters
from fairlog.security.principal import Principal
from fairlog.security.quota_changes import Change, Outcome, QuotaFilter
from fairlog.security.quotas import QUOTAS, Limits, QuotaKey, Quotas

log = structlog.get_logger()


class LiveQuotas:
    """The quotas of one broker."""

    def __init__(self, cluster: ClusterStore) -> None:
        self._cluster = cluster
        self._known: Mapping[str, Quotas] = {}
        self.producers: Meters | None = None
        """None if nobody has such a quota; likewise the others."""
        self.consumers: Meters | None = None
        self.connections: Meters | None = None
        self.throttles = ThrottleStatistics()
        self.changes = 0
        """How often the quotas have changed: who waits for one may not have to any more."""
        self.look_again()

    async def follow(self) -> None:
        """Enforce what changes, until cancelled."""
        while True:
            changed = self._cluster.changed()
            self.look_again()
            await changed.wait()

    def look_again(self) -> None:
        """Enforce the quotas that there are now."""
        quotas = self._cluster.access(QUOTAS)
        if quotas != self._known:
            self._known = dict(quotas)
            self.changes += 1
            self.producers = self._meters(self.producers, QuotaKey.PRODUCER)
            self.consumers = self._meters(self.consumers, QuotaKey.CONSUMER)
            self.connections = self._meters(self.connections, QuotaKey.CONNECTIONS)

    def _meters(self, before: Meters | None, key: QuotaKey) -> Meters | None:
        limits = Limits(self._known.values(), key)
        if not limits:
            return None
        if before is None:
            return Meters(limits)
        before.replace(limits)
        return before

    # --- the quotas themselves ---

    def found(self, wanted: QuotaFilter) -> Sequence[Quotas]:
        """The quotas of the entities that match."""
        return quota_changes.found(self._cluster.access(QUOTAS), wanted)

    async def change(self, changes: Sequence[Change], *, validate_only: bool, by: Principal) -> Outcome:
        """Change quotas, or only say what would come of it. Durable, and enforced here, when it returns.

        Raises StorageFailure.
        """
        if validate_only:
            return quota_changes.apply(self._cluster.access(QUOTAS), changes)
        outcomes: list[Outcome] = []
        await self._cluster.alter_access(QUOTAS, _noting(changes, outcomes))
        self.look_again()
        outcome = outcomes[-1]
        for name, quotas in outcome.changed.items():
            shown = None if quotas is None else {key.value: rate for key, rate in quotas.rates.items()}
            log.info("quotas changed", entity=name, quotas=shown, by=str(by))
        return outcome


def _noting(
    changes: Sequence[Change], outcomes: list[Outcome]
) -> Callable[[Mapping[str, Quotas]], Mapping[str, Quotas | None]]:
    def change(known: Mapping[str, Quotas]) -> Mapping[str, Quotas | None]:
        outcomes.append(quota_changes.apply(known, changes))
        return outcomes[-1].changed

    return change
