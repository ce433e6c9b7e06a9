"""How the node handles the number of replicas that a client wants for a topic: there is one, however many brokers.

Test suites ask for three everywhere. `topics.replication_factor_policy` decides whether a larger number is clamped,
with a log line, or refused. The brokers that an assignment names are treated like a replication factor.
"""

from __future__ import annotations

from collections.abc import Sequence

import structlog

log = structlog.get_logger()

REPLICAS = 1
"""Of each partition."""


class BadReplicas(ValueError):
    """This number of replicas is not possible; the message says why."""


def check_replication_factor(topic: str, replicas: int, *, clamp: bool) -> None:
    """Raise BadReplicas unless a topic with this number of replicas may be created."""
    if replicas < 1:
        raise BadReplicas(f"a replication factor of {replicas}; at least 1 is needed")
    if replicas <= REPLICAS:
        return
    if not clamp:
        raise BadReplicas(f"{replicas} replicas; a partition has {REPLICAS}")
    log.info("replication factor clamped", topic=topic, asked=replicas, given=REPLICAS)


def check_assignments(topic: str, assignments: Sequence[Sequence[int]], *, clamp: bool) -> None:
    """Raise BadReplicas unless partitions may have these assignments: the brokers of each."""
    if not all(assignments):
        raise BadReplicas("an assignment names no broker")
    check_replication_factor(topic, max(map(len, assignments)), clamp=clamp)
