"""Sink commits under crashes at any point: of a batch all winners are published once, or nobody is, and it is known.

`Camera` takes an image of the world behind each thing that can be seen from outside: a record appended, a flush done, a
participant prepared, told to place or to discard. Each image is then what a crash at that moment leaves: of a process
that is killed (all that was appended is there), or of a machine that loses power (the group journal has what was
flushed, a log has a lane's records only if it has prepared, APPLYs are gone).
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
import trio
import trio.testing
from hypothesis import given, settings
from hypothesis import strategies as st

from coordinator.answers import Granted, Refusal
from coordinator.messages import Applied, ApplyCommit, Prepared
from coordinator.settings import CoordinatorSettings
from coordinator.sinks.messages import BatchCommitted, LaneGranted, SinkRefusal, SinkRefused
from fairlog_types import LogId, TxId

from .conftest import CountingIds, MemoryApplication, MemoryGroupJournal, MemoryParticipants, MemoryPreparation, World
from .sinks import Writer, ask, commit, join, lane, refused, settle, write_batch

RUNS = (f"run-{number}" for number in itertools.count())


@dataclass
class Image:
    """The world as a crash leaves it."""

    what: str
    world: World
    answered: bool
    """The commit was answered before."""


@dataclass
class Camera:
    """Takes images of a world."""

    world: World
    images: list[Image] = field(default_factory=list)
    prepared: set[TxId] = field(default_factory=set)
    visible: set[TxId] = field(default_factory=set)
    answered: bool = False

    def __post_init__(self) -> None:
        world, participants = self.world, self.world.participants
        for journal in world.journals:
            journal.append = self._behind(journal.append, "appended")  # type: ignore[method-assign]
            journal.to_disk = self._behind_waiting(journal.to_disk, "flushed")  # type: ignore[method-assign]
        for name in ("prepare", "apply", "discard"):
            setattr(participants, name, self._behind(getattr(participants, name), name))

    def _noted_outcome(self, preparation: MemoryPreparation) -> Callable:
        outcome = preparation.outcome

        async def noted() -> Prepared:
            answer = await outcome()
            for txid, expected in preparation.expected.items():
                # What each of them holds gets to the disk by itself, in any order, before the answer for all.
                if not set(answer.refused) & set(expected):
                    self.prepared.add(txid)
                self.shoot("prepared")
            return answer

        return noted

    def _noted_visible(self, application: MemoryApplication, messages: Sequence[ApplyCommit]) -> Callable:
        visible = application.visible

        async def noted() -> Sequence[Applied]:
            answer = await visible()
            for message in messages:
                # Their decisions get to the disk by themselves, too.
                self.visible.add(message.txid)
                self.shoot("visible")
            return answer

        return noted

    def _behind(self, call: Callable, what: str) -> Callable:
        def called(*args: Any) -> object:
            answer = call(*args)
            match answer:
                case MemoryPreparation():
                    answer.outcome = self._noted_outcome(answer)  # type: ignore[method-assign]
                case MemoryApplication():
                    answer.visible = self._noted_visible(answer, args[0])  # type: ignore[method-assign]
            self.shoot(f"{what} {type(args[0]).__name__}")
            return answer

        return called

    def _behind_waiting(self, call: Callable, what: str) -> Callable:
        async def called(*args: object) -> None:
            await call(*args)
            self.shoot(what)

        return called

    def shoot(self, what: str) -> None:
        for power_lost in (False, True):
            self.images.append(Image(f"{what}, power lost: {power_lost}", self.image(power_lost), self.answered))

    def image(self, power_lost: bool) -> World:
        after = self.world.imaged(power_lost=power_lost)
        if power_lost:
            lose_power(after.participants, self.prepared, self.visible)
        return after


def lose_power(participants: MemoryParticipants, prepared: set[TxId], visible: set[TxId]) -> None:
    """Of the logs only what was flushed is left, and no decision but of what is visible."""
    for txid, held in participants.held.items():
        if txid not in prepared:
            held.clear()
    participants.placings = [txid for txid in participants.placings if txid in visible]
    participants.together.clear()


async def recovered(image: Image) -> World:
    world = image.world
    await world.coordinator.recover(tail_kept="power lost: False" in image.what)
    return world


def published(world: World) -> set[TxId]:
    return set(world.participants.placings)


async def test_crash_at_any_point_publishes_the_batch_whole_or_not_at_all(running, logs, nursery, autojump_clock):
    """And what was answered is published; and a replay of the batch ends with exactly one of it."""
    camera = Camera(running)
    winners = await write_batch(running, logs)
    describe = running.coordinator.describe
    lanes = running.coordinator.sinks()[0].open_lanes
    winning = {describe(name).txid for name in lanes[:2]}
    answer = await running.coordinator.commit_batch(commit(*winners))
    assert isinstance(answer, BatchCommitted)
    camera.answered = True
    camera.shoot("answered")
    await trio.testing.wait_all_tasks_blocked()
    ends = set()
    for image in camera.images:
        world = await recovered(image)
        assert published(world) in (set(), winning), image.what
        is_published = bool(published(world))
        assert is_published or not image.answered, image.what
        ends.add(is_published)
        await nursery.start(world.run)
        joined = await world.coordinator.join_batch(lane(run="r2"))
        assert isinstance(joined, BatchCommitted if is_published else LaneGranted), image.what
        assert not image.answered or joined == replace(answer, already=True), image.what
        await replay_batch(world, logs)
        assert len(published(world)) == 2, image.what
    assert ends == {False, True}, "some crashes come before the decision, and some behind it"
    assert len(camera.images) > 40


async def replay_batch(world: World, logs: list[LogId]) -> None:
    """What Spark does after a restart: the batch again, from a new run."""
    run = next(RUNS)
    if isinstance(await world.coordinator.join_batch(lane(run=run)), LaneGranted):
        assert await world.coordinator.abort_batch("s", "q", run, 0) is None
        winners = await write_batch(world, logs, run=run)
        assert isinstance(await world.coordinator.commit_batch(commit(*winners, run=run)), BatchCommitted)
    world.life.cancel()


async def test_crash_at_any_point_of_a_refused_commit_publishes_nothing_ever(running, logs, autojump_clock):
    """One lane cannot prepare: whatever the crash, and however lucky the restart, once it was refused.

    Before the refusal is durable a restart may still find all there, and commit: nobody has been answered then.
    """
    camera = Camera(running)
    winners = await write_batch(running, logs)
    running.participants.refusing = {logs[1]: "lost its tail"}
    assert isinstance(await running.coordinator.commit_batch(commit(*winners)), SinkRefused)
    camera.answered = True
    camera.shoot("answered")
    for image in camera.images:
        image.world.participants.refusing = {}
        world = await recovered(image)
        assert len(published(world)) in (0, 2), image.what
        assert not (image.answered and published(world)), image.what


@pytest.mark.parametrize("tail_kept", [True, False])
async def test_crash_in_the_recovery_changes_nothing(running, logs, nursery, tail_kept, autojump_clock):
    """Any number of restarts that get no further than any point lead to the same end; the journal is read twice."""
    winners = await write_batch(running, logs)
    camera = Camera(running)
    running.participants.copying = trio.Event()
    ask(nursery, running.coordinator.commit_batch(commit(*winners)))
    await settle()
    first = camera.image(power_lost=not tail_kept)
    again = Camera(first, prepared=set(camera.prepared), visible=set(camera.visible))
    await first.coordinator.recover(tail_kept=tail_kept)
    assert len(again.images) > 3
    for image in again.images:
        world = await recovered(image)
        assert len(published(world)) == 2, image.what
        assert world.coordinator.sinks()[0].batch == 0
    running.participants.copying.set()


async def test_restart_places_nothing_again_whose_prepare_is_not_on_the_disk(running, logs, nursery, autojump_clock):
    """A process that was killed leaves SINK_PREPARE_COMMIT in the page cache: the next loss of power would take it."""
    first, second = await join(running, lane(0)), await join(running, lane(1))
    await first.write(logs[0], 2)
    await second.write(logs[1], 1)
    running.journal.flush_s = 10
    nursery.start_soon(running.coordinator.commit_batch, commit((0, 0, 2), (1, 0, 1)))
    await trio.sleep(1)
    killed = running.imaged()
    killed.journal.flush_s = 1
    apply, seen = killed.participants.apply, []

    def noted(messages: Sequence[ApplyCommit]) -> MemoryApplication:
        seen.append(killed.imaged(power_lost=True))
        return apply(messages)

    killed.participants.apply = noted
    await killed.coordinator.recover(tail_kept=True)
    (lost,) = seen
    await lost.coordinator.recover(tail_kept=False)
    assert len(published(lost)) == 2
    assert lost.coordinator.sinks()[0].batch == 0


async def test_sink_commit_of_which_one_part_is_lost_is_withdrawn_as_a_whole(running, logs, nursery, autojump_clock):
    """Power was lost before all had prepared, so nobody was answered: the fence stays, the batch is written again."""
    assert isinstance(await running.coordinator.commit_batch(commit(*await write_batch(running, logs))), BatchCommitted)
    await trio.testing.wait_all_tasks_blocked()
    winners = await write_batch(running, logs, batch=1)
    lost = running.coordinator.describe("fairlog.lane.1.s").txid
    before = set(running.participants.discarded)
    running.participants.copying = trio.Event()
    ask(nursery, running.coordinator.commit_batch(commit(*winners, batch=1)))
    await settle()
    placed = running.participants.together[1]
    image = running.imaged()
    for txid in placed:
        image.participants.placings.remove(txid)
    image.participants.held[lost].clear()
    await image.coordinator.recover(tail_kept=False)
    assert published(image) == set(running.participants.together[0])
    assert set(placed) <= set(image.participants.discarded) - before
    assert image.coordinator.sinks()[0].batch == 0
    again = image.imaged(power_lost=True)
    again.participants.held |= {txid: dict(running.participants.held[txid]) for txid in placed}
    await again.coordinator.recover(tail_kept=False)
    assert again.coordinator.sinks()[0].batch == 0, "withdrawn is withdrawn, with whatever luck"
    await nursery.start(again.run)
    winners = await write_batch(again, logs, batch=1, run="r2")
    answer = await again.coordinator.commit_batch(commit(*winners, batch=1, run="r2"))
    assert isinstance(answer, BatchCommitted)
    running.participants.copying.set()


async def test_batches_in_doubt_are_placed_in_their_order_and_as_they_were(running, logs, nursery, autojump_clock):
    """Each batch in one piece, its lanes in the same order."""
    running.participants.copying = trio.Event()
    for batch in range(3):
        winners = await write_batch(running, logs, batch)
        ask(nursery, running.coordinator.commit_batch(commit(*winners, batch=batch)))
        await settle()
    groups = running.participants.together
    image = running.imaged(power_lost=True)
    image.participants.placings.clear()
    image.participants.together.clear()
    await image.coordinator.recover(tail_kept=False)
    assert image.participants.together == groups
    assert image.coordinator.sinks()[0].batch == 2
    running.participants.copying.set()


# ------------------------------------------------------------------------------- whatever comes, in any order


@dataclass(frozen=True)
class Attempt:
    """One request to commit: what it has named, and how many records of each."""

    batch: int
    named: dict[TxId, int]


class Life:
    """A sink's life: writers, drivers, zombies, time, crashes. After each step all that is published is looked at."""

    def __init__(self, logs: list[LogId], choose: random.Random) -> None:
        self.logs = logs
        self.choose = choose
        self.attempts: list[Attempt] = []
        self.answered: dict[int, BatchCommitted] = {}
        self.writers: list[Writer] = []
        self.written: dict[TxId, int] = {}
        """Records, as their writer knows; a transaction that was aborted has none of them any more."""
        self.numbers = itertools.count(1)
        self.run = "run-0"

    async def live(self, steps: int) -> None:
        world = World([MemoryGroupJournal()], MemoryParticipants(set(self.logs)), CountingIds())
        async with trio.open_nursery() as self.nursery:
            await self.begin(world, tail_kept=True)
            deeds = {
                self.join: 8, self.write: 10, self.commit: 5, self.commit_badly: 2, self.commit_again: 2,
                self.zombie: 4, self.abort: 1, self.new_run: 1, self.wait: 1, self.snapshot: 1, self.crash: 2,
            }  # fmt: skip
            for deed in self.choose.choices(list(deeds), list(deeds.values()), k=steps):
                await deed()
                self.check()
            self.world.life.cancel()

    async def begin(self, world: World, *, tail_kept: bool, camera: Camera | None = None) -> None:
        self.world = world
        world.settings = CoordinatorSettings(check_interval_ms=1_000)
        world.start()
        known = (set(camera.prepared), set(camera.visible)) if camera is not None else ()
        self.camera = Camera(world, [], *known)
        await world.coordinator.recover(tail_kept=tail_kept)
        await self.nursery.start(world.run)

    def check(self) -> None:
        """Of each batch one attempt is published, whole and as it was told, or nothing; what was answered is."""
        there = published(self.world)
        assert len(there) == len(self.world.participants.placings)
        assert there <= {txid for attempt in self.attempts for txid in attempt.named}, "nobody has named it"
        for batch in {attempt.batch for attempt in self.attempts}:
            attempts = [attempt for attempt in self.attempts if attempt.batch == batch]
            of_batch = there & {txid for attempt in attempts for txid in attempt.named}
            held = {txid: sum(self.world.participants.held[txid].values()) for txid in of_batch}
            assert not held or held in [it.named for it in attempts], f"batch {batch} in part, twice, or not as told"
            is_nothing_told = any(not attempt.named for attempt in attempts)
            assert of_batch or batch not in self.answered or is_nothing_told, f"batch {batch} is lost"

    @property
    def batch(self) -> int:
        described = self.world.coordinator.sinks()
        return 0 if not described or described[0].batch is None else described[0].batch + 1

    def open_writers(self) -> list[Writer]:
        """Those whose lanes are open, of this run and the next batch."""
        described = self.world.coordinator.sinks()
        names = described[0].open_lanes if described else ()
        mine = (self.run, self.batch)
        return [it for it in self.writers if it.name in names and (it.lane.run, it.lane.batch) == mine]

    async def join(self) -> None:
        number = next(self.numbers)
        it = lane(self.choose.randint(-1, 3), number, batch=self.batch, run=self.run)
        joined = await self.world.coordinator.join_batch(it)
        if isinstance(joined, LaneGranted):
            granted = await self.world.init(connection=number, name=joined.transactional_id)
            assert isinstance(granted, Granted)
            self.writers.append(Writer(self.world, it, joined.transactional_id, granted, number))

    async def write(self) -> None:
        if writers := self.open_writers():
            await self.write_as(self.choose.choice(writers))

    async def write_as(self, writer: Writer) -> None:
        """As whoever the writer is by now."""
        log = self.choose.choice(self.logs)
        if await writer.add(log) == {log: None}:
            txid = writer.open_txid
            self.written[txid] = self.written.get(txid, 0) + self.world.produce(log, 1, name=writer.name)

    def winners(self) -> tuple[list[tuple[int, int, int]], Attempt]:
        """One writer of each partition, with what it has written."""
        by_partition = {it.lane.partition: it for it in self.open_writers()}
        counts = {writer.open_txid: self.written.get(writer.open_txid, 0) for writer in by_partition.values()}
        told = [(it.lane.partition, it.lane.attempt, counts[it.open_txid]) for it in by_partition.values()]
        return told, Attempt(self.batch, {txid: count for txid, count in counts.items() if txid is not None})

    async def commit(self) -> None:
        winners, attempt = self.winners()
        self.attempts.append(attempt)
        batch = attempt.batch
        answer = await self.world.coordinator.commit_batch(commit(*winners, batch=batch, run=self.run))
        if isinstance(answer, BatchCommitted):
            self.answered[batch] = answer

    async def commit_badly(self) -> None:
        """Another count, an unknown lane; or the driver hangs up in the middle."""
        winners, attempt = self.winners()
        if self.choose.random() < 0.5 and attempt.named:
            winners[0] = (*winners[0][:2], winners[0][2] + self.choose.choice([1, 2]))
            answer = await self.world.coordinator.commit_batch(commit(*winners, batch=attempt.batch, run=self.run))
            assert isinstance(answer, SinkRefused)
            return
        self.attempts.append(attempt)
        self.world.journal.flush_s = 2.0
        with trio.move_on_after(self.choose.choice([0, 1])):
            await self.world.coordinator.commit_batch(commit(*winners, batch=attempt.batch, run=self.run))
        self.world.journal.flush_s = 0.0
        await trio.testing.wait_all_tasks_blocked()

    async def commit_again(self) -> None:
        """A repetition by a driver that does not know: the same places are told; an older batch is refused."""
        if self.answered:
            batch, told = self.choose.choice(list(self.answered.items()))
            answer = await self.world.coordinator.commit_batch(commit((0, 1, 1), batch=batch, run=self.run))
            if batch < self.batch - 1:
                refused(answer, SinkRefusal.SET_BACK)
            else:
                assert answer == replace(told, already=True)

    async def zombie(self) -> None:
        """Somebody whose lane may have ended writes on, or ends, or asks for the id again."""
        if not self.writers:
            return
        writer = self.choose.choice(self.writers)
        writer.world = self.world
        match self.choose.choice(["write", "commit", "abort", "init"]):
            case "write":
                if self.world.coordinator.describe(writer.name) is not None:
                    await self.write_as(writer)
            case "commit":
                assert isinstance(await writer.end(commit=True), Refusal)
            case "abort":
                await writer.end(commit=False)
            case _:
                answer = await self.world.init(connection=next(self.numbers), name=writer.name)
                assert isinstance(answer, Refusal), "granted twice"

    async def abort(self) -> None:
        await self.world.coordinator.abort_batch("s", "q", self.run, self.batch)

    async def new_run(self) -> None:
        self.run = f"run-{next(self.numbers)}"

    async def wait(self) -> None:
        await trio.sleep(self.choose.choice([1, 70]))

    async def snapshot(self) -> None:
        self.world.journal.bytes_since_snapshot = 10**9
        await trio.sleep(1.5)

    async def crash(self) -> None:
        """Behind anything that can be seen of a commit, or when nothing is going on."""
        self.camera.images.clear()
        answered = dict(self.answered)
        if self.choose.random() < 0.8:
            await self.commit()
        self.camera.shoot("at rest")
        image = self.choose.choice(self.camera.images)
        if not image.what.startswith("at rest"):
            self.answered = answered
        self.world.life.cancel()
        await self.begin(image.world, tail_kept="power lost: False" in image.what, camera=self.camera)
        await self.new_run()


@given(seed=st.integers(0, 2**32))
@settings(max_examples=40, deadline=None)
def test_sink_publishes_each_batch_once_and_whole_whatever_comes(seed: int) -> None:
    """Zombies, wrong counts, drivers that hang up, crashes, snapshots, time-outs, in any order."""
    logs = [LogId("t", "ab" * 16, partition) for partition in range(3)]
    trio.run(Life(logs, random.Random(seed)).live, 60, clock=trio.testing.MockClock(autojump_threshold=0))
