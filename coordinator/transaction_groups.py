"""Transactional groups: which transactional ids share one commit order (seed of invariant 6).

The transactions of one group appear in every partition in the order of their PREPARE_COMMITs, so all of them are
written to one group journal, that to which the group's name hashes. Who is a group:

    orders-7             a group of its own, as long as no separator is set
    orders::7            with the separator `::` the member `7` of the group `orders`; the id `orders` is of it, too
    fairlog.lane.3.sink  all lanes of a sink, whatever the separator is (lane_ids.py)

A transactional id stays in the group that it was made in until it expires: its group journal is where its past is. So
a separator that is set, or changed, counts for ids that are new. Pure.
"""

from __future__ import annotations

from crc32c import crc32c

from coordinator.lane_ids import group_of_sink, is_lane, slot_and_sink


def group_of(transactional_id: str, separator: str) -> str:
    """The group of a new transactional id. `separator` is what stands between group and member; empty: nothing does.

    The group is what stands before the first separator. An id that has nothing before it, or nothing after it, is a
    group of its own, and so is an id that is reserved for lanes but is none.
    """
    if is_lane(transactional_id):
        found = slot_and_sink(transactional_id)
        return transactional_id if found is None else group_of_sink(found[1])
    if separator:
        group, _, member = transactional_id.partition(separator)
        if group and member:
            return group
    return transactional_id


def journal_of(group: str, journals: int) -> int:
    """The number of the group journal that has the group's records, of so many."""
    return crc32c(group.encode()) % journals
