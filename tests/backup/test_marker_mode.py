"""A backup of topics of marker mode: what was open in it is aborted where a node starts from it."""

from __future__ import annotations

from pathlib import Path

import pytest

from fairlog.data_directory import MANIFEST
from fairlog.local_reader import LocalReader
from fairlog.verify.verification import Verification
from tests.backup.conftest import NewNode, Restore, back_up
from tests.clients import raw_client as raw
from tests.clients.committed_readers import READERS
from tests.clients.raw_client import RawClient
from tests.node.nodes import TOPIC, Producer, produce, wait_for_the_copy

pytestmark = pytest.mark.slow


def violations(directory: Path) -> list[object]:
    return list(Verification(directory, has_journals=not (directory / MANIFEST).exists()).violations())


def committed_in(directory: Path, partition: int) -> list[bytes | None]:
    with LocalReader.open(directory) as reader, reader.cut() as cut:
        return [record.value for record in cut.records(TOPIC, partition, 0)]


def test_transaction_that_is_open_in_a_backup_is_aborted_by_the_start_from_it(
    new_node: NewNode, restore: Restore, tmp_path: Path
) -> None:
    """Though its commit was answered after the backup was made: in no partition is any of it committed."""
    node = new_node(FAIRLOG_TOPICS_TRANSACTIONS="markers")
    node.start()
    produce(node, b"plain")
    with RawClient(node.address) as client:
        done = Producer(client, "done", partitions=2)
        done.commit(b"committed")
        opened = Producer(client, "open", partitions=2)
        opened.begin()
        opened.send(b"open")
        done.begin()
        done.send(b"aborted")
        assert done.end(commit=False) == raw.NONE
        produce(node, b"behind")
        wait_for_the_copy(node.address, TOPIC)
        backup = tmp_path / "backup"
        back_up(node, backup)
        assert opened.end(commit=True) == raw.NONE
    node.kill()
    assert violations(backup) == []
    assert committed_in(backup, 0) == [b"plain", b"committed"]
    restored = restore(backup)
    restored.start()
    with READERS["confluent"](restored.address, TOPIC) as reader:
        reader.read_until(8)
        assert reader.values == [b"plain", b"committed", b"behind"]
    with RawClient(restored.address) as client:
        Producer(client, "open", partitions=2).commit(b"committed again")
    assert restored.stop() == 0, restored.log_tail()
    assert violations(restored.data_dir) == []
    assert committed_in(restored.data_dir, 0) == [b"plain", b"committed", b"behind", b"committed again"]
    assert committed_in(restored.data_dir, 1) == [b"committed", b"committed again"]
