"""Which transactional ids are taken from clients."""

from __future__ import annotations

TRANSACTIONAL_ID_BYTES_MAX = 1024
"""In UTF-8. Kafka has no limit but that of a string in a request, 32 KiB, and none at all in flexible versions. Here
an id stands in every record of its group journal, whose frame header holds 64 KiB together with up to 500 logs of
44 bytes, and in memory for a week after its last use. Ids are names; 1,024 bytes leave room for long ones."""


def is_acceptable(transactional_id: str) -> bool:
    """Neither empty nor longer than an id may be."""
    return 0 < len(transactional_id.encode()) <= TRANSACTIONAL_ID_BYTES_MAX
