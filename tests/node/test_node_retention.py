"""Retention on a real node: killed in the middle, on a disk that is full, and beside producers that do not wait."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable

import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from journal.failpoints import FAILPOINTS
from scripts.node_process import NodeProcess
from tests.clients import raw_client as raw
from tests.clients.raw_client import RawClient
from tests.datalog.batches import keyed_batch
from tests.node.nodes import WAIT_S, until
from tests.node.test_node_disk import forbid_growth
from tests.retention.cleaning_model import Row, map_of, values_of
from tests.shards import shard_in

pytestmark = pytest.mark.slow

NewNode = Callable[..., NodeProcess]
OFTEN = {"FAIRLOG_RETENTION_CHECK_INTERVAL_MS": "50", "FAIRLOG_RETENTION_CLEAN_INTERVAL_MS": "50"}
COMPACT = {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0.01", "delete.retention.ms": "100"}


def make_topic(node: NodeProcess, name: str, **config: str) -> None:
    admin = AdminClient({"bootstrap.servers": node.address})
    admin.create_topics([NewTopic(name, 1, 1, config=config)])[name].result(timeout=WAIT_S)


def produce(
    client: RawClient, topic: str, *pairs: tuple[bytes, bytes | None], timestamp_ms: int | None = None
) -> list[Row]:
    """One batch, answered; the rows that it has become."""
    at_ms = time.time_ns() // 1_000_000 if timestamp_ms is None else timestamp_ms
    marked = [(key, None if value is None else b"=" + value) for key, value in pairs]
    code, base_offset = client.produce(topic, 0, keyed_batch(0, marked, timestamp_ms=at_ms))
    assert code == raw.NONE, code
    return [(base_offset + index, key, value) for index, (key, value) in enumerate(pairs)]


class OutOfRange(Exception):
    """The partition begins later by now."""


def read(client: RawClient, topic: str, start: int = 0) -> list[Row]:
    """All that is there from an offset on."""
    rows: list[Row] = []
    at = start
    while True:
        row = client.fetch(topic, 0, at, wait_ms=0)
        if row.error_code == raw.OFFSET_OUT_OF_RANGE:
            raise OutOfRange
        assert row.error_code == raw.NONE, row.error_code
        data = bytes(row.records or b"")
        while data:
            size = 12 + int.from_bytes(data[8:12], "big")
            rows += [found for found in values_of(data[:size]) if found[0] >= at]
            at = int.from_bytes(data[:8], "big") + int.from_bytes(data[23:27], "big") + 1
            data = data[size:]
        if at >= row.high_watermark:
            return rows


def verify(node: NodeProcess) -> None:
    """The files of the node, which has stopped, keep all invariants."""
    command = [sys.executable, "-m", "fairlog.cli", "verify", str(node.data_dir)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


CLEANING = [("before_commit", 1), ("after_commit", 1), ("before_mark", 1), ("before_mark", 3)]
DELETION = [("before_commit", 2), ("after_commit", 2)]


def test_every_point_of_retention_has_its_kill() -> None:
    """The crash test leaves them to this module."""
    killed = {f"retention.clean.{point}" for point, _ in CLEANING}
    killed |= {f"retention.delete.{point}" for point, _ in DELETION}
    assert killed == {name for name in FAILPOINTS if name.startswith("retention.")}


@pytest.mark.parametrize(("point", "nth"), CLEANING)
def test_kill_in_the_middle_of_a_compaction_loses_nothing(new_node: NewNode, point: str, nth: int) -> None:
    """Whatever step it falls into: the map that a reader makes is that of all that was answered, then and later."""
    node = new_node(**OFTEN, FAIRLOG_FAILPOINT=f"retention.clean.{point}:kill:{nth}")
    node.start()
    make_topic(node, "t", **COMPACT)
    written: list[Row] = []
    with RawClient(node.address) as client:
        for number in range(400):
            pairs = [(b"%d" % (number % 7), b"%d" % number), (b"%d" % (number % 11), None if number % 5 else b"x")]
            try:
                written += produce(client, "t", *pairs)
            except (ConnectionError, AssertionError):
                perhaps = pairs
                break
            time.sleep(0.002)
        else:
            perhaps = []
    assert node.wait_end(WAIT_S) == -9, "the failpoint was not reached"
    del node.environment["FAIRLOG_FAILPOINT"]
    node.start()
    with RawClient(node.address) as client:
        end = client.list_offset("t", 0, -1)[1]
        written += [(len(written) + index, *pair) for index, pair in enumerate(perhaps)][: end - len(written)]
        for start in (0, len(written) // 2):
            assert map_of(read(client, "t", start)) == map_of(written[start:])
        written += produce(client, "t", (b"end", b"e"))
        until(lambda: len(read(client, "t")) <= 30, "the next cleaning has not ended it")
        assert map_of(read(client, "t")) == map_of(written)
    assert node.stop() == 0
    verify(node)


@pytest.mark.parametrize(("point", "nth"), DELETION)
def test_kill_in_the_middle_of_a_deletion_leaves_a_log_that_starts_somewhere(
    new_node: NewNode, point: str, nth: int
) -> None:
    """Before or after, and what is behind the start is all there; the next run deletes the rest."""
    node = new_node(**OFTEN, FAIRLOG_FAILPOINT=f"retention.delete.{point}:kill:{nth}")
    node.start()
    make_topic(node, "t", **{"retention.ms": "10000"})
    now_ms = time.time_ns() // 1_000_000
    with RawClient(node.address) as client:
        try:
            old = [row for _ in range(5) for row in produce(client, "t", (b"k", b"old"), timestamp_ms=now_ms - 60_000)]
            produce(client, "t", (b"k", b"young"), timestamp_ms=now_ms + 60_000)
        except (ConnectionError, AssertionError):
            old = []
    assert node.wait_end(WAIT_S) == -9, "the failpoint was not reached"
    del node.environment["FAIRLOG_FAILPOINT"]
    node.start()
    with RawClient(node.address) as client:
        produce(client, "t", (b"k", b"young"), timestamp_ms=now_ms + 60_000)

        def values() -> set[bytes | None]:
            try:
                return {value for _, _, value in read(client, "t", client.list_offset("t", 0, -2)[1])}
            except OutOfRange:
                return set()  # more has gone since the start was asked for

        until(lambda: values() == {b"young"}, "the old records are still there")
    node.kill()
    node.start()
    with RawClient(node.address) as client:
        assert values() == {b"young"}
        if old:
            assert client.fetch("t", 0, 0, wait_ms=0).error_code == raw.OFFSET_OUT_OF_RANGE
    assert node.stop() == 0
    verify(node)


def test_kill_behind_the_journal_and_before_the_data_log_deletes_what_was_asked(new_node: NewNode) -> None:
    """The journal says where the log begins: so it does after the start, and what is behind that is all there."""
    node = new_node(FAIRLOG_FAILPOINT="retention.delete.before_commit:kill:1")
    node.start()
    make_topic(node, "t")
    with RawClient(node.address) as client:
        rows = [row for number in range(5) for row in produce(client, "t", (b"k", b"%d" % number))]
        with pytest.raises(ConnectionError):
            client.delete_records("t", 0, 3)
    assert node.wait_end(WAIT_S) == -9, "the failpoint was not reached"
    del node.environment["FAIRLOG_FAILPOINT"]
    for _ in range(2):
        node.start()
        with RawClient(node.address) as client:
            assert client.list_offset("t", 0, -2) == (raw.NONE, 3)
            assert client.fetch("t", 0, 2, wait_ms=0).error_code == raw.OFFSET_OUT_OF_RANGE
            assert read(client, "t", 3) == rows[3:]
            assert client.delete_records("t", 0, 1) == (raw.NONE, 3)
        node.kill()
    node.start()
    assert node.stop() == 0
    verify(node)


def test_full_disk_in_compaction_refuses_no_writes_and_passes(new_node: NewNode) -> None:
    """A line says that it was postponed; what fits into the files is written; with room again it is cleaned."""
    node = new_node(**OFTEN)
    node.start()
    for number in range(4):
        make_topic(node, f"ballast{number}")
    make_topic(node, "t", **COMPACT | {"min.cleanable.dirty.ratio": "0.5"})
    with RawClient(node.address) as client:
        for number in range(4):
            for _ in range(3):
                produce(client, f"ballast{number}", (b"k", bytes(1_000_000)))
        for number in range(50):
            produce(client, "t", (b"%d" % (number % 5), b"x"))
        until(lambda: len(read(client, "t")) <= 11, "there was no first cleaning")
        data_file = shard_in(node.data_dir).data_logs_file
        forbid_growth(node, data_file.stat().st_size)
        written = read(client, "t")
        for number in range(100):
            # Less and less is left behind the last page in use: soon not the mebibyte that a cleaning asks for.
            produce(client, "ballast0", (b"k", bytes(50_000)))
            written += produce(client, "t", *[(b"%d" % key, b"%d" % number) for key in range(5)])
            time.sleep(0.1)  # some cleanings, so that one of them finds too little before the copy does
            if "retention postponed" in node.log_path.read_text(encoding="utf-8"):
                break
        for number in range(20):
            written += produce(client, "t", (b"%d" % (number % 5), b"late"))
        log = node.log_path.read_text(encoding="utf-8")
        assert "retention postponed" in log, "the disk was never too full"
        assert "writes are refused" not in log
        assert map_of(read(client, "t")) == map_of(written)
        forbid_growth(node, 1 << 40)
        written += produce(client, "t", (b"5", b"end"))
        until(lambda: len(read(client, "t")) <= 12, "it was not tried again")
        assert map_of(read(client, "t")) == map_of(written)
    node.stop()
    assert "Traceback" not in node.log_path.read_text(encoding="utf-8")
