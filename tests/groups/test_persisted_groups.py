"""What is kept of groups: the bytes, the log, who brings it there, and the service that goes on with it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import cbor2
import pytest
import trio
import trio.testing
from structlog.testing import capture_logs

from datalog.offset_entries import GroupEntry, name_digest
from fairlog.groups.consumer.states import MemberState
from fairlog.groups.consumer.values import ClassicPart, GroupSnapshot, Member, MemberView
from fairlog.groups.group_persister import GroupPersister
from fairlog.groups.groups_log import GroupsLog
from fairlog.groups.interface import GroupRefusal
from fairlog.groups.messages import Leaving, Synced, Syncing
from fairlog.groups.persisted_group import PersistedClassicGroup, PersistedMember, decode_group, encode_group
from fairlog.groups.service import LocalGroups
from fairlog.groups.settings import GroupSettings
from fairlog_types import CorruptStorage
from tests.groups.desk import new
from tests.groups.stage import SESSION_MS, Offsets, joining, wish
from tests.shard.runs import DATA_LOGS

REPOSITORY = Path(__file__).resolve().parents[2]
GOLDEN = REPOSITORY / "tests" / "golden" / "group-membership-3.txt"

ORDERS = PersistedClassicGroup(
    7,
    "consumer",
    "range",
    "a-1",
    (
        PersistedMember(
            "a-1", "S", "a", "/127.0.0.1", 10_000, 60_000, (("range", wish("t")), ("sticky", b"\1")), b"\0\1"
        ),
        PersistedMember("b-2", None, "b", "/127.0.0.1", 45_000, 300_000, (("range", wish("t")),), b""),
    ),
)
GONE = PersistedClassicGroup(4, "consumer", "", "", ())
TOPIC = "11223344556677889900aabbccddeeff"
EVENTS = GroupSnapshot(
    5,
    5,
    ((TOPIC, 3),),
    (
        MemberView(
            Member(
                *("m-1", "S", None, "a", "/127.0.0.1", 300_000, frozenset({"t"}), "t.*", "range", 5, 4),
                MemberState.UNRELEASED,
                frozenset({(TOPIC, 0)}),
            ),
            frozenset({(TOPIC, 0), (TOPIC, 1)}),
        ),
        MemberView(
            Member(
                *("m-2", None, "r", "b", "/127.0.0.1", 60_000, frozenset({"t"}), None, None, 4, 3),
                MemberState.UNREVOKED,
                frozenset({(TOPIC, 2)}),
                frozenset({(TOPIC, 1)}),
                ClassicPart(45_000, (("range", wish("t")),)),
            ),
            frozenset({(TOPIC, 2)}),
        ),
    ),
)
"""A group of the new protocol, whose second member speaks the classic one and has yet to give up a partition."""


def golden(path: Path = GOLDEN) -> dict[bytes, bytes]:
    lines = (line.split() for line in path.read_text().splitlines())
    return {bytes.fromhex(key): bytes.fromhex(value) for key, value in lines}


# --- bytes -----------------------------------------------------------------------------------------


def test_records_written_are_those_of_the_golden_file():
    """The bytes of format 3 do not change, and read back as what was written."""
    groups = {"orders": ORDERS, "gone": GONE, "events": EVENTS}
    assert {name_digest(name): encode_group(name, group) for name, group in groups.items()} == golden()
    assert dict(decode_group(digest, record) for digest, record in golden().items()) == groups


def test_format_page_shows_the_golden_file():
    """The page's dump is the file that the tests read."""
    page = REPOSITORY / "docs" / "formats" / "group-membership.md"
    assert GOLDEN.read_text() in page.read_text(encoding="utf-8")


@pytest.mark.parametrize(
    "group",
    [
        replace(ORDERS, leader_id="c"),
        replace(ORDERS, protocol="sticky"),
        replace(ORDERS, members=(ORDERS.members[0], ORDERS.members[0])),
        replace(ORDERS, members=(*ORDERS.members, replace(ORDERS.members[0], member_id="c"))),
        replace(ORDERS, generation=0),
        replace(GONE, leader_id="a-1"),
        replace(ORDERS, members=(replace(ORDERS.members[0], session_timeout_ms=0),)),
    ],
)
def test_group_that_does_not_hold_together_is_corrupt(group):
    """Never a guess."""
    with pytest.raises(CorruptStorage, match="group/"):
        decode_group(name_digest("orders"), encode_group("orders", group))


def with_member(number, **changes):
    """The group of the new protocol with one member changed."""
    views = list(EVENTS.members)
    views[number] = replace(views[number], member=replace(views[number].member, **changes))
    return replace(EVENTS, members=tuple(views))


@pytest.mark.parametrize(
    "group",
    [
        replace(EVENTS, group_epoch=0),
        replace(EVENTS, assignment_epoch=6),
        replace(EVENTS, topics=((TOPIC, 0),)),
        replace(EVENTS, members=(*EVENTS.members, EVENTS.members[0])),
        with_member(0, epoch=6),
        with_member(0, epoch=-3),
        with_member(0, assigned=frozenset({(TOPIC, 2)})),
        with_member(1, member_id="m-1"),
        with_member(1, instance_id="S"),
        with_member(1, revoking=frozenset({(TOPIC, 2)})),
        with_member(1, classic=ClassicPart(0, ())),
    ],
)
def test_consumer_group_that_does_not_hold_together_is_corrupt(group):
    """Never a guess: not with two owners of a partition, nor with an epoch that was never given."""
    with pytest.raises(CorruptStorage, match="group/"):
        decode_group(name_digest("events"), encode_group("events", group))


@pytest.mark.parametrize(
    "value",
    [
        b"",
        b"\xff",
        cbor2.dumps(1),
        cbor2.dumps(["orders", 1, "", "", "", [1]]),
        cbor2.dumps(["orders", "consumer", 1, 1, [], [1]]),
    ],
)
def test_bytes_that_are_no_group_are_corrupt(value):
    with pytest.raises(CorruptStorage):
        decode_group(name_digest("orders"), value)


def test_group_under_another_ones_key_is_corrupt():
    with pytest.raises(CorruptStorage):
        decode_group(name_digest("other"), encode_group("orders", ORDERS))


# --- the log -----------------------------------------------------------------------------------------


def groups_log(desk, *, record_bytes_max=1 << 20):
    return GroupsLog(desk.storage, record_bytes_max=record_bytes_max)


async def test_log_gives_back_what_was_kept(open_desk):
    """The newest of each group; of those that are forgotten nothing. A group's id may be longer than LMDB's keys."""
    async with open_desk() as desk:
        log = groups_log(desk)
        assert await log.load() == {}
        assert await log.write({"orders": GONE, "forgotten": ORDERS, "ü" * 512: GONE}) == {}
        assert await log.write({"orders": ORDERS, "forgotten": None, "never there": None}) == {}
        assert await log.write({"events": EVENTS}) == {}
        await desk.commit("orders", new(1))
        assert await desk.offsets.delete("orders") is None
    async with open_desk() as again:
        assert await groups_log(again).load() == {"orders": ORDERS, "ü" * 512: GONE, "events": EVENTS}
        assert again.offsets.groups() == set()


async def test_log_has_after_a_crash_what_it_said_it_keeps(open_desk, tmp_path):
    """Also if nothing was copied: the journal has it, and its order is the order of the writes."""
    async with open_desk() as desk:
        older = desk.run.crash(tmp_path / "older")
        assert await groups_log(desk).write({"orders": ORDERS, "gone": ORDERS}) == {}
        assert await groups_log(desk).write({"gone": GONE}) == {}
        crashed = desk.run.crash(tmp_path / "crashed")
    (crashed / DATA_LOGS / "data.mdb").write_bytes((older / DATA_LOGS / "data.mdb").read_bytes())
    async with open_desk(crashed) as again:
        assert await groups_log(again).load() == {"orders": ORDERS, "gone": GONE}


async def test_log_says_that_a_group_is_kept_when_it_is_on_disk(open_desk, nursery):
    """All that is written together shares its flushes, and returns together."""
    async with open_desk() as desk:
        desk.run.disk.hold()
        kept = []

        async def write():
            kept.append(await groups_log(desk).write({"orders": ORDERS, "events": EVENTS}))

        nursery.start_soon(write)
        await trio.testing.wait_all_tasks_blocked(0.05)
        assert (kept, await groups_log(desk).load()) == ([], {})
        desk.run.disk.let_go()
        with trio.fail_after(5):
            while not kept:  # noqa: ASYNC110
                await trio.sleep(0.01)
        assert kept == [{}]
        assert await groups_log(desk).load() == {"orders": ORDERS, "events": EVENTS}


async def test_log_that_is_not_copied_in_time_keeps_the_group_not_for_certain(open_desk, monkeypatch):
    """It is written, and what is written later follows it."""
    monkeypatch.setattr("fairlog.groups.groups_log.PATIENCE_S", 0.1)
    async with open_desk() as desk:
        desk.run.disk.hold()
        assert "for the moment" in (await groups_log(desk).write({"orders": GONE}))["orders"]
        desk.run.disk.let_go()
        monkeypatch.undo()
        assert await groups_log(desk).write({"orders": ORDERS}) == {}
        assert await groups_log(desk).load() == {"orders": ORDERS}


async def test_log_whose_disk_fails_names_the_groups_that_are_not_kept(open_desk):
    """Each with the reason; nothing later is kept either, until a restart."""
    async with open_desk() as desk:
        assert await groups_log(desk).write({"gone": GONE}) == {}
        desk.run.disk.failing = "o-offsets"
        assert (await groups_log(desk).write({"orders": ORDERS, "events": EVENTS})).keys() == {"orders", "events"}
        assert (await groups_log(desk).write({"gone": None})).keys() == {"gone"}
        assert await groups_log(desk).load() == {"gone": GONE}


async def test_group_that_is_too_large_is_not_kept_and_the_others_are(open_desk):
    """The reason names the group, the bound and the setting."""
    async with open_desk() as desk:
        log = groups_log(desk, record_bytes_max=100)
        refused = await log.write({"orders": ORDERS, "gone": GONE})
        assert refused.keys() == {"orders"}
        assert "group orders takes more than 100 bytes" in refused["orders"]
        assert "journal.segment_bytes_max" in refused["orders"]
        assert await log.load() == {"gone": GONE}


async def test_group_of_a_thousand_members_is_kept(open_desk):
    """Several mebibytes, in one record."""
    template = ORDERS.members[1]
    members = tuple(replace(template, member_id=f"m{n}", assignment=bytes(4096)) for n in range(1000))
    group = PersistedClassicGroup(1, "consumer", "range", "m0", members)
    async with open_desk() as desk:
        assert await groups_log(desk, record_bytes_max=16 << 20).write({"large": group}) == {}
    async with open_desk() as again:
        assert await groups_log(again).load() == {"large": group}


async def test_record_that_does_not_read_back_is_named_with_its_log(open_desk):
    """Never a guess, and no start with it."""
    async with open_desk() as desk:
        log = desk.offsets.log_of("orders")
        with desk.run.data_logs.write() as writer:
            writer.put_offsets(log, [GroupEntry("orders", b"\x80")])
        with pytest.raises(CorruptStorage, match=f"{log}: the record group/.* is not a group"):
            await groups_log(desk).load()


# --- the persister ------------------------------------------------------------------------------------


class Disk:
    """A store whose writes wait for `go`."""

    def __init__(self):
        self.writes = []
        self.refuses = {}
        self.go = trio.Semaphore(0)

    async def write(self, changes):
        await self.go.acquire()
        self.writes.append(dict(changes))
        return {name: self.refuses[name] for name in changes if name in self.refuses}


async def test_keeper_writes_together_what_has_gathered(nursery):
    """And of one group the newest alone, of which alone is told."""
    disk, told = Disk(), []
    persister = GroupPersister(disk)
    nursery.start_soon(persister.run)
    persister.persist("a", ORDERS, lambda is_kept: told.append(("a", is_kept)))
    await trio.testing.wait_all_tasks_blocked()
    persister.persist("a", GONE, lambda is_kept: told.append(("never", is_kept)))
    persister.persist("b", ORDERS, lambda is_kept: told.append(("b", is_kept)))
    persister.persist("a", None, lambda is_kept: told.append(("a, gone", is_kept)))
    assert told == []
    disk.go.release()
    disk.go.release()
    await persister.settled("a")
    await persister.settled("b")
    assert disk.writes == [{"a": ORDERS}, {"a": None, "b": ORDERS}]
    assert told == [("a", True), ("a, gone", True), ("b", True)]


async def test_keeper_tells_a_refusal_and_goes_on(nursery):
    """Those that are kept beside it are not refused with it, and the next may be kept. A reason is logged once."""
    with capture_logs() as lines:
        disk, told = Disk(), []
        disk.refuses = {"a": "no", "b": "no"}
        persister = GroupPersister(disk)
        nursery.start_soon(persister.run)
        for _ in range(2):
            for name in "abc":
                persister.persist(name, ORDERS, lambda is_kept, name=name: told.append((name, is_kept)))
            disk.go.release()
            await persister.settled("a")
        assert told == [("a", False), ("b", False), ("c", True)] * 2
        assert [(line["group"], line["reason"]) for line in lines] == [("a", "no")]
        disk.refuses = {}
        persister.persist("a", ORDERS, told.append)
        disk.go.release()
        await persister.settled("a")
        assert told[-1] is True
        disk.refuses = {"a": "too large"}
        persister.persist("a", ORDERS, told.append)
        disk.go.release()
        await persister.settled("a")
        assert lines[-1]["reason"] == "too large"


# --- the service -----------------------------------------------------------------------------------


class HeldPersister:
    """A persister that keeps when the test says so."""

    def __init__(self):
        self.due = {}
        self.kept = {}

    def persist(self, group_id, group, told):
        self.due[group_id] = group, told

    async def settled(self, group_id):
        self.now()

    def now(self, *, refuses=False):
        due, self.due = self.due, {}
        for group_id, (group, told) in due.items():
            if not refuses:
                self.kept[group_id] = group
            told(not refuses)


@pytest.fixture
def persister():
    return HeldPersister()


@pytest.fixture
def start(persister):
    """Starts the service on what is kept by now."""

    def make():
        made = LocalGroups(
            GroupSettings(initial_rebalance_delay_ms=0), Offsets(), now_ms=lambda: 1_000, new_suffix=lambda: "1"
        )
        made.resume(persister, {name: group for name, group in persister.kept.items() if group is not None})
        return made

    return make


def sync(groups, generation):
    return groups.sync("g", Syncing("m", None, generation, None, None, {"m": b"all"}))


async def settle(groups, persister):
    joined = await groups.join("g", joining(new_member_id="m")).answer()
    parked = sync(groups, joined.generation)
    await trio.testing.wait_all_tasks_blocked()
    assert not parked._answered.is_set(), "told before it is kept"
    persister.now()
    assert isinstance(await parked.answer(), Synced)
    return joined.generation


async def test_service_goes_on_with_what_is_kept(autojump_clock, persister, start, nursery):
    """Members, memory and deadlines: a member that does not come back is missed at the end of its session."""
    before = start()
    generation = await settle(before, persister)
    groups = start()
    nursery.start_soon(groups.run)
    assert groups._size_bytes == before._size_bytes
    assert groups.heartbeat("g", "m", None, generation) is None
    assert groups.may_commit("g", "m", None, generation, transactional=True) is None
    assert groups.may_commit("g", "m", None, generation - 1, transactional=True) is GroupRefusal.ILLEGAL_GENERATION
    assert (groups.subscribed("g"), groups.is_empty("g")) == ({"t"}, False)
    await trio.sleep(SESSION_MS / 1000 + 1)
    assert groups.is_empty("g")
    persister.now()
    assert persister.kept["g"] == PersistedClassicGroup(generation + 1, "consumer", "", "", ())


async def test_service_refuses_who_waits_for_a_disk_that_refuses(persister, start):
    groups = start()
    joined = await groups.join("g", joining(new_member_id="m")).answer()
    parked = sync(groups, joined.generation)
    persister.now(refuses=True)
    assert await parked.answer() is GroupRefusal.NOT_KEPT


async def test_service_that_stops_answers_who_waits_for_the_disk(persister, start):
    """Once: what the disk says later is of no interest."""
    groups = start()
    joined = await groups.join("g", joining(new_member_id="m")).answer()
    parked = sync(groups, joined.generation)
    groups.stop()
    assert await parked.answer() is GroupRefusal.STOPPING
    persister.now()


async def test_deleted_group_is_not_there_after_a_restart(persister, start):
    """DeleteGroups is answered when that is certain; the next group of the name begins anew."""
    groups = start()
    await settle(groups, persister)
    groups.leave("g", [Leaving("m", None)])
    persister.now()
    assert start().describe("g") is not None
    assert await groups.delete("g", Offsets()) is None
    assert persister.kept["g"] is None
    assert start().describe("g") is None


async def test_word_of_a_forgotten_group_does_not_reach_the_next_of_its_name(persister, start):
    """It may come late."""
    groups = start()
    await settle(groups, persister)
    groups.leave("g", [Leaving("m", None)])
    _, late = persister.due["g"]
    assert await groups.delete("g", Offsets()) is None
    groups.join("g", joining(new_member_id="n"))
    late(True)
    assert not groups.is_empty("g")
