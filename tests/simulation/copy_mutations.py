"""Planted bugs in how a node's copy of a shard is made of another one's, and in what the stream keeps for it."""

from __future__ import annotations

import secrets
from collections.abc import Collection, Mapping
from typing import Any

from fairlog.cluster import reports
from fairlog.cluster.cluster_records import NodeNumber
from fairlog.cluster.reports import HeardCopy
from shard import giving
from shard.copy_parts import CopyBegins, CopyEnds
from shard.directory import links_for_copy
from shard.giving import Giver, Send
from shard.joining import BadCopy, Draft
from shard.stream_mark import encode_mark
from stream.engine import StreamPosition
from tests.simulation import joins
from tests.simulation.planting import Mutation, does_not_wait, patched


def _file_not_synced(self: Draft, _file: Any, size: int, crc: int) -> None:
    if (size, crc) != (self._size, self._crc):
        raise BadCopy("not what was sent")
    self._file = None


async def _data_logs_first(_self: Giver, source: Any, send: Send) -> None:
    directory = source.directory
    mark = source.state()
    await source.journals.sync_files()
    await send(CopyBegins(mark.position, 0))
    await giving._send_bytes(directory.name_in(directory.stream_mark), encode_mark(source.stream, mark), send)
    await giving._send_data_logs(directory.name_in(directory.data_logs_file), source.data_logs, send)
    links = links_for_copy(directory.data_dir, directory.number, secrets.token_hex(4))
    _, segments = await giving._linked(source, links)
    for segment in segments:
        await giving._send_segment(segment, send)
    await send(CopyEnds(len(segments) + 2))


def _counts_what_was_taken(
    owner: NodeNumber,
    mark: StreamPosition,
    members: Collection[NodeNumber],
    copies: Mapping[NodeNumber, HeardCopy],
    replicas: int,
) -> StreamPosition | None:
    taken = sorted((copies[node].taken for node in members if node in copies and node != owner), reverse=True)
    marks = sorted([mark, *taken], reverse=True)
    return None if len(marks) < replicas else min(mark, marks[replicas - 1])


def _one_copy_less(
    owner: NodeNumber,
    mark: StreamPosition,
    members: Collection[NodeNumber],
    copies: Mapping[NodeNumber, HeardCopy],
    replicas: int,
) -> StreamPosition | None:
    return _REAL_TRIM_TO(owner, mark, members, copies, replicas - 1)


_REAL_TRIM_TO = reports.trim_to


async def _never(*_: object) -> bool:
    await does_not_wait()
    return False


MUTATIONS: tuple[Mutation, ...] = (
    Mutation(
        "trimmed-before-what-was-read",
        "what other copies have read counts as what they have on disk",
        patched(reports, "trim_to", _counts_what_was_taken),
    ),
    Mutation(
        "trimmed-with-a-copy-less",
        "the stream is trimmed when one copy fewer than configured has it on disk",
        patched(reports, "trim_to", _one_copy_less),
    ),
    Mutation(
        "copy-not-synced",
        "a copy comes in its place before its files are on disk",
        patched(Draft, "_end_file", _file_not_synced),
    ),
    Mutation(
        "data-logs-copied-first",
        "a copy's data logs are older than its segments",
        patched(Giver, "_give", _data_logs_first),
    ),
    Mutation(
        "left-behind-for-ever",
        "a node does not see that its stream was trimmed past it",
        patched(joins, "falls_short", _never),
    ),
)
