"""InitProducerId: fencing, retries, epochs and what a name may be; and requests of strangers."""

from __future__ import annotations

import pytest
import trio
import trio.testing

from coordinator.answers import Granted, Refusal
from coordinator.executor import COPY_PATIENCE_S
from fairlog_types import NO_PRODUCER_EPOCH, NO_PRODUCER_ID, LogId, ProducerEpoch, ProducerId
from tests.coordinator.transactions import SAME_PRODUCER, settle, txid


async def test_init_fences_the_last_instance_and_aborts_what_it_left(running, logs, autojump_clock):
    """A new instance gets the next epoch; the old one is fenced everywhere, its transaction gone."""
    old = await running.init()
    await running.add(old, logs[0])
    running.produce(logs[0])
    new = await running.init(connection=2)
    assert new == Granted(old.producer_id, ProducerEpoch(1))
    assert running.participants.discarded == [txid(0)]
    assert await running.end(old) is Refusal.FENCED
    assert await running.add(old, logs[1]) is Refusal.FENCED
    assert running.coordinator.epoch_of(old.producer_id) == 1


async def test_init_waits_until_the_last_instances_commit_is_visible(running, logs, nursery, autojump_clock):
    """Whoever takes over must be able to read what was committed, and hears no CONCURRENT for a mere copy."""
    running.participants.copying = trio.Event()
    granted = await running.init()
    assert await running.transaction(granted, logs[0]) is None
    answers = []

    async def take_over():
        answers.append(await running.init(connection=2))

    nursery.start_soon(take_over)
    await trio.sleep(COPY_PATIENCE_S - 1)
    assert answers == []
    running.participants.copying.set()
    await settle()
    assert answers == [Granted(SAME_PRODUCER, ProducerEpoch(1))]


async def test_init_hears_concurrent_if_the_copy_takes_long_and_is_granted_the_same_epoch_then(
    running, logs, nursery, autojump_clock
):
    """Another shard's process may be down. A client without an answer would ask on a new connection, as another one."""
    running.participants.copying = trio.Event()
    granted = await running.init()
    assert await running.transaction(granted, logs[0]) is None
    for _ in range(3):
        began_s = trio.current_time()
        assert await running.init(connection=2) is Refusal.CONCURRENT
        assert trio.current_time() - began_s == COPY_PATIENCE_S
    running.participants.copying.set()
    await settle()
    assert await running.init(connection=2) == Granted(SAME_PRODUCER, ProducerEpoch(1))


async def test_init_repeated_on_the_same_connection_is_answered_alike(running, logs, autojump_clock):
    """A retry does not fence its own sender; once something has been done, it is a new instance."""
    granted = await running.init()
    assert await running.init() == granted
    await running.add(granted, logs[0])
    assert (await running.init()).epoch == 1


async def test_init_naming_the_last_epoch_is_a_retry_and_an_older_one_is_fenced(running, logs, autojump_clock):
    """KIP-360: the client says which epoch it had, so a lost answer can be told from a zombie."""
    first = await running.init()
    second = await running.init(connection=2, known=(first.producer_id, first.epoch))
    assert second.epoch == 1
    assert await running.init(connection=3, known=(first.producer_id, first.epoch)) == second
    third = await running.init(connection=4, known=(second.producer_id, second.epoch))
    assert third.epoch == 2
    assert await running.init(connection=5, known=(first.producer_id, first.epoch)) is Refusal.FENCED
    assert await running.init(connection=5, known=(ProducerId(77), ProducerEpoch(0))) is Refusal.FENCED


async def test_init_is_durable_before_it_is_answered(running, autojump_clock):
    """An epoch that was granted is never granted again."""
    await running.init()
    assert running.journal.durable == len(running.journal.records) == 1


async def test_init_whose_first_attempt_was_cancelled_is_durable_on_retry(running, nursery, autojump_clock):
    """The retry flushes what the first attempt only appended."""
    running.journal.flush_s = 1.0
    with trio.move_on_after(0.5):
        await running.init()
    assert await running.init() == Granted(SAME_PRODUCER, ProducerEpoch(0))
    assert running.journal.durable == 1


async def test_init_after_the_last_epoch_gets_a_new_producer_id(running, autojump_clock):
    """int16 is finite."""
    granted = await running.init()
    slot = running.coordinator._table.entries["t"]
    slot.producer = slot.producer._replace(epoch=ProducerEpoch(32_766))
    fresh = await running.init(connection=2)
    assert fresh == Granted(ProducerId(granted.producer_id + 1), ProducerEpoch(0))
    assert running.coordinator.epoch_of(granted.producer_id) is None
    assert running.coordinator.epoch_of(fresh.producer_id) == 0


@pytest.mark.parametrize(
    ("timeout_ms", "stored"), [(1, 1_000), (60_000, 60_000), (900_001, 900_000), (0, None), (-1, None)]
)
async def test_init_clamps_the_timeout_and_refuses_what_is_none(running, timeout_ms, stored, autojump_clock):
    """A time-out is clamped to the operator's bounds; zero and less is an error."""
    answer = await running.init(timeout_ms=timeout_ms)
    if stored is None:
        assert answer is Refusal.BAD_TIMEOUT
        assert running.coordinator.describe("t") is None
        assert running.coordinator._table.entries == {}
    else:
        assert running.coordinator.describe("t").timeout_ms == stored


async def test_init_that_contradicts_itself_is_refused(running, autojump_clock):
    """A producer id without an epoch, or an empty transactional id."""
    assert await running.init(known=(ProducerId(5), NO_PRODUCER_EPOCH)) is Refusal.BAD_REQUEST
    assert await running.init(known=(NO_PRODUCER_ID, ProducerEpoch(5))) is Refusal.BAD_REQUEST
    assert await running.init(name="") is Refusal.BAD_REQUEST


@pytest.mark.parametrize(("name", "taken"), [("é" * 512, True), ("é" * 512 + "x", False), ("x" * 40_000, False)])
async def test_init_takes_a_name_of_1024_bytes_and_remembers_no_longer_one(running, name, taken, autojump_clock):
    """The bound counts bytes of UTF-8, and is checked before anything is kept or written."""
    answer = await running.init(name=name)
    assert isinstance(answer, Granted) if taken else answer is Refusal.BAD_REQUEST
    assert (
        list(running.coordinator._table.entries)
        == list(running.coordinator._table._owners.values())
        == ([name] if taken else [])
    )
    assert len(running.journal.records) == int(taken)


async def test_init_without_transactional_id_gives_a_fresh_producer(running, autojump_clock):
    """An idempotent producer needs an id and nothing else."""
    args = (None, 0, NO_PRODUCER_ID, NO_PRODUCER_EPOCH, 1)
    first = await running.coordinator.init_producer_id(*args)
    second = await running.coordinator.init_producer_id(*args)
    assert (first, second) == (Granted(ProducerId(1000), 0), Granted(ProducerId(1001), 0))
    assert running.coordinator.epoch_of(ProducerId(1000)) is None


async def test_init_without_producer_ids_is_refused_and_leaves_nothing(running, autojump_clock):
    """The cluster store fails: the id stays unknown."""
    running.ids.fails = True
    assert await running.init() is Refusal.STORAGE
    assert running.coordinator._table.entries == {}
    running.ids.fails = False
    assert isinstance(await running.init(), Granted)


async def test_two_first_inits_at_once_get_two_epochs(running, nursery, autojump_clock):
    """One transactional id has one producer id, however many ask at once."""
    running.journal.flush_s = 1.0
    answers = []

    async def ask(connection):
        answers.append(await running.init(connection=connection))

    nursery.start_soon(ask, 1)
    nursery.start_soon(ask, 2)
    await trio.sleep(5)
    assert {answer.producer_id for answer in answers} == {SAME_PRODUCER}
    assert sorted(answer.epoch for answer in answers) == [0, 1]


async def test_requests_of_strangers_are_refused(running, logs, autojump_clock):
    """Unknown ids and foreign producer ids have no transaction here."""
    stranger = Granted(ProducerId(5), ProducerEpoch(0))
    assert await running.add(stranger, logs[0]) is Refusal.UNKNOWN_PRODUCER_ID_MAPPING
    assert await running.end(stranger) is Refusal.UNKNOWN_PRODUCER_ID_MAPPING
    await running.init()
    assert await running.end(stranger) is Refusal.UNKNOWN_PRODUCER_ID_MAPPING
    assert await running.coordinator.abort_open("nobody") is Refusal.UNKNOWN_PRODUCER_ID_MAPPING


async def test_add_of_a_log_that_does_not_exist_leaves_the_others(running, logs, autojump_clock):
    """Each log has its own answer; repeating what is begun is answered without asking anybody."""
    granted = await running.init()
    unknown = LogId("t", "cd" * 16, 0)
    assert await running.add(granted, unknown) == {unknown: Refusal.UNKNOWN_LOG}
    assert running.coordinator.describe("t").state == "EMPTY"
    answers = {logs[0]: None, unknown: Refusal.UNKNOWN_LOG}
    assert await running.add(granted, logs[0], unknown) == answers
    before = len(running.journal.records)
    assert await running.add(granted, logs[0]) == {logs[0]: None}
    assert len(running.journal.records) == before
