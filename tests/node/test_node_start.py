"""What keeps a node from starting is said in one sentence, and nothing is changed by it."""

from __future__ import annotations

import os
import resource
import shutil
import signal
import struct
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import cbor2
import crc32c
import lmdb
import pytest

from datalog import layout
from fairlog import __version__
from fairlog.cluster import records
from journal.segment import VERSIONS, JournalKind
from scripts.node_process import NodeProcess
from tests.clients.raw_client import RawClient, batch
from tests.node.nodes import TOPIC, WAIT_S, Producer, journal, produce, read, read_when, refusal, segments
from tests.shards import shard_in

pytestmark = pytest.mark.slow

NewNode = Callable[..., NodeProcess]


def test_start_on_a_port_that_is_taken_is_refused(new_node: NewNode) -> None:
    """The sentence names the address."""
    first, second = new_node(), new_node()
    first.start()
    second.address = first.address
    assert refusal(second).startswith(f"cannot listen on {first.address}: ")
    produce(first, b"undisturbed")


def test_start_in_a_directory_in_use_is_refused(new_node: NewNode) -> None:
    """The sentence names the directory and the process that has it."""
    first = new_node()
    first.start()
    second = NodeProcess(first.data_dir, first.environment)
    assert refusal(second) == f"data directory {first.data_dir} is in use by process {first.pid}"
    produce(first, b"undisturbed")


def test_start_in_a_directory_of_something_else_is_refused(new_node: NewNode) -> None:
    """Nothing is mixed in. What a first start makes before its data is not taken for something else."""
    node = new_node(FAIRLOG_ADMIN_LISTEN="127.0.0.1:0")
    node.data_dir.mkdir()
    (node.data_dir / "thesis.tex").write_text("")
    assert refusal(node).startswith(f"{node.data_dir} is not a data directory, and not empty")
    assert os.listdir(node.data_dir) == ["thesis.tex"]
    (node.data_dir / "thesis.tex").unlink()
    node.start()
    node.stop()
    for kept in ("cluster", "shards"):
        shutil.rmtree(node.data_dir / kept)
    node.start()


def test_start_with_an_unknown_key_is_refused(new_node: NewNode) -> None:
    """A misspelt variable is not passed over."""
    node = new_node(FAIRLOG_JOURNAL_FSNYC="never")
    assert refusal(node).startswith("unknown key FAIRLOG_JOURNAL_FSNYC in the environment")
    assert not node.data_dir.exists()


def test_start_says_which_program_serves_and_what_it_has_changed(new_node: NewNode) -> None:
    """The log names the version; and the limit of open files, if it was raised and is not as it was found."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    node = new_node()
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        node.start()
        assert f"version={__version__}" in node.log_tail()
        assert "limit of open files" not in node.log_tail()
        resource.setrlimit(resource.RLIMIT_NOFILE, (256, hard))
        node.restart()
        assert "limit of open files raised" in node.log_tail()
        assert "was=256" in node.log_tail()
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


# --- a format of tomorrow --------------------------------------------------------------------------


def cluster_store_of_tomorrow(node: NodeProcess) -> str:
    with lmdb.open(str(node.data_dir / "cluster"), max_dbs=0) as store, store.begin(write=True) as txn:
        txn.put(records.FORMAT_KEY, cbor2.dumps([records.MAGIC, records.READ_VERSIONS[-1] + 1]))
    return f"the cluster store in {node.data_dir / 'cluster'} has format {records.READ_VERSIONS[-1] + 1}"


def data_logs_of_tomorrow(node: NodeProcess) -> str:
    with lmdb.open(str(shard_in(node.data_dir).data_logs), max_dbs=8, lib_version=0) as env:
        meta = env.open_db(layout.META, create=False)
        with env.begin(write=True) as txn:
            txn.put(layout.FORMAT_KEY, layout.encode_format(layout.VERSION + 1), db=meta)
    return f"data logs in {shard_in(node.data_dir).data_logs} have the format version {layout.VERSION + 1}"


def journal_of_tomorrow(node: NodeProcess) -> str:
    path = segments(journal(node))[-1]
    content = bytearray(path.read_bytes())
    struct.pack_into("<H", content, 8, VERSIONS[JournalKind.LOCAL] + 1)
    struct.pack_into("<I", content, 60, crc32c.crc32c(bytes(content[:60])))
    path.write_bytes(content)
    return f"{path}: byte 0: "


@pytest.mark.parametrize("change", [cluster_store_of_tomorrow, data_logs_of_tomorrow, journal_of_tomorrow])
def test_start_with_data_of_a_newer_format_is_refused(new_node: NewNode, change: Callable[[NodeProcess], str]) -> None:
    """The sentence says where the newer format is, and the older program leaves the data as they were."""
    node = new_node()
    node.start()
    produce(node, b"v")
    node.stop()
    expected = change(node)
    shard = shard_in(node.data_dir)
    before = {directory: contents(directory) for directory in (shard.data_logs, shard.journals)}
    assert expected in refusal(node)
    assert {directory: contents(directory) for directory in before} == before


def contents(directory: Path) -> dict[str, bytes]:
    """Every file but LMDB's lock, which says nothing."""
    return {
        str(path.relative_to(directory)): path.read_bytes()
        for path in directory.rglob("*")
        if path.is_file() and path.name != "lock.mdb"
    }


# --- files that are missing ------------------------------------------------------------------------


def test_start_without_the_cluster_store_is_refused(new_node: NewNode) -> None:
    """A new store would have no topics, and all data would be left without a name."""
    node = new_node()
    node.start()
    produce(node, b"v")
    node.stop()
    store = node.data_dir / "cluster"
    shutil.move(store, store.with_name("kept"))
    assert refusal(node).startswith(f"the cluster store {store / 'data.mdb'} is missing")
    assert not store.exists()


@pytest.mark.parametrize(("left", "sentence"), [(0, "is missing or empty"), (8192, "it was cut")])
def test_start_with_a_cluster_store_that_is_cut_is_refused(new_node: NewNode, left: int, sentence: str) -> None:
    """LMDB would make an empty one anew, and die of a short one by SIGBUS, without a word."""
    node = new_node()
    node.start()
    produce(node, b"v")
    node.stop()
    os.truncate(node.data_dir / "cluster" / "data.mdb", left)
    assert sentence in refusal(node)


@pytest.mark.parametrize("used", [True, False])
@pytest.mark.parametrize("lost", ["0", "1", "."])
def test_start_without_a_group_journal_is_refused(new_node: NewNode, lost: str, used: bool) -> None:
    """An empty one in its place would know no epochs, and take what was committed for an orphan."""
    node = new_node()
    node.start()
    if used:
        with RawClient(node.address) as client:
            produce(node, b"plain")
            for number in range(4):  # some in either of the two
                Producer(client, f"txn{number}").commit(b"committed")
    node.kill()
    groups = shard_in(node.data_dir).group_journals
    shutil.move(groups / lost, node.data_dir / "kept")
    missing = groups / ("0" if lost == "." else lost)
    for _ in range(2):
        assert refusal(node).startswith(f"the group journal {missing} is missing")
    shutil.rmtree(groups / lost, ignore_errors=True)
    shutil.move(node.data_dir / "kept", groups / lost)
    node.start()
    if used:
        assert len(read(node)) == 5


@pytest.mark.parametrize("partitions", [1, 2])
def test_start_without_the_journal_of_a_commit_is_refused(new_node: NewNode, partitions: int) -> None:
    """It was not copied yet: made anew, the journal would hold nothing of an answered commit, which were aborted."""
    node = new_node(FAIRLOG_FAILPOINT="copier.copy.before:kill:1", FAIRLOG_TOPICS_PARTITIONS_DEFAULT=str(partitions))
    node.start()
    with RawClient(node.address) as client, suppress(ConnectionError):  # the answer meets the kill
        client.metadata(TOPIC, create=True)
        Producer(client, partitions=partitions).commit(b"committed")
    assert node.wait_end(WAIT_S) == -signal.SIGKILL
    del node.environment["FAIRLOG_FAILPOINT"]
    lost = journal(node, partitions - 1)
    shutil.move(lost, node.data_dir / "kept")
    for _ in range(2):
        assert refusal(node).startswith(f"the journal {lost} is missing: transaction ")
    shutil.move(node.data_dir / "kept", lost)
    node.start()
    for partition in range(partitions):
        assert read(node, partition) == [b"committed"]


def test_start_after_a_loss_of_power_takes_a_missing_journal_for_one_that_was_never_flushed(new_node: NewNode) -> None:
    """PREPARE_COMMIT can reach the disk before a participant's first segment does: then nothing was answered."""
    node = new_node(FAIRLOG_FAILPOINT="copier.copy.before:kill:1")
    node.start()
    with RawClient(node.address) as client, suppress(ConnectionError):
        client.metadata(TOPIC, create=True)
        Producer(client).commit(b"v")
    assert node.wait_end(WAIT_S) == -signal.SIGKILL
    del node.environment["FAIRLOG_FAILPOINT"]
    shutil.rmtree(journal(node))
    (node.data_dir / "last-run").write_text("another-boot open\n", encoding="ascii")
    node.start()
    assert read(node) == []


def test_start_cut_short_before_the_group_journals_are_made_is_made_good(new_node: NewNode) -> None:
    """Only when all are on disk is it noted that none may be missing."""
    node = new_node(FAIRLOG_FAILPOINT="journal.roll.before_publish:kill:2")
    node.spawn()
    assert node.wait_end(WAIT_S) == -signal.SIGKILL
    del node.environment["FAIRLOG_FAILPOINT"]
    node.start()
    produce(node, b"v")
    assert read(node) == [b"v"]


def test_start_without_the_data_logs_copies_whole_journals_again(new_node: NewNode) -> None:
    """As long as no journal has given space back, the data logs can be made anew from them."""
    node = new_node(FAIRLOG_TOPICS_PARTITIONS_DEFAULT="2")
    node.start()
    produce(node, b"plain")
    with RawClient(node.address) as client:
        producer = Producer(client, partitions=2)
        producer.commit(b"committed")
        producer.begin()
        producer.send(b"aborted")
        producer.end(commit=False)
    read_when(node, 2)
    node.kill()
    shutil.rmtree(shard_in(node.data_dir).data_logs)
    node.start()
    assert (read(node, 0), read(node, 1)) == ([b"plain", b"committed"], [b"committed"])


def test_start_without_a_segment_in_the_middle_is_refused(new_node: NewNode) -> None:
    """The sentence names the file before the gap, and the byte where the journal should have gone on."""
    node = new_node(FAIRLOG_JOURNAL_SEGMENT_BYTES_MAX=str(2**20), FAIRLOG_REQUESTS_MESSAGE_BYTES_MAX=str(2**18))
    node.start()
    produce(node, b"first")
    with RawClient(node.address) as client:
        producer = Producer(client)
        producer.begin()
        producer.send(b"open: it keeps the first segment from being given back")
        while len(segments(journal(node))) < 3:
            client.produce(TOPIC, 0, batch([bytes(200_000)]))
    node.kill()
    first, second, *_ = segments(journal(node))
    second.unlink()
    sentence = refusal(node)
    assert sentence.startswith(f"{first}: byte {first.stat().st_size} ")
    assert "segment missing or short" in sentence
