"""Each kind of violation, planted in a real directory, is found: exit code 1, and words that say what and where."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from uuid import UUID

import lmdb
import pytest

from coordinator.group_history import decode_frame, read_history
from coordinator.group_records import ProducerRecord
from datalog import layout
from datalog.batch import parse_batch_header_untrusted
from datalog.environment import LmdbDataLogs
from datalog.layout import LogRecord
from datalog.lmdb_file import check_length
from datalog.offset_entries import GroupEntry
from fairlog.cluster import records
from fairlog.cluster.interface import Topic
from fairlog.directory import locked_directory
from fairlog_types import CorruptStorage, JournalPosition, LogId, Offset
from journal.read_only import open_read_only
from journal.segment import JournalKind
from partition.record_codec import APPLY
from tests.cli.in_process import FairlogCommand
from tests.shards import shard_in
from tests.verify.planting import Planted, flip, with_header

pytestmark = pytest.mark.slow

Plant = Callable[[Planted], None]


def test_directory_of_a_stopped_node_is_found_whole(fairlog: FairlogCommand, planted: Planted) -> None:
    """Nothing is wrong, everything was looked at, and nothing was changed."""
    before = contents(planted.directory)
    code, out, err = fairlog("verify", planted.directory)
    assert (code, err) == (0, "")
    for line in (
        r"topics +1\b",
        r"data logs +6\b",
        r"records +19\b",
        r"rows of the cut index +\d+\b",
        r"transactional batches found in their places +12\b",
        r"batches compared with their journal +19\b",
        r"transactions of which COMMITTED is the last word +3\b",
    ):
        assert re.search(line, out), line
    assert "older than" not in out
    assert contents(planted.directory) == before


def test_directory_of_a_killed_node_is_found_whole(
    fairlog: FairlogCommand, killed_and_stopped: tuple[Path, Path]
) -> None:
    """What waits in the journals for the next start is no violation."""
    code, out, _ = fairlog("verify", killed_and_stopped[0], "--all")
    assert code == 0, out


@pytest.mark.parametrize("behind_start", [0, 5])
def test_deletion_that_was_cut_short_is_no_violation(
    fairlog: FairlogCommand, planted: Planted, behind_start: int
) -> None:
    """The log starts where it was told to, and what is left before its start waits for the next run to remove it."""
    logs = LmdbDataLogs.open(planted.data_logs.parent, map_bytes=1 << 30)
    end = logs.bounds(planted.log()).next_offset
    with logs.write() as writer:
        assert writer.delete_before(planted.log(), Offset(end - behind_start), batches_max=1)
    logs.close()
    code, out, _ = fairlog("verify", planted.directory, "--all")
    assert code == 0, out


def contents(directory: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in directory.rglob("*") if path.is_file()}


# --- the data logs --------------------------------------------------------------------------------


def flip_a_byte_of_a_batch(planted: Planted) -> None:
    flip(planted.data_logs, planted.byte_of(b"two of 1"))


def drop_a_batch(planted: Planted) -> None:
    planted.put_batches({2: None})


def drop_the_first_batch(planted: Planted) -> None:
    planted.put_batches({0: None})


def drop_the_last_batch(planted: Planted) -> None:
    planted.put_batches({planted.record().next_offset - 1: None})


def move_a_batch(planted: Planted) -> None:
    data = dict(planted.batches())[layout.batch_key(3)]
    planted.put_batches({3: with_header(data, base_offset=4)})


def make_a_control_batch(planted: Planted) -> None:
    data = dict(planted.batches())[layout.batch_key(1)]
    planted.put_batches({1: with_header(data, attributes=0x30)})


def repeat_a_batch_of_a_transaction(planted: Planted) -> None:
    append_a_copy(planted, planted.batches()[7][1])


def repeat_a_plain_batch(planted: Planted) -> None:
    append_a_copy(planted, planted.batches()[0][1])


def repeat_an_idempotent_batch(planted: Planted) -> None:
    append_a_copy(planted, planted.batches()[4][1])


def append_a_copy(planted: Planted, data: bytes) -> None:
    """Behind the last batch, with all counters as if it belonged there."""
    end = planted.record().next_offset
    planted.put_batches({end: with_header(data, base_offset=end)})

    def count(record: LogRecord) -> None:
        record.next_offset += 1  # type: ignore[assignment]
        record.size_bytes += len(data)

    planted.change_record(count)


def put_a_plain_batch_into_a_transaction(planted: Planted) -> None:
    key, data = next(
        (key, data) for key, data in planted.batches(1) if parse_batch_header_untrusted(data).transactional
    )
    plain = with_header(data, attributes=0, producer_id=-1, producer_epoch=-1, base_sequence=-1)
    planted.put_batches({layout.decode_batch_key(key): plain}, 1)


def change_a_value(planted: Planted) -> None:
    """A batch that is whole, and not the one that was produced."""
    data = dict(planted.batches())[layout.batch_key(0)]
    planted.put_batches({0: with_header(data.replace(b"first", b"fir5t"))})


def count_bytes_wrongly(planted: Planted) -> None:
    planted.change_record(lambda record: setattr(record, "size_bytes", record.size_bytes + 1))


def tell_a_larger_timestamp(planted: Planted) -> None:
    planted.change_record(lambda record: setattr(record, "max_timestamp_ms", 99))


def put_a_false_entry_into_the_time_index(planted: Planted) -> None:
    number = planted.record().number
    with planted.writing() as (txn, database):
        txn.put(layout.time_key(number, 0), layout.batch_key(3), db=database(layout.TIME_INDEX))


def keep_a_cut_that_never_was(planted: Planted) -> None:
    put_cut(planted, 1 << 40, 14)


def keep_cuts_that_go_back(planted: Planted) -> None:
    """Two of its own, one of them at the log's end: which others it has depends on how long it took to write it."""
    put_cut(planted, (1 << 40) - 1, planted.record().next_offset)
    put_cut(planted, 1 << 40, 3)


def keep_a_cut_from_before_the_log_was_made(planted: Planted) -> None:
    put_cut(planted, 0, 1)


def keep_a_cut_that_no_other_shard_has(planted: Planted) -> None:
    put_common_cut(planted, 1 << 40, (1 << 40) - 1)
    put_cut(planted, (1 << 40) + 1, planted.record().next_offset)


def keep_a_common_cut_from_before_the_last_one(planted: Planted) -> None:
    put_common_cut(planted, 1 << 40, 7)
    put_common_cut(planted, (1 << 40) + 1, 7)


def put_common_cut(planted: Planted, number: int, before: int) -> None:
    key, value = layout.encode_cut_number(number), layout.encode_cut_number(before)
    with planted.writing() as (txn, database):
        txn.put(key, value, db=database(layout.COMMON_CUTS))


def put_cut(planted: Planted, number: int, end: int) -> None:
    log = planted.record().number
    with planted.writing() as (txn, database):
        txn.put(layout.cut_key(log, number), layout.encode_cut(end), db=database(layout.CUTS))


def put_an_entry_of_no_log(planted: Planted) -> None:
    with planted.writing() as (txn, database):
        txn.put(layout.time_key(77, 0), layout.batch_key(3), db=database(layout.TIME_INDEX))


def damage_a_page(planted: Planted) -> None:
    """The head of the page that holds the first small batches."""
    at = planted.byte_of(b"behind what hangs")
    for byte in range(at // 4096 * 4096, at // 4096 * 4096 + 8):
        flip(planted.data_logs, byte)


# --- marks and journals -----------------------------------------------------------------------------


def move_a_mark_forward(planted: Planted) -> None:
    planted.change_record(lambda record: setattr(record, "copied_through", record.copied_through + 4096))


def move_a_mark_back(planted: Planted) -> None:
    set_mark(planted, planted.record().copied_through - 8)


def move_a_mark_before_an_apply(planted: Planted) -> None:
    """As if the last decision had not been copied, though its records are there."""
    set_mark(planted, max(frame.position for frame in planted.frames() if frame.kind == APPLY))


def set_mark(planted: Planted, position: int) -> None:
    def change(record: LogRecord) -> None:
        record.copied_through = record.replay_from = JournalPosition(position)

    planted.change_record(change)


def replay_from_too_late(planted: Planted) -> None:
    planted.change_record(lambda record: setattr(record, "replay_from", record.copied_through + 8))


def pin_a_journal_wrongly(planted: Planted) -> None:
    planted.change_record(lambda record: setattr(record, "replay_from", 0))


def cut_a_journal(planted: Planted) -> None:
    path = planted.segment()
    path.write_bytes(path.read_bytes()[:64] + bytes(4096))


def delete_a_journal(planted: Planted) -> None:
    shutil.rmtree(planted.segment().parent)


def flip_a_byte_of_a_frame(planted: Planted) -> None:
    flip(planted.segment(), planted.segment().read_bytes().index(b"one of 1"))


def flip_a_byte_of_a_group_journal(planted: Planted) -> None:
    path = planted.group_segment(b"billing")
    flip(path, path.read_bytes().index(b"billing"))


# --- producers and transactions -----------------------------------------------------------------------


def fence_backwards(planted: Planted) -> None:
    planted.change_window(producer_of(planted, "billing"), epoch=-1)


def forget_a_plain_batch_in_a_window(planted: Planted) -> None:
    planted.change_window(900, batches=planted.window(900).batches[:-1])


def remember_what_is_not_there(planted: Planted) -> None:
    first, second, *rest = planted.window(900).batches
    planted.change_window(900, batches=(first._replace(first_sequence=7), second, *rest))


def move_a_placement(planted: Planted) -> None:
    producer = producer_of(planted, "billing")
    *rest, last = planted.window(producer).applied
    planted.change_window(producer, applied=(*rest, last._replace(base_offset=last.base_offset - 1)))


def change_an_apply_number(planted: Planted) -> None:
    producer = producer_of(planted, "billing")
    *rest, last = planted.window(producer).applied
    planted.change_window(producer, applied=(*rest, last._replace(apply_number=999)))


def halve_a_transaction(planted: Planted) -> None:
    """Its records in one partition are taken out, and everything in that data log is put as if they had never come."""
    producer = producer_of(planted, "billing")
    *before, last = planted.window(producer, 1).applied
    taken = {key: data for key, data in planted.batches(1) if layout.decode_batch_key(key) >= last.base_offset}
    planted.put_batches({layout.decode_batch_key(key): None for key in taken}, 1)
    mark = 0

    def undo(record: LogRecord) -> None:
        nonlocal mark
        record.next_offset = last.base_offset
        record.size_bytes -= sum(map(len, taken.values()))
        record.copied_through = record.replay_from = mark  # type: ignore[assignment]

    planted.change_record(undo, 1)
    planted.change_window(producer, 1, applied=tuple(before))


def producer_of(planted: Planted, transactional_id: str) -> int:
    journal = open_read_only(planted.group_segment(transactional_id.encode()).parent, kind=JournalKind.GROUP)
    records_ = [decode_frame(journal, frame, kind) for frame, kind in read_history(journal).frames]
    return next(
        record.producer_id
        for record in records_
        if isinstance(record, ProducerRecord) and record.transactional_id == transactional_id
    )


# --- what belongs to whom -----------------------------------------------------------------------------


def leave_an_orphan_log(planted: Planted) -> None:
    stranger = str(LogId.of_topic(UUID(int=5), 0)).encode()
    with planted.writing() as (txn, database):
        txn.put(stranger, layout.encode_log_record(LogRecord(40)), db=database(layout.LOGS))
        txn.put(layout.NUMBERS_KEY, layout.encode_number(41), db=database(layout.META))


def give_a_number_twice(planted: Planted) -> None:
    number = planted.record(1).number
    planted.change_record(lambda record: setattr(record, "number", number))


def leave_an_orphan_journal(planted: Planted) -> None:
    (planted.segment().parent.parent / str(LogId.of_topic(UUID(int=5), 0))).mkdir()


def leave_a_strange_directory(planted: Planted) -> None:
    (planted.segment().parent.parent / "backup-of-something").mkdir()


def leave_a_17th_group_journal(planted: Planted) -> None:
    shard_in(planted.directory).group_journal(16).mkdir()


def lose_a_group_journal(planted: Planted) -> None:
    shutil.rmtree(shard_in(planted.directory).group_journal(1))


def lose_a_data_log(planted: Planted) -> None:
    with planted.writing() as (txn, database):
        name = str(planted.log(1)).encode()
        txn.delete(name, db=database(layout.LOGS))
        txn.drop(database(name), delete=False)


def serve_a_topic_without_logs(planted: Planted) -> None:
    topic = Topic("lost", UUID(int=9), 1, {}, 1)
    with lmdb.open(str(planted.directory / "cluster"), map_size=1 << 24) as env, env.begin(write=True) as txn:
        txn.put(records.topic_key(topic.topic_id), records.encode_topic(records.TopicRecord(topic, deleting=False)))


def damage_the_cluster_store(planted: Planted) -> None:
    with lmdb.open(str(planted.directory / "cluster"), map_size=1 << 24) as env, env.begin(write=True) as txn:
        txn.put(records.NODE_KEY, b"\x01")


FIRST = [
    (flip_a_byte_of_a_batch, r"offset \d+: the batch at byte \d+ of the file is damaged: bad CRC"),
    (drop_a_batch, r"t-0 \(t-\w+-0\), offset 3: the batch begins with 3, due is 2 \(invariant 2\)"),
    (drop_the_first_batch, r"offset 1: the batch begins with 1, due is 0 \(invariant 2\)"),
    (drop_the_last_batch, r"its batches end before offset 12, its record has next offset 13 \(invariant 2\)"),
    (move_a_batch, r"offset 3: the batch there says that its last offset is 4 \(invariant 2\)"),
    (make_a_control_batch, r"offset 1: a control batch, in a topic of the mode journal \(invariant 1\)"),
    (repeat_a_batch_of_a_transaction, r"mark has next offset 14 .* come to offset 13 \(invariant 4\)"),
    (put_a_plain_batch_into_a_transaction, r"offsets 0 to 1; among them is a plain batch .* \(invariant 3\)"),
    (change_a_value, r"offset 0: the journal, position 0, has 1 records with checksum .* \(invariant 4\)"),
    (count_bytes_wrongly, r"t-0 .*: its record counts \d+ bytes, its batches have \d+"),
    (tell_a_larger_timestamp, r"largest timestamp 99 at"),
    (put_a_false_entry_into_the_time_index, r"offset 3: the time index says that timestamps grow beyond 0 here"),
    (
        keep_a_cut_that_never_was,
        r"t-0 .*: ends at 14 at cut 1099511627776, and can be read up to 13 only \(invariant 7\)",
    ),
    (keep_cuts_that_go_back, r"t-0 .*: ends at 3 at cut 1099511627776, and at \d+ at cut \d+ \(invariant 7\)"),
    (
        keep_a_cut_from_before_the_log_was_made,
        r"t-0 .*: begins with 1 in the cut index, and not with 0 \(invariant 7\)",
    ),
    (
        keep_a_cut_that_no_other_shard_has,
        r"t-0 .*: has a row of cut 1099511627777, which was not taken over all shards \(invariant 7\)",
    ),
    (
        keep_a_common_cut_from_before_the_last_one,
        r"fairlog\.commoncuts: cut 1099511627777 comes after cut 1099511627776, and says that it comes after cut 7",
    ),
    (put_an_entry_of_no_log, r"data\.mdb, fairlog\.time: the key \w+ belongs to no log"),
    (damage_a_page, r"data\.mdb: byte \d+: leaf page \d+ was expected"),
    (move_a_mark_forward, r"ends at position \d+, and the data log's mark says that all up to \d+ is copied.*\(invari"),
    (move_a_mark_back, r"mark, \d+, is not where a frame ends \(invariant 4\)"),
    (replay_from_too_late, r"a restart would replay from \d+, behind the mark \d+ \(invariant 4\)"),
    (pin_a_journal_wrongly, r"it is kept from position 0 on, and nothing before \d+ is needed \(invariant 11\)"),
    (cut_a_journal, r"ends at position 0, and the data log's mark .* segments are missing or cut"),
    (delete_a_journal, r"ends at position 0, and the data log's mark .* segments are missing or cut"),
    (
        flip_a_byte_of_a_frame,
        r"shards/0/journals/local/t-\w+-0/0+\.journal: byte \d+ \(journal position \d+\): hole with a witness",
    ),
    (flip_a_byte_of_a_group_journal, r"shards/0/journals/group/\d: .*0+\.journal: byte \d+ .*hole with a witness"),
    (fence_backwards, r"its last batch, at offset \d+, has epoch 0, its window -1 \(invariant 9\)"),
    (
        forget_a_plain_batch_in_a_window,
        r"its last batch is at offset 5, its window knows of none behind 4 \(invariant 4\)",
    ),
    (remember_what_is_not_there, r"the window of producer 900 remembers the sequences 7 to 0 here; .* \(invariant 4\)"),
    (change_an_apply_number, r"transaction \d+\.0\.2: has more than one apply number: 999 in t-0 .*\(invariant 6\)"),
    (leave_an_orphan_log, r"data log t-0+5-0: belongs to no topic of the cluster store"),
    (leave_an_orphan_journal, r"shards/0/journals/local/t-0+5-0: is a journal of no topic"),
    (leave_a_strange_directory, r"shards/0/journals/local/backup-of-something: is the journal of no log"),
    (leave_a_17th_group_journal, r"shards/0/journals/group/16: is none of the 2 group journals"),
    (lose_a_group_journal, r"group journal 1: is missing: .* \(invariant 5\)"),
    (serve_a_topic_without_logs, r"data log t-0+9-0: is missing, though its topic is served"),
    (damage_the_cluster_store, r"cluster/data\.mdb: the record 'node' reads 1"),
]


@pytest.mark.parametrize(("plant", "words"), FIRST, ids=[plant.__name__ for plant, _ in FIRST])
def test_planted_damage_is_the_first_violation(
    fairlog: FairlogCommand, planted: Planted, plant: Plant, words: str
) -> None:
    """One line, with the place, what is wrong with it, and the invariant's number."""
    plant(planted)
    code, out, err = fairlog("verify", planted.directory)
    assert (code, err) == (1, "")
    assert len(out.splitlines()) == 1
    assert re.search(words, out), out


AMONG = [
    (
        repeat_a_batch_of_a_transaction,
        r"offset 13: a transactional batch of producer \d+.* copied twice, or never comm",
    ),
    (
        repeat_a_batch_of_a_transaction,
        r"offset 13: producer \d+ comes with epoch 0, sequence 1, behind .* \(invariant 4\)",
    ),
    (repeat_a_plain_batch, r"offset 13: the journal has placed no batch at 13 \(invariant 4\)"),
    (repeat_an_idempotent_batch, r"offset 13: producer 900 comes with epoch 0, sequence 2, behind .* \(invariant 4\)"),
    (repeat_an_idempotent_batch, r"its last batch is at offset 13, its window knows of none behind 5 \(invariant 4\)"),
    (move_a_placement, r"has 2 records of transaction \d+\.0\.2 here, .* has 2 at offset \d+ \(invariant 4\)"),
    (move_a_mark_before_an_apply, r"mark has next offset 13 at position \d+, where the journal has come to offset"),
    (drop_a_batch, r"window of producer 900 remembers a batch of sequences 0 to 0 here, and none begins here"),
    (halve_a_transaction, r"COMMITTED has 2 records at 4 of t-1 .*, which ends at 4 \(invariant 5\)"),
    (lose_a_data_log, r"shards/0/journals/local/t-\w+-1: is a journal without a data log"),
    (lose_a_data_log, r"data log t-\w+-1: is missing, though its topic is served"),
    (give_a_number_twice, r"has the number \d, which is"),
]


@pytest.mark.parametrize(
    ("plant", "words"), AMONG, ids=[f"{plant.__name__}-{at}" for at, (plant, _) in enumerate(AMONG)]
)
def test_planted_damage_is_among_all_violations(
    fairlog: FairlogCommand, planted: Planted, plant: Plant, words: str
) -> None:
    """With --all, every checker that can see the damage says so."""
    plant(planted)
    code, out, _ = fairlog("verify", planted.directory, "--all")
    assert code == 1
    assert re.search(words, out), out


# --- when there is nothing to verify --------------------------------------------------------------------


def test_cluster_store_that_was_cut_is_a_violation(fairlog: FairlogCommand, planted: Planted) -> None:
    """Even if the pages that are gone hold no topic: a node would not start with it."""
    store = planted.directory / "cluster" / "data.mdb"
    with suppress(CorruptStorage):
        while True:
            check_length(store)
            os.truncate(store, store.stat().st_size - 4096)
    code, out, _ = fairlog("verify", planted.directory)
    assert code == 1
    assert "it was cut" in out


@pytest.mark.parametrize("table", ["of an offsets log", "of a topic's log"])
def test_damaged_record_of_a_group_is_a_violation(fairlog: FairlogCommand, planted: Planted, table: str) -> None:
    """A node would not start with the one; the other one, it would never see."""
    log, words = planted.log(), "has members of groups, and is no offsets log"
    if table == "of an offsets log":
        log, words = LogId.of_offsets(0), "o-offsets-0, byte .*the record 'group/"
    logs = LmdbDataLogs.open(shard_in(planted.directory).data_logs, map_bytes=1 << 28)
    with logs.write() as writer:
        writer.put_offsets(log, [GroupEntry("readers", b"\xff")])
    logs.close()
    code, out, _ = fairlog("verify", planted.directory)
    assert code == 1
    assert re.search(words, out), out


def test_directory_of_a_running_node_is_refused(fairlog: FairlogCommand, planted: Planted) -> None:
    """One sentence, and nothing is read."""
    with locked_directory(planted.directory):
        code, out, err = fairlog("verify", planted.directory)
    assert (code, out) == (1, "")
    assert re.fullmatch(r"fairlog: data directory .* is in use by process \d+: stop the node first .*\n", err)


def test_directory_of_nobody_is_refused(fairlog: FairlogCommand, tmp_path: Path) -> None:
    """A typing error is not "no violation found"."""
    code, _, err = fairlog("verify", tmp_path / "nowhere")
    assert code == 1
    assert "is not a data directory: it does not contain cluster/data.mdb" in err
