"""`fairlog inspect` shows what stands in a file, and where it is damaged; garbage is shown, and never ends it."""

from __future__ import annotations

import json
import random
import re
import threading
from pathlib import Path

import lmdb
import pytest

from coordinator.group_history import PART, SNAPSHOT_BEGIN, SNAPSHOT_END
from coordinator.group_records import encode_group
from datalog.batch import HEADER_BYTES
from datalog.environment import LmdbDataLogs
from datalog.offset_entries import CommittedOffset, GroupEntry, OffsetEntry, OffsetKey, encode_offset_entries
from fairlog.cluster.embedded import EmbeddedStore
from fairlog.groups.persisted_group import PersistedClassicGroup, PersistedMember
from fairlog.groups.persisted_group import encode_group as encode_members
from fairlog.inspection.files import inspect_file
from fairlog.inspection.lines import Line, as_json, as_text
from fairlog.inspection.segments import Selection, show_segment
from fairlog_types import JournalPosition, LeaderEpoch, LogId, Offset, ShardNumber
from journal.frame import encode_frame
from journal.segment import SEGMENT_HEADER_BYTES, Fsync, JournalKind, SegmentHeader, encode_segment_header, segment_name
from partition.record_codec import encode_local
from scripts.node_process import NodeProcess
from tests.cli.in_process import FairlogCommand, fairlog_command
from tests.clients.raw_client import RawClient, batch
from tests.datalog.golden_data_log import MAP_BYTES, fill
from tests.journal.golden_frames import (
    GROUP_RECORDS,
    LOCAL_RECORDS,
    SNAPSHOT_RECORDS,
)
from tests.node.nodes import Producer, produce, read_when
from tests.shards import split_in_two

SALT = 7
Frames = list[tuple[int, list[object], bytes]]


@pytest.fixture
def fairlog(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> FairlogCommand:
    """Runs the command line in this process: exit code, stdout, stderr."""
    return fairlog_command(monkeypatch, capsys)


def local_frames() -> Frames:
    """One of each kind; the payloads are batches."""
    frames: Frames = []
    for record, payload in LOCAL_RECORDS:
        kind, header = encode_local(record)
        data = bytes(batch([b"v1", b"v2"], timestamp_ms=5)) if payload else b""
        frames.append((kind, list(header), data))
    return frames


def group_frames() -> Frames:
    frames: Frames = [encode_group(record) for record in GROUP_RECORDS]
    frames.append((SNAPSHOT_BEGIN, [0, 0], b""))
    for record in SNAPSHOT_RECORDS:
        kind, header, payload = encode_group(record)
        frames.append((kind | PART, header, payload))
    return [*frames, (SNAPSHOT_END, [len(SNAPSHOT_RECORDS)], b"")]


def segment(frames: Frames, *, kind: JournalKind = JournalKind.LOCAL, base: int = 0) -> tuple[bytearray, list[int]]:
    """A segment's bytes with some zeros behind, and where its frames begin. Each frame knows all before it durable."""
    content = bytearray(
        encode_segment_header(SegmentHeader(kind, Fsync.COMMIT, SALT, JournalPosition(base), JournalPosition(base)))
    )
    positions: list[int] = []
    for frame_kind, header, payload in frames:
        position = JournalPosition(base + len(content) - SEGMENT_HEADER_BYTES)
        positions.append(position)
        parts = encode_frame(
            position=position,
            durable=position,
            leader_epoch=LeaderEpoch(3),
            timestamp_ms=9_000,
            kind=frame_kind,
            header=header,
            payload=(payload,) if payload else (),
            salt=SALT,
        )
        content += b"".join(map(bytes, parts))
    return content + bytes(256), positions


def show(content: bytes, **how: object) -> list[Line]:
    options = {"sealed": False, "offsets_log": False, "selection": Selection(), **how}
    return list(show_segment(content, **options))  # type: ignore[arg-type]


def test_segment_of_a_local_journal_is_shown_frame_by_frame() -> None:
    """Each with its position, its kind in words and its fields; each batch with its header."""
    content, positions = segment(local_frames())
    lines = show(content)
    assert [line.what for line in lines] == [
        "segment of a local journal", "fence", "plain batch", "batch", "transactional batch", "batch",
        "apply", "discard", "forget", "open batch", "batch", "marker", "marker", "prepared", "start",
    ]  # fmt: skip
    assert [line.fields["position"] for line in lines if "position" in line.fields] == positions
    assert not any(line.damage for line in lines)
    text = "\n".join(map(as_text, lines))
    assert "fence: position 0, producer id 4001, epoch 3, leader epoch 3, written ms 9000" in text
    assert "apply: position" in text
    assert "txid 4001.3.12, apply number 900, base offset 2, record count 3" in text
    assert "prepared: position" in text
    assert "txid 4001.3.12, record count 3, coordinator shard 2" in text
    assert "    batch: base offset 0, records 2, bytes 79, max timestamp ms 6" in text


def test_segment_with_records_shows_what_is_inside_batches() -> None:
    """Offsets, timestamps, keys and values; in JSON all of it, one object a line."""
    content, _ = segment(local_frames())
    lines = show(content, selection=Selection(records=True))
    records = [json.loads(as_json(line)) for line in lines if line.what == "record"]
    assert records[:2] == [
        {"what": "record", "offset": 0, "timestamp_ms": 5, "key": None, "value": "v1"},
        {"what": "record", "offset": 1, "timestamp_ms": 6, "key": None, "value": "v2"},
    ]
    assert len(records) == 6


def test_segment_of_a_group_journal_is_shown_frame_by_frame() -> None:
    """All records, the parts of a snapshot among them."""
    content, _ = segment(group_frames(), kind=JournalKind.GROUP)
    lines = show(content)
    assert not any(line.damage for line in lines)
    shown = [line.what for line in lines]
    assert shown[0] == "segment of a group journal"
    assert [line for line in shown if line.startswith("snapshot")] == [
        "snapshot begins", "snapshot part: producer", "snapshot part: committed", *["snapshot part: sink"] * 2,
        *["snapshot part: producer"] * 3, "snapshot ends",
    ]  # fmt: skip
    assert {"prepare commit", "sink prepare commit", "sink committed", "sink aborted", "sink forgotten"} < set(shown)
    documents = [json.loads(as_json(line)) for line in lines]
    (committed,) = [document for document in documents if document["what"] == "committed"]
    group, _ = [document for document in documents if document["what"] == "sink prepare commit"]
    assert (group["sink"], group["batch"], len(group["parts"])) == ("totals", 7, 2)
    assert committed["placements"][0] == {"log": "t-00112233445566778899aabbccddeeff-2", "base_offset": 2, "count": 3}


def test_selection_shows_some_frames_only() -> None:
    """From a position on, and so many."""
    content, positions = segment(local_frames())
    lines = show(content, selection=Selection(start=positions[3], count=2))
    assert [line.fields["position"] for line in lines[1:] if line.depth == 0] == positions[3:5]
    between = show(content, selection=Selection(start=positions[3] - 1, count=1))
    assert between[1].fields["position"] == positions[3]


def test_torn_tail_is_shown_and_is_no_damage() -> None:
    """What a crash leaves: bytes that are no frame, and nobody knew them to be on disk."""
    content, positions = segment(local_frames()[:3])
    content[SEGMENT_HEADER_BYTES + positions[2] + 40] ^= 1
    *_, last = show(content)
    assert (last.what, last.damage) == ("torn tail", None)
    assert last.fields["position"] == positions[2]
    assert "its checksum is wrong" in str(last.fields["why"])


def test_hole_with_a_witness_is_damage_and_what_follows_is_shown() -> None:
    """A later frame knew the hole to be on disk; it names the byte, and the frames behind it are not hidden."""
    content, positions = segment(local_frames())
    content[SEGMENT_HEADER_BYTES + positions[2] + 40] ^= 1
    lines = show(content)
    (damaged,) = [line for line in lines if line.damage]
    assert damaged.damage is not None
    assert damaged.damage.startswith(f"byte {SEGMENT_HEADER_BYTES + positions[2]}: ")
    behind = [line.what for line in lines[lines.index(damaged) + 1 :]]
    assert behind == ["apply", "discard", "forget", "open batch", "batch", "marker", "marker", "prepared", "start"]


def test_torn_tail_in_a_sealed_segment_is_damage() -> None:
    """A segment that has a successor was whole when that got its name; zeros at its end are no preallocated room."""
    content, positions = segment(local_frames()[:3])
    assert show(content, sealed=True)[-1].damage == (
        f"byte {len(content) - 256}: a segment that has a successor ends with a frame"
    )
    content[SEGMENT_HEADER_BYTES + positions[2] + 40] ^= 1
    *_, last = show(content, sealed=True)
    assert last.damage is not None
    assert "in a segment that has a successor" in last.damage


def test_frame_with_a_good_checksum_and_a_strange_header_is_damage() -> None:
    """An unknown kind, and fields that the kind has not; a bug or a newer version wrote it."""
    content, positions = segment([(77, [1], b""), (1, [1, 2, 3], b""), (2, [0, 1, 0, -1, -1, -1], b"no batch")])
    damages = [line.damage for line in show(content) if line.damage]
    assert damages[0].startswith(f"byte {SEGMENT_HEADER_BYTES}: a local journal has no frames of kind 77")
    assert damages[1].startswith(
        f"byte {SEGMENT_HEADER_BYTES + positions[1]}: the header of a frame of kind 1 must be 2"
    )
    assert "too short" in damages[2]


def test_batch_with_a_wrong_checksum_inside_a_good_frame_is_damage() -> None:
    """The frame's own checksum is right, so it was written like this."""
    data = batch([b"value"])
    data[HEADER_BYTES + 3] ^= 1
    content, positions = segment([(2, [0, 1, 0, -1, -1, -1], bytes(data))])
    (damage,) = [line.damage for line in show(content) if line.damage]
    payload_at = bytes(content).index(data[:8] + data[8:12])
    assert damage.startswith(f"byte {payload_at}: bad CRC")
    assert positions == [0]


@pytest.mark.parametrize("size", [0, 1, 63, 64, 65, 100, 4096])
@pytest.mark.parametrize("head", [b"", b"FAIRJNL1"])
def test_garbage_of_any_size_is_shown_as_garbage(size: int, head: bytes) -> None:
    """No header, no frame: one line that names byte 0, or says that there is nothing but zeros."""
    content = (head + random.Random(size).randbytes(size))[:size]
    lines = show(content)
    assert len(lines) == 1
    assert (lines[0].damage is None) == (not any(content))


@pytest.mark.slow
def test_damage_anywhere_in_a_segment_never_raises() -> None:
    """Whatever is overwritten, in whichever kind of journal: every line can be written, as text and as JSON."""
    rng = random.Random(4)
    for turn in range(1500):
        content, _ = segment(
            *((local_frames(),) if turn % 2 else (group_frames(),)), kind=list(JournalKind)[1 - turn % 2]
        )
        at = rng.randrange(len(content) - 256)
        content[at : at + rng.randrange(1, 9)] = rng.randbytes(rng.randrange(1, 9))
        lines = show(content, sealed=bool(turn % 3), offsets_log=turn % 5 == 0, selection=Selection(records=True))
        for line in lines:
            as_text(line)
            json.loads(as_json(line))


# --- files ----------------------------------------------------------------------------------------


@pytest.fixture
def data_log_file(tmp_path: Path) -> Path:
    """One of everything, as in the golden file."""
    logs = LmdbDataLogs.open(tmp_path / "datalog", map_bytes=MAP_BYTES, sync=False)
    fill(logs)
    logs.close()
    return tmp_path / "datalog" / "data.mdb"


def test_data_logs_are_shown_with_all_their_tables(fairlog: FairlogCommand, data_log_file: Path) -> None:
    """Logs with their marks, batches, time index, committed offsets; a window that is none is damage of its own."""
    code, out, err = fairlog("inspect", data_log_file, "--records", "--json")
    documents = [json.loads(line) for line in out.splitlines()]
    assert (code, err) == (1, "")  # the golden file's producer window is the word "window"
    by_kind = {
        kind: [each for each in documents if each["what"] == kind] for kind in {each["what"] for each in documents}
    }
    assert [each["log"] for each in by_kind["log"]][:2] == ["o-offsets-5", "t-00112233445566778899aabbccddeeff-2"]
    assert by_kind["log"][1]["copied_through"] == 1024
    assert [each["base_offset"] for each in by_kind["batch"]][:3] == [0, 2, 3]
    assert len(by_kind["record"]) >= 4
    assert by_kind["time index"][0]["before"] == 3
    assert by_kind["committed offset"][0]["key"] == {"group": "group", "topic": "topic", "partition": 2}
    assert by_kind["producer"][0]["damage"].startswith("byte ")
    (opened,), (aborted,) = by_kind["open transaction"], by_kind["aborted transaction"]
    assert (opened["first_offset"], opened["records"], opened["txid"]) == (2, 1, "4001.1.6")
    assert [aborted[name] for name in ("producer_id", "first_offset", "last_offset", "last_stable_offset")] == [
        4000, 0, 3, 2
    ]  # fmt: skip
    assert [(each["marker"], each["coordinator_epoch"]) for each in by_kind["batch"] if "marker" in each] == [
        ("abort", 5)
    ]


def test_data_logs_from_an_offset_on(fairlog: FairlogCommand, data_log_file: Path) -> None:
    """From the batch that contains it, so many of each log."""
    code, out, _ = fairlog("inspect", data_log_file, "--json", "--from", 1, "--count", 2)
    assert code == 1
    batches = [json.loads(line) for line in out.splitlines() if '"what": "batch"' in line]
    assert [each["base_offset"] for each in batches][:2] == [0, 2]


@pytest.mark.slow
def test_damage_anywhere_in_data_logs_never_raises(data_log_file: Path) -> None:
    """The same for an LMDB file, which LMDB itself would not survive."""
    whole = data_log_file.read_bytes()
    (data_log_file.parent / "lock.mdb").unlink()
    rng = random.Random(5)
    for _ in range(300):
        damaged = bytearray(whole)
        at = rng.randrange(len(whole) // 4096) * 4096 + rng.choice((0, 8, 16, 4000)) + rng.randrange(60)
        damaged[at : at + 4] = rng.randbytes(4)
        data_log_file.write_bytes(damaged)
        for line in inspect_file(data_log_file, Selection(records=True)):
            as_text(line)
            json.loads(as_json(line))


async def test_cluster_store_is_shown_record_by_record(tmp_path: Path) -> None:
    """Who the node is, how often it was started, which topics there are."""
    store = EmbeddedStore.open(tmp_path / "cluster", node_id=3, group_journal_count=16)
    await store.create_topic("orders", partitions=2, configs={"retention.ms": "5"}, now_ms=9)
    store.close()
    lines = list(inspect_file(tmp_path / "cluster" / "data.mdb", Selection()))
    assert not any(line.damage for line in lines)
    shown = {line.what: line.fields for line in lines}
    assert shown["starts"] == {"value": 1}
    assert shown["topic"]["name"] == "orders"
    assert shown["topic"]["configs"] == {"retention.ms": "5"}
    assert json.loads(as_json(lines[2]))["node"]["node_id"] == 3


async def test_cluster_store_of_several_shards_is_shown_record_by_record(tmp_path: Path) -> None:
    """How often each shard was started, where each broker is, who has dropped what."""
    EmbeddedStore.prepare(tmp_path / "cluster", node_id=3, group_journal_count=16, shards=2)
    store = EmbeddedStore.open(tmp_path / "cluster", node_id=3, group_journal_count=16, shards=2, shard=ShardNumber(1))
    await store.announce({"PLAINTEXT": ("b.example", 9093)}, ("10.0.0.2", 7002))
    topic = await store.create_topic("orders", partitions=2, configs={}, now_ms=9)
    await store.delete_topic("orders")
    await store.forget_topic(topic.topic_id)
    store.close()
    lines = list(inspect_file(tmp_path / "cluster" / "data.mdb", Selection()))
    assert not any(line.damage for line in lines)
    shown = {line.what: json.loads(as_json(line)) for line in lines}
    assert shown["shards"]["value"] == 2
    assert shown["shard"] == {"what": "shard", "shard": 1, "starts": 1, "group_journals_begun": False}
    assert (shown["broker"]["node_id"], shown["broker"]["internal"]) == (4, ["10.0.0.2", 7002])
    assert shown["dropped"] == {"what": "dropped", "topic_id": str(topic.topic_id), "shard": 1}


ORDERS = PersistedClassicGroup(
    7,
    "consumer",
    "range",
    "a-1",
    (PersistedMember("a-1", None, "a", "/127.0.0.1", 10_000, 60_000, (("range", b""),), b"\0\1"),),
)


def test_members_of_groups_are_shown_record_by_record(tmp_path: Path) -> None:
    """Which generation each group has, and who is in it; what does not read back is damage, and hides no other."""
    log = LogId.of_offsets(0)
    logs = LmdbDataLogs.open(tmp_path, map_bytes=1 << 24)
    with logs.write() as writer:
        writer.create(log)
        writer.put_offsets(log, [GroupEntry(name, encode_members(name, ORDERS)) for name in ("billing", "orders")])
        writer.put_offsets(log, [GroupEntry("orders", b"\x80")])
    logs.close()
    shown = [line for line in inspect_file(tmp_path / "data.mdb", Selection()) if line.what == "group"]
    assert [line.fields["name"] for line in shown if not line.damage] == ["billing"]
    (whole,) = (line for line in shown if not line.damage)
    assert whole.fields == {
        "log": log,
        "name": "billing",
        "generation": 7,
        "protocol": "range",
        "leader": "a-1",
        "members": ["a-1"],
    }
    (damaged,) = (line for line in shown if line.damage)
    assert str(damaged.damage).startswith("byte ")


def test_record_of_the_cluster_store_that_does_not_read_back_hides_no_other(tmp_path: Path) -> None:
    """It is damage, with its byte; those behind it are shown as they are."""
    EmbeddedStore.open(tmp_path / "cluster", node_id=3, group_journal_count=16).close()
    with lmdb.open(str(tmp_path / "cluster")) as environment, environment.begin(write=True) as transaction:
        transaction.put(b"a", b"\x82\0")
    lines = list(inspect_file(tmp_path / "cluster" / "data.mdb", Selection()))
    damaged = [line for line in lines if line.damage]
    assert [line.what for line in damaged] == ["a"]
    assert "byte " in str(damaged[0].damage)
    assert lines[-1].what == "starts"


def test_segment_is_judged_by_its_neighbours(fairlog: FairlogCommand, tmp_path: Path) -> None:
    """A later segment makes a torn tail damage; so does a nameless one that knew it to be on disk."""
    content, positions = segment(local_frames()[:3])
    content[SEGMENT_HEADER_BYTES + positions[2] + 40] ^= 1
    first = tmp_path / segment_name(JournalPosition(0))
    first.write_bytes(content)
    code, out, _ = fairlog("inspect", first)
    assert (code, "torn tail: " in out) == (0, True)

    later, _ = segment(local_frames(), base=len(content))
    spare = tmp_path / "spare-1.new"
    spare.write_bytes(later)
    code, out, _ = fairlog("inspect", first)
    assert code == 1
    assert re.search(rf"DAMAGED at byte {SEGMENT_HEADER_BYTES + positions[2]}: a frame of the next segment knew", out)

    spare.rename(tmp_path / segment_name(JournalPosition(len(content))))
    code, out, _ = fairlog("inspect", first)
    assert code == 1
    assert "in a segment that has a successor" in out


def test_offsets_log_is_shown_as_commits(tmp_path: Path) -> None:
    """The payloads of an offsets log are lists of entries of two kinds; its directory's name tells."""
    entry = OffsetEntry(OffsetKey("group", "ab" * 16, 1), CommittedOffset(Offset(7), -1, "", 5))
    groups = [GroupEntry("orders", encode_members("orders", ORDERS)), GroupEntry("gone", None), GroupEntry("odd", b"?")]
    content, _ = segment([(2, [0, 1, 5, -1, -1, -1], encode_offset_entries([*groups, entry]))])
    directory = tmp_path / "o-offsets-1"
    directory.mkdir()
    (directory / segment_name(JournalPosition(0))).write_bytes(content)
    *_, orders, gone, odd, last = inspect_file(directory / segment_name(JournalPosition(0)), Selection(records=True))
    assert (orders.what, orders.fields["members"], orders.damage) == ("group", ["a-1"], None)
    assert (gone.what, gone.fields) == ("group is forgotten", {"name": "gone"})
    assert odd.damage is not None
    assert last.what == "committed offset"
    assert json.loads(as_json(last))["value"]["offset"] == 7


def test_inspection_changes_nothing(fairlog: FairlogCommand, data_log_file: Path) -> None:
    """Neither bytes nor names nor times, but for the lock file of LMDB, in which readers stand."""

    def seen() -> dict[Path, tuple[bytes, int]]:
        files = [path for path in data_log_file.parent.iterdir() if path.name != "lock.mdb"]
        return {path: (path.read_bytes(), path.stat().st_mtime_ns) for path in files}

    before = seen()
    fairlog("inspect", data_log_file)
    assert seen() == before


@pytest.mark.parametrize("what", ["directory", "missing", "text"])
def test_file_that_cannot_be_inspected_is_refused_in_a_sentence(
    fairlog: FairlogCommand, tmp_path: Path, what: str
) -> None:
    """Not a traceback, and not silence."""
    path = tmp_path / "notes.txt"
    if what == "directory":
        path.mkdir()
    elif what == "text":
        path.write_text("these are no frames")
    code, out, err = fairlog("inspect", path)
    assert (code, out) == (1, "")
    assert err.startswith("fairlog: ")
    assert "Traceback" not in err


def test_data_logs_file_that_was_cut_is_named(fairlog: FairlogCommand, data_log_file: Path) -> None:
    """LMDB would die of it."""
    for size in (0, 1, 100, 4096, 10_000):
        cut = data_log_file.with_name("cut.mdb")
        cut.write_bytes(data_log_file.read_bytes()[:size])
        code, out, err = fairlog("inspect", cut)
        assert code == 1
        assert "DAMAGED at byte" in out or "is neither" in err


@pytest.mark.slow
def test_all_files_of_two_shards_can_be_inspected(fairlog: FairlogCommand, tmp_path: Path) -> None:
    """Wherever a file lies, what it is shows; of the same kinds as in one shard."""
    node = NodeProcess(tmp_path / "data", {"FAIRLOG_TOPICS_PARTITIONS_DEFAULT": "2"})
    node.start()
    produce(node, b"first")
    produce(node, b"second", partition=1)
    assert node.stop() == 0, node.log_tail()
    shards = split_in_two(node.data_dir)
    for shard in shards:
        files = [*shard.path.rglob("*.journal"), shard.data_logs_file]
        assert {path.parent.parent.name for path in files} > {"local", "group"}
        for path in files:
            code, out, err = fairlog("inspect", path)
            assert (code, err) == (0, ""), f"{path}\n{out[-2000:]}"
        assert fairlog("inspect", shard.data_logs_file)[1].count("batch: base offset 0, records 1") == 1


@pytest.mark.slow
def test_all_files_of_a_running_node_can_be_inspected_while_it_writes(fairlog: FairlogCommand, tmp_path: Path) -> None:
    """Again and again, beside a producer that never rests: no damage is seen, and the node takes no notice."""
    node = NodeProcess(tmp_path / "data", {"FAIRLOG_JOURNAL_GROUP_JOURNALS": "2"})
    node.start()
    stop = threading.Event()
    written: list[int] = []

    def keep_writing() -> None:
        with RawClient(node.address) as client:
            producer = Producer(client, "busy")
            while not stop.is_set():
                producer.commit(b"%06d" % len(written) + bytes(3000))
                written.append(1)

    try:
        produce(node, b"first")
        writer = threading.Thread(target=keep_writing)
        writer.start()
        try:
            rounds = 0
            while rounds < 3 or len(written) <= 10:
                rounds += 1
                assert writer.is_alive()
                for path in [*node.data_dir.rglob("*.journal"), *node.data_dir.rglob("data.mdb")]:
                    code, out, err = fairlog("inspect", path)
                    assert (code, err) == (0, ""), f"{path}\n{out[-2000:]}"
        finally:
            stop.set()
            writer.join()
        assert len(read_when(node, len(written) + 1)) == len(written) + 1
    finally:
        assert node.stop() == 0, node.log_tail()
