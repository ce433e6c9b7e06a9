"""What the tools say of the directory of a node of several machines: copies of shards, and a copy of the metadata.

The directory has real files, made without an engine (`tests.cluster_directory`); tests/on_kafka has one of real nodes.
"""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import lmdb
import pytest
import trio

from fairlog.cluster import records
from fairlog.cluster.interface import UnknownTopic
from fairlog.data_directory import METADATA, METADATA_COPY
from fairlog.directory import locked_directory
from fairlog.local_reader import LocalReader
from fairlog.verify.verification import Verification
from fairlog_types import LogId, ShardNumber, StorageFailure
from scripts.node_process import ROOT
from shard.directory import shard_directory
from tests.cli.in_process import FairlogCommand, fairlog_command
from tests.cli.processes import FAIRLOG
from tests.cluster_directory import BILLS, NAME, ORDERS, SECRET, logs_of, make_directory, write_metadata
from tests.verify.planting import flip

pytestmark = pytest.mark.slow

PARTIAL = "orders is not whole here: of partitions 1, 4 there is nothing, because there is no copy of shard 1"


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("node") / "data"
    trio.run(make_directory, directory)
    return directory


@pytest.fixture
def data_dir(made: Path, tmp_path: Path) -> Path:
    return shutil.copytree(made, tmp_path / "data")


@pytest.fixture
def fairlog(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> FairlogCommand:
    return fairlog_command(monkeypatch, capsys)


# --- reading --------------------------------------------------------------------------------------


def consumed(out: str) -> dict[int, list[str]]:
    """The values by partition, in the order in which they were printed."""
    found: dict[int, list[str]] = {}
    for line in out.splitlines():
        record: dict[str, Any] = json.loads(line)
        assert record["topic"] == "orders"
        found.setdefault(record["partition"], []).append(record["value"])
    return found


def test_topic_is_read_by_its_name_from_all_copies(data_dir: Path, fairlog: FairlogCommand) -> None:
    """Committed records only; and what is not here is said, for the output does not show it."""
    code, out, err = fairlog("consume", "orders", "--until-end", "--json", "--data-dir", data_dir)
    assert (code, err) == (0, f"fairlog: {PARTIAL}\n")
    assert consumed(out) == {
        0: ["first of 0", "one", "over both"],
        3: ["first of 3", "two"],
        2: ["first of 2"],
        5: ["first of 5"],
    }


def test_partitions_that_were_asked_for_are_read_without_a_warning(data_dir: Path, fairlog: FairlogCommand) -> None:
    which = ["--partition", 5, "--partition", 0, "--offset", -1]
    code, out, err = fairlog("consume", "orders", "--until-end", "--json", *which, "--data-dir", data_dir)
    assert (code, err) == (0, "")
    assert consumed(out) == {0: ["over both"], 5: ["first of 5"]}


def test_count_is_of_all_shards_together(data_dir: Path, fairlog: FairlogCommand) -> None:
    for count in (1, 5, 6):
        args = ["--from-beginning", "--count", count, "--json", "--data-dir", data_dir]
        code, out, _ = fairlog("consume", "orders", *args)
        assert (code, len(out.splitlines())) == (0, count)


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (
            ["orders", "--partition", "4"],
            "partition 4 of orders is in shard 1, and there are copies of shards 0, 2",
        ),
        (["bills"], "partition 0 of bills is in shard 1, and there are copies of shards 0, 2 here: read it on a node"),
        (["orders", "--partition", "6"], "topic orders has no partition 6; it has 6, from 0"),
        (["nothing"], "there is no topic nothing"),
    ],
)
def test_what_is_not_here_is_told_apart_from_what_is_nowhere(
    data_dir: Path, fairlog: FairlogCommand, arguments: list[str], sentence: str
) -> None:
    code, out, err = fairlog("consume", *arguments, "--until-end", "--data-dir", data_dir)
    assert (code, out) == (1, "")
    assert sentence in err


def test_plain_reader_has_a_cut_of_each_shard(data_dir: Path) -> None:
    """No cut is of two shards, so a shard has to be named."""
    with LocalReader.open(data_dir) as reader:
        assert reader.shards == (0, 2)
        with reader.cut(0) as cut:
            assert (cut.topics(), cut.partitions("orders")) == (["orders"], [0, 3])
            assert [record.value for record in cut.records("orders", 3, 0)] == [b"first of 3", b"two"]
            with pytest.raises(UnknownTopic):
                cut.partitions("bills")
        with reader.cut(2) as cut:
            assert cut.partitions("orders") == [2, 5]
        refused = r"has 2 shards, and a cut is of one: .*name a shard \(0, 2\)"
        with pytest.raises(StorageFailure, match=refused), reader.cut():
            pass
        with pytest.raises(StorageFailure, match="has no shard 1: it has 0, 2"), reader.cut(1):
            pass
        assert reader.placed()["orders"] == [0, 1, 2, 0, 1, 2]


def test_one_copy_of_several_shards_is_not_taken_for_all(data_dir: Path) -> None:
    """A reader that names no shard wants all topics."""
    shutil.rmtree(data_dir / "shards" / "2")
    refused = r"has 3 shards.*\(0\)"
    with LocalReader.open(data_dir) as reader, pytest.raises(StorageFailure, match=refused), reader.cut():
        pass


def test_directory_is_read_while_its_node_runs(data_dir: Path, fairlog: FairlogCommand) -> None:
    """The node holds the directory, and writes: the reader takes no lock of it."""
    with locked_directory(data_dir):
        code, out, _ = fairlog("consume", "orders", "--until-end", "--json", "--data-dir", data_dir)
    assert (code, len(out.splitlines())) == (0, 7)


def test_directory_without_a_copy_is_told_apart(tmp_path: Path, fairlog: FairlogCommand) -> None:
    """The node was stopped before any shard was its own."""
    trio.run(write_metadata, tmp_path / "data")
    code, _, err = fairlog("consume", "orders", "--until-end", "--data-dir", tmp_path / "data")
    assert code == 1
    assert "is that of a node of several machines, and has no copy of a shard in it" in err


# --- inspecting -----------------------------------------------------------------------------------


def test_inspect_shows_the_copy_of_the_metadata(data_dir: Path, fairlog: FairlogCommand) -> None:
    """Every record, none as damage; and not the secret that lets a broker into the cluster."""
    code, out, err = fairlog("inspect", data_dir / METADATA_COPY)
    assert (code, err) == (0, "")
    for line in (
        f"read: stream {NAME}.metadata, before 20",
        "cluster: cluster id AAAAAAAAAAAAAAAAAAAAAQ, group journals 3",
        "format: version 1",
        "node: node 1, host here, internal host inside, ports {0 [9193, 9196]}, rack a",
        "inner-tls: node 1",
        "shard: shard 0, replicas [1], owner 1, epoch 4, in sync [1]",
        "shards: value 3",
    ):
        assert line in out.splitlines()
    assert "topic: name orders, " in out
    assert SECRET.hex() not in out
    assert "DAMAGED" not in out


def test_inspect_shows_what_does_not_read_back_as_damage(data_dir: Path, fairlog: FairlogCommand) -> None:
    with lmdb.open(str(data_dir / METADATA)) as environment, environment.begin(write=True) as transaction:
        transaction.put(b"shard/0", b"\x01")
    code, out, _ = fairlog("inspect", data_dir / METADATA_COPY)
    assert code == 1
    assert "the record shard/0 reads 1" in out
    assert "topic: name orders, " in out


def test_inspect_shows_a_mark(data_dir: Path, fairlog: FairlogCommand) -> None:
    mark = shard_directory(data_dir, ShardNumber(0)).stream_mark
    code, out, _ = fairlog("inspect", mark, "--json")
    assert code == 0
    assert json.loads(out) | {"chain": ""} == {
        "what": "mark of a stream",
        "stream": f"{NAME}.shard-0",
        "position": 9,
        "epoch": 1,
        "owner": "o",
        "sequence": 9,
        "chain": "",
        "handed_over": False,
    }
    flip(mark, 30)
    code, out, _ = fairlog("inspect", mark)
    assert code == 1
    assert "DAMAGED at byte 0: it is not what was written" in out


def test_inspect_shows_journals_and_data_logs_of_a_copy(data_dir: Path, fairlog: FairlogCommand) -> None:
    shard = shard_directory(data_dir, ShardNumber(0))
    (segment,) = shard.local_journal(logs_of(0)[0]).glob("*.journal")
    for file, shown in ((segment, "apply: "), (shard.data_logs_file, "log: ")):
        code, out, _ = fairlog("inspect", file)
        assert code == 0
        assert shown in out


# --- checking -------------------------------------------------------------------------------------


def found_in(data_dir: Path) -> list[str]:
    return [str(each) for each in Verification(data_dir, has_journals=True).violations()]


def test_verify_checks_each_copy_and_says_what_it_did_not_check(data_dir: Path, fairlog: FairlogCommand) -> None:
    """One shard lags behind the other, and another is not here: no violation, and no silence either."""
    code, out, _ = fairlog("verify", data_dir, "--all")
    assert code == 0, out
    counts = {line.rsplit(maxsplit=1)[0]: line.rsplit(maxsplit=1)[1] for line in out.splitlines()[1:]}
    assert counts["batches compared with their journal"] == "7"
    assert counts["transactions of which COMMITTED is the last word"] == "2"
    assert counts["marks of streams"] == "2"
    assert "not checked: this is the directory of a node of several machines: whether its copies are what the" in out
    assert "of 3 shards there are copies of 0, 2, each as far as the node has come with it" in out


def test_verify_of_a_running_node_is_refused(data_dir: Path, fairlog: FairlogCommand) -> None:
    with locked_directory(data_dir):
        code, out, err = fairlog("verify", data_dir)
    assert (code, out) == (1, "")
    assert "is in use by process" in err


def _lose_a_batch(data_dir: Path) -> None:
    _change_batches(data_dir, lambda key, _value: None if key.endswith(b"\x01") else b"")


def _change_a_batch(data_dir: Path) -> None:
    _change_batches(data_dir, lambda _key, value: value.replace(b"first of", b"worst of"))


def _change_batches(data_dir: Path, change: Callable[[bytes, bytes], bytes | None]) -> None:
    """Of the first log of shard 0. None deletes, and empty bytes leave it."""
    directory = shard_directory(data_dir, ShardNumber(0)).data_logs
    with lmdb.open(str(directory), map_size=1 << 28, max_dbs=64) as environment:
        database = environment.open_db(str(logs_of(0)[0]).encode(), create=False)
        with environment.begin(write=True) as transaction:
            for key, value in list(transaction.cursor(db=database)):
                changed = change(bytes(key), bytes(value))
                if changed is None:
                    transaction.delete(key, db=database)
                elif changed:
                    transaction.put(key, changed, db=database)


def _misplace_a_group_journal(data_dir: Path) -> None:
    shard = shard_directory(data_dir, ShardNumber(0))
    shard.group_journal(0).rename(shard.group_journal(1))


def _damage_a_mark(data_dir: Path) -> None:
    flip(shard_directory(data_dir, ShardNumber(2)).stream_mark, 30)


def _exchange_marks(data_dir: Path) -> None:
    shutil.copy(*(shard_directory(data_dir, ShardNumber(shard)).stream_mark for shard in (0, 2)))


def _lose_the_names(data_dir: Path) -> None:
    with lmdb.open(str(data_dir / METADATA)) as environment, environment.begin(write=True) as transaction:
        transaction.delete(b"cluster")


def _cut_a_journal(data_dir: Path) -> None:
    (segment,) = shard_directory(data_dir, ShardNumber(0)).local_journal(logs_of(0)[0]).glob("*.journal")
    flip(segment, 100)


@pytest.mark.parametrize(
    ("damage", "sentence"),
    [
        (_lose_a_batch, "offset 1: the journal has placed 1 records here"),
        (_change_a_batch, "is damaged: bad CRC"),
        (_misplace_a_group_journal, "shards/0/journals/group/1: is not the place of group journal 1"),
        (_damage_a_mark, "shards/2/stream-mark: is damaged"),
        (_exchange_marks, f"is of the stream {NAME}.shard-0, and the shard's is {NAME}.shard-2"),
        (_lose_the_names, "it lacks the record b'cluster'"),
        (_cut_a_journal, "journal"),
    ],
)
def test_verify_finds_what_is_wrong_in_a_copy(data_dir: Path, damage: Callable[[Path], None], sentence: str) -> None:
    damage(data_dir)
    found = found_in(data_dir)
    assert any(sentence in violation for violation in found), found


def test_verify_accepts_logs_of_topics_that_the_metadata_do_not_name(data_dir: Path) -> None:
    """Deleted while the node was away, or made after its copy of the metadata was written last."""
    with lmdb.open(str(data_dir / METADATA)) as environment, environment.begin(write=True) as transaction:
        transaction.delete(records.topic_key(ORDERS.topic_id))
    verification = Verification(data_dir, has_journals=True)
    assert list(verification.violations()) == []
    assert any(sentence.startswith("4 data logs are of topics that") for sentence in verification.summary.unchecked)


def test_verify_accepts_topics_that_have_no_log_yet(data_dir: Path) -> None:
    """The copy of the metadata was written, and the node ended before it had made the logs."""
    shutil.rmtree(shard_directory(data_dir, ShardNumber(2)).path)
    assert found_in(data_dir) == []


# --- what is for one machine ----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("command", "sentence"),
    [
        (["audit", "DATA"], "which has copies of shards only, and not of one moment: fairlog verify checks each"),
        (["shard", "add", "--data-dir", "DATA"], "how many shards their cluster has was fixed"),
    ],
)
def test_what_is_for_one_machine_is_refused_and_changes_nothing(
    data_dir: Path, fairlog: FairlogCommand, command: list[str], sentence: str
) -> None:
    """Each says that the directory is of a node of several machines, and what to do instead."""
    before = sorted(path.relative_to(data_dir) for path in data_dir.rglob("*"))
    code, _, err = fairlog(*(str(data_dir) if word == "DATA" else word for word in command))
    assert code == (2 if command[0] == "audit" else 1)
    assert "is that of a node of several machines" in err
    assert sentence in err
    after = {path.relative_to(data_dir) for path in data_dir.rglob("*")}
    assert after - {Path("lock")} == {*before}


@pytest.mark.parametrize("processes", ["1", "3"])
def test_node_with_journals_in_files_does_not_start_there(data_dir: Path, processes: str) -> None:
    """It would number records anew that other nodes have."""
    before = {path.relative_to(data_dir) for path in data_dir.rglob("*")}
    options = ["--processes", processes, "--listen", "127.0.0.1:0", "--admin", "off"]
    command = [*FAIRLOG, "serve", "--data-dir", str(data_dir), *options]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 1
    assert (
        "is that of a node of several machines, whose journals are on a replicated log: name that with" in done.stderr
    )
    assert {path.relative_to(data_dir) for path in data_dir.rglob("*")} - {Path("lock")} == before


def test_copy_of_the_directory_is_as_good_as_the_directory(made: Path, tmp_path: Path, fairlog: FairlogCommand) -> None:
    """Made by any tool while the node is stopped; and without LMDB's lock files."""
    copied = shutil.copytree(made, tmp_path / "copied", ignore=shutil.ignore_patterns("lock.mdb", "lock"))
    code, out, _ = fairlog("consume", "orders", "--until-end", "--json", "--data-dir", copied)
    assert (code, len(out.splitlines())) == (0, 7)
    assert found_in(copied) == []
    assert not list(copied.rglob("lock*"))


def test_topics_are_in_the_shards_that_this_module_says() -> None:
    assert [log.partition for log in logs_of(0)] == [0, 3]
    assert LogId.of_topic(BILLS.topic_id, 0) == BILLS.logs()[0]
