"""A backup of a node under load is a consistent cut, and a node that starts from it goes on where it was made."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest
from confluent_kafka import Producer as KafkaProducer
from confluent_kafka.admin import AdminClient, NewTopic

from datalog.foreign import ForeignEnvironment
from fairlog.backup import making
from fairlog.data_directory import MANIFEST, RESTORED
from fairlog.verify.verification import Verification
from fairlog_types import LogId
from tests.backup.conftest import NewNode, Restore, back_up
from tests.cli.in_process import FairlogCommand
from tests.clients import raw_client as raw
from tests.clients.raw_client import RawClient, batch
from tests.crash.checker import Reading, check
from tests.crash.harness import MIXED, make_topics, read_data_logs
from tests.crash.history import History, Outcome
from tests.crash.layout import Layout
from tests.crash.load import Load
from tests.node.nodes import TOPIC, Producer, produce, read, read_when, wait_for_the_copy
from tests.shards import shard_in

pytestmark = pytest.mark.slow

DONE_BETWEEN = 20
"""So much is answered between two backups."""
WAIT_S = 60.0
AFTERWARDS = b"written after the restore"
BACKUPS = 3


def assert_verified(directory: Path) -> None:
    assert list(Verification(directory, has_journals=not (directory / MANIFEST).exists()).violations()) == []


def as_of(before: History, after: History) -> History:
    """What a cut between the two may hold: plain records that were answered before must be there, later ones may."""
    plain = {
        key: record
        if key in before.plain and before.plain[key].outcome is Outcome.DONE
        else type(record)(record.writer, record.number, record.partition, Outcome.ASKED)
        for key, record in after.plain.items()
    }
    return History(after.transactions, plain)


def wait_until_done(load: Load, count: int) -> None:
    """Until so many operations are answered."""
    deadline = time.monotonic() + WAIT_S
    while load.history.snapshot().count(Outcome.DONE) < count:
        assert time.monotonic() < deadline, f"{load.history.snapshot().count(Outcome.DONE)} of {count} are done"
        time.sleep(0.01)


def test_backups_under_load_hold_of_every_transaction_all_or_nothing(
    new_node: NewNode, restore: Restore, tmp_path: Path
) -> None:
    """Taken while real clients commit, abort and hang, over topics of both modes; each starts, verifies, and reads as
    a cut."""
    node = new_node()
    node.start()
    layout = Layout("load", MIXED)
    topics_by_id = make_topics(node.address, layout)
    load = Load(node.address, layout, seed=1)
    taken: list[tuple[Path, History]] = []
    try:
        for number in range(BACKUPS):
            wait_until_done(load, (number + 1) * DONE_BETWEEN)
            target = tmp_path / f"backup{number}"
            before = load.history.snapshot()
            back_up(node, target)
            taken.append((target, before))
        wait_until_done(load, (BACKUPS + 1) * DONE_BETWEEN)
    finally:
        load.stop()
    sizes: list[int] = []
    for target, before in taken:
        assert_verified(target)
        restored = restore(target)
        restored.start()
        with RawClient(restored.address) as client:
            assert client.produce(*layout.place(0), batch([AFTERWARDS]))[0] == raw.NONE
        assert restored.stop() == 0, restored.log_tail()
        assert_verified(restored.data_dir)
        logs, _offsets = read_data_logs(restored.data_dir, layout, topics_by_id)
        assert logs[0].pop().value == AFTERWARDS
        assert check(as_of(before, load.history), logs, Reading.AT_CRASH, marked=layout.marked) == []
        sizes.append(sum(map(len, logs.values())))
    assert sizes == sorted(sizes)
    assert sizes[0] < sizes[-1]
    assert node.stop() == 0
    assert_verified(node.data_dir)


def test_node_from_a_backup_goes_on_densely_with_its_producers(
    new_node: NewNode, restore: Restore, tmp_path: Path
) -> None:
    """All that was visible is there; new records follow at once; ids of before are fenced, new ones are new."""
    node = new_node()
    node.start()
    produce(node, b"plain")
    with RawClient(node.address) as client:
        old = Producer(client, "billing", partitions=2)
        old.commit(b"committed")
        read_when(node, 2)
        hanging = Producer(client, "hanging", partitions=2)
        hanging.begin()
        hanging.send(b"hanging")
        idempotent = client.init_producer_id(None)
        data = batch([b"idempotent"], producer_id=idempotent.producer_id, epoch=0, sequence=0)
        assert client.produce(TOPIC, 0, data) == (raw.NONE, 2)
        old.begin()
        old.send(b"open")
        wait_for_the_copy(node.address, TOPIC)
        back_up(node, tmp_path / "backup")
        # What follows is in no backup.
        assert old.end(commit=True) == raw.NONE
        later = client.init_producer_id(None).producer_id
        assert client.produce(TOPIC, 0, batch([b"later"], producer_id=later, epoch=0, sequence=0))[0] == raw.NONE
        epoch = epoch_of_the_leader(client)
    node.restart()
    node.kill()

    restored = restore(tmp_path / "backup")
    restored.start()
    assert (restored.data_dir / RESTORED).exists()
    assert not (restored.data_dir / MANIFEST).exists()
    assert read(restored) == [b"plain", b"committed", b"idempotent"]
    assert read(restored, partition=1) == [b"committed"]
    with RawClient(restored.address) as client:
        assert epoch_of_the_leader(client) > epoch + 1
        # The transactional id's last instance is a zombie now, whatever it tries.
        assert set(old.on(client).begin()) == {raw.INVALID_PRODUCER_ID_MAPPING}
        assert set(old.send(b"zombie")) == {raw.INVALID_TXN_STATE}
        assert old.end(commit=True) == raw.INVALID_PRODUCER_ID_MAPPING
        assert hanging.on(client).end(commit=True) == raw.INVALID_PRODUCER_ID_MAPPING
        # A new instance gets an id that nobody had, also not behind the backup's back.
        new = Producer(client, "billing", partitions=2)
        assert new.producer_id > later
        assert new.epoch == 0
        new.commit(b"committed again")
        # An idempotent producer goes on where the backup has it.
        data = batch([b"goes on"], producer_id=idempotent.producer_id, epoch=0, sequence=1)
        assert client.produce(TOPIC, 0, data)[0] == raw.NONE
        repeated = client.produce(TOPIC, 0, data)
        assert repeated[0] == raw.NONE
    everything = [b"plain", b"committed", b"idempotent", b"committed again", b"goes on"]
    assert sorted(filter(None, read_when(restored, 5))) == sorted(everything)
    restored.kill()
    restored.start()
    assert len(read(restored)) == 5
    assert restored.stop() == 0, restored.log_tail()
    assert_verified(restored.data_dir)


def epoch_of_the_leader(client: RawClient) -> int:
    return client.metadata(TOPIC).topics[0].partitions[0].leader_epoch


def test_stock_clients_that_live_through_a_restore_go_on(new_node: NewNode, restore: Restore, tmp_path: Path) -> None:
    """A transactional and an idempotent producer, connected all the time: at most one error, then they write again."""
    node = new_node()
    node.start()
    settings = {"bootstrap.servers": node.address, "log_level": 0, "reconnect.backoff.max.ms": 100}
    transactional = KafkaProducer({**settings, "transactional.id": "lives-on"})
    transactional.init_transactions(20)
    commit(transactional, b"before")
    read_when(node, 1)
    back_up(node, tmp_path / "backup")
    address = node.address
    node.kill()
    restored = restore(tmp_path / "backup")
    restored.address = address
    restored.start()
    try:
        commit(transactional, b"after")
    except Exception:  # noqa: BLE001 - any of the client's; the application makes a new producer then
        transactional = KafkaProducer({**settings, "transactional.id": "lives-on"})
        transactional.init_transactions(20)
        commit(transactional, b"after")
    idempotent = KafkaProducer({**settings, "enable.idempotence": True})
    idempotent.produce(TOPIC, b"idempotent", partition=0)
    assert idempotent.flush(20) == 0
    assert sorted(filter(None, read_when(restored, 3))) == [b"after", b"before", b"idempotent"]
    assert restored.stop() == 0
    assert_verified(restored.data_dir)


def commit(producer: KafkaProducer, value: bytes) -> None:
    producer.begin_transaction()
    producer.produce(TOPIC, value, partition=0)
    producer.commit_transaction(20)


def test_topics_made_and_deleted_while_the_backup_is_made(
    new_node: NewNode, restore: Restore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between the copies of data logs and cluster store: a new topic is there, empty; a deleted one leaves nothing."""
    node = new_node()
    node.start()
    produce(node, b"kept")
    wait_for_the_copy(node.address, TOPIC)
    admin = AdminClient({"bootstrap.servers": node.address})
    admin.create_topics([NewTopic("doomed", 2, 1)])["doomed"].result(timeout=20)
    with RawClient(node.address) as client:
        assert client.produce("doomed", 1, batch([b"doomed"]))[0] == raw.NONE
    copy = making._copy

    def copy_and_change(environment: ForeignEnvironment, *rest: object) -> None:
        copy(environment, *rest)  # type: ignore[arg-type]
        if environment.directory.name == "datalog":
            admin.create_topics([NewTopic("young", 2, 1)])["young"].result(timeout=20)
            with RawClient(node.address) as client:
                assert client.produce("young", 0, batch([b"lost"]))[0] == raw.NONE
            admin.delete_topics(["doomed"])["doomed"].result(timeout=20)
            while any(shard_in(node.data_dir).local_journals.glob("t-*-3")):
                time.sleep(0.01)

    monkeypatch.setattr(making, "_copy", copy_and_change)
    manifest = back_up(node, tmp_path / "backup")
    assert sorted({log.topic for log in manifest.logs.values() if log.topic}) == [TOPIC]
    node.kill()
    restored = restore(tmp_path / "backup")
    restored.start()
    assert set(AdminClient({"bootstrap.servers": restored.address}).list_topics(timeout=20).topics) == {TOPIC, "young"}
    assert read(restored) == [b"kept"]
    with RawClient(restored.address) as client:
        assert client.fetch("young", 0, 0, wait_ms=0).high_watermark == 0
        assert client.produce("young", 0, batch([b"first"])) == (raw.NONE, 0)
    assert restored.stop() == 0
    assert_verified(restored.data_dir)
    journals = {LogId.parse(path.name).topic for path in shard_in(restored.data_dir).local_journals.iterdir()}
    assert len(journals) <= 2


def test_backup_of_a_node_that_was_stopped_well_has_everything(
    new_node: NewNode, restore: Restore, fairlog: FairlogCommand, tmp_path: Path
) -> None:
    """By the command, which says what it did; `verify` takes a backup, too."""
    node = new_node()
    node.start()
    produce(node, b"one", b"two")
    assert node.stop() == 0
    code, out, err = fairlog("backup", tmp_path / "backup", "--data-dir", node.data_dir)
    assert (code, err) == (0, "")
    assert out.startswith("backed up 6 logs, ")
    assert sorted(path.name for path in (tmp_path / "backup").iterdir()) == ["backup.json", "cluster", "shards"]
    code, out, _ = fairlog("verify", tmp_path / "backup")
    assert (code, "no violation found" in out) == (0, True)
    restored = restore(tmp_path / "backup")
    restored.start()
    assert read(restored) == [b"one", b"two"]


def test_restored_node_is_backed_up_and_restored_again(new_node: NewNode, restore: Restore, tmp_path: Path) -> None:
    """A chain: each link keeps all, and gives ids that none before had."""
    node = new_node()
    node.start()
    given: list[int] = []
    for number in range(2):
        produce(node, b"%d" % number)
        with RawClient(node.address) as client:
            given.append(client.init_producer_id(None).producer_id)
        wait_for_the_copy(node.address, TOPIC)
        back_up(node, tmp_path / f"backup{number}")
        node.kill()
        node = restore(tmp_path / f"backup{number}")
        node.start()
    assert read(node) == [b"0", b"1"]
    assert given == sorted(set(given))


def test_quotas_are_in_a_backup(new_node: NewNode, restore: Restore, tmp_path: Path, fairlog: FairlogCommand) -> None:
    """The node that starts from it enforces them."""
    node = new_node()
    node.start()
    rate = ("--user", "alice", "--producer-byte-rate", "1000")
    assert fairlog("quota", "set", *rate, "--bootstrap", node.address)[0] == 0
    back_up(node, tmp_path / "backup")
    restored = restore(tmp_path / "backup")
    restored.start()
    code, out, error = fairlog("quota", "list", "--json", "--bootstrap", restored.address)
    assert (code, error) == (0, "")
    assert json.loads(out) == [{"entity": {"user": "alice"}, "quotas": {"producer_byte_rate": 1000}}]
    assert restored.stop() == 0
