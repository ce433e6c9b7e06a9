from __future__ import annotations

import pytest
import trio
import trio.testing
from structlog.testing import capture_logs

from coordinator.answers import Refusal
from coordinator.group_records import BeginRecord, PrepareAbortRecord
from coordinator.lane_ids import lane_id
from coordinator.messages import Prepare
from coordinator.replay import snapshot_records
from coordinator.settings import CoordinatorSettings
from coordinator.sinks.messages import Lane, LaneGranted
from fairlog_types import LeaderEpoch, StorageFailure
from tests.coordinator.transactions import settle, txid

# ------------------------------------------------------------------------------------------------- time


async def test_open_transaction_that_times_out_is_aborted_and_its_producer_fenced(running, logs, autojump_clock):
    """A hung transaction ends at the next check behind its time-out, also one without any record."""
    granted = await running.init(timeout_ms=15_000)
    await running.add(granted, logs[0])
    await trio.sleep(14)
    assert running.coordinator.describe("t").state == "OPEN"
    await trio.sleep(11)
    assert running.coordinator.describe("t").state == "EMPTY"
    assert running.participants.discarded == [txid(0)]
    assert await running.end(granted) is Refusal.FENCED
    assert await running.init(connection=2, known=(granted.producer_id, granted.epoch)) is Refusal.FENCED
    assert (await running.init(connection=2)).epoch == 2


@pytest.mark.parametrize("step_ms", [10**12, -(10**12)])
async def test_jump_of_the_wall_clock_neither_ends_nor_prolongs_anything(world, logs, nursery, step_ms, autojump_clock):
    """Both are durations: a clock that is set forward aborts nothing, one that is set back keeps nothing."""
    world.settings = CoordinatorSettings(transactional_id_expiration_ms=1_000_000)
    world.start()
    await nursery.start(world.run)
    granted, _ = await world.init(timeout_ms=60_000), await world.init(name="idle", connection=2)
    await world.add(granted, logs[0])
    world.clock_step_ms = step_ms
    await trio.sleep(45)
    assert world.coordinator.describe("t").state == "OPEN"
    assert world.coordinator.describe("idle") is not None
    await trio.sleep(30)
    assert world.coordinator.describe("t").state == "EMPTY"
    await trio.sleep(1_000)
    assert world.coordinator.describe_all() == []


@pytest.mark.parametrize(
    ("away_ms", "left_s"), [(500_000, 500), (-(10**12), 1_000), (10**12, 100)], ids=["away", "set back", "set forward"]
)
async def test_idle_time_before_a_restart_counts_but_leaves_a_living_client_time(
    running, logs, nursery, away_ms, left_s, autojump_clock
):
    """Across runs there is only the wall clock; if that was wrong, no id expires at once."""
    await running.init()
    after = running.restarted()
    after.settings = CoordinatorSettings(
        check_interval_ms=1_000, max_timeout_ms=100_000, transactional_id_expiration_ms=1_000_000
    )
    after.clock_step_ms = away_ms
    after.start()
    await after.coordinator.recover(tail_kept=True)
    await nursery.start(after.run)
    await trio.sleep(left_s - 2)
    assert after.coordinator.describe("t") is not None
    await trio.sleep(4)
    assert after.coordinator.describe("t") is None


async def test_timeout_without_fence_tells_the_producer_to_abort(world, logs, nursery, autojump_clock):
    """With fence_on_timeout off the producer may go on after it has aborted."""
    world.settings = CoordinatorSettings(fence_on_timeout=False)
    world.start()
    nursery.start_soon(world.run)
    granted = await world.init(timeout_ms=1_000)
    await world.add(granted, logs[0])
    await trio.sleep(30)
    assert await world.end(granted) is Refusal.MUST_ABORT
    assert await world.end(granted, commit=False) is None
    assert await world.transaction(granted, logs[0]) is None


async def test_operator_aborts_an_open_transaction(running, logs, autojump_clock):
    """`abort_open` acts like the time-out, and is content if nothing is open."""
    granted = await running.init()
    assert await running.coordinator.abort_open("t") is None
    await running.add(granted, logs[0])
    assert await running.coordinator.abort_open("t") is None
    assert await running.end(granted) is Refusal.FENCED


async def test_idle_id_expires_in_memory_and_on_disk(world, logs, nursery, autojump_clock):
    """An id without requests for the expiration time is forgotten; its name starts with another producer id."""
    world.settings = CoordinatorSettings(check_interval_ms=100_000, transactional_id_expiration_ms=1_000_000)
    world.start()
    await nursery.start(world.run)
    granted = await world.init()
    await world.transaction(granted, logs[0])
    await trio.sleep(950)
    assert world.coordinator.describe("t") is not None
    await trio.sleep(200)
    assert world.coordinator.describe("t") is None
    assert world.coordinator.epoch_of(granted.producer_id) is None
    after = world.restarted()
    await after.coordinator.recover(tail_kept=True)
    assert after.coordinator.describe_all() == []
    assert (await world.init()).producer_id == granted.producer_id + 1


async def test_grown_journal_is_replaced_by_a_snapshot_that_recovers_the_same(running, logs, autojump_clock):
    """A snapshot stands for everything before it."""
    running.participants.copying = trio.Event()
    granted = await running.init()
    await running.transaction(granted, logs[0])
    await running.add(granted, logs[1])
    running.journal.bytes_since_snapshot = 5 * 2**20
    before = running.coordinator.describe_all()
    await trio.sleep(11)
    assert running.journal.snapshots == 1
    after = running.restarted()
    await after.coordinator.recover(tail_kept=True)
    assert after.coordinator.describe_all() == before
    assert before[0].being_copied == (txid(0),)
    assert before[0].txid == txid(1)


# ---------------------------------------------------------------------------------------------- restarts


async def restart(world, nursery, *, power_lost=False):
    after = world.restarted(power_lost=power_lost)
    await after.coordinator.recover(tail_kept=not power_lost)
    await nursery.start(after.run)
    return after


async def test_restart_after_a_kill_lets_an_idle_producer_go_on(running, logs, nursery, autojump_clock):
    """The journal is whole: what it does not say did not happen, so a fresh transaction may begin."""
    granted = await running.init()
    await running.transaction(granted, logs[0])
    await running.transaction(granted, logs[0], commit=False)
    await settle()
    after = await restart(running, nursery)
    assert await after.transaction(granted, logs[0]) is None


async def test_restart_that_lost_nothing_goes_on_with_what_was_open(running, logs, nursery, autojump_clock):
    """The same epoch adds, produces and commits on a new connection: what it wrote before the restart is in it."""
    granted = await running.init()
    await running.add(granted, logs[0])
    running.produce(logs[0], 3)
    after = await restart(running, nursery)
    assert after.participants.discarded == []
    assert await after.add(granted, logs[1], connection=0) == {logs[1]: None}
    assert after.produce(logs[1], 2)
    assert await after.end(granted, connection=0) is None
    (prepared,) = after.participants.prepared
    assert {log: it.records for log, it in prepared.expected.items()} == {logs[0]: 3, logs[1]: 2}
    again = await restart(after, nursery)
    assert await again.end(granted, connection=0) is None, "the repetition hears what the first one heard"


async def test_restart_in_the_midst_of_a_commit_takes_its_repetition(running, logs, nursery, autojump_clock):
    """EndTxn that came to nothing, since the node died before PREPARE_COMMIT, is carried out when it is said again."""
    granted = await running.init()
    await running.add(granted, logs[0])
    running.produce(logs[0])
    running.participants.prepare([Prepare(txid(0), {logs[0]: LeaderEpoch(1)})])
    after = await restart(running, nursery)
    assert after.produce(logs[0])
    assert await after.end(granted) is None
    await settle()
    assert after.participants.placings == [txid(0)]


async def test_restart_takes_in_a_log_that_was_being_added(running, logs, nursery, autojump_clock):
    """Its leader had begun and taken a batch, and BEGIN was not written yet: the batch is not left behind."""
    granted = await running.init()
    await running.add(granted, logs[0])
    running.participants.held[txid(0)][logs[1]] = 2
    after = await restart(running, nursery)
    twice = await restart(after, nursery)
    assert await twice.end(granted) is None
    assert twice.participants.prepared[-1].expected[logs[1]].records == 2


async def test_restart_aborts_what_was_open_where_a_leader_has_lost_it(running, logs, nursery, autojump_clock):
    """Something else than a crash has taken its journal: the rest must not be committed (invariant 5)."""
    granted = await running.init()
    await running.add(granted, logs[0], logs[1])
    running.produce(logs[0])
    del running.participants.held[txid(0)][logs[1]]
    after = await restart(running, nursery)
    assert after.participants.discarded == [txid(0)]
    assert await after.end(granted) is Refusal.MUST_ABORT
    again = await restart(after, nursery)
    assert await again.end(granted) is Refusal.MUST_ABORT


async def test_restart_aborts_what_was_open_also_in_a_log_that_was_being_added(running, logs, nursery, autojump_clock):
    """Its leader had begun, and BEGIN was not written yet: nobody else would ever end it there."""
    granted = await running.init()
    await running.add(granted, logs[0])
    running.participants.held[txid(0)] = {logs[1]: 2}
    after = await restart(running, nursery)
    assert after.participants.discarded == [txid(0)]
    assert after.participants.held[txid(0)] == {}


async def test_restart_after_power_loss_aborts_what_was_open_and_refuses_its_second_half(
    running, logs, nursery, autojump_clock
):
    """Invariant 5: the client must not commit the rest of a transaction whose beginning may be gone."""
    granted = await running.init()
    await running.add(granted, logs[0])
    running.produce(logs[0])
    after = await restart(running, nursery, power_lost=True)
    for _ in range(2):
        assert await after.add(granted, logs[1], connection=2) is Refusal.MUST_ABORT
        assert await after.end(granted, connection=2) is Refusal.MUST_ABORT
    assert await after.end(granted, commit=False, connection=2) is None
    assert await after.transaction(granted, logs[0], connection=2) is None


@pytest.mark.parametrize("down_s", [0, 30, 600])
async def test_restart_does_not_start_the_clock_of_an_open_transaction_anew(
    running, logs, nursery, down_s, autojump_clock
):
    """A transaction has one time-out from its beginning on, and the time while the node is down counts."""
    granted = await running.init(timeout_ms=60_000)
    await running.add(granted, logs[0])
    await trio.sleep(25)
    running.life.cancel()
    await trio.sleep(down_s)
    after = await restart(running, nursery)
    await trio.sleep(max(0, 60 - 25 - down_s - 1))
    assert after.coordinator.describe("t").state == "OPEN"
    await trio.sleep(15)
    assert after.participants.discarded == [txid(0)]
    assert await after.end(granted) is Refusal.FENCED


async def test_restart_aborts_the_open_transaction_of_a_lane(running, logs, nursery, autojump_clock):
    """Its sink has forgotten who writes to it: a task that lost its lane must not find it open."""
    name = lane_id("sink", 0)
    lane = await running.coordinator.join_batch(Lane("sink", "query", "run", 0, 0, 0))
    assert lane == LaneGranted(name)
    granted = await running.init(name=name)
    await running.add(granted, logs[0], name=name)
    after = await restart(running, nursery)
    assert after.coordinator.describe(name).state == "MUST_ABORT"
    assert [it.producer_id for it in after.participants.discarded] == [granted.producer_id]


@pytest.mark.parametrize("cut", [False, True], ids=["journal as written", "snapshot in between"])
async def test_restart_between_a_refused_beginning_and_its_abort_knows_what_is_meant(
    running, logs, nursery, cut, autojump_clock
):
    """Partitions asked for in vain leave a trace: the abort is of that transaction, not of the commit before."""
    granted = await running.init()
    await running.transaction(granted, logs[0])
    await settle()
    for _ in range(3):
        await running.add(granted)
    assert [type(record) for record in running.journal.records].count(BeginRecord) == 2
    if cut:
        slots = running.coordinator._table.entries
        await running.journal.snapshot(lambda: snapshot_records([slots["t"].producer]))
    after = await restart(running, nursery)
    assert await after.end(granted, commit=False, connection=2) is None
    assert await after.end(granted, commit=False, connection=3) is None
    assert after.participants.placings == [txid(0)]
    assert await after.transaction(granted, logs[0], connection=3) is None


async def test_aborted_by_the_coordinator_stays_aborted_until_the_client_says_so(world, logs, nursery, autojump_clock):
    """No request of the epoch begins anew, on whatever connection: its transaction would be the aborted one's rest."""
    world.settings = CoordinatorSettings(fence_on_timeout=False)
    world.start()
    nursery.start_soon(world.run)
    granted = await world.init(timeout_ms=1_000)
    await world.add(granted, logs[0])
    await trio.sleep(30)
    for connection in (1, 1, 2, 2):
        assert await world.add(granted, logs[1], connection=connection) is Refusal.MUST_ABORT
        assert not world.produce(logs[1])
        assert await world.end(granted, connection=connection) is Refusal.MUST_ABORT
    named = (granted.producer_id, granted.epoch)
    assert (await world.init(connection=3, known=named)).epoch == granted.epoch + 1


async def test_restart_says_how_long_a_transaction_that_it_aborts_was_open(running, logs, nursery, autojump_clock):
    """From its beginning in the run before, as the journal has it; a clock that was set back makes it no riddle."""
    granted = await running.init()
    await running.add(granted, logs[0])
    running.journal.durable = len(running.journal.records)
    await trio.sleep(30)
    with capture_logs() as lines:
        await restart(running, nursery, power_lost=True)
    assert [line["open_ms"] for line in lines if line["event"] == "transaction"] == [30_000]
    after = running.restarted()
    after.clock_step_ms = -(10**9)
    with capture_logs() as lines:
        await after.coordinator.recover(tail_kept=False)
    assert [line["open_ms"] for line in lines if line["event"] == "transaction"] == [0]


async def test_restart_leaves_out_of_the_log_what_it_does_not_know(running, logs, nursery, autojump_clock):
    """PREPARE_COMMIT does not say when its transaction began: no figure is better than one that counts from here."""
    running.participants.copying = trio.Event()
    granted = await running.init()
    await running.transaction(granted, logs[0])
    with capture_logs() as lines:
        await restart(running, nursery)
        await settle()
    (line,) = (line for line in lines if line["event"] == "transaction")
    assert (line["outcome"], line["apply_ms"]) == ("committed", 0.0)
    assert not {"open_ms", "prepare_ms"} & set(line)


async def test_second_restart_still_remembers_who_must_abort(running, logs, nursery, autojump_clock):
    """MUST_ABORT is in the journal."""
    granted = await running.init()
    await running.add(granted, logs[0])
    once = await restart(running, nursery, power_lost=True)
    twice = await restart(once, nursery)
    assert await twice.end(granted) is Refusal.MUST_ABORT


async def test_restart_killed_anywhere_in_its_recovery_still_remembers_who_must_abort(
    running, logs, nursery, autojump_clock
):
    """The run before was killed behind PREPARE_ABORT; an ABORTED that the next one wrote must not be all of it."""
    granted = await running.init()
    await running.add(granted, logs[0])
    running.produce(logs[0])
    await running.coordinator.abort_open("t")
    while not isinstance(running.journal.records[-1], PrepareAbortRecord):
        running.journal.records.pop()
    for appends in range(2):
        killed = running.restarted()
        killed.journal.room = appends
        killed.journal.disk_is_full = True
        with pytest.raises(StorageFailure):
            await killed.coordinator.recover(tail_kept=True)
        assert len(killed.journal.records) == len(running.journal.records) + appends
        after = await restart(killed, nursery)
        assert await after.add(granted, logs[1], connection=2) is Refusal.MUST_ABORT
        assert await after.end(granted, connection=2) is Refusal.MUST_ABORT


async def test_restart_after_power_loss_makes_every_id_abort_once(running, logs, nursery, autojump_clock):
    """BEGIN is not flushed and may be lost: an id that looks idle may have had a transaction open."""
    granted = await running.init()
    await running.transaction(granted, logs[0])
    await settle()
    for number in (1, 2, 3):
        await running.add(granted, logs[0])
        running.produce(logs[0])
        if number < 3:
            await running.end(granted, commit=False)
    after = await restart(running, nursery, power_lost=True)
    assert await after.add(granted, logs[1], connection=2) is Refusal.MUST_ABORT
    assert await after.end(granted, connection=2) is Refusal.OUTCOME_LOST
    assert await after.end(granted, commit=False, connection=2) is None
    assert await after.transaction(granted, logs[1], connection=2) is None
    numbers = {placed.number for placed in after.participants.placings}
    assert not numbers & {1, 2, 3}, "the number of a lost transaction must not be used again"


async def test_restart_after_power_loss_gives_no_epoch_and_no_number_twice_though_commits_do_not_wait_for_the_disk(
    running, logs, nursery, autojump_clock
):
    """With fsync=interval|never too: the data logs may have kept what was written under them."""
    running.journal.waits_for_disk = False
    first = await running.init()
    newer = await running.init(connection=2)
    assert await running.transaction(newer, logs[0], connection=2) is None
    await settle()
    after = await restart(running, nursery, power_lost=True)
    assert await after.end(newer, commit=False) is None
    assert await after.transaction(newer, logs[0]) is None
    await settle()
    again = await restart(after, nursery, power_lost=True)
    assert await again.end(newer, commit=False) is None
    assert await again.transaction(newer, logs[0]) is None
    await settle()
    assert len(again.participants.placings) == len(set(again.participants.placings)) == 3
    assert first.epoch < newer.epoch < (await again.init(connection=2)).epoch


async def test_restart_finishes_a_decided_transaction(running, logs, nursery, autojump_clock):
    """PREPARE_COMMIT without COMMITTED: prepared again, placed, recorded; the repeated EndTxn succeeds."""
    running.participants.copying = trio.Event()
    granted = await running.init()
    assert await running.transaction(granted, logs[0]) is None
    after = await restart(running, nursery)
    assert after.participants.placings == [txid(0)]
    assert await after.end(granted) is None
    await settle()
    (done,) = after.coordinator.describe("t").committed
    assert done.txid == txid(0)


async def test_restart_withdraws_what_cannot_be_prepared(running, logs, nursery, autojump_clock):
    """Its data did not survive, so nobody was told that it committed: aborted, and the client must abort."""
    granted = await running.init()
    await running.add(granted, logs[0])
    running.produce(logs[0])
    running.participants.prepare_s = 1_000.0
    nursery.start_soon(running.end, granted)
    await settle()
    after = running.restarted()
    after.participants.prepare_s = 0.0
    after.participants.held.clear()
    await after.coordinator.recover(tail_kept=True)
    await nursery.start(after.run)
    assert after.participants.placings == []
    assert after.participants.discarded == [txid(0)]
    assert await after.end(granted) is Refusal.MUST_ABORT
    again = await restart(after, nursery)
    assert again.participants.placings == []
    assert await again.end(granted) is Refusal.MUST_ABORT


async def test_restart_flushes_the_decision_before_it_places(running, logs, autojump_clock):
    """PREPARE_COMMIT may have survived in the page cache only."""
    granted = await running.init()
    await running.transaction(granted, logs[0])
    after = running.restarted()
    after.journal.durable = 0
    order = []
    apply = after.participants.apply

    def noted(messages):
        order.append(after.journal.durable)
        return apply(messages)

    after.participants.apply = noted
    after.participants.copying = trio.Event()
    await after.coordinator.recover(tail_kept=True)
    assert order == [len(after.journal.records)]


async def test_restart_with_a_broken_disk_does_not_serve(running, logs, autojump_clock):
    """What was decided cannot be placed: refuse the start rather than the promise."""
    granted = await running.init()
    running.participants.copying = trio.Event()
    await running.transaction(granted, logs[0])
    after = running.restarted()
    after.participants.place_fails = True
    with pytest.raises(StorageFailure):
        await after.coordinator.recover(tail_kept=True)
