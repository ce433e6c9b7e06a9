"""The transactional ids of lanes: `fairlog.lane.<slot>.<sink>`.

A sink's lanes use its *slots*, which are numbered from 0 and used again when their lane has ended: so producer ids, and
what the partitions remember of each, stay few, however many batches there are. All slots of a sink are of one group, so
their records and the sink's stand in one group journal; no other transactional id is of that group.
"""

from __future__ import annotations

LANE_PREFIX = "fairlog.lane."
"""Of the transactional ids of lanes: nobody may use one who has not joined."""


def lane_id(sink: str, slot: int) -> str:
    """The transactional id of a sink's slot."""
    return f"{LANE_PREFIX}{slot}.{sink}"


def is_lane(transactional_id: str) -> bool:
    """Whether the id is reserved for lanes, also if it is none that we have made."""
    return transactional_id.startswith(LANE_PREFIX)


def slot_and_sink(transactional_id: str) -> tuple[int, str] | None:
    """What `lane_id` made the id of; None if it did not."""
    slot, dot, sink = transactional_id[len(LANE_PREFIX) :].partition(".")
    made = is_lane(transactional_id) and dot and slot.isascii() and slot.isdecimal()
    return (int(slot), sink) if made and lane_id(sink, int(slot)) == transactional_id else None


def group_of_sink(sink: str) -> str:
    """The group of all slots of a sink."""
    return LANE_PREFIX + sink
