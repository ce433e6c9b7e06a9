"""DescribeLogDirs: where partitions are stored, how large they are, and how much space is left.

Behaviour
- There is one directory, `data_dir`, given by its absolute path, with the size of its file system in bytes and the
  bytes available to this process. If these cannot be determined, the directory has KAFKA_STORAGE_ERROR, and no
  partitions.
- A partition's size is the size of its batches in the data log, as they arrived, plus the frames that its journal still
  holds. So a batch counts twice until its part of the journal is removed. LMDB's overhead, and room that is made ahead
  of a journal's end, belong to no partition.
- Partitions that do not exist, or that another broker leads, are left out, as in Kafka; so are the logs of committed
  offsets, which are not topics.
- No replica lags, and none is being moved to another directory.
- A client that may not describe the cluster is told no directory; up to version 2 there is no room for the error.
- Sizes and space are determined in worker threads, a few partitions at a time, and the answer is deferred.

Version notes
- 1 is the first that Kafka 4 serves; 2 is flexible; 3 adds an error for the whole answer; 4 the file system's bytes; 5
  whether a directory is cordoned (it never is).
"""

from __future__ import annotations

import functools
import itertools
import os
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass

import trio

from datalog.interface import UnknownLog
from fairlog.broker import Broker, ReadDataLogs
from fairlog.kafka.api import Answer, Api, Context, Deferred, Reply, Versions
from fairlog.kafka.checks import DESCRIBE_CLUSTER, denied
from fairlog.kafka.errors import ErrorCode
from fairlog.kafka.topic_lookup import log_of
from fairlog.kafka.wire import Reader
from fairlog_types import LogId

SERVED = Versions(1, 5)
FLEXIBLE_FROM = 2
_ERROR_FROM = 3
_ROOM_FROM = 4
_CORDONED_FROM = 5

_LOGS_PER_TURN = 100
"""Partitions that are measured, or written, before other tasks run: 4 ms in a worker thread, which gives up the
interpreter's lock only after 5 ms, and a part of a millisecond in the event loop.
"""


@dataclass(frozen=True, slots=True)
class DescribeLogDirsRequest:
    topics: tuple[tuple[str, tuple[int, ...]], ...] | None
    """None: all partitions of all topics."""


@dataclass(frozen=True, slots=True)
class _Room:
    """The size of the file system, in bytes."""

    total: int
    usable: int


def decode(reader: Reader, version: int) -> DescribeLogDirsRequest:  # noqa: ARG001 (all versions look alike)
    def topic() -> tuple[str, tuple[int, ...]]:
        entry = reader.string(), reader.array(reader.int32)
        reader.end_of_fields()
        return entry

    request = DescribeLogDirsRequest(reader.nullable_array(topic))
    reader.end_of_fields()
    return request


async def handle(context: Context, request: DescribeLogDirsRequest) -> Reply:
    return Deferred(functools.partial(_finish, context, request), keeps_request=True)


async def _finish(context: Context, request: DescribeLogDirsRequest) -> Answer:
    broker, version, writer = context.broker, context.version, context.writer()
    refused = denied(context, DESCRIBE_CLUSTER)
    if refused is not None:
        writer.int32(0)  # throttle time
        if version >= _ERROR_FROM:
            writer.int16(refused)
        writer.array_length(0)
        writer.end_of_fields()
        return writer.parts()
    room = await trio.to_thread.run_sync(_room_in, broker.log_dir)
    found = {} if room is None else await _sizes(broker, request)
    writer.int32(0)  # throttle time
    if version >= _ERROR_FROM:
        writer.int16(ErrorCode.NONE)
    writer.array_length(1)
    writer.int16(ErrorCode.NONE if room is not None else ErrorCode.KAFKA_STORAGE_ERROR)
    writer.string(broker.log_dir)
    writer.array_length(len(found))
    written = 0
    for name, sizes in found.items():
        writer.string(name)
        writer.array_length(len(sizes))
        for index, size_bytes in sizes.items():
            writer.int32(index)
            writer.int64(size_bytes)
            writer.int64(0)  # lag
            writer.boolean(False)  # future
            writer.end_of_fields()
            written += 1
            if written % _LOGS_PER_TURN == 0:
                await trio.lowlevel.checkpoint()
        writer.end_of_fields()
    if version >= _ROOM_FROM:
        writer.int64(-1 if room is None else room.total)
        writer.int64(-1 if room is None else room.usable)
    if version >= _CORDONED_FROM:
        writer.boolean(False)
    writer.end_of_fields()
    writer.end_of_fields()
    return writer.parts()


async def _sizes(broker: Broker, request: DescribeLogDirsRequest) -> dict[str, dict[int, int]]:
    """The bytes of each requested partition, by topic and index."""
    sizes: defaultdict[str, dict[int, int]] = defaultdict(dict)
    wanted = _wanted(broker, request)
    while some := list(itertools.islice(wanted, _LOGS_PER_TURN)):
        in_data_logs = await trio.to_thread.run_sync(_bytes_in, broker.data_logs, [log for _, log in some])
        for name, log in some:
            partition = broker.partitions.get(log)
            if partition is not None and log in in_data_logs:  # else it is another broker's, or was deleted meanwhile
                sizes[name][log.partition] = in_data_logs[log] + partition.journal_bytes
    return sizes


def _wanted(broker: Broker, request: DescribeLogDirsRequest) -> Iterator[tuple[str, LogId]]:
    """The names and logs of the requested partitions that exist."""
    cluster = broker.cluster
    if request.topics is None:
        for topic in cluster.topics():
            for index in range(topic.partitions):
                yield topic.name, LogId.of_topic(topic.topic_id, index)
        return
    asked: defaultdict[str, set[int]] = defaultdict(set)
    for name, partitions in request.topics:
        asked[name].update(partitions)
    for name, indexes in asked.items():
        topic = cluster.topic(name)
        for index in sorted(indexes):
            log = log_of(topic, index)
            if log is not None:
                yield name, log


def _bytes_in(data_logs: ReadDataLogs, logs: Sequence[LogId]) -> Mapping[LogId, int]:
    """The size of each log's batches; logs that were dropped meanwhile are left out. Runs in a worker thread."""
    sizes: dict[LogId, int] = {}
    for log in logs:
        with suppress(UnknownLog):
            sizes[log] = data_logs.bounds(log).size_bytes
    return sizes


def _room_in(directory: str) -> _Room | None:
    """The space of the directory's file system; None if the system does not report it. Runs in a worker thread."""
    try:
        found = os.statvfs(directory)
    except OSError:
        return None
    return _Room(found.f_blocks * found.f_frsize, found.f_bavail * found.f_frsize)


API = Api(35, "DescribeLogDirs", SERVED, FLEXIBLE_FROM, decode, handle, (DESCRIBE_CLUSTER,))
