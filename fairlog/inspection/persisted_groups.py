"""The store of groups' members in readable form: every record, also those that do not read back. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from datalog.lmdb_pages import LmdbFile
from fairlog.groups import persisted_group
from fairlog.groups.consumer.values import GroupSnapshot
from fairlog.inspection.lines import Line
from fairlog.inspection.small_stores import show_small_store


def show_persisted_groups(file: LmdbFile) -> Iterator[Line]:
    """All records, in the order of their keys; of members who they are, and not what they read."""
    return show_small_store("groups' members", file, _show)


def _show(key: bytes, value: bytes) -> Line:
    if key == persisted_group.FORMAT_KEY:
        return Line("format", {"version": persisted_group.decode_format(value)})
    if key == persisted_group.START_KEY:
        return Line("start", {"number": persisted_group.decode_start(value)})
    group_id, group = persisted_group.decode_group(key, value)
    if isinstance(group, GroupSnapshot):
        return Line(
            "consumer group",
            {
                "name": group_id,
                "epoch": group.group_epoch,
                "assignment_epoch": group.assignment_epoch,
                "members": [view.member.member_id for view in group.members],
            },
        )
    return Line(
        "group",
        {
            "name": group_id,
            "generation": group.generation,
            "protocol": group.protocol,
            "leader": group.leader_id,
            "members": [member.member_id for member in group.members],
        },
    )
