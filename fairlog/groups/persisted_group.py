"""What is kept of a group over a restart, as values and as bytes: docs/formats/group-membership.md. Pure.

A `PersistedClassicGroup` is the whole of a generation: who is in it, what each has said when it joined, and what the
leader gave it. One without members tells nothing but the number of the last generation. A group of the new protocol
(KIP-848) is kept as a `GroupSnapshot`; its record is read and written by `consumer.records`.

    Group ──▶ GroupWrite ──▶ persister ──▶ encode_group ──▶ offsets log ──▶ decode_group ──▶ Group.resumed

A value that does not read back as what was written is `CorruptStorage`, never a guess.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import cast

import cbor2

from datalog.offset_entries import name_digest
from fairlog.cbor_records import load
from fairlog.groups.consumer import records
from fairlog.groups.consumer.values import GroupSnapshot
from fairlog_types import CorruptStorage


@dataclass(frozen=True, slots=True)
class PersistedMember:
    """A member, as it joined, with what it reads."""

    member_id: str
    instance_id: str | None
    client_id: str
    client_host: str
    session_timeout_ms: int
    rebalance_timeout_ms: int
    protocols: tuple[tuple[str, bytes], ...]
    """(strategy, metadata), by preference."""
    assignment: bytes


@dataclass(frozen=True, slots=True)
class PersistedClassicGroup:
    """A group in a generation of which every member may be told what it reads; or, without members, an empty one."""

    generation: int
    protocol_type: str
    protocol: str
    """Empty without members; so is `leader_id`."""
    leader_id: str
    members: tuple[PersistedMember, ...]


PersistedGroup = PersistedClassicGroup | GroupSnapshot
"""A group of either protocol."""


@dataclass(frozen=True, slots=True)
class GroupWrite:
    """What a group wants kept from now on, in place of all before. `Group.kept` is to be told the number."""

    number: int
    """Grows with each wish of one group."""
    group: PersistedGroup | None
    """None: nothing, the group is forgotten."""


def encode_group(group_id: str, group: PersistedGroup) -> bytes:
    if isinstance(group, GroupSnapshot):
        return cbor2.dumps(records.to_record(group_id, group))
    members = [
        [
            member.member_id,
            member.instance_id,
            member.client_id,
            member.client_host,
            member.session_timeout_ms,
            member.rebalance_timeout_ms,
            [list(protocol) for protocol in member.protocols],
            member.assignment,
        ]
        for member in group.members
    ]
    return cbor2.dumps([group_id, group.generation, group.protocol_type, group.protocol, group.leader_id, members])


def decode_group(digest: bytes, value: bytes) -> tuple[str, PersistedGroup]:
    """Read a group's id, which has that digest (`name_digest`), and what is kept of the group.

    Raises CorruptStorage if this is not what `encode_group` has written.
    """
    name = f"group/{digest.hex()}"
    content = load(value, name)
    match content:
        case [str(group_id), int(generation), str(protocol_type), str(protocol), str(leader_id), list()] if (
            generation > 0 and name_digest(group_id) == digest
        ):
            members = tuple(_member(line, name) for line in cast("list[list[object]]", content)[5])
            group = PersistedClassicGroup(generation, protocol_type, protocol, leader_id, members)
        case [str(group_id), records.KIND, int(), int(), list(), list()] if name_digest(group_id) == digest:
            return group_id, records.from_record(cast("list[object]", content), name)
        case _:
            raise CorruptStorage(f"the record {name} is not a group under its own key")
    if not _holds_together(group):
        raise CorruptStorage(f"the record {name} is a group whose members, leader and protocol do not go together")
    return group_id, group


def _member(line: object, name: str) -> PersistedMember:
    match line:
        case [
            str(member_id),
            str() | None as instance_id,
            str(client_id),
            str(client_host),
            int(session_timeout_ms),
            int(rebalance_timeout_ms),
            list(),
            bytes(assignment),
        ] if session_timeout_ms > 0 and rebalance_timeout_ms > 0:
            return PersistedMember(
                member_id,
                instance_id,
                client_id,
                client_host,
                session_timeout_ms,
                rebalance_timeout_ms,
                tuple(_protocol(each, name) for each in cast("list[list[object]]", line)[6]),
                assignment,
            )
        case _:
            raise CorruptStorage(f"the record {name} has a member that is none")


def _protocol(line: object, name: str) -> tuple[str, bytes]:
    match line:
        case [str(protocol), bytes(metadata)]:
            return protocol, metadata
        case _:
            raise CorruptStorage(f"the record {name} has a member with a protocol that is none")


def _holds_together(group: PersistedClassicGroup) -> bool:
    members = group.members
    if not members:
        return not group.protocol and not group.leader_id
    ids = [member.member_id for member in members]
    instances = [member.instance_id for member in members if member.instance_id is not None]
    return (
        group.leader_id in ids
        and _is_without_repetition(ids)
        and _is_without_repetition(instances)
        and all(group.protocol in dict(member.protocols) for member in members)
    )


def _is_without_repetition(names: Sequence[str]) -> bool:
    return len(set(names)) == len(names)
