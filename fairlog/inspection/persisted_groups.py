"""Who is in consumer groups, in readable form: of members who they are, and not what they read. Pure.

A record that does not read back is shown as damage with the byte where it is.
"""

from __future__ import annotations

from datalog.offset_entries import GroupEntry, name_digest
from fairlog.groups.consumer.values import GroupSnapshot
from fairlog.groups.persisted_group import decode_group
from fairlog.inspection.lines import Line
from fairlog_types import CorruptStorage, LogId


def show_group_entry(entry: GroupEntry, byte: int) -> Line:
    """An entry of an offsets log's journal, in the payload that begins at that byte of the file."""
    if entry.record is None:
        return Line("group is forgotten", {"name": entry.group}, None, 1)
    return _show({}, name_digest(entry.group), entry.record, byte, depth=1)


def show_group(log: LogId | None, digest: bytes, record: bytes, byte: int) -> Line:
    """A record of the data logs, under its digest."""
    return _show({"log": log}, digest, record, byte, depth=0)


def _show(fields: dict[str, object], digest: bytes, record: bytes, byte: int, *, depth: int) -> Line:
    try:
        group_id, group = decode_group(digest, record)
    except CorruptStorage as error:
        return Line("group", fields, f"byte {byte}: {error}", depth)
    fields["name"] = group_id
    if isinstance(group, GroupSnapshot):
        fields["epoch"] = group.group_epoch
        fields["assignment_epoch"] = group.assignment_epoch
        fields["members"] = [view.member.member_id for view in group.members]
        return Line("consumer group", fields, None, depth)
    fields["generation"] = group.generation
    fields["protocol"] = group.protocol
    fields["leader"] = group.leader_id
    fields["members"] = [member.member_id for member in group.members]
    return Line("group", fields, None, depth)
