"""Committed offsets on a node that is killed: offsets and output of a transaction survive together, or not at all."""

from __future__ import annotations

import shutil
import signal
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import lmdb
import pytest

from fairlog.cluster import records
from scripts.node_process import NodeProcess
from tests.clients import raw_client as raw
from tests.clients.raw_client import RawClient
from tests.node.nodes import TOPIC, Producer, assert_holds_answered, produce, read, read_when
from tests.shards import shard_in

pytestmark = pytest.mark.slow

NewNode = Callable[..., NodeProcess]
GROUP = "g"
NOT_COORDINATOR, COORDINATOR_LOAD_IN_PROGRESS = 16, 14


def consume_transform_produce(producer: Producer, number: int) -> None:
    """One transaction: a record, and the offset behind the record that it was made of. All answered."""
    client, who = producer.client, (producer.transactional_id, producer.producer_id, producer.epoch)
    assert producer.begin() == {raw.NONE}
    assert producer.send(b"%d" % number) == {raw.NONE}
    assert client.add_offsets(*who, GROUP) == raw.NONE
    assert client.commit_offset_in_transaction(*who, GROUP, TOPIC, 0, number + 1) == raw.NONE
    assert producer.end(commit=True) == raw.NONE


def committed(node: NodeProcess) -> int:
    """The group's offset, 0 if there is none; stable at once."""
    with RawClient(node.address) as client:
        code, offset = client.committed_offset(GROUP, TOPIC, 0)
    assert code == raw.NONE, code
    return max(offset, 0)


@pytest.mark.parametrize(
    "point",
    [
        "group.prepare_commit.appended:kill:4",
        "journal.flush.before:kill:20",
        "coordinator.prepared:kill:4",
        "coordinator.place.between_logs:kill:7",
        "coordinator.place.between_logs:kill:8",
        "copier.copy.between_logs:kill:4",
        "copier.copy.before_commit:kill:7",
        "copier.copy.after_commit:kill:7",
    ],
)
def test_kill_at_any_point_of_a_commit_keeps_offset_and_output_together(new_node: NewNode, point: str) -> None:
    """After the restart the group stands exactly behind the last record that was written, and all answered is there."""
    node = new_node(FAIRLOG_FAILPOINT=point)
    node.start()
    answered: list[bytes] = []
    with RawClient(node.address) as client, suppress(ConnectionError):
        produce(node, b"plain")
        assert client.commit_offset("other", TOPIC, 0, 7) == raw.NONE
        producer = Producer(client)
        for number in range(50):
            consume_transform_produce(producer, number)
            answered.append(b"%d" % number)
    assert node.wait_end(10) == -signal.SIGKILL, f"{point} was not reached"
    assert answered, "killed before anything was answered: this shows nothing"
    del node.environment["FAIRLOG_FAILPOINT"]
    node.start()
    if point.startswith("copier."):  # the client went on meanwhile: its next transaction may be open, with an offset
        with RawClient(node.address) as client:
            Producer(client)
    found = read(node)
    assert found.pop(0) == b"plain"
    assert_holds_answered(found, answered, perhaps=[b"%d" % len(answered)])
    assert committed(node) == len(found)
    with RawClient(node.address) as client:
        assert client.committed_offset("other", TOPIC, 0) == (raw.NONE, 7)
        consume_transform_produce(Producer(client), len(found))
    assert read_when(node, len(found) + 2)[-1] == b"%d" % len(found)
    assert committed(node) == len(found) + 1


@pytest.mark.parametrize("commit", [True, False])
def test_kill_with_offsets_pending_keeps_them_pending_until_the_client_decides(new_node: NewNode, commit: bool) -> None:
    """The open transaction goes on: its offsets stay unstable, take more, and are committed or forgotten with it."""
    node = new_node()
    node.start()
    produce(node, b"plain")
    with RawClient(node.address) as client:
        assert client.commit_offset(GROUP, TOPIC, 0, 3) == raw.NONE
        producer = Producer(client)
        who = (producer.transactional_id, producer.producer_id, producer.epoch)
        assert client.add_offsets(*who, GROUP) == raw.NONE
        assert client.commit_offset_in_transaction(*who, GROUP, TOPIC, 0, 8) == raw.NONE
        assert client.committed_offset(GROUP, TOPIC, 0) == (raw.UNSTABLE_OFFSET_COMMIT, -1)
    node.kill()
    node.start()
    with RawClient(node.address) as client:
        assert client.committed_offset(GROUP, TOPIC, 0) == (raw.UNSTABLE_OFFSET_COMMIT, -1)
        assert client.committed_offset(GROUP, TOPIC, 0, stable=False) == (raw.NONE, 3)
        assert client.commit_offset_in_transaction(*who, GROUP, TOPIC, 0, 9) == raw.NONE
        assert client.end(*who, commit=commit) == raw.NONE
    assert committed(node) == (9 if commit else 3)


def test_timeout_of_a_transaction_ends_the_wait_for_stable_offsets(new_node: NewNode) -> None:
    """A hung producer holds up those who ask for stable offsets for its own time-out, and no longer."""
    node = new_node(FAIRLOG_TRANSACTIONS_CHECK_INTERVAL_MS="50")
    node.start()
    produce(node, b"plain")
    with RawClient(node.address) as client:
        assert client.commit_offset(GROUP, TOPIC, 0, 3) == raw.NONE
        granted = client.init_producer_id("hung", timeout_ms=1000)
        who = ("hung", granted.producer_id, granted.producer_epoch)
        assert client.add_offsets(*who, GROUP) == raw.NONE
        assert client.commit_offset_in_transaction(*who, GROUP, TOPIC, 0, 9) == raw.NONE
        answers = {client.committed_offset(GROUP, TOPIC, 0)}
        while (raw.NONE, 3) not in answers:
            answers.add(client.committed_offset(GROUP, TOPIC, 0))
        assert answers == {(raw.UNSTABLE_OFFSET_COMMIT, -1), (raw.NONE, 3)}
        assert client.commit_offset_in_transaction(*who, GROUP, TOPIC, 0, 9) == raw.INVALID_PRODUCER_EPOCH
        assert client.end(*who, commit=True) in raw.FENCED
        assert client.committed_offset(GROUP, TOPIC, 0) == (raw.NONE, 3)


def test_new_instance_fences_the_offsets_of_the_old_one(new_node: NewNode) -> None:
    """What the zombie had pending is gone, what it sends is refused, and nothing of it is ever seen."""
    node = new_node()
    node.start()
    produce(node, b"plain")
    with RawClient(node.address) as zombie, RawClient(node.address) as client:
        old = Producer(zombie)
        who = (old.transactional_id, old.producer_id, old.epoch)
        assert zombie.add_offsets(*who, GROUP) == raw.NONE
        assert zombie.commit_offset_in_transaction(*who, GROUP, TOPIC, 0, 9) == raw.NONE
        new = Producer(client)
        assert zombie.commit_offset_in_transaction(*who, GROUP, TOPIC, 0, 9) == raw.INVALID_PRODUCER_EPOCH
        assert zombie.add_offsets(*who, GROUP) in raw.FENCED
        assert client.committed_offset(GROUP, TOPIC, 0) == (raw.NONE, -1)
        other_id = ("another", old.producer_id, old.epoch)
        assert client.commit_offset_in_transaction(*other_id, GROUP, TOPIC, 0, 9) == raw.INVALID_PRODUCER_ID_MAPPING
        consume_transform_produce(new, 0)
        assert zombie.commit_offset_in_transaction(*who, GROUP, TOPIC, 0, 9) == raw.INVALID_PRODUCER_EPOCH
    assert committed(node) == 1


def test_disk_that_fails_refuses_commits_and_a_restart_has_what_was_answered(new_node: NewNode) -> None:
    """Asked again, as clients do, the node keeps refusing in the words that make them ask again."""
    node = new_node(FAIRLOG_FAILPOINT="journal.flush.before:fail:12")
    node.start()
    produce(node, b"plain")
    codes: list[int] = []
    with RawClient(node.address) as client:
        codes += [client.commit_offset(GROUP, TOPIC, 0, offset) for offset in range(20)]
        answered = codes.count(raw.NONE)
        assert codes[:answered] == [raw.NONE] * answered
        assert 0 < answered < 12
        assert codes[answered + 1 :] == [NOT_COORDINATOR] * (19 - answered)
        assert client.committed_offset(GROUP, TOPIC, 0)[0] == COORDINATOR_LOAD_IN_PROGRESS
    node.kill()
    del node.environment["FAIRLOG_FAILPOINT"]
    node.start()
    assert committed(node) in (answered - 1, answered)


def test_directory_from_before_there_were_offsets_logs_is_opened(new_node: NewNode) -> None:
    """A node that has topics and transactions and never led an offsets log gets them at its next start."""
    node = new_node()
    node.start()
    produce(node, b"plain")
    node.stop()
    for log in shard_in(node.data_dir).local_journals.glob("o-*"):
        shutil.rmtree(log)
    make_old(node.data_dir)
    node.start()
    assert read(node) == [b"plain"]
    with RawClient(node.address) as client:
        assert client.commit_offset(GROUP, TOPIC, 0, 1) == raw.NONE
        consume_transform_produce(Producer(client), 1)
    assert committed(node) == 2


def make_old(data_dir: Path) -> None:
    """Take out what format 1 of the cluster store did not have, and the data logs' records of the offsets logs."""
    with lmdb.open(str(data_dir / "cluster")) as environment, environment.begin(write=True) as transaction:
        transaction.put(records.FORMAT_KEY, b"\x82\x6ffairlog-cluster\x01")
        assert transaction.delete(records.OFFSETS_LOGS_KEY)
    with lmdb.open(str(shard_in(data_dir).data_logs), max_dbs=8) as environment:
        logs = environment.open_db(b"fairlog.logs", create=False)
        with environment.begin(write=True, db=logs) as transaction:
            for shard in range(4):
                assert transaction.delete(b"o-offsets-%d" % shard)
