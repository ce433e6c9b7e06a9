"""A directory with a topic of marker mode: whole as a node leaves it, and each damage to what markers say is found."""

from __future__ import annotations

import re
import shutil
import signal
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from datalog import layout
from datalog.batch import parse_stored_header
from datalog.environment import LmdbDataLogs
from datalog.interface import OpenInLog
from datalog.layout import LogRecord
from fairlog_types import Offset
from scripts.node_process import NodeProcess
from tests.cli.in_process import FairlogCommand
from tests.clients.raw_client import RawClient
from tests.node.nodes import WAIT_S, Producer, interleave, produce, read_when
from tests.verify.conftest import kill_and_stop
from tests.verify.planting import Planted, with_header

pytestmark = pytest.mark.slow

Plant = Callable[[Planted], None]


def fill(node: NodeProcess) -> None:
    """By offset: 0 plain, 1 long, 2 committed by 3, 4 aborted by 5, 6 long, aborted by 7, 8 hanging, 9 plain."""
    produce(node, b"first")
    with RawClient(node.address) as client:
        long, short, hanging = (Producer(client, name, partitions=2) for name in ("long", "short", "hanging"))
        interleave(long, short, hanging)
    produce(node, b"last")


@pytest.fixture(scope="session")
def killed_and_stopped(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """The same node's directory as a kill leaves it, and as a good end does: what hung is open in both."""
    return kill_and_stop(tmp_path_factory.mktemp("node"), fill, FAIRLOG_TOPICS_TRANSACTIONS="markers")


@pytest.fixture
def planted(killed_and_stopped: tuple[Path, Path], tmp_path: Path) -> Planted:
    """A copy of the killed node's directory, in which a transaction is open, to be damaged."""
    return Planted(Path(shutil.copytree(killed_and_stopped[0], tmp_path / "data")))


@pytest.mark.parametrize("end", ["killed", "stopped"])
def test_directory_with_markers_is_found_whole(
    fairlog: FairlogCommand, killed_and_stopped: tuple[Path, Path], end: str
) -> None:
    """Every marker, and what the lists say of the transactions, was looked at."""
    code, out, _ = fairlog("verify", killed_and_stopped[end == "stopped"], "--all")
    assert code == 0, out
    assert re.search(r"aborted transactions listed +4\b", out), out
    assert re.search(r"parts of transactions found whole +2\b", out), out
    assert re.search(r"open transactions found where they are listed +2\b", out), out


@pytest.mark.parametrize("start", [2, 5, 6, 9, 10])
def test_directory_whose_log_starts_within_transactions_is_found_whole(
    fairlog: FairlogCommand, planted: Planted, start: int
) -> None:
    """DeleteRecords may cut through any of them; what is left accuses nobody."""
    logs = LmdbDataLogs.open(planted.data_logs.parent, map_bytes=1 << 30)
    with logs.write() as writer:
        writer.delete_before(planted.log(), Offset(start))
    logs.close()
    code, out, _ = fairlog("verify", planted.directory, "--all")
    assert code == 0, out


def test_marker_whose_copy_a_power_cut_has_undone_is_no_damage(fairlog: FairlogCommand, tmp_path: Path) -> None:
    """Regression, of a power-cut image (seed evening.1): the journal still has what was undone, so nothing is lost."""
    node = NodeProcess(
        tmp_path / "data",
        {"FAIRLOG_TOPICS_TRANSACTIONS": "markers", "FAIRLOG_FAILPOINT": "group.committed.appended:kill:1"},
    )
    node.start()
    produce(node, b"plain")
    with RawClient(node.address) as client:
        producer = Producer(client)
        producer.begin()
        producer.send(b"committed")
        read_when(node, 2)  # so that the marker is copied by itself
        with suppress(ConnectionError):
            producer.end(commit=True)
    assert node.wait_end(WAIT_S) == -signal.SIGKILL
    whole = Planted(node.data_dir)
    assert [key for key, _ in whole.batches()] == [layout.batch_key(last) for last in range(3)]
    undone = Planted(Path(shutil.copytree(node.data_dir, tmp_path / "undone")))
    undone.undo_the_last_commit()
    assert [key for key, _ in undone.batches()] == [layout.batch_key(last) for last in range(2)]
    for planted in (whole, undone):
        code, out, _ = fairlog("verify", planted.directory, "--all")
        assert code == 0, out


# --- damage ---------------------------------------------------------------------------------------


def change(planted: Planted, table: bytes, edit: Callable[[Any, Any, bytes], None]) -> None:
    """Have `edit` change a table in a write transaction; it gets the log's number as a prefix of keys."""
    prefix = planted.record().number.to_bytes(4, "big")
    with planted.writing() as (txn, database):
        edit(txn, database(table), prefix)


def first_item(txn: Any, database: Any, prefix: bytes) -> tuple[bytes, bytes]:
    cursor = txn.cursor(db=database)
    assert cursor.set_range(prefix)
    return bytes(cursor.key()), bytes(cursor.value())


def forget_an_open_transaction(planted: Planted) -> None:
    change(planted, layout.OPEN, lambda txn, db, prefix: txn.delete(first_item(txn, db, prefix)[0], db=db))
    planted.change_record(lambda record: setattr(record, "first_open", layout.NONE_OPEN))


def change_open(planted: Planted, edit: Callable[[OpenInLog], OpenInLog]) -> None:
    def put(txn: Any, database: Any, prefix: bytes) -> None:
        key, value = first_item(txn, database, prefix)
        txn.put(key, layout.encode_open(edit(layout.decode_open(key, value))), db=database)

    change(planted, layout.OPEN, put)


def count_an_open_transaction_wrongly(planted: Planted) -> None:
    change_open(planted, lambda opened: OpenInLog(opened.txid, opened.leader_epoch, opened.first_offset, 2))


def let_an_open_transaction_begin_earlier(planted: Planted) -> None:
    change_open(planted, lambda opened: OpenInLog(opened.txid, opened.leader_epoch, Offset(6), opened.records))


def say_that_nothing_is_open(planted: Planted) -> None:
    planted.change_record(lambda record: setattr(record, "first_open", layout.NONE_OPEN))


def forget_an_aborted_transaction(planted: Planted) -> None:
    change(planted, layout.ABORTED, lambda txn, db, prefix: txn.delete(first_item(txn, db, prefix)[0], db=db))


def change_aborted(planted: Planted, at: int, producer_add: int = 0, first_add: int = 0, stable_add: int = 0) -> None:
    def put(txn: Any, database: Any, prefix: bytes) -> None:
        key = prefix + at.to_bytes(8, "big")
        found = layout.decode_aborted(key, txn.get(key, db=database))
        changed = (
            found.producer_id + producer_add,
            found.first_offset + first_add,
            found.last_stable_offset + stable_add,
        )
        txn.put(key, b"".join(field.to_bytes(8, "big") for field in changed), db=database)

    change(planted, layout.ABORTED, put)


def list_what_was_committed_as_aborted(planted: Planted) -> None:
    def put(txn: Any, database: Any, prefix: bytes) -> None:
        _, value = first_item(txn, database, prefix)
        txn.put(prefix + (3).to_bytes(8, "big"), value, db=database)

    change(planted, layout.ABORTED, put)


def list_an_abort_where_there_is_none(planted: Planted) -> None:
    def put(txn: Any, database: Any, prefix: bytes) -> None:
        _, value = first_item(txn, database, prefix)
        txn.put(prefix + (6).to_bytes(8, "big"), value, db=database)

    change(planted, layout.ABORTED, put)


def forget_the_newest_abort(record: LogRecord) -> None:
    record.aborted_before = Offset(6)


def turn_an_abort_into_a_commit(planted: Planted) -> None:
    data = bytearray(dict(planted.batches())[layout.batch_key(5)])
    data[69] = 1  # the type, in the record's key
    planted.put_batches({5: with_header(bytes(data))})


def turn_a_commit_into_an_abort(planted: Planted) -> None:
    data = bytearray(dict(planted.batches())[layout.batch_key(3)])
    data[69] = 0
    planted.put_batches({3: with_header(bytes(data))})


def make_a_marker_of_another_epoch(planted: Planted) -> None:
    data = dict(planted.batches())[layout.batch_key(5)]
    epoch = parse_stored_header(data).producer_epoch
    planted.put_batches({5: with_header(data, producer_epoch=epoch + 1)})


def make_a_control_batch_of_records(planted: Planted) -> None:
    data = dict(planted.batches())[layout.batch_key(2)]
    planted.put_batches({2: with_header(data, attributes=0x30, base_sequence=-1)})


AMONG: list[tuple[Plant, str]] = [
    (
        forget_an_open_transaction,
        r"offset 8: 1 records of producer \d+ from here on have no marker, and are not listed",
    ),
    (count_an_open_transaction_wrongly, r"is listed as open from offset 8 on, with 2 records; there are 1 of epoch 0"),
    (let_an_open_transaction_begin_earlier, r"is listed as open from offset 6 on, with 1 records; there are 1 of"),
    (let_an_open_transaction_begin_earlier, r"has the oldest open transaction at 8, the table at 6"),
    (say_that_nothing_is_open, r"has the oldest open transaction at -1, the table at 8 \(invariant 1\)"),
    (forget_an_aborted_transaction, r"offset 5: the marker aborts 1 records .* from offset 4 on, which are not"),
    (lambda planted: change_aborted(planted, 5, producer_add=9), r"offset 5: the marker is of producer \d+, the list"),
    (
        lambda planted: change_aborted(planted, 5, first_add=-2),
        r"listed as aborted from offset 2 on, and its records b",
    ),
    (lambda planted: change_aborted(planted, 5, stable_add=4), r"stable offset is listed as 5 behind the marker, it"),
    (list_what_was_committed_as_aborted, r"offset 3: the marker commits a transaction of .*, listed as aborted"),
    (list_an_abort_where_there_is_none, r"offset 6: a transaction of producer \d+ is listed as aborted here, and no"),
    (
        lambda planted: planted.change_record(forget_the_newest_abort),
        r"has the newest abort before 6, the list before 8",
    ),
    (turn_an_abort_into_a_commit, r"offset 5: the marker commits 1 records .*, and nobody knows of that transaction"),
    (turn_an_abort_into_a_commit, r"offset 5: the journal, position \d+, has 1 records with checksum .* \(invariant 4"),
    (turn_a_commit_into_an_abort, r"offset 3: the marker aborts 1 records .* from offset 2 on, which are not listed"),
    (turn_a_commit_into_an_abort, r"has 1 records of transaction \d+\.0\.0 from here on, which are not there"),
    (make_a_marker_of_another_epoch, r"offset 5: .* epoch 1 comes behind offset 4, from where epoch 0 has one open"),
    (make_a_control_batch_of_records, r"offset 2: a control batch that marks the end of no transaction"),
]


@pytest.mark.parametrize(("plant", "words"), AMONG, ids=[str(number) for number in range(len(AMONG))])
def test_planted_damage_to_markers_is_found(
    fairlog: FairlogCommand, planted: Planted, plant: Plant, words: str
) -> None:
    """The place, what is wrong there, and the invariant's number."""
    plant(planted)
    code, out, err = fairlog("verify", planted.directory, "--all")
    assert (code, err) == (1, "")
    assert re.search(words, out), out
