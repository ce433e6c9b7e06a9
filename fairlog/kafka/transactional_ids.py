"""Which transactional ids are accepted from clients.

Kafka has no limit but that of a string in a request, 32 KiB. Here the coordinator has one, because an id is in every
record of its group journal, and in memory for a week after its last use.
"""

from __future__ import annotations

from coordinator.granting import TRANSACTIONAL_ID_BYTES_MAX


def is_acceptable(transactional_id: str) -> bool:
    """Neither empty nor longer, in UTF-8, than the coordinator can record. Others never reach it."""
    return 0 < len(transactional_id.encode()) <= TRANSACTIONAL_ID_BYTES_MAX
