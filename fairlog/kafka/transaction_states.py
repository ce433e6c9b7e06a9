"""Kafka's names for the coordinator's states, for DescribeTransactions and ListTransactions."""

from __future__ import annotations

from coordinator.answers import Description

KAFKA_STATES = frozenset(
    {
        "Empty",
        "Ongoing",
        "PrepareCommit",
        "PrepareAbort",
        "CompleteCommit",
        "CompleteAbort",
        "Dead",
        "PrepareEpochFence",
    }
)
"""Every state that a client may filter by."""

_STATES = {
    "OPEN": "Ongoing",
    "PREPARING": "PrepareCommit",
    # The broker has aborted it, and waits for the client to notice.
    "MUST_ABORT": "CompleteAbort",
}


def kafka_state(description: Description) -> str:
    """The state of a transactional id, as Kafka names it.

    A committed transaction that is still being copied is complete: nothing can take it back, and the next may begin.
    """
    known = _STATES.get(description.state)
    if known is not None:
        return known
    return "CompleteCommit" if description.being_copied or description.committed else "Empty"
