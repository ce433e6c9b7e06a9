"""A disk that fails or is full: writes are refused, reads go on, and a restart brings back all that was answered.

A full disk is made in three ways. `prlimit` forbids a running node to let its files grow (EFBIG, which journals treat
as ENOSPC); a small map is full for LMDB alone; and where mounting is permitted, a small tmpfs is full for all alike.
"""

from __future__ import annotations

import resource
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from scripts.node_process import NodeProcess
from tests import lacking
from tests.clients import raw_client as raw
from tests.clients.raw_client import RawClient, batch
from tests.node.nodes import (
    KAFKA_STORAGE_ERROR,
    REQUEST_TIMED_OUT,
    TOPIC,
    WAIT_S,
    Producer,
    assert_all_but_the_last,
    assert_holds_answered,
    assert_writes_are_refused,
    journal,
    produce,
    produce_until_refused,
    read,
    read_when,
    segments,
)

pytestmark = pytest.mark.slow

NewNode = Callable[..., NodeProcess]


def restart_healed(node: NodeProcess) -> None:
    """Stop a node whose disk has failed, and start it over a disk that works."""
    node.environment.pop("FAIRLOG_FAILPOINT", None)
    node.stop()
    assert "Traceback" not in node.log_path.read_text(encoding="utf-8")
    node.start()
    produce(node, b"and on")


@pytest.mark.parametrize("nth", [7, 16])
def test_failed_fsync_refuses_writes_until_a_restart(new_node: NewNode, nth: int) -> None:
    """Invariant 12 on a real node: nothing is retried on the same file, and nothing answered is lost.

    The batch whose flush failed is answered as "effect unknown": it may be there after the restart.
    """
    node = new_node(FAIRLOG_FAILPOINT=f"journal.flush.before:fail:{nth}")
    node.start()
    answered, doubtful, code = produce_until_refused(node, value_bytes=10)
    assert code == REQUEST_TIMED_OUT
    assert len(answered) >= 2
    assert_writes_are_refused(node)
    assert read_when(node, len(answered)) == answered
    assert (node.data_dir / "last-run").read_text().split()[1] == "lost"
    restart_healed(node)
    assert (node.data_dir / "last-run").read_text().split()[1] == "open"
    found = read(node)
    assert found.pop() == b"and on"
    assert_holds_answered(found, answered, perhaps=[doubtful])


@pytest.mark.parametrize("nth", [30, 31])
def test_failed_fsync_of_a_commit_is_no_commit(new_node: NewNode, nth: int) -> None:
    """Whichever of its files does not flush: no half of it is ever seen, and all that was answered is."""
    node = new_node(FAIRLOG_TOPICS_PARTITIONS_DEFAULT="2")
    node.start()
    produce(node, b"plain")
    produce(node, b"plain", partition=1)
    node.stop()
    # Three files are flushed for each commit: the group journal, and both partitions' journals.
    node.environment["FAIRLOG_FAILPOINT"] = f"journal.flush.before:fail:{nth}"
    node.start()
    committed: list[bytes] = []
    with RawClient(node.address) as client:
        producer = Producer(client, partitions=2)
        try:
            for number in range(40):
                producer.commit(b"%d" % number)
                committed.append(b"%d" % number)
        except (AssertionError, ConnectionError):
            pass
    assert 2 <= len(committed) < 40
    assert_writes_are_refused(node, partitions=(0, 1))
    restart_healed(node)
    last = b"%d" % len(committed)
    for partition in (0, 1):
        found = [value for value in read_when(node, 1 + len(committed), partition) if value != b"and on"]
        assert_holds_answered(found, [b"plain", *committed], perhaps=[last])
    assert read(node, 0).count(last) == read(node, 1).count(last)
    with RawClient(node.address) as client:
        Producer(client, partitions=2).commit(b"afterwards")


def test_failed_group_journal_refuses_all_writes_until_a_restart(new_node: NewNode) -> None:
    """The disk has failed for everybody: plain batches are refused, too; the commit in doubt is whole or not at all."""
    node = new_node(FAIRLOG_FAILPOINT="group.prepare_commit.appended:fail:3", FAIRLOG_TOPICS_PARTITIONS_DEFAULT="2")
    node.start()
    with RawClient(node.address) as client:
        produce(node, b"plain")
        producer = Producer(client, partitions=2)
        for value in (b"0", b"1"):
            producer.commit(value)
        producer.begin()
        producer.send(b"in doubt")
        with pytest.raises(ConnectionError):
            producer.end(commit=True)
    assert_writes_are_refused(node, partitions=(0, 1))
    assert read_when(node, 3) == [b"plain", b"0", b"1"]
    restart_healed(node)
    first, second = read(node, 0), read(node, 1)
    assert first.pop() == b"and on"
    assert_holds_answered(first, [b"plain", b"0", b"1"], perhaps=[b"in doubt"])
    assert first[1:] == second


def test_journal_on_a_full_disk_refuses_writes_until_a_restart(new_node: NewNode) -> None:
    """There is no room for more frames: KAFKA_STORAGE_ERROR, no effect; reads and a restart are as ever."""
    node = new_node()
    node.start()
    produce(node, b"plain")
    with RawClient(node.address) as client:
        Producer(client, "before").commit(b"committed")
        read_when(node, 2)
        hog = Producer(client, "hog")
        assert hog.begin() == {raw.NONE}
        assert hog.send(bytes(900_000)) == {raw.NONE}
        # The journal is by far the largest file now; the others do not come near the limit.
        forbid_growth(node, segments(journal(node))[0].stat().st_size)
        while (codes := hog.send(bytes(100_000))) == {raw.NONE}:
            pass
        assert codes == {KAFKA_STORAGE_ERROR}
        assert hog.end(commit=True) != raw.NONE
    assert_writes_are_refused(node)
    assert read(node) == [b"plain", b"committed"]
    restart_healed(node)
    assert read(node) == [b"plain", b"committed", b"and on"]


def test_want_of_file_descriptors_refuses_what_needs_one_and_passes(new_node: NewNode) -> None:
    """A journal that cannot be made is not a disk that failed: what is open goes on, and the rest does when it can."""
    node = new_node(FAIRLOG_TOPICS_PARTITIONS_DEFAULT="2")
    node.start()
    produce(node, b"plain")
    soft, hard = resource.prlimit(node.pid, resource.RLIMIT_NOFILE)
    assert soft == hard
    with RawClient(node.address) as client:
        assert client.produce(TOPIC, 0, batch([b"accepted"]))[0] == raw.NONE
        resource.prlimit(node.pid, resource.RLIMIT_NOFILE, (3, hard))
        for _ in range(3):
            assert client.produce(TOPIC, 1, batch([b"refused"]))[0] == KAFKA_STORAGE_ERROR
        assert client.produce(TOPIC, 0, batch([b"meanwhile"]))[0] == raw.NONE
        resource.prlimit(node.pid, resource.RLIMIT_NOFILE, (hard, hard))
        assert client.produce(TOPIC, 1, batch([b"and on"]))[0] == raw.NONE
        Producer(client, partitions=2).commit(b"committed")
    # Once, however often it is refused: a client tries again and again.
    assert node.log_path.read_text(encoding="utf-8").count("Raise the limit of open files") == 1
    assert read_when(node, 4) == [b"plain", b"accepted", b"meanwhile", b"committed"]
    assert read_when(node, 2, partition=1) == [b"and on", b"committed"]


def test_want_of_file_descriptors_after_a_restart_passes(new_node: NewNode) -> None:
    """No file is open yet: batches, transactions and a new topic are refused meanwhile, and taken afterwards."""
    node = new_node()
    node.start()
    produce(node, b"plain")
    with RawClient(node.address) as client:
        producer = Producer(client)
        producer.commit(b"committed")
    node.restart()
    _soft, hard = resource.prlimit(node.pid, resource.RLIMIT_NOFILE)
    with RawClient(node.address) as client:
        client.api_versions()
        resource.prlimit(node.pid, resource.RLIMIT_NOFILE, (3, hard))
        assert client.produce(TOPIC, 0, batch([b"refused"]))[0] == KAFKA_STORAGE_ERROR
        assert client.produce("another", 0, batch([b"refused"]))[0] == KAFKA_STORAGE_ERROR
        assert client.init_producer_id("newcomer").error_code == KAFKA_STORAGE_ERROR
        assert producer.on(client).begin() == {KAFKA_STORAGE_ERROR}
        resource.prlimit(node.pid, resource.RLIMIT_NOFILE, (hard, hard))
        assert client.produce(TOPIC, 0, batch([b"and on"]))[0] == raw.NONE
        assert client.produce("another", 0, batch([b"and on"]))[0] == raw.NONE
        producer.commit(b"again")
    assert read_when(node, 4) == [b"plain", b"committed", b"and on", b"again"]


def test_want_of_file_descriptors_delays_the_copy(new_node: NewNode) -> None:
    """A journal's older segments cannot be opened to be read: what is committed is copied when they can."""
    node = new_node(FAIRLOG_JOURNAL_SEGMENT_BYTES_MAX=str(2**20), FAIRLOG_REQUESTS_MESSAGE_BYTES_MAX=str(2**19))
    node.start()
    produce(node, b"plain")
    _soft, hard = resource.prlimit(node.pid, resource.RLIMIT_NOFILE)
    with RawClient(node.address) as client:
        producer = Producer(client)
        assert producer.begin() == {raw.NONE}
        for _ in range(100):  # more than what is copied from memory
            assert producer.send(bytes(100_000)) == {raw.NONE}
        resource.prlimit(node.pid, resource.RLIMIT_NOFILE, (3, hard))
        assert producer.end(commit=True) == raw.NONE
        deadline = time.monotonic() + WAIT_S
        while "copying waits for a file descriptor" not in node.log_path.read_text(encoding="utf-8"):
            assert time.monotonic() < deadline, node.log_tail()
        resource.prlimit(node.pid, resource.RLIMIT_NOFILE, (hard, hard))
    assert read_when(node, 101) == [b"plain", *[bytes(100_000)] * 100]


def forbid_growth(node: NodeProcess, file_bytes: int) -> None:
    """No file of the running node may become longer than this."""
    _soft, hard = resource.prlimit(node.pid, resource.RLIMIT_FSIZE)
    resource.prlimit(node.pid, resource.RLIMIT_FSIZE, (file_bytes, hard))


def test_full_map_refuses_writes_until_a_restart_with_a_larger_one(new_node: NewNode) -> None:
    """What is answered and not copied waits in the journal; it is copied when there is a map to take it."""
    node = new_node(FAIRLOG_DATALOG_MAP_BYTES=str(16 * 2**20))
    node.start()
    answered, doubtful, code = produce_until_refused(node, value_bytes=900_000)
    assert code in {KAFKA_STORAGE_ERROR, REQUEST_TIMED_OUT}
    assert_writes_are_refused(node)
    assert_all_but_the_last(read_when(node, 0), answered)
    assert "map is full" in node.log_tail()
    node.environment["FAIRLOG_DATALOG_MAP_BYTES"] = str(64 * 2**20)
    restart_healed(node)
    # If it was in the journal, "effect unknown" has turned out to be an effect.
    assert read(node) == [*answered, *([doubtful] if code == REQUEST_TIMED_OUT else []), b"and on"]


def test_full_map_holds_back_a_commit_and_does_not_lose_it(new_node: NewNode) -> None:
    """An answered commit that cannot be copied any more is visible, whole, after the restart."""
    node = new_node(FAIRLOG_DATALOG_MAP_BYTES=str(16 * 2**20), FAIRLOG_TOPICS_PARTITIONS_DEFAULT="2")
    node.start()
    produce(node, b"plain")
    produce(node, b"plain", partition=1)
    with RawClient(node.address) as client:
        producer = Producer(client, partitions=2)
        producer.begin()
        for _ in range(9):
            assert producer.send(bytes(1_000_000)) == {raw.NONE}
        assert producer.end(commit=True) == raw.NONE
    with RawClient(node.address) as client:
        while client.produce(TOPIC, 0, batch([b"refused"]))[0] == raw.NONE:
            pass
    for partition in (0, 1):
        assert set(read_when(node, 0, partition)) <= {b"plain", b"refused"}
    node.environment["FAIRLOG_DATALOG_MAP_BYTES"] = str(64 * 2**20)
    restart_healed(node)
    for partition in (0, 1):
        assert read(node, partition).count(bytes(1_000_000)) == 9


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    with lacking.small_disk(tmp_path / "small", "24m") as mount:
        yield mount


def test_full_disk_refuses_writes_until_space_returns_and_a_restart(new_node: NewNode, small_disk: Path) -> None:
    """ENOSPC for journals and data logs alike; the ballast goes, the node is restarted, all answered is there."""
    ballast = small_disk / "ballast"
    ballast.write_bytes(bytes(8 * 2**20))
    node = new_node()
    node.data_dir = small_disk / "data"
    node.start()
    with RawClient(node.address) as client:
        produce(node, b"plain")
        Producer(client).commit(b"committed")
    read_when(node, 2)
    answered, doubtful, _code = produce_until_refused(node, value_bytes=200_000)
    answered = [b"plain", b"committed", *answered]
    assert_writes_are_refused(node)
    assert_all_but_the_last(read_when(node, 2), answered)
    ballast.unlink()
    assert_writes_are_refused(node)
    restart_healed(node)
    found = read(node)
    assert found.pop() == b"and on"
    assert_holds_answered(found, answered, perhaps=[doubtful])
    with RawClient(node.address) as client:
        Producer(client).commit(b"afterwards")
