"""Which transactional ids are accepted from clients.

Kafka's only limit is that of a string in a request, 32 KiB. Here the coordinator has a lower one, because an id is in
every record of its group journal, and in memory for a week after its last use.
"""

from __future__ import annotations

from coordinator.granting import TRANSACTIONAL_ID_BYTES_MAX


def is_acceptable(transactional_id: str) -> bool:
    """Whether the id is neither empty nor longer, in UTF-8, than the coordinator can record; others never reach it."""
    return 0 < len(transactional_id.encode()) <= TRANSACTIONAL_ID_BYTES_MAX
