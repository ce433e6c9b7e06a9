"""What is kept of a group over a restart, as values and as bytes: docs/formats/group-membership.md. Pure.

A `PersistedClassicGroup` is the whole of a generation: who is in it, what each has said when it joined, and what the
leader gave it. One without members tells nothing but the number of the last generation. A group of the new protocol
(KIP-848) is kept as a `GroupSnapshot`; its record is read and written by `consumer.records`.

    Group ──▶ GroupWrite ──▶ persister ──▶ encode_group ──▶ the store ──▶ decode_group ──▶ Group.resumed

A value that does not read back as what was written is `CorruptStorage`, never a guess.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import cast

import cbor2

from fairlog import cbor_records
from fairlog.cbor_records import load
from fairlog.groups.consumer import records
from fairlog.groups.consumer.values import GroupSnapshot
from fairlog_types import CorruptStorage

MAGIC = "fairlog-groups"
VERSION = 2
"""Version 1 has no groups of the new protocol, and is otherwise the same."""

VERSIONS_READ = (1, VERSION)

FORMAT_KEY = b"format"
START_KEY = b"start"
GROUP_PREFIX = b"group/"

_DIGEST_BYTES = 16


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


def encode_format() -> bytes:
    return cbor_records.encode_format(MAGIC, VERSION)


def decode_format(value: bytes) -> int:
    """The version. Raises CorruptStorage if this is not the format record of such a store."""
    return cbor_records.decode_format(value, MAGIC)


def is_format(value: bytes) -> bool:
    """Is this the format record of such a store, of any version?"""
    try:
        decode_format(value)
    except CorruptStorage:
        return False
    return True


def encode_start(start: int) -> bytes:
    return cbor2.dumps(start)


def decode_start(value: bytes) -> int:
    match load(value, "start"):
        case int(start) if start > 0:
            return start
        case _:
            raise CorruptStorage("the record 'start' is not the number of a start")


def group_key(group_id: str) -> bytes:
    """A digest, because a group's id may be longer than an LMDB key (511 bytes)."""
    return GROUP_PREFIX + blake2b(group_id.encode(), digest_size=_DIGEST_BYTES).digest()


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


def decode_group(key: bytes, value: bytes) -> tuple[str, PersistedGroup]:
    """Read a group's id and what is kept of it. Raises CorruptStorage if it is not what `encode_group` has written."""
    name = f"group/{key.removeprefix(GROUP_PREFIX).hex()}"
    content = load(value, name)
    match content:
        case [str(group_id), int(generation), str(protocol_type), str(protocol), str(leader_id), list()] if (
            generation > 0 and group_key(group_id) == key
        ):
            members = tuple(_member(line, name) for line in cast("list[list[object]]", content)[5])
            group = PersistedClassicGroup(generation, protocol_type, protocol, leader_id, members)
        case [str(group_id), records.KIND, int(), int(), list(), list()] if group_key(group_id) == key:
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


def decode_store(content: Mapping[bytes, bytes]) -> dict[str, PersistedGroup]:
    """What is kept, by group id, out of all records of a store. Raises CorruptStorage. An empty one keeps nothing."""
    if content:
        version = decode_format(content.get(FORMAT_KEY, b""))
        if version not in VERSIONS_READ:
            raise CorruptStorage(f"the store of groups' members has format {version}, and this program reads {VERSION}")
        decode_start(content.get(START_KEY, b""))
    return dict(decode_group(key, value) for key, value in content.items() if key.startswith(GROUP_PREFIX))


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
