"""One shard of two is killed and starts again, while the other one lives on. The way between them loses and doubles."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import trio

from coordinator.answers import Refusal
from coordinator.messages import Begin
from fairlog_types import CorruptStorage, ProducerEpoch, ProducerId, ShardNumber, StorageFailure
from journal import failpoints
from partition.answers import Appended, RefusedAppend
from partition.modes import MARKERS
from shard.commands import SaidAll
from shard.conversation import Command, Message, Reply
from shard.directory import shard_directory
from shard.links import REPEAT_AFTER_S, Asked, Links
from tests.shard.neighbours import COUNT, Cluster, Writer, open_cluster
from tests.shard.test_neighbours import BOTH, NOTHING, OTHER, OWN, visible_everywhere

COORDINATOR, PARTICIPANT = range(COUNT)

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("killed", [COORDINATOR, PARTICIPANT])
@pytest.mark.parametrize("seed", range(3))
async def test_open_transaction_goes_on_when_one_shard_is_killed(tmp_path: Path, killed: int, seed: int) -> None:
    """Nothing of it is missing: its client writes on in both, and commits."""
    async with open_cluster(tmp_path / "run", seed=seed) as cluster:
        writer = await cluster.writer("t")
        await writer.write(BOTH)
        await restart(cluster, killed)
        await writer.write({log: [b"more"] for log in BOTH})
        assert await writer.end() is None
        await visible_everywhere(cluster, writer)
        assert await cluster.values(OWN, OTHER) == {log: [*values, b"more"] for log, values in BOTH.items()}


@pytest.mark.parametrize("killed", [[PARTICIPANT], [PARTICIPANT, PARTICIPANT], [PARTICIPANT, COORDINATOR]])
async def test_log_that_was_added_and_not_written_to_goes_on_over_restarts(tmp_path: Path, killed: list[int]) -> None:
    """Regression: of a shard that was killed then, it could not be told from one that has lost all, so it was refused.

    What is first written after a restart is prepared, too, also after a kill behind it.
    """
    async with open_cluster(tmp_path / "run") as cluster:
        writer = await cluster.writer("t")
        await writer.write({OWN: [], OTHER: []})
        for each in killed:
            await restart(cluster, each)
        await writer.write(BOTH)
        await restart(cluster, PARTICIPANT)
        await writer.write(BOTH)
        assert await writer.end() is None
        await visible_everywhere(cluster, writer)
        assert await cluster.values(OWN, OTHER) == {log: [*values, *values] for log, values in BOTH.items()}


async def restart(cluster: Cluster, killed: int) -> None:
    left = cluster.kill(killed)
    with trio.fail_after(10):
        await cluster.start_again(killed, left)


async def in_doubt(cluster: Cluster, nursery: trio.Nursery, answered: trio.Event | None = None) -> Writer:
    """A commit whose PREPARE_COMMIT is not on disk yet, and which the other shard has prepared."""
    writer = await cluster.writer("t")
    await writer.write(BOTH)
    cluster.disks[ShardNumber(COORDINATOR)].hold("group")

    async def end() -> None:
        answer = await writer.end()
        if answered is not None:
            assert answer is None
            answered.set()

    nursery.start_soon(end)
    await until_prepared(cluster, writer)
    return writer


async def until_prepared(cluster: Cluster, writer: Writer) -> None:
    state = cluster.shards[ShardNumber(PARTICIPANT)].partitions.by_log[OTHER].state
    with trio.fail_after(10):
        while True:
            if any(it.prepared_for == writer.shard for it in state.open_transactions.values()):
                return
            await trio.sleep(0.01)


async def test_prepared_transaction_outlives_its_shard_and_is_decided_by_its_coordinator(tmp_path: Path) -> None:
    """The participant alone neither aborts nor commits it; it is visible in both once the coordinator has decided."""
    async with open_cluster(tmp_path / "run") as cluster, trio.open_nursery() as nursery:
        answered = trio.Event()
        writer = await in_doubt(cluster, nursery, answered)
        await restart(cluster, PARTICIPANT)
        await until_prepared(cluster, writer)
        assert await cluster.values(OWN, OTHER) == NOTHING
        cluster.disks[ShardNumber(COORDINATOR)].let_go()
        with trio.fail_after(10):
            await answered.wait()
        await visible_everywhere(cluster, writer)
        assert await cluster.values(OWN, OTHER) == BOTH


async def test_shard_with_something_prepared_waits_for_its_coordinator(tmp_path: Path) -> None:
    """While that one is down the start does not end; it ends when the coordinator has come back and decided."""
    async with open_cluster(tmp_path / "run") as cluster, trio.open_nursery() as nursery:
        writer = await in_doubt(cluster, nursery)
        coordinator, participant = cluster.kill(COORDINATOR), cluster.kill(PARTICIPANT)
        await cluster.reopen(PARTICIPANT, participant)
        recovered = trio.Event()

        async def recover() -> None:
            await cluster.recover(ShardNumber(PARTICIPANT))
            recovered.set()

        async with trio.open_nursery() as recovering:
            recovering.start_soon(recover)
            await trio.sleep(1)
            assert not recovered.is_set()
            with trio.fail_after(10):
                await cluster.start_again(COORDINATOR, coordinator)
                await recovered.wait()
        await visible_everywhere(cluster, writer)
        assert await cluster.values(OWN, OTHER) == BOTH


async def test_coordinator_killed_in_doubt_commits_at_both(tmp_path: Path) -> None:
    """PREPARE_COMMIT is there, and so is PREPARED: its next start decides, and tells the shard that lived on."""
    async with open_cluster(tmp_path / "run") as cluster, trio.open_nursery() as nursery:
        writer = await in_doubt(cluster, nursery)
        await restart(cluster, COORDINATOR)
        await visible_everywhere(cluster, writer)
        assert await cluster.values(OWN, OTHER) == BOTH


async def test_abort_whose_word_was_lost_reaches_the_other_shard_after_the_restart(tmp_path: Path) -> None:
    """The coordinator has written ABORTED and was killed: without this the journal would be pinned for ever."""
    async with open_cluster(tmp_path / "run") as cluster:
        writer = await cluster.writer("t")
        await writer.write(BOTH)
        cluster.way.cut.add((ShardNumber(COORDINATOR), ShardNumber(PARTICIPANT)))
        assert await writer.end(commit=False) is None
        left = cluster.kill(COORDINATOR)
        cluster.way.cut.clear()
        state = cluster.shards[ShardNumber(PARTICIPANT)].partitions.by_log[OTHER].state
        assert state.open_transactions
        with trio.fail_after(10):
            await cluster.start_again(COORDINATOR, left)
            while state.open_transactions:  # noqa: ASYNC110
                await trio.sleep(0.01)
        assert await cluster.values(OWN, OTHER) == NOTHING


async def test_abort_that_is_said_again_after_the_restart_is_no_fault_of_the_shard_that_lived_on(
    tmp_path: Path,
) -> None:
    """The coordinator was killed between PREPARE_ABORT and ABORTED: it says the abort again, and then what goes on."""
    async with open_cluster(tmp_path / "run") as cluster:
        writer = await cluster.writer("t")
        await writer.write(BOTH)
        failpoints.arm({"FAIRLOG_FAILPOINT": "group.prepare_abort.appended:fail:1"})
        try:
            assert await writer.end(commit=False) is Refusal.STORAGE
        finally:
            failpoints.arm({})
        await restart(cluster, COORDINATOR)
        state = cluster.shards[ShardNumber(PARTICIPANT)].partitions.by_log[OTHER].state
        with trio.fail_after(10):
            while state.open_transactions:  # noqa: ASYNC110
                await trio.sleep(0.01)
        again = await cluster.writer("t")
        await again.write(BOTH)
        assert await again.end() is None
        await visible_everywhere(cluster, again)
        assert await cluster.values(OWN, OTHER) == BOTH


async def test_transaction_that_began_while_its_shard_restarted_is_not_aborted(tmp_path: Path) -> None:
    """Its BEGIN was under way, so the coordinator could not name it among what is undecided."""
    async with open_cluster(tmp_path / "run") as cluster, trio.open_nursery() as nursery:
        writer = await cluster.writer("t")
        left = cluster.kill(PARTICIPANT)
        nursery.start_soon(writer.write, BOTH)
        await trio.sleep(0.6)
        with trio.fail_after(10):
            await cluster.start_again(PARTICIPANT, left)
            while len(writer.sequences) < len(BOTH):  # noqa: ASYNC110
                await trio.sleep(0.01)
        assert await writer.end() is None
        await visible_everywhere(cluster, writer)
        assert await cluster.values(OWN, OTHER) == BOTH


async def test_shard_that_has_lost_its_tail_refuses_what_was_open(tmp_path: Path) -> None:
    """Some of its records may be gone, and nothing would show it; the next transaction is not touched."""
    async with open_cluster(tmp_path / "run") as cluster:
        writer = await cluster.writer("t")
        await writer.write({OTHER: [b"kept"]})
        older = tmp_path / "older"
        shutil.copytree(shard_directory(tmp_path / "run", ShardNumber(PARTICIPANT)).path, older)
        await writer.write({OWN: [b"own"], OTHER: [b"lost"]})
        left = cluster.kill(PARTICIPANT)
        there = shard_directory(left, ShardNumber(PARTICIPANT))
        journal = there.local_journal(OTHER)
        shutil.rmtree(journal)
        shutil.copytree(older / journal.relative_to(there.path), journal)
        with trio.fail_after(10):
            await cluster.start_again(PARTICIPANT, left, tail_kept=False)
        assert await writer.append(OTHER, b"more") is RefusedAppend.NOT_IN_TRANSACTION
        assert await writer.end() is Refusal.MUST_ABORT
        again = await cluster.writer("t")
        await again.write({log: [b"next"] for log in BOTH})
        assert await again.end() is None
        await visible_everywhere(cluster, again)
        assert await cluster.values(OWN, OTHER) == {OWN: [b"next"], OTHER: [b"next"]}


async def test_coordinator_that_has_lost_its_tail_aborts_what_was_open_in_the_other_shard(tmp_path: Path) -> None:
    """Regression, of seed a.31: it says so before it says what it goes on with, and the other shard broke on that."""
    async with open_cluster(tmp_path / "run") as cluster:
        writer = await cluster.writer("t")
        await writer.write(BOTH)
        left = cluster.kill(COORDINATOR)
        state = cluster.shards[ShardNumber(PARTICIPANT)].partitions.by_log[OTHER].state
        with trio.fail_after(10):
            await cluster.start_again(COORDINATOR, left, tail_kept=False)
            while state.open_transactions:  # noqa: ASYNC110
                await trio.sleep(0.01)
        again = await cluster.writer("t")
        await again.write(BOTH)
        assert await again.end() is None
        await visible_everywhere(cluster, again)
        assert await cluster.values(OWN, OTHER) == BOTH


async def test_transaction_that_begins_again_before_its_coordinator_has_said_all_goes_on(tmp_path: Path) -> None:
    """Regression, of seed b.8: its first BEGIN was under way when its coordinator was killed.

    The next start gives the same number, and says so before it says what goes on, where the transaction is not named.
    """
    async with open_cluster(tmp_path / "run") as cluster, trio.open_nursery() as nursery:
        writer = await cluster.writer("t")
        it = writer.granted
        cluster.way.cut.add((ShardNumber(PARTICIPANT), ShardNumber(COORDINATOR)))
        nursery.start_soon(cluster.coordinator(0).add_logs, "t", it.producer_id, it.epoch, [OTHER], 1)
        state = cluster.shards[ShardNumber(PARTICIPANT)].partitions.by_log[OTHER].state
        with trio.fail_after(10):
            while not state.open_transactions:  # noqa: ASYNC110
                await trio.sleep(0.01)
            await cluster.start_again(COORDINATOR, cluster.kill(COORDINATOR))
            nursery.start_soon(writer.write, {OTHER: [b"other"]})
            await trio.sleep(0.1)
            cluster.way.cut.clear()
            while len(writer.sequences) < 1:  # noqa: ASYNC110
                await trio.sleep(0.01)
        await trio.sleep(1.5)
        assert await writer.end() is None
        await visible_everywhere(cluster, writer)
        assert await cluster.values(OTHER) == {OTHER: [b"other"]}


async def test_answered_commit_waits_for_a_shard_whose_disk_has_failed(tmp_path: Path) -> None:
    """Regression, of seed c.78: a coordinator that started again took the refusal for a loss, and aborted it."""
    async with open_cluster(tmp_path / "run", copying=False) as cluster, trio.open_nursery() as nursery:
        writer = await cluster.writer("t")
        await writer.write(BOTH)
        assert await writer.end() is None  # COMMITTED is not written, as nothing is copied
        cluster.shards[ShardNumber(PARTICIPANT)].partitions.fail(StorageFailure("the disk has failed"))
        cluster.copying = True
        nursery.start_soon(cluster.start_again, COORDINATOR, cluster.kill(COORDINATOR))
        await trio.sleep(0.5)
        with trio.fail_after(10):
            await cluster.start_again(PARTICIPANT, cluster.kill(PARTICIPANT))
        await visible_everywhere(cluster, writer)
        assert await cluster.values(OWN, OTHER) == BOTH


async def test_abort_right_behind_prepare_leaves_nothing_prepared(tmp_path: Path) -> None:
    """Both come in one step, as on a new connection: *prepare* must not begin anew what the abort has ended."""
    async with open_cluster(tmp_path / "run") as cluster:
        cluster.way.lost = 0
        writer = await cluster.writer("t")
        await writer.write({OTHER: [b"other"]})
        await trio.sleep(2 * REPEAT_AFTER_S)  # what was lost before has been said again
        cluster.way.cut.add((ShardNumber(COORDINATOR), ShardNumber(PARTICIPANT)))
        cluster.way.carried.clear()
        cluster.shards[ShardNumber(COORDINATOR)].partitions.fail(StorageFailure("the disk has failed"))
        assert await writer.end() is Refusal.MUST_ABORT
        said = {it.number: it for _, to, it in cluster.way.carried if to == PARTICIPANT and isinstance(it, Command)}
        assert len(said) == 2
        for number in sorted(said):
            cluster.shards[ShardNumber(PARTICIPANT)].receive(ShardNumber(COORDINATOR), said[number])
        with trio.fail_after(10):
            while not said.keys() <= {it.number for *_, it in cluster.way.carried if isinstance(it, Reply)}:  # noqa: ASYNC110
                await trio.sleep(0.01)
        state = cluster.shards[ShardNumber(PARTICIPANT)].partitions.by_log[OTHER].state
        assert not state.in_doubt
        assert not state.open_transactions


async def test_answered_commit_survives_that_the_other_shard_has_forgotten_its_producer(tmp_path: Path) -> None:
    """It is applied there, and a third shard, say, was away for so long that the producer has expired since."""
    async with open_cluster(tmp_path / "run", copying=False) as cluster:
        writer = await cluster.writer("t")
        await writer.write(BOTH)
        assert await writer.end() is None  # COMMITTED is not written, as nothing is copied
        other = cluster.running[ShardNumber(PARTICIPANT)]
        partition = other.shard.partitions.by_log[OTHER]
        with trio.fail_after(10):
            while partition.state.open_transactions:  # noqa: ASYNC110
                await trio.sleep(0.01)
        partition.forget_producers(unused_since_ms=2_000_000)
        assert not partition.state.windows
        other.nursery.start_soon(other.shard.partitions.run)
        cluster.copying = True
        await restart(cluster, COORDINATOR)
        await visible_everywhere(cluster, writer)
        assert await writer.end() is None, "asked again"
        assert await cluster.values(OWN, OTHER) == BOTH


async def test_start_without_the_journal_of_another_shards_log_is_refused(tmp_path: Path) -> None:
    """As within a shard: nothing else tells that what the answered commit has there is missing."""
    async with open_cluster(tmp_path / "run") as cluster, trio.open_nursery() as nursery:
        await in_doubt(cluster, nursery)
        coordinator, participant = cluster.kill(COORDINATOR), cluster.kill(PARTICIPANT)
        shutil.rmtree(shard_directory(participant, ShardNumber(PARTICIPANT)).local_journal(OTHER))
        await cluster.start_again(PARTICIPANT, participant)
        with trio.fail_after(10), pytest.raises(CorruptStorage, match="is missing"):
            await cluster.start_again(COORDINATOR, coordinator)


async def test_transaction_whose_only_topic_was_deleted_before_a_restart_is_committed_empty(tmp_path: Path) -> None:
    """Nothing is left of it in any shard; its client knows nothing of that."""
    async with open_cluster(tmp_path / "run") as cluster:
        writer = await cluster.writer("t")
        await writer.write({OTHER: [b"other"]})
        await cluster.shards[ShardNumber(PARTICIPANT)].drop([OTHER])
        await restart(cluster, COORDINATOR)
        assert await writer.end() is None
        await visible_everywhere(cluster, writer)


async def test_log_that_was_being_added_when_the_coordinator_was_killed_takes_part(tmp_path: Path) -> None:
    """Its shard lives on, and has taken records: without being named it would stay open for ever, and lack them."""
    async with open_cluster(tmp_path / "run") as cluster, trio.open_nursery() as nursery:
        writer = await cluster.writer("t")
        await writer.write({OWN: [b"own"]})
        it = writer.granted
        cluster.way.cut.add((ShardNumber(PARTICIPANT), ShardNumber(COORDINATOR)))
        nursery.start_soon(cluster.coordinator(0).add_logs, "t", it.producer_id, it.epoch, [OTHER], 1)
        state = cluster.shards[ShardNumber(PARTICIPANT)].partitions.by_log[OTHER].state
        with trio.fail_after(10):
            while not state.open_transactions:  # noqa: ASYNC110
                await trio.sleep(0.01)
        assert isinstance(await writer.append(OTHER, b"other"), Appended)
        left = cluster.kill(COORDINATOR)
        cluster.way.cut.clear()
        with trio.fail_after(10):
            await cluster.start_again(COORDINATOR, left)
        assert await writer.end() is None
        await visible_everywhere(cluster, writer)
        assert not state.open_transactions
        assert await cluster.values(OWN, OTHER) == BOTH


async def test_loss_that_the_coordinator_has_not_heard_of_is_known_after_the_next_good_start(tmp_path: Path) -> None:
    """Regression, of seed review2.3: the shard starts twice, and only the first time its tail was lost."""
    async with open_cluster(tmp_path / "run") as cluster:
        writer = await cluster.writer("t")
        older = tmp_path / "older"
        await writer.write({OTHER: [b"kept"]})
        assert await writer.end() is None
        await visible_everywhere(cluster, writer)
        shutil.copytree(shard_directory(tmp_path / "run", ShardNumber(PARTICIPANT)).path, older)
        await writer.write({OWN: [b"own"], OTHER: [b"lost"]})
        left = cluster.kill(PARTICIPANT)
        there = shard_directory(left, ShardNumber(PARTICIPANT))
        journal = there.local_journal(OTHER)
        shutil.rmtree(journal)
        shutil.copytree(older / journal.relative_to(there.path), journal)
        cluster.way.cut.add((ShardNumber(PARTICIPANT), ShardNumber(COORDINATOR)))
        with trio.fail_after(10):
            await cluster.start_again(PARTICIPANT, left, tail_kept=False)
        again = cluster.kill(PARTICIPANT)
        cluster.way.cut.clear()
        with trio.fail_after(10):
            await cluster.start_again(PARTICIPANT, again)
        assert await writer.end() is Refusal.MUST_ABORT
        assert await cluster.values(OWN, OTHER) == {OWN: [], OTHER: [b"kept"]}


async def test_shard_waits_for_no_more_coordinators_once_what_is_open_was_named(tmp_path: Path) -> None:
    """Whose the transaction is, nobody here knows before; then the third shard, which is down, does not matter."""
    async with open_cluster(tmp_path / "run") as cluster:
        writer = await cluster.writer("t")
        await writer.write({OTHER: [b"other"]})
        left = cluster.kill(PARTICIPANT)
        await cluster.reopen(PARTICIPANT, left)
        participant = cluster.running[ShardNumber(PARTICIPANT)].shard._participant
        with trio.fail_after(10):
            await cluster.running[ShardNumber(PARTICIPANT)].shard.coordinator.recover(tail_kept=True)
            await participant.hear_coordinators([ShardNumber(COORDINATOR), ShardNumber(2)])


async def test_transaction_that_begins_again_and_is_committed_while_its_shard_recovers_keeps_its_records(
    tmp_path: Path,
) -> None:
    """The log had batches of it before the kill, though its coordinator had not heard yet that it had begun there."""
    async with open_cluster(tmp_path / "run") as cluster, trio.open_nursery() as nursery:
        cluster.way.keep_order()
        writer, it = await cluster.writer("t"), cluster.shards[ShardNumber(PARTICIPANT)]
        await it.hear(ShardNumber(COORDINATOR))
        cluster.way.cut.add((ShardNumber(PARTICIPANT), ShardNumber(COORDINATOR)))
        nursery.start_soon(writer.write, {OTHER: []})
        with trio.fail_after(10):
            while it.partitions.open_transaction_of(writer.granted.producer_id) is None:  # noqa: ASYNC110
                await trio.sleep(0.001)
        assert isinstance(await writer.append(OTHER, b"v"), Appended)
        left = cluster.kill(PARTICIPANT)
        cluster.way.cut.clear()
        await cluster.reopen(PARTICIPANT, left)
        ended: list[object] = []

        async def end() -> None:
            ended.append(await writer.end())

        nursery.start_soon(end)
        with trio.fail_after(10):
            while not ended:  # noqa: ASYNC110
                await trio.sleep(0.001)
        assert ended == [None]
        await cluster.recover(ShardNumber(PARTICIPANT))
        await visible_everywhere(cluster, writer)
        assert await cluster.values(OTHER) == {OTHER: [b"v"]}


@pytest.mark.parametrize("moment", ["begin", "commit"])
async def test_stop_of_a_coordinator_that_waits_for_another_shard_leaves_it_to_the_next_start(
    tmp_path: Path, moment: str
) -> None:
    """Its process hangs, for example. Nothing is aborted, no disk has failed, and the client's next try is answered."""
    async with open_cluster(tmp_path / "run") as cluster, trio.open_nursery() as nursery:
        cluster.way.keep_order()
        writer, shard = await cluster.writer("t"), cluster.shards[ShardNumber(COORDINATOR)]
        await writer.write({OWN: [b"own"]} if moment == "begin" else {OWN: [b"own"], OTHER: [b"other"]})
        cluster.way.cut.add((ShardNumber(PARTICIPANT), ShardNumber(COORDINATOR)))

        async def stop() -> None:
            await trio.sleep(0.2)
            shard.close_links()

        nursery.start_soon(stop)
        it = writer.granted
        if moment == "begin":
            asked = shard.coordinator.add_logs(writer.name, it.producer_id, it.epoch, [OTHER], 1)
            assert await asked is Refusal.STOPPING
        else:
            assert await writer.end() is Refusal.STOPPING
        nobody = ProducerId(-1), ProducerEpoch(-1)
        assert await shard.coordinator.init_producer_id("another", 60_000, *nobody, connection=1) is Refusal.STOPPING
        assert shard.failure is None
        left = cluster.kill(COORDINATOR)
        cluster.way.cut.clear()
        await cluster.start_again(COORDINATOR, left)
        if moment == "begin":
            await writer.write({OTHER: [b"other"]})
        assert await writer.end() is None
        await visible_everywhere(cluster, writer)
        assert await cluster.values(OWN, OTHER) == {OWN: [b"own"], OTHER: [b"other"]}


async def test_next_transaction_in_marker_mode_ends_one_that_its_coordinator_has_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Regression, of seed s.79: what it wrote stood before the abort marker of the lost one, which then ended it.

    The coordinator loses its power before it hears that the first one has begun; it begins the next one before it can
    say what goes on.
    """
    async with open_cluster(tmp_path / "run", mode=MARKERS) as cluster, trio.open_nursery() as nursery:
        way, state = cluster.way, cluster.shards[ShardNumber(PARTICIPANT)].partitions.by_log[OTHER].state
        lost = (await cluster.writer("t")).granted
        way.cut.add((ShardNumber(PARTICIPANT), ShardNumber(COORDINATOR)))

        async def begin() -> None:
            answer = await cluster.coordinator(COORDINATOR).add_logs("t", lost.producer_id, lost.epoch, [OTHER], 1)
            assert answer is Refusal.STOPPING

        nursery.start_soon(begin)
        with trio.fail_after(10):
            while not state.open_transactions:  # noqa: ASYNC110
                await trio.sleep(0.01)
        left = cluster.kill(COORDINATOR)
        await cluster.start_again(COORDINATOR, left, tail_kept=False)
        writer = await cluster.writer("t")
        written = trio.Event()

        async def write() -> None:
            await writer.write({OTHER: [b"next"]})
            written.set()

        asks, asked = Links.ask, trio.Event()

        def ask(links: Links, shard: ShardNumber, body: object) -> Asked:
            if isinstance(body, Begin):
                asked.set()
            return asks(links, shard, body)

        monkeypatch.setattr(Links, "ask", ask)
        nursery.start_soon(write)
        with trio.fail_after(10):
            await asked.wait()
        carry, held_back_until_s = way.carry, trio.current_time() + 2  # who writes may have to wait for it

        def carry_without_said_all(sender: ShardNumber, to: ShardNumber, message: Message) -> None:
            is_said_all = isinstance(message, Command) and isinstance(message.body, SaidAll)
            if written.is_set() or not is_said_all or trio.current_time() > held_back_until_s:
                carry(sender, to, message)

        monkeypatch.setattr(way, "carry", carry_without_said_all)
        way.cut.clear()
        with trio.fail_after(10):
            await written.wait()
        assert await writer.end() is None
        await visible_everywhere(cluster, writer)
        assert await cluster.committed(OTHER) == [b"next"]
