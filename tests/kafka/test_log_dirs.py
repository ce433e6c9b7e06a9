"""DescribeLogDirs and AlterReplicaLogDirs: the one directory, and what lies in it."""

from __future__ import annotations

import os
from dataclasses import replace

import pytest
import trio
from kafka.protocol.admin import AlterReplicaLogDirsRequest, DescribeLogDirsRequest

from fairlog.kafka.api import Deferred
from fairlog.kafka.errors import ErrorCode
from fairlog.kafka.handlers import api_34_alter_replica_log_dirs, api_35_describe_log_dirs

ALTER, DESCRIBE = 34, 35


def versions(api):
    return pytest.mark.parametrize("version", range(api.SERVED.min, api.SERVED.max + 1))


@pytest.fixture(autouse=True)
def directory(memory, tmp_path):
    """Where the node keeps everything."""
    memory.settings = replace(memory.settings, data_dir=tmp_path)
    return str(tmp_path)


@pytest.fixture
def filled(memory, batch):
    """Topics `t` of two partitions, with two batches of 130 bytes and with none, and `u`, with one."""
    memory.topics.create_now("t", partitions=2)
    memory.topics.create_now("u")
    memory.leaders.logs[memory.log("t")] += [batch(), batch()]
    memory.leaders.logs[memory.log("u")] += [batch()]


def asked(topics):
    """`topics`: {name: [partition]}, or None for all."""
    topic = DescribeLogDirsRequest.DescribableLogDirTopic
    return {"topics": None if topics is None else [topic(topic=name, partitions=of) for name, of in topics.items()]}


def sizes(answer):
    (line,) = answer.results
    return {(topic.name, p.partition_index): p.partition_size for topic in line.topics for p in topic.partitions}


@versions(api_35_describe_log_dirs)
async def test_log_dir_tells_its_partitions_and_its_room(ask, directory, filled, version):
    """The bytes of the data log and of the journal, in every version; the file system's from 4 on."""
    answer = await ask(DESCRIBE, version, **asked(None))
    (line,) = answer.results
    assert (line.error_code, line.log_dir) == (0, directory)
    assert sizes(answer) == {("t", 0): 2 * 130 + 200, ("t", 1): 0, ("u", 0): 130 + 100}
    assert {(p.offset_lag, p.is_future_key) for topic in line.topics for p in topic.partitions} == {(0, False)}
    if version >= 4:
        system = os.statvfs(directory)
        assert line.total_bytes == system.f_blocks * system.f_frsize
        assert 0 < line.usable_bytes <= line.total_bytes


@pytest.mark.parametrize(
    ("topics", "found"),
    [
        ({"t": [1, 0, 1]}, {("t", 0), ("t", 1)}),
        ({"u": [0], "t": [0]}, {("u", 0), ("t", 0)}),
        ({"t": [2, -1], "none": [0]}, set()),
        ({"t": []}, set()),
        ({}, set()),
    ],
)
async def test_log_dir_tells_of_the_partitions_asked_for(ask, filled, topics, found):
    """Each once; those that do not exist are left out, and so are topics without any."""
    answer = await ask(DESCRIBE, 5, **asked(topics))
    assert set(sizes(answer)) == found
    assert {topic.name for topic in answer.results[0].topics} == {name for name, _ in found}


async def test_log_dir_that_cannot_be_looked_at_has_its_error(ask, memory, tmp_path, filled):
    """And no partitions; nobody is told that the disk is empty."""
    memory.settings = replace(memory.settings, data_dir=tmp_path / "gone")
    (line,) = (await ask(DESCRIBE, 4, **asked(None))).results
    assert (line.error_code, line.log_dir) == (ErrorCode.KAFKA_STORAGE_ERROR, str(tmp_path / "gone"))
    assert (line.topics, line.total_bytes, line.usable_bytes) == ([], -1, -1)


async def test_log_dir_leaves_out_a_topic_that_is_deleted_meanwhile(ask, memory, filled, monkeypatch):
    """Whether the data log or the journal is gone first."""
    get, gone = memory.leaders.get, memory.log("u")
    monkeypatch.setattr(memory.leaders, "get", lambda log: None if log == gone else get(log))
    del memory.leaders.logs[memory.log("t", 1)]
    assert set(sizes(await ask(DESCRIBE, 4, **asked(None)))) == {("t", 0)}


async def test_log_dir_is_looked_at_in_worker_threads_some_partitions_at_a_time(ask, memory, filled, monkeypatch):
    """Neither the disk nor thousands of partitions hold up the event loop, and the answer is deferred."""
    threads, of_loop = [], []
    monkeypatch.setattr(api_35_describe_log_dirs, "_LOGS_PER_TURN", 2)
    bounds, statvfs = memory.data_logs.bounds, os.statvfs

    def noted(call):
        def run(argument):
            try:
                trio.lowlevel.current_task()
                of_loop.append(argument)
            except RuntimeError:
                threads.append(argument)
            return call(argument)

        return run

    monkeypatch.setattr(memory.data_logs, "bounds", noted(bounds))
    monkeypatch.setattr(os, "statvfs", noted(statvfs))
    started = await ask.start(DESCRIBE, 4, **asked(None))
    assert isinstance(started.answer, Deferred)
    assert len(sizes(ask.parse(DESCRIBE, 4, await ask.finish(started)))) == 3
    assert (len(threads), of_loop) == (4, [])


# --- AlterReplicaLogDirs ---------------------------------------------------------------------------


@versions(api_34_alter_replica_log_dirs)
async def test_partition_can_be_moved_only_to_where_it_lies(ask, directory, filled, version):
    """There is one directory; another is looked for before the partition is."""
    path = AlterReplicaLogDirsRequest.AlterReplicaLogDir
    topic = path.AlterReplicaLogDirTopic
    here = [topic(name="t", partitions=[0, 2]), topic(name="none", partitions=[0])]
    there = [topic(name="t", partitions=[1, 7]), topic(name="u", partitions=[0])]
    answer = await ask(ALTER, version, dirs=[path(path=directory, topics=here), path(path="/elsewhere", topics=there)])
    told = {(line.topic_name, p.partition_index): p.error_code for line in answer.results for p in line.partitions}
    unknown, not_found = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.LOG_DIR_NOT_FOUND
    assert told == {
        ("t", 0): 0,
        ("t", 2): unknown,
        ("none", 0): unknown,
        ("t", 1): not_found,
        ("t", 7): not_found,
        ("u", 0): not_found,
    }
    assert len(answer.results) == 3
