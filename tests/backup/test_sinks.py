"""Sinks over a backup and a restore: a batch that is in the backup is never written again, and one that is not is."""

from __future__ import annotations

import threading
from collections import Counter
from dataclasses import replace
from pathlib import Path
from uuid import UUID

import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from coordinator.group_records import SinkCommittedRecord, SinkPrepareCommitRecord, SinkRecord
from datalog.foreign import ForeignEnvironment
from fairlog.backup import group_journals, making, taking_over
from fairlog.backup.group_journals import GroupJournalsAround
from fairlog.backup.manifest import decode_manifest_untrusted
from fairlog.data_directory import MANIFEST
from fairlog.local_reader import LocalReader
from fairlog.verify.verification import Verification
from fairlog_types import LogId
from journal.segment import Fsync
from pyspark_fairlog.native import Native, NativeError, Placement, Topics
from scripts.node_process import NodeProcess
from tests.backup.conftest import FairlogCommand, NewNode, Restore, back_up, now_ms
from tests.backup.earlier import as_of_version
from tests.clients.raw_client import RawClient
from tests.node.nodes import TOPIC, Producer, produce

pytestmark = pytest.mark.slow

PARTITIONS = 2
LANES = 2
ROWS_OF_BATCH = LANES * PARTITIONS
BACKUPS = 4
BATCHES_BETWEEN = 4
WAIT_S = 60.0


class Query:
    """A run of a query that writes to one sink, as Spark does: lanes join and write, the driver commits."""

    def __init__(self, node: NodeProcess, sink: str, *, query: str = "q", run: str = "r") -> None:
        self._node = node
        self._of = {"sink": sink, "query": query, "run": run}
        self._sink = sink

    def is_there(self, driver: Native, batch: int) -> bool:
        """What the first task of a replay is told."""
        return driver.join(**self._of, batch=batch, partition=0, attempt=0) is None

    def write(self, driver: Native, batch: int) -> tuple[Placement, ...]:
        """Write and commit a batch; where it is."""
        self.fill(driver, batch)
        return self.commit(driver, batch)

    def fill(self, driver: Native, batch: int) -> None:
        """A record of each lane to each partition."""
        with RawClient(self._node.address) as client:
            for lane in range(LANES):
                name = driver.join(**self._of, batch=batch, partition=lane, attempt=0)
                assert name is not None, f"batch {batch} is there already"
                producer = Producer(client, name, partitions=PARTITIONS)
                assert producer.begin() == {0}
                assert producer.send(f"{self._sink} {batch}".encode()) == {0}

    def commit(self, driver: Native, batch: int) -> tuple[Placement, ...]:
        answer = driver.commit(**self._of, batch=batch, winners=[(lane, 0, PARTITIONS) for lane in range(LANES)])
        return answer.placements


def rows_in(directory: Path) -> Counter[str]:
    """How often each record stands in the topic's partitions."""
    with LocalReader.open(directory) as reader, reader.cut() as cut:
        values = [it.value for partition in range(PARTITIONS) for it in cut.records(TOPIC, partition, 0)]
    return Counter((value or b"").decode() for value in values)


def fences_in(backup: Path) -> dict[str, SinkRecord]:
    sinks = decode_manifest_untrusted((backup / MANIFEST).read_bytes()).sinks
    assert sinks is not None
    return {fence.sink: fence for fence in sinks}


@pytest.mark.parametrize("mode", ["journal", "markers"])
def test_batch_in_the_backup_is_already_committed_after_the_restore(
    new_node: NewNode, restore: Restore, fairlog: FairlogCommand, tmp_path: Path, mode: str
) -> None:
    """At the same places; another query is refused by name; what the backup does not have is written, and the next."""
    node = new_node(FAIRLOG_TOPICS_TRANSACTIONS=mode)
    node.start()
    produce(node, b"plain")
    with Native.connect(node.address) as driver:
        query = Query(node, "totals")
        query.write(driver, 0)
        places = query.write(driver, 1)
        back_up(node, tmp_path / "backup")
        query.write(driver, 2)
    node.kill()
    assert fences_in(tmp_path / "backup")["totals"].batch == 1
    assert fairlog("verify", tmp_path / "backup")[0] == 0

    restored = restore(tmp_path / "backup")
    restored.start()
    with Native.connect(restored.address) as driver:
        replay = Query(restored, "totals", run="after the restore")
        assert replay.is_there(driver, 1)
        with pytest.raises(NativeError, match="sink 'totals' has batch 1, and this is batch 0"):
            replay.is_there(driver, 0)
        assert replay.commit(driver, 1) == places
        with pytest.raises(NativeError, match="sink 'totals' belongs to query 'q', and this is query 'other'"):
            Query(restored, "totals", query="other").is_there(driver, 2)
        replay.write(driver, 2)
        replay.write(driver, 3)
    restored.restart()
    with Native.connect(restored.address) as driver:
        assert Query(restored, "totals", run="later").is_there(driver, 3)
    assert restored.stop() == 0, restored.log_tail()
    expected = {f"totals {batch}": ROWS_OF_BATCH for batch in range(4)}
    assert rows_in(restored.data_dir) == {"plain": 1, **expected}
    assert list(Verification(restored.data_dir, has_journals=True).violations()) == []


@pytest.mark.parametrize("mode", ["journal", "markers"])
def test_batch_that_is_committed_between_cut_and_reading_is_not_in_the_backup(
    new_node: NewNode, fairlog: FairlogCommand, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mode: str
) -> None:
    """The group journals tell of it, and the cut has not got it: of its rows none, or, with markers, open ones."""
    node = new_node(FAIRLOG_TOPICS_TRANSACTIONS=mode)
    node.start()
    produce(node, b"plain")
    read, readings = GroupJournalsAround._read, 0
    with Native.connect(node.address) as driver:
        query = Query(node, "totals")
        query.write(driver, 0)
        query.fill(driver, 1)

        def late_reading(around: GroupJournalsAround) -> object:
            nonlocal readings
            readings += 1
            if readings == 2:
                query.commit(driver, 1)
            return read(around)

        monkeypatch.setattr(GroupJournalsAround, "_read", late_reading)
        back_up(node, tmp_path / "backup")
        assert query.is_there(driver, 1)
    assert readings == 2
    assert fences_in(tmp_path / "backup")["totals"].batch == 0
    assert rows_in(tmp_path / "backup") == {"plain": 1, "totals 0": ROWS_OF_BATCH}
    assert fairlog("verify", tmp_path / "backup")[0] == 0


@pytest.mark.parametrize("mode", ["journal", "markers"])
def test_batch_that_is_visible_and_not_yet_recorded_is_in_the_backup(
    new_node: NewNode, fairlog: FairlogCommand, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mode: str
) -> None:
    """As between the copy and SINK_COMMITTED: the producers' windows know its places."""
    node = new_node(FAIRLOG_TOPICS_TRANSACTIONS=mode)
    node.start()
    produce(node, b"plain")
    read = group_journals._read

    def without_the_last(directory: Path) -> object:
        reading = read(directory)
        records = [it for it in reading.records if not isinstance(it, SinkCommittedRecord) or it.batch < 1]
        return replace(reading, records=records)

    monkeypatch.setattr(group_journals, "_read", without_the_last)
    with Native.connect(node.address) as driver:
        query = Query(node, "totals")
        query.write(driver, 0)
        places = query.write(driver, 1)
        back_up(node, tmp_path / "backup")
    fence = fences_in(tmp_path / "backup")["totals"]
    assert (fence.batch, fence.query) == (1, "q")
    kept = [(it.log.partition, it.base_offset, it.count) for it in fence.placements]
    assert kept == [(it.partition, it.base_offset, it.records) for it in places]
    assert fairlog("verify", tmp_path / "backup")[0] == 0


def test_batch_of_a_topic_that_is_being_deleted_is_judged_by_the_others(
    new_node: NewNode, fairlog: FairlogCommand, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The copier skips the topic's logs before they are gone: a batch is never there, and that is no damage."""
    node = new_node()
    node.start()
    produce(node, b"plain")
    admin = AdminClient({"bootstrap.servers": node.address})
    admin.create_topics([NewTopic("doomed", 1, 1)])["doomed"].result(timeout=WAIT_S)
    with Native.connect(node.address) as driver:
        (cut,) = driver.cut(Topics(("doomed",)))
    assert cut.topic_id is not None
    doomed = LogId.of_topic(UUID(cut.topic_id), 0)
    read, copy = group_journals._read, making._copy

    def with_records_in_the_topic(record: object) -> object:
        if not isinstance(record, SinkPrepareCommitRecord) or record.batch < 1:
            return record
        part = record.parts[0]
        more = {**part.participants, doomed: next(iter(part.participants.values()))}
        return replace(record, parts=(replace(part, participants=more), *record.parts[1:]))

    def before_it_is_recorded(directory: Path) -> object:
        reading = read(directory)
        records = [it for it in reading.records if not isinstance(it, SinkCommittedRecord) or it.batch < 1]
        return replace(reading, records=[*map(with_records_in_the_topic, records)])

    def delete_between_the_copies(environment: ForeignEnvironment, *rest: object) -> None:
        copy(environment, *rest)  # type: ignore[arg-type]
        if environment.directory.name == "datalog":
            admin.delete_topics(["doomed"])["doomed"].result(timeout=WAIT_S)

    monkeypatch.setattr(group_journals, "_read", before_it_is_recorded)
    monkeypatch.setattr(making, "_copy", delete_between_the_copies)
    with Native.connect(node.address) as driver:
        query = Query(node, "totals")
        query.write(driver, 0)
        query.write(driver, 1)
        manifest = back_up(node, tmp_path / "backup")
    assert str(doomed) in manifest.logs
    assert fences_in(tmp_path / "backup")["totals"].batch == 1
    assert fairlog("verify", tmp_path / "backup")[0] == 0


def test_backups_under_load_have_the_fence_of_each_sink_if_and_only_if_they_have_its_rows(
    new_node: NewNode, restore: Restore, fairlog: FairlogCommand, tmp_path: Path
) -> None:
    """Two queries commit all the time while backups are made; the last backup is restored, and both replay over it."""
    node = new_node()
    node.start()
    produce(node, b"plain")
    sinks = ("one", "two")
    written = dict.fromkeys(sinks, 0)
    stop, moved = threading.Event(), threading.Condition()

    def write_batches(sink: str) -> None:
        with Native.connect(node.address) as driver:
            query = Query(node, sink)
            while not stop.is_set():
                query.write(driver, written[sink])
                with moved:
                    written[sink] += 1
                    moved.notify_all()

    writers = [threading.Thread(target=write_batches, args=[sink]) for sink in sinks]
    for writer in writers:
        writer.start()
    backups = [tmp_path / f"backup{number}" for number in range(BACKUPS)]
    least: list[dict[str, int]] = []
    try:
        for number, backup in enumerate(backups):
            due = 1 + number * BATCHES_BETWEEN
            with moved:
                assert moved.wait_for(lambda due=due: min(written.values()) >= due, WAIT_S)
                least.append(dict(written))
            back_up(node, backup)
    finally:
        stop.set()
        for writer in writers:
            writer.join(WAIT_S)
    assert node.stop() == 0, node.log_tail()

    for backup, answered in zip(backups, least, strict=True):
        rows, fences = rows_in(backup), fences_in(backup)
        for sink in sinks:
            there = sorted(int(row.split()[1]) for row in rows if row.startswith(sink))
            assert there == list(range(fences[sink].batch + 1))
            assert len(there) >= answered[sink]
            assert all(rows[f"{sink} {batch}"] == ROWS_OF_BATCH for batch in there)
        code, out, _ = fairlog("verify", backup)
        assert code == 0, out

    restored = restore(backups[-1])
    restored.start()
    with Native.connect(restored.address) as driver:
        for sink in sinks:
            query, last = Query(restored, sink, run="again"), fences_in(backups[-1])[sink].batch
            assert query.is_there(driver, last)
            query.write(driver, last + 1)
    assert restored.stop() == 0, restored.log_tail()
    rows = rows_in(restored.data_dir)
    assert {count for row, count in rows.items() if row != "plain"} == {ROWS_OF_BATCH}
    assert list(Verification(restored.data_dir, has_journals=True).violations()) == []


@pytest.mark.parametrize("at", ["before", "behind"])
def test_start_that_dies_at_the_group_journals_is_gone_on_with(
    new_node: NewNode, restore: Restore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, at: str
) -> None:
    """The next one has the fence, once."""
    node = new_node()
    node.start()
    produce(node, b"plain")
    with Native.connect(node.address) as driver:
        Query(node, "totals").write(driver, 0)
    back_up(node, tmp_path / "backup")
    node.kill()
    restored = restore(tmp_path / "backup")
    real = taking_over.begin_with_snapshot

    class Died(BaseException):
        pass

    def dying(*arguments: object, **named: object) -> None:
        if at == "behind":
            real(*arguments, **named)  # type: ignore[arg-type]
        raise Died

    monkeypatch.setattr(taking_over, "begin_with_snapshot", dying)
    with pytest.raises(Died):
        taking_over.take_over(
            restored.data_dir, node_id=1, group_separator="", map_bytes=2**26, fsync=Fsync.COMMIT, now_ms=now_ms()
        )
    monkeypatch.undo()
    restored.start()
    with Native.connect(restored.address) as driver:
        query = Query(restored, "totals", run="after the restore")
        assert query.is_there(driver, 0)
        query.write(driver, 1)
    assert restored.stop() == 0, restored.log_tail()
    assert list(Verification(restored.data_dir, has_journals=True).violations()) == []


def test_backup_of_version_1_is_restored_without_its_sinks_and_the_log_says_so(
    new_node: NewNode, restore: Restore, tmp_path: Path
) -> None:
    """What an older program did not keep nobody can tell: a replay is written again."""
    node = new_node()
    node.start()
    produce(node, b"plain")
    with Native.connect(node.address) as driver:
        Query(node, "totals").write(driver, 0)
    back_up(node, tmp_path / "backup")
    node.kill()
    as_of_version(tmp_path / "backup", 1)
    restored = restore(tmp_path / "backup")
    restored.start()
    assert "the backup is of version 1 and knows no sinks" in restored.log_tail()
    with Native.connect(restored.address) as driver:
        Query(restored, "totals").write(driver, 0)


def test_place_of_a_fence_behind_a_logs_end_is_a_violation(
    new_node: NewNode, fairlog: FairlogCommand, tmp_path: Path
) -> None:
    """A manifest that somebody has changed, or a fence that was told of rows that are not there."""
    node = new_node()
    node.start()
    produce(node, b"plain")
    with Native.connect(node.address) as driver:
        Query(node, "totals").write(driver, 0)
    assert node.stop() == 0
    back_up(node, tmp_path / "backup")
    manifest = tmp_path / "backup" / MANIFEST
    manifest.write_text(manifest.read_text().replace(f'"records": {LANES}', f'"records": {LANES + 1}'))
    code, out, _ = fairlog("verify", tmp_path / "backup")
    assert code == 1
    assert "the manifest, batch 0 of sink 'totals': has 3 records at 1 of" in out
