"""What is kept of groups: the bytes, the store, who brings it there, and the service that goes on with it."""

from __future__ import annotations

import threading
from dataclasses import replace
from pathlib import Path

import cbor2
import lmdb
import pytest
import trio
import trio.testing

from fairlog.cluster.embedded import StoreMismatch
from fairlog.groups import persisted_group
from fairlog.groups.consumer.states import MemberState
from fairlog.groups.consumer.values import ClassicPart, GroupSnapshot, Member, MemberView
from fairlog.groups.group_persister import GroupPersister
from fairlog.groups.interface import GroupRefusal
from fairlog.groups.messages import Leaving, Synced, Syncing
from fairlog.groups.persisted_group import PersistedClassicGroup, PersistedMember
from fairlog.groups.persisted_group_store import PersistedGroupStore
from fairlog.groups.service import LocalGroups
from fairlog.groups.settings import GroupSettings
from fairlog_types import CorruptStorage, LeaderEpoch, StorageFailure
from tests.groups.stage import SESSION_MS, Offsets, joining, wish

REPOSITORY = Path(__file__).resolve().parents[2]
GOLDEN = REPOSITORY / "tests" / "golden" / "group-membership-2.txt"
GOLDEN_1 = GOLDEN.with_name("group-membership-1.txt")

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


def open_store(directory, start):
    return PersistedGroupStore.open(directory, LeaderEpoch(start))


def change(directory, key, value):
    """Damage a record of the store."""
    with lmdb.open(str(directory)) as environment, environment.begin(write=True) as transaction:
        transaction.put(key, value)


# --- bytes -----------------------------------------------------------------------------------------


def test_records_written_are_those_of_the_golden_file():
    """The bytes of format 2 do not change."""
    written = {
        persisted_group.FORMAT_KEY: persisted_group.encode_format(),
        persisted_group.START_KEY: persisted_group.encode_start(3),
        persisted_group.group_key("orders"): persisted_group.encode_group("orders", ORDERS),
        persisted_group.group_key("gone"): persisted_group.encode_group("gone", GONE),
        persisted_group.group_key("events"): persisted_group.encode_group("events", EVENTS),
    }
    assert written == golden()


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
        persisted_group.decode_group(persisted_group.group_key("orders"), persisted_group.encode_group("orders", group))


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
        persisted_group.decode_group(persisted_group.group_key("events"), persisted_group.encode_group("events", group))


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
        persisted_group.decode_group(persisted_group.group_key("orders"), value)


def test_group_under_another_ones_key_is_corrupt():
    with pytest.raises(CorruptStorage):
        persisted_group.decode_group(persisted_group.group_key("other"), persisted_group.encode_group("orders", ORDERS))


# --- the store -------------------------------------------------------------------------------------


def test_store_gives_back_what_was_kept(tmp_path):
    """The newest of each group; of those that are forgotten nothing. A group's id may be longer than LMDB's keys."""
    store, groups = open_store(tmp_path / "groups", 1)
    assert groups == {}
    store.write({"orders": GONE, "forgotten": ORDERS, "ü" * 512: GONE})
    store.write({"orders": ORDERS, "forgotten": None, "never there": None})
    store.close()
    store, groups = open_store(tmp_path / "groups", 2)
    assert groups == {"orders": ORDERS, "ü" * 512: GONE}
    store.close()


@pytest.mark.parametrize(
    ("path", "content"),
    [
        (GOLDEN_1, {"orders": ORDERS, "gone": GONE}),
        (GOLDEN, {"orders": ORDERS, "gone": GONE, "events": EVENTS}),
    ],
)
def test_store_reads_the_golden_records(tmp_path, path, content):
    """A store of each format can be read for ever, and is of the newest format from then on."""
    (tmp_path / "groups").mkdir()
    for key, value in golden(path).items():
        change(tmp_path / "groups", key, value)
    for start in (4, 5):
        store, groups = open_store(tmp_path / "groups", start)
        assert groups == content
        store.close()
    with lmdb.open(str(tmp_path / "groups")) as environment, environment.begin() as transaction:
        assert persisted_group.decode_format(transaction.get(persisted_group.FORMAT_KEY)) == 2


@pytest.mark.parametrize("start", [1, 3, 1_000])
def test_store_that_a_start_has_passed_by_is_forgotten(tmp_path, start):
    """Another program had the groups meanwhile, or the node was restored: what is kept is not true any more."""
    store, _ = open_store(tmp_path / "groups", 1)
    store.write({"orders": ORDERS})
    store.close()
    for each in (start, start + 1):
        store, groups = open_store(tmp_path / "groups", each)
        assert groups == {}
        store.close()


def test_store_of_a_newer_format_is_refused(tmp_path):
    store, _ = open_store(tmp_path / "groups", 1)
    store.close()
    change(
        tmp_path / "groups",
        persisted_group.FORMAT_KEY,
        cbor2.dumps([persisted_group.MAGIC, persisted_group.VERSION + 1]),
    )
    with pytest.raises(StoreMismatch, match="format 3, and this program reads 2"):
        open_store(tmp_path / "groups", 2)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        (persisted_group.FORMAT_KEY, b"?"),
        (persisted_group.START_KEY, cbor2.dumps("1")),
        (persisted_group.group_key("orders"), cbor2.dumps([])),
    ],
)
def test_store_that_is_damaged_is_refused_with_the_way_out(tmp_path, key, value):
    """The sentence names the file and the record, and what can be done."""
    store, _ = open_store(tmp_path / "groups", 1)
    store.write({"orders": ORDERS})
    store.close()
    change(tmp_path / "groups", key, value)
    with pytest.raises(CorruptStorage, match=r"data\.mdb is corrupt: the record .* or remove .*groups: then"):
        open_store(tmp_path / "groups", 2)


# --- the persister ------------------------------------------------------------------------------------


class Disk:
    """A store whose writes wait for `go`."""

    def __init__(self):
        self.writes = []
        self.refuses = False
        self.go = threading.Semaphore(0)

    def write(self, changes):
        self.go.acquire()
        if self.refuses:
            raise StorageFailure("no")
        self.writes.append(dict(changes))


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
    """The next may be kept."""
    disk, told = Disk(), []
    disk.refuses = True
    persister = GroupPersister(disk)
    nursery.start_soon(persister.run)
    persister.persist("a", ORDERS, told.append)
    disk.go.release()
    await persister.settled("a")
    disk.refuses = False
    persister.persist("a", ORDERS, told.append)
    disk.go.release()
    await persister.settled("a")
    assert told == [False, True]


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
