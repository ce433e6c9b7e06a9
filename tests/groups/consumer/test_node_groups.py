"""Groups of both protocols on one node: who serves which, what is kept, and who may commit."""

from __future__ import annotations

from contextlib import asynccontextmanager
from types import SimpleNamespace
from uuid import UUID

import pytest
import trio
import trio.testing

from fairlog.groups.consumer.cluster_topics import ClusterTopics
from fairlog.groups.consumer.service import ConsumerGroups
from fairlog.groups.consumer.settings import ConsumerGroupSettings
from fairlog.groups.consumer.values import LEAVING, Beaten
from fairlog.groups.group_persister import GroupPersister
from fairlog.groups.interface import GroupRefusal, GroupType
from fairlog.groups.messages import Joined, JoinRefused, Leaving, Synced, Syncing
from fairlog.groups.node_groups import NodeGroups
from fairlog.groups.service import LocalGroups
from fairlog.groups.settings import GroupSettings
from tests.groups.consumer.board import Board, beat, joining, subscription
from tests.groups.stage import Offsets
from tests.groups.stage import joining as classic_joining


class Cluster(Board):
    """The topics of a board as a cluster store has them."""

    def topics(self):
        return [self.topic(name) for name in self.sizes]

    def topic(self, name):
        found = self.find(name)
        if found is None:
            return None
        return SimpleNamespace(name=name, topic_id=UUID(hex=found[0]), partitions=found[1])

    def topic_by_id(self, topic_id):
        return next((topic for topic in self.topics() if topic.topic_id == topic_id), None)


class Disk:
    """A store that can refuse."""

    def __init__(self):
        self.groups = {}
        self.refuses = False

    async def write(self, changes):
        await trio.lowlevel.checkpoint()
        if self.refuses:
            return dict.fromkeys(changes, "full")
        self.groups |= changes
        self.groups = {name: group for name, group in self.groups.items() if group is not None}
        return {}


@pytest.fixture
def board():
    made = Cluster()
    made.make("t", 4)
    return made


@pytest.fixture
def disk():
    return Disk()


@pytest.fixture
def start(board, disk):
    """Starts a node's groups from what is on the disk; they end with the block."""

    @asynccontextmanager
    async def starting(*, keeps=True, settings_of=None):
        classic = LocalGroups(
            GroupSettings(initial_rebalance_delay_ms=0), Offsets(), now_ms=lambda: 1_000, new_suffix=lambda: "1"
        )
        consumer = ConsumerGroups(
            settings_of or (lambda _: ConsumerGroupSettings()),
            ClusterTopics(board),
            Offsets(),
            classic,
            now_ms=lambda: 1_000,
        )
        groups = NodeGroups(classic, consumer)
        persister = GroupPersister(disk)
        if keeps:
            groups.resume(persister, dict(disk.groups))
        async with trio.open_nursery() as nursery:
            nursery.start_soon(persister.run)
            nursery.start_soon(groups.run)
            yield groups
            nursery.cancel_scope.cancel()

    return starting


async def ask(groups, request, group="g"):
    return await (await groups.beat(group, request)).answer()


def classic(member_id="", *topics, **fields):
    return classic_joining(member_id, protocols=(("range", subscription(*(topics or ("t",)))),), **fields)


async def sync(groups, member_id, generation, assignments=None):
    request = Syncing(member_id, None, generation, None, None, assignments or {})
    waiting = groups.sync("g", request)  # noqa: ASYNC200 (SyncGroup: no disk is meant)
    return await waiting.answer()


async def test_members_go_on_after_a_restart(start, board):
    async with start() as groups:
        assert await ask(groups, joining("a", "t")) == Beaten("a", 1, board.all("t"))
    async with start() as groups:
        assert await ask(groups, beat("a", 1)) == Beaten("a", 1, None)
        assert groups.is_empty("g") is False
        assert await ask(groups, beat("a", LEAVING)) == Beaten("a", LEAVING, None)
    async with start() as groups:
        assert groups.is_empty("g")
        assert (await ask(groups, joining("b", "t"))).epoch == 3


async def test_disk_that_refuses_lets_members_go_on_and_nobody_join(start, disk, board):
    async with start() as groups:
        await ask(groups, joining("a", "t"))
        disk.refuses = True
        assert (await ask(groups, joining("b", "t"))).refusal is GroupRefusal.NOT_KEPT
        assert await ask(groups, beat("a", 1)) == Beaten("a", 1, None)
        disk.refuses = False
        assert (await ask(groups, joining("b", "t"))).epoch == 2


async def test_answer_waits_until_what_it_tells_is_kept(start, disk):
    """Also one to a heartbeat that changes nothing itself."""
    async with start() as groups:
        await ask(groups, joining("a", "t"))
        joined = await groups.beat("g", joining("b", "t"))
        lives = await groups.beat("g", beat("a", 1))
        assert len(disk.groups["g"].members) == 1
        await lives.answer()
        assert len(disk.groups["g"].members) == 2
        assert (await joined.answer()).epoch == 2


async def test_stopping_node_refuses_what_waits_and_what_comes(start):
    async with start() as groups:
        parked = await groups.beat("g", joining("a", "t"))
        groups.stop()
        assert (await parked.answer()).refusal is GroupRefusal.STOPPING
        assert (await ask(groups, joining("a", "t"))).refusal is GroupRefusal.STOPPING


async def test_empty_group_is_taken_by_members_of_either_protocol(start):
    """Its generations and epochs go on."""
    async with start() as groups:
        await ask(groups, joining("a", "t"))
        await ask(groups, beat("a", LEAVING))
        joined = await groups.join("g", classic()).answer()
        assert isinstance(joined, Joined)
        assert joined.generation == 3
        assert groups.describe("g").type is GroupType.CLASSIC
        groups.leave("g", [Leaving(joined.member_id, None)])
        assert (await ask(groups, joining("b", "t"))).epoch > 3
        assert [(each.group_id, each.type) for each in groups.overviews()] == [("g", GroupType.CONSUMER)]


async def test_classic_group_becomes_a_consumer_group_and_a_classic_one_again(start, board):
    """On the way its classic member hears that it has to join; a restart in between changes nothing."""
    async with start() as groups:
        first = await groups.join("g", classic()).answer()
        member_id = first.member_id
        await sync(groups, member_id, first.generation, {member_id: b""})
        assert (await ask(groups, joining("n", "t"))).epoch == first.generation + 1
        assert groups.describe("g").type is GroupType.CONSUMER
    async with start() as groups:
        assert groups.heartbeat("g", member_id, None, first.generation) is GroupRefusal.REBALANCE_IN_PROGRESS
        again = await groups.join("g", classic(member_id)).answer()
        told = await sync(groups, member_id, again.generation)
        assert isinstance(told, Synced)
        await ask(groups, beat("n", LEAVING))
        assert groups.describe("g").type is GroupType.CLASSIC
        assert groups.heartbeat("g", member_id, None, again.generation) is GroupRefusal.REBALANCE_IN_PROGRESS
        back = await groups.join("g", classic(member_id)).answer()
        assert back.generation == again.generation + 1


async def test_client_that_was_given_an_id_finds_the_group_of_the_other_protocol(start):
    """Who is about to join is no member yet, and may come all the same."""
    async with start() as groups:
        refused = await groups.join("g", classic(id_required=True, new_member_id="c")).answer()
        assert refused == JoinRefused(GroupRefusal.MEMBER_ID_REQUIRED, "c")
        assert (await ask(groups, joining("n", "t"))).epoch == 1
        joined = await groups.join("g", classic("c")).answer()
        assert (joined.member_id, joined.generation) == ("c", 2)


async def test_group_of_another_protocol_type_does_not_become_a_consumer_group(start):
    async with start() as groups:
        first = await groups.join("g", classic_joining(protocol_type="connect", protocols=(("default", b""),))).answer()
        assert not isinstance(first, JoinRefused)
        assert (await ask(groups, joining("n", "t"))).refusal is GroupRefusal.UNKNOWN_GROUP
        assert groups.describe("g").type is GroupType.CLASSIC


@pytest.mark.parametrize("transactional", [False, True])
async def test_commit_has_to_name_the_members_epoch(start, transactional):
    """A transaction is told ILLEGAL_GENERATION, for it cannot be told STALE_MEMBER_EPOCH; it need not name a member."""
    stale = GroupRefusal.ILLEGAL_GENERATION if transactional else GroupRefusal.STALE_MEMBER_EPOCH
    async with start() as groups:
        await ask(groups, joining("a", "t"))

        def may_commit(member_id, epoch):
            return groups.may_commit("g", member_id, None, epoch, transactional=transactional)

        assert may_commit("a", 1) is None
        assert may_commit("a", 2) is stale
        assert may_commit("b", 1) is GroupRefusal.UNKNOWN_MEMBER
        assert may_commit("", -1) is (None if transactional else GroupRefusal.UNKNOWN_MEMBER)
        await ask(groups, beat("a", LEAVING))
        assert may_commit("", -1) is None


async def test_groups_session_time_out_holds_from_each_members_next_heartbeat(start, autojump_clock):
    """A group has its own, which may change under its members; the sessions of others are as long as before."""
    session_ms = {"g": 45_000, "h": 45_000}

    def settings_of(group_id):
        return ConsumerGroupSettings(session_timeout_ms=session_ms[group_id])

    async with start(keeps=False, settings_of=settings_of) as groups:
        for group in ("g", "h"):
            await ask(groups, joining("a", "t"), group)
        session_ms["g"] = 60_000
        await trio.sleep(30)
        await ask(groups, beat("a", 1), "g")
        await ask(groups, beat("a", 1), "h")
        await trio.sleep(46)
        assert (groups.is_empty("g"), groups.is_empty("h")) == (False, True)
        session_ms["g"] = 45_000
        await ask(groups, beat("a", 1), "g")
        await trio.sleep(46)
        assert groups.is_empty("g")


async def test_silent_member_is_removed_and_the_empty_group_forgotten(start, autojump_clock):
    async with start(keeps=False) as groups:  # the clock would jump while the disk writes
        await ask(groups, joining("a", "t"))
        await trio.sleep(46)
        assert groups.is_empty("g")
        assert groups.empty_since_ms("g") == 1_000
        await trio.sleep(601)
        assert groups.known() == set()


async def test_deleted_group_is_gone_from_the_disk(start, disk):
    async with start() as groups:
        await ask(groups, joining("a", "t"))
        assert await groups.delete("g", Offsets()) is GroupRefusal.NON_EMPTY_GROUP
        await ask(groups, beat("a", LEAVING))
        assert await groups.delete("g", Offsets()) is None
        assert disk.groups == {}
        assert await groups.delete("g", Offsets()) is GroupRefusal.UNKNOWN_GROUP


async def test_topics_of_a_pattern_count_as_subscribed(start, board):
    async with start() as groups:
        await ask(groups, joining("a", "t", topic_regex="u.*"))
        board.make("ux", 1)
        board.make("xu", 1)
        assert groups.subscribed("g") == {"t", "ux"}
