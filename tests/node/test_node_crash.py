"""What a node makes of the files that a kill, a loss of power, or damage has left."""

from __future__ import annotations

import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from fairlog_types import JournalPosition
from journal.recovery import Tail, scan_tail
from journal.segment import SEGMENT_HEADER_BYTES, SegmentHeader, decode_segment_header_untrusted, file_offset
from scripts.node_process import NodeDidNotStart, NodeProcess
from tests.clients import raw_client as raw
from tests.clients.raw_client import RawClient
from tests.node.nodes import (
    TOPIC,
    Producer,
    journal,
    pretend_reboot,
    produce,
    read,
    read_when,
    refusal,
    segments,
    until,
    wait_for_the_copy,
)
from tests.shards import shard_in

pytestmark = pytest.mark.slow

NewNode = Callable[..., NodeProcess]


def tail(path: Path) -> Tail:
    """How the frames of a segment's file end."""
    content = path.read_bytes()
    header = decode_segment_header_untrusted(content)
    assert isinstance(header, SegmentHeader)
    return scan_tail(content, base=header.base, salt=header.salt)


def overwrite(path: Path, offset: int, data: bytes) -> None:
    with path.open("r+b") as file:
        file.seek(offset)
        file.write(data)


def cut_to_header(path: Path) -> None:
    """Frames that were written and never reached the disk: zeros are there instead."""
    content = path.read_bytes()
    path.write_bytes(content[:SEGMENT_HEADER_BYTES].ljust(len(content), b"\0"))


# --- torn tails and damage -------------------------------------------------------------------------


def garbage(path: Path) -> None:
    """A frame was being written: not all of it arrived."""
    overwrite(path, file_offset(tail(path).hole, JournalPosition(0)), b"\xa5" * 100)


def truncated(path: Path) -> None:
    """The file ends within its last frame, and its preallocated zeros are gone, too."""
    with path.open("r+b") as file:
        file.truncate(file_offset(tail(path).hole, JournalPosition(0)) - 20)


@pytest.mark.parametrize("tear", [garbage, truncated])
def test_torn_tail_is_cut_with_a_log_line(new_node: NewNode, tear: Callable[[Path], None]) -> None:
    """What nobody was told to be durable may be torn: the line names file and position, all answered is there."""
    node = new_node()
    node.start()
    produce(node, b"one", b"two")
    with RawClient(node.address) as client:
        producer = Producer(client)
        producer.begin()
        producer.send(b"not durable before its commit")
    node.kill()
    (path,) = segments(journal(node))
    tear(path)
    node.start()
    (line,) = [line for line in node.log_tail(500).splitlines() if "journal.tail_cut" in line]
    assert str(path) in line
    produce(node, b"three")
    assert read(node) == [b"one", b"two", b"three"]


def test_flipped_byte_before_valid_frames_refuses_the_start(new_node: NewNode) -> None:
    """Damage to what was answered is not taken for a torn tail: file and byte are named, and nothing is changed."""
    node = new_node()
    node.start()
    produce(node, b"one, to be found again", b"two", b"three")
    node.kill()
    (path,) = segments(journal(node))
    content = path.read_bytes()
    at = content.index(b"one, to be found again")
    overwrite(path, at, b"O")
    sentence = refusal(node)
    assert sentence.startswith(f"{path}: byte {SEGMENT_HEADER_BYTES} (journal position 0): ")
    assert "Nothing was changed" in sentence
    overwrite(path, at, b"o")
    assert path.read_bytes() == content
    node.start()
    assert read(node) == [b"one, to be found again", b"two", b"three"]


def test_flipped_byte_in_a_group_journal_refuses_the_start(new_node: NewNode) -> None:
    """The same where it is decided what is committed."""
    node = new_node(FAIRLOG_JOURNAL_GROUP_JOURNALS="1")
    node.start()
    produce(node, b"plain")
    with RawClient(node.address) as client:
        producer = Producer(client)
        for _ in range(3):
            producer.commit(b"v")
    node.kill()
    (path,) = segments(shard_in(node.data_dir).group_journal(0))
    overwrite(path, SEGMENT_HEADER_BYTES + 40, b"\xff\xff")
    assert refusal(node).startswith(f"{path}: byte {SEGMENT_HEADER_BYTES} ")


def test_kill_in_the_middle_of_a_write_keeps_what_is_open(new_node: NewNode) -> None:
    """The frame that is there in part was answered to nobody: it is cut, and the open transaction goes on."""
    node = new_node()
    node.start()
    produce(node, b"plain")
    with RawClient(node.address) as client:
        producer = Producer(client)
        producer.begin()
        producer.send(b"answered")
        producer.send(b"x" * 20_000)
    node.kill()
    (path,) = segments(journal(node))
    last_page = file_offset(tail(path).hole, JournalPosition(0)) // 4096 * 4096
    overwrite(path, last_page, bytes(4096))
    node.start()
    assert "journal.tail_cut" in node.log_tail(500)
    with RawClient(node.address) as client:
        producer.on(client)
        producer.sequence -= 1
        producer.send(b"again")
        assert producer.end(commit=True) == raw.NONE
    assert read_when(node, 3) == [b"plain", b"answered", b"again"]


# --- who must abort --------------------------------------------------------------------------------


@pytest.mark.parametrize("fsync", ["commit", "never"])
def test_kill_right_after_a_loss_of_power_does_not_lift_must_abort(new_node: NewNode, fsync: str) -> None:
    """The second start finds its page cache whole, but it was the first one's question: ids still have to abort.

    Otherwise a client with an open transaction whose BEGIN went with the power could commit its second half.
    """
    node = new_node(FAIRLOG_JOURNAL_FSYNC=fsync)
    node.start()
    produce(node, b"plain")
    with RawClient(node.address) as client:
        producer = Producer(client)
        producer.commit(b"before")
    read_when(node, 2)
    node.kill()
    pretend_reboot(node)
    node.start()
    node.kill()
    node.start()
    with RawClient(node.address) as client:
        producer.on(client)
        assert producer.begin() == {raw.MUST_ABORT}
        assert producer.end(commit=True) != raw.NONE
        assert producer.end(commit=False) == raw.NONE
        producer.commit(b"after")
    assert read_when(node, 3) == [b"plain", b"before", b"after"]


@pytest.mark.parametrize("point", ["group.producer_state.appended", "copier.copy.before_commit"])
def test_crash_in_a_recovery_leaves_the_answer_about_the_tail_as_it_was(new_node: NewNode, point: str) -> None:
    """A run begins when what recovery decided is on disk and copied: a start that dies before that is no run."""
    node = new_node()
    node.start()
    produce(node, b"plain")
    with RawClient(node.address) as client:
        producer = Producer(client)
        producer.commit(b"before")
        producer.begin()
        producer.send(b"open")
    read_when(node, 2)
    node.kill()
    pretend_reboot(node)
    note = (node.data_dir / "last-run").read_text()
    node.environment["FAIRLOG_FAILPOINT"] = f"{point}:kill:1"
    with pytest.raises(NodeDidNotStart):
        node.start()
    assert node.wait_end(0) == -signal.SIGKILL
    assert (node.data_dir / "last-run").read_text() == note
    del node.environment["FAIRLOG_FAILPOINT"]
    node.start()
    assert (node.data_dir / "last-run").read_text() != note
    with RawClient(node.address) as client:
        assert producer.on(client).begin() == {raw.MUST_ABORT}


def test_kill_lets_idle_producers_go_on_as_if_nothing_had_happened(new_node: NewNode) -> None:
    """The machine lived on, so the journal is the truth: who had nothing open need not abort."""
    node = new_node()
    node.start()
    produce(node, b"plain")
    with RawClient(node.address) as client:
        producer = Producer(client)
        producer.commit(b"before")
    node.kill()
    node.start()
    with RawClient(node.address) as client:
        producer.on(client).commit(b"after")
    assert read_when(node, 3) == [b"plain", b"before", b"after"]


# --- what was not promised -------------------------------------------------------------------------


@pytest.mark.parametrize("fsync", ["interval", "never"])
def test_loss_of_power_without_fsync_keeps_what_was_copied(new_node: NewNode, fsync: str) -> None:
    """The data log may be ahead of its journal then: a warning, and the log goes on at the next offset."""
    node = new_node(FAIRLOG_JOURNAL_FSYNC=fsync, FAIRLOG_JOURNAL_FSYNC_INTERVAL_MS="60000")
    node.start()
    produce(node, b"one", b"two")
    (segment,) = until(lambda: segments(journal(node)))  # its first flush gives it its name, beside the answers
    wait_for_the_copy(node.address, TOPIC)
    node.kill()
    pretend_reboot(node)
    cut_to_header(segment)
    node.start()
    assert "journal lost its tail" in node.log_tail(500)
    produce(node, b"three")
    assert read(node) == [b"one", b"two", b"three"]
    node.kill()
    node.start()
    assert read(node) == [b"one", b"two", b"three"]


def test_loss_of_what_fsync_had_promised_refuses_the_start(new_node: NewNode) -> None:
    """With fsync=commit the same files mean that the disk, or somebody, took what was durable."""
    node = new_node()
    node.start()
    produce(node, b"one", b"two")
    wait_for_the_copy(node.address, TOPIC)
    node.kill()
    cut_to_header(segments(journal(node))[0])
    sentence = refusal(node)
    assert "missing or cut" in sentence
    assert str(journal(node)) in sentence


# --- time ------------------------------------------------------------------------------------------


def test_idle_ids_and_producers_are_forgotten_by_the_settings(new_node: NewNode) -> None:
    """Small expirations on a real node: the id is gone, its partition does not know it any more, and a kill tells."""
    node = new_node(
        FAIRLOG_TRANSACTIONS_TRANSACTIONAL_ID_EXPIRATION_MS="4100",
        FAIRLOG_TRANSACTIONS_MAX_TIMEOUT_MS="4000",  # time enough for a commit, on any machine
        FAIRLOG_TRANSACTIONS_CHECK_INTERVAL_MS="50",
        FAIRLOG_TRANSACTIONS_PRODUCER_ID_EXPIRATION_MS="500",
    )
    node.start()
    produce(node, b"plain")
    with RawClient(node.address) as client:
        producer = Producer(client)
        producer.commit(b"v")
        while client.transaction_state("txn").error_code == raw.NONE:
            pass
        records = raw.batch([b"goes on"], producer_id=producer.producer_id, epoch=producer.epoch, sequence=1)
        assert client.produce(TOPIC, 0, records)[0] == raw.UNKNOWN_PRODUCER_ID
    node.kill()
    node.start()
    with RawClient(node.address) as client:
        assert client.transaction_state("txn").error_code != raw.NONE
        assert client.produce(TOPIC, 0, records)[0] == raw.UNKNOWN_PRODUCER_ID
        assert Producer(client).producer_id != producer.producer_id
    assert read(node) == [b"plain", b"v"]
