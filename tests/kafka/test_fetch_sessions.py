"""The memory of fetch sessions: bounds, eviction, and that a client which is told only news knows everything."""

from __future__ import annotations

import gc
import itertools
from dataclasses import dataclass, field

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule

from fairlog.kafka.fetch_sessions import (
    EVICTION_MS,
    INITIAL_EPOCH,
    SESSION_PARTITIONS_MAX,
    TOPIC_NAME_MAX,
    CachedPartition,
    FetchSession,
    FetchSessionCache,
    SessionRefusal,
    next_epoch,
)


class Watches:
    """How far a log can be read, as far as sessions end that they watch it."""

    def __init__(self) -> None:
        self.ended: list[CachedPartition] = []

    def session(self, partitions: int = 0, *, topic: str = "t", uses_topic_ids: bool = False) -> FetchSession:
        session = FetchSession(uses_topic_ids=uses_topic_ids, committed_only=False)
        for index in range(partitions):
            session.put(topic, index, leader_epoch=-1, offset=0, bytes_max=1)
        return session

    def unwatch(self, partition: CachedPartition) -> None:
        self.ended.append(partition)


def cache_of(slots: int, **bounds: int) -> FetchSessionCache:
    ids = itertools.count(1)
    return FetchSessionCache(slots, new_id=lambda: next(ids), **bounds)


def claim(cache: FetchSessionCache, session: FetchSession | int, epoch: int) -> FetchSession | SessionRefusal:
    session_id = session if isinstance(session, int) else session.id
    return cache.claim(session_id, epoch, uses_topic_ids=False, committed_only=False)


def use(cache: FetchSessionCache, session: FetchSession, now_ms: int) -> bool:
    assert claim(cache, session, session.epoch) is session
    return cache.keep(session, now_ms)


def test_epoch_after_the_largest_is_one() -> None:
    """0 and -1 mean a full fetch, so a session that lives for long never comes by them."""
    assert [next_epoch(0), next_epoch(1), next_epoch(2**31 - 1)] == [1, 2, 1]


def test_session_takes_one_request_for_each_epoch() -> None:
    """A repeated or reordered request is refused, and costs the session nothing."""
    cache = cache_of(1)
    session = Watches().session(1)
    assert cache.admit(session, 0)
    assert claim(cache, session, 2) is SessionRefusal.WRONG_EPOCH
    assert claim(cache, session, 1) is session
    assert claim(cache, session, 1) is SessionRefusal.WRONG_EPOCH
    session.epoch = 2**31 - 1
    assert claim(cache, session, 2**31 - 1) is session
    assert claim(cache, session, 1) is session


def test_session_that_is_closed_leaves_no_garbage() -> None:
    """Each Fetch has one, and is not to leave work for the collector of cycles."""
    gc.collect()
    gc.disable()
    try:
        session = Watches().session(3)
        session.close()
        del session
        assert gc.collect() == 0
    finally:
        gc.enable()


def test_session_named_in_another_way_is_refused() -> None:
    """By topic id what was opened by name, and the other way round; an unknown id is another matter."""
    cache = cache_of(2)
    by_name, by_id = Watches().session(1), Watches().session(1, uses_topic_ids=True)
    assert cache.admit(by_name, 0)
    assert cache.admit(by_id, 0)
    assert claim(cache, by_id, 1) is SessionRefusal.TOPIC_IDS
    assert cache.claim(by_name.id, 1, uses_topic_ids=True, committed_only=False) is SessionRefusal.TOPIC_IDS
    assert claim(cache, 99, 1) is SessionRefusal.NOT_FOUND


def test_session_ids_are_never_used_twice_at_a_time() -> None:
    """An id that is taken is drawn again."""
    ids = iter([5, 5, 6])
    cache = FetchSessionCache(2, new_id=lambda: next(ids))
    sessions = [Watches().session(1) for _ in range(2)]
    assert all(cache.admit(session, 0) for session in sessions)
    assert [session.id for session in sessions] == [5, 6]


def test_session_in_use_keeps_its_slot() -> None:
    """A full cache takes nobody in for as long as all are in use and none is smaller; the new client goes without."""
    cache = cache_of(2)
    first, second, late = (Watches().session(2) for _ in range(3))
    assert cache.admit(first, 0)
    assert cache.admit(second, 0)
    assert not cache.admit(late, EVICTION_MS)
    assert late.id == 0
    assert cache.statistics().sessions == 2
    assert not cache_of(0).admit(late, 0)


def test_session_unused_for_long_is_evicted_first() -> None:
    """The one that was not used for longest makes room, if that is longer than `EVICTION_MS`."""
    cache = cache_of(2)
    first, second, late = (Watches().session(2) for _ in range(3))
    assert cache.admit(first, 0)
    assert cache.admit(second, 1)
    assert use(cache, first, 2)
    assert not cache.admit(late, 1 + EVICTION_MS)
    assert cache.admit(late, 2 + EVICTION_MS)
    assert (first.id, second.id, late.id) == (1, 0, 3)
    assert cache.statistics().evictions == 1
    assert claim(cache, 2, 1) is SessionRefusal.NOT_FOUND


@pytest.mark.parametrize(("size", "taken"), [(2, False), (3, True)])
def test_session_gives_way_to_a_larger_one_when_it_is_old(size: int, taken: bool) -> None:
    """A larger session saves more; but nobody is evicted who has only just come, and nobody by his like."""
    cache = cache_of(1)
    old, new = Watches().session(2), Watches().session(size)
    assert cache.admit(old, 0)
    assert not cache.admit(Watches().session(9), EVICTION_MS)
    assert use(cache, old, EVICTION_MS + 1)
    assert cache.admit(new, EVICTION_MS + 2) is taken
    assert bool(old.id) is not taken


def test_session_that_grew_is_compared_by_its_new_size() -> None:
    """What was small once, and is large now, is not evicted as a small one."""
    cache = cache_of(1)
    old = Watches().session(1)
    assert cache.admit(old, 0)
    assert use(cache, old, EVICTION_MS + 1)
    assert claim(cache, old, old.epoch) is old
    for index in range(5):
        old.put("t", index, leader_epoch=-1, offset=0, bytes_max=1)
    assert cache.keep(old, EVICTION_MS + 2)
    assert not cache.admit(Watches().session(3), EVICTION_MS + 3)
    assert cache.statistics().partitions == 5
    cache.close(old.id)
    assert cache.admit(Watches().session(1), EVICTION_MS + 4)
    assert not cache.admit(Watches().session(9), EVICTION_MS + 5)


def test_partitions_of_all_sessions_are_bounded() -> None:
    """Room for partitions is found as slots are; who finds none gets no session, and who grows beyond it loses his."""
    cache = cache_of(9, partitions_max=10)
    first, second = Watches().session(6), Watches().session(5)
    assert cache.admit(first, 0)
    assert not cache.admit(second, 0)
    assert cache.admit(Watches().session(4), 0)
    assert claim(cache, first, 1) is first
    first.put("more", 0, leader_epoch=-1, offset=0, bytes_max=1)
    assert not cache.keep(first, 1)
    assert claim(cache, 1, 2) is SessionRefusal.NOT_FOUND
    assert cache.statistics().partitions == 4
    assert cache.admit(second, 2)


def test_session_that_grows_evicts_others_before_it_goes() -> None:
    """Stale sessions make room for its new partitions."""
    cache = cache_of(9, partitions_max=10)
    stale, growing = Watches().session(5), Watches().session(5)
    assert cache.admit(stale, 0)
    assert cache.admit(growing, 0)
    assert claim(cache, growing, 1) is growing
    growing.put("more", 0, leader_epoch=-1, offset=0, bytes_max=1)
    assert cache.keep(growing, EVICTION_MS + 1)
    assert (stale.id, growing.size, cache.statistics().partitions) == (0, 6, 6)


@pytest.mark.slow
def test_session_of_too_many_partitions_is_not_kept() -> None:
    """Neither from its first request on, nor when a client adds partitions without end."""
    cache = cache_of(9)
    session = Watches().session(SESSION_PARTITIONS_MAX)
    assert not cache.admit(Watches().session(SESSION_PARTITIONS_MAX + 1), 0)
    assert cache.admit(session, 0)
    assert claim(cache, session, 1) is session
    session.put("more", 0, leader_epoch=-1, offset=0, bytes_max=1)
    assert not cache.keep(session, 1)
    assert cache.statistics().sessions == 0


def test_session_with_a_name_that_no_topic_can_have_is_not_kept() -> None:
    """A client could have 32 KB remembered for each partition that it asks for in vain."""
    cache = cache_of(9)
    assert not cache.admit(Watches().session(1, topic="x" * (TOPIC_NAME_MAX + 1)), 0)
    session = Watches().session(1, topic="x" * TOPIC_NAME_MAX)
    assert cache.admit(session, 0)
    session.put("x" * (TOPIC_NAME_MAX + 1), 0, leader_epoch=-1, offset=0, bytes_max=1)
    assert not cache.keep(session, 1)


def test_session_without_partitions_is_let_go_of() -> None:
    """A client that has forgotten all its partitions has no session any more; its request is served all the same."""
    cache = cache_of(9)
    session = Watches().session(1)
    assert cache.admit(session, 0)
    turn = claim(cache, session, 1).turn
    session.forget("t", 0)
    session.forget("t", 0)
    session.forget("none", 0)
    assert cache.keep(session, 1)
    assert session.is_current(turn)
    assert (session.id, cache.statistics().sessions, cache.statistics().partitions) == (0, 0, 0)


@pytest.mark.parametrize("end", ["close", "evict", "forget"])
def test_session_watches_nothing_any_more_when_it_ends(end: str) -> None:
    """Leaders of logs that never move would remember it for ever."""
    watches, cache = Watches(), cache_of(1)
    session = watches.session(1)
    (partition,) = session.take()
    partition.watched = watches
    assert cache.admit(session, 0)
    woken: list[bool] = []
    session.waiter = lambda: woken.append(True)
    turn = session.turn
    match end:
        case "close":
            cache.close(session.id)
        case "evict":
            assert cache.admit(Watches().session(1), EVICTION_MS + 1)
        case _:
            session.forget("t", 0)
    assert watches.ended == [partition]
    if end != "forget":
        assert woken == [True]
        assert not session.is_current(turn)
        assert session.why_over is SessionRefusal.NOT_FOUND


def test_turn_is_over_when_the_next_request_comes() -> None:
    """Whoever still waits for the earlier one is woken, and is to touch nothing; what he had looked at is pending."""
    cache, woken = cache_of(1), []
    session = Watches().session(3)
    assert cache.admit(session, 0)
    session.answered()
    assert claim(cache, session, 1) is session
    turn = session.turn
    assert len(session.take()) == 3
    session.waiter = lambda: woken.append(True)
    assert claim(cache, session, 2) is session
    assert woken == [True]
    assert not session.is_current(turn)
    assert session.why_over is SessionRefusal.WRONG_EPOCH
    assert len(session.take()) == 3


def test_reader_of_committed_records_is_woken_by_decisions_alone() -> None:
    """But what else has moved is looked at with the next request, and is still watched."""
    session, woken = Watches().session(1), []
    (partition,) = session.take()
    session.committed_only = True
    session.waiter = lambda: woken.append(True)
    assert not partition.moved(stable=False)
    assert (woken, list(session.pending)) == ([], [partition])
    assert partition.moved(stable=True)
    assert woken == [True]


def tell(
    session: FetchSession,
    partition: CachedPartition,
    *,
    last_stable: int = 5,
    log_start: int = 0,
    failed: bool = False,
) -> bool:
    return session.note_answer(
        partition,
        high_watermark=5,
        last_stable=last_stable,
        log_start=log_start,
        failed=failed,
        records=False,
        unread=failed,
    )


def test_partition_is_told_of_if_its_offsets_changed_or_the_last_answer_was_lost_or_an_error() -> None:
    """What stood in an answer that never went out, or beside an error, the client does not know."""
    session = Watches().session(1)
    (partition,) = session.take()
    assert tell(session, partition)
    session.begin(committed_only=False)
    assert tell(session, partition)
    session.answered()
    session.begin(committed_only=False)
    assert not tell(session, partition)
    assert tell(session, partition, last_stable=4)
    assert tell(session, partition, last_stable=4, log_start=1)
    assert tell(session, partition, failed=True)
    assert list(session.pending) == [partition]
    assert tell(session, partition)
    assert not tell(session, partition)


def test_partitions_are_looked_at_anew_under_another_isolation_level() -> None:
    """What a reader of committed records has read to its end may have more for others."""
    session = Watches().session(2)
    session.take()
    session.answered()
    session.begin(committed_only=False)
    assert session.take() == []
    session.answered()
    session.begin(committed_only=True)
    assert len(session.take()) == 2


# --- what the client knows -------------------------------------------------------------------------


@dataclass
class Log:
    """One partition of the world."""

    high_watermark: int = 0
    last_stable: int = 0
    log_start: int = 0
    exists: bool = True
    watchers: set[CachedPartition] = field(default_factory=set)

    def tell(self, *, stable: bool) -> None:
        self.watchers -= {watcher for watcher in self.watchers if watcher.moved(stable=stable)}

    def unwatch(self, partition: CachedPartition) -> None:
        self.watchers.discard(partition)

    def says(self) -> tuple[int, int, int] | str:
        """What a full fetch is answered with, besides records."""
        return (self.high_watermark, self.last_stable, self.log_start) if self.exists else "unknown"

    def readable_end(self, *, committed_only: bool) -> int:
        return self.last_stable if committed_only else self.high_watermark


PARTITIONS = 3
INDICES = st.integers(0, PARTITIONS - 1)
OFFSETS = st.sampled_from([0, 2, 99])
"""The last has nothing to be read, so that there is no other reason to tell of the partition."""


class SessionMachine(RuleBasedStateMachine):
    """Logs that move, and a client which is told only news: after each answer it knows what a full fetch would say.

    The client puts together what it was told. Its requests are cut short, overtaken, or its session is evicted at any
    time; it then begins anew, as clients do. How the broker reads is the handler's way in small, without waiting.
    """

    def __init__(self) -> None:
        super().__init__()
        self.logs = [Log() for _ in range(PARTITIONS)]
        self.cache = cache_of(1)
        self.session: FetchSession | None = None
        self.wanted: dict[int, int] = {}
        """Where the client reads, of each partition that it fetches."""
        self.knows: dict[int, tuple[int, int, int] | str] = {}
        self.epoch = INITIAL_EPOCH
        self.committed_only = False

    @initialize(wanted=st.dictionaries(INDICES, OFFSETS, min_size=1))
    def begin(self, wanted: dict[int, int]) -> None:
        self.full(wanted, read_max=9)

    # --- the world

    @rule(index=INDICES, records=st.integers(1, 3), decided=st.booleans())
    def append(self, index: int, records: int, decided: bool) -> None:
        log = self.logs[index]
        if log.exists:
            log.high_watermark += records
            if decided:
                log.last_stable = log.high_watermark
            log.tell(stable=decided)

    @rule(index=INDICES)
    def decide(self, index: int) -> None:
        log = self.logs[index]
        if log.exists and log.last_stable < log.high_watermark:
            log.last_stable = log.high_watermark
            log.tell(stable=True)

    @rule(index=INDICES, back=st.integers(0, 2))
    def delete_before(self, index: int, back: int) -> None:
        log = self.logs[index]
        start = max(log.log_start, log.last_stable - back)
        if log.exists and start > log.log_start:
            log.log_start = start
            log.tell(stable=True)

    @rule(index=INDICES)
    def delete_or_make(self, index: int) -> None:
        log = self.logs[index]
        if log.exists:
            log.exists = False
            log.tell(stable=True)
        else:
            self.logs[index] = Log()

    # --- the client

    @rule(wanted=st.dictionaries(INDICES, OFFSETS), read_max=st.integers(0, 3))
    def full(self, wanted: dict[int, int], read_max: int) -> None:
        if self.session is not None:
            self.cache.close(self.session.id)
        self.wanted, self.knows = dict(wanted), {}
        self.session = FetchSession(uses_topic_ids=False, committed_only=self.committed_only)
        for index, offset in wanted.items():
            self.session.put("t", index, leader_epoch=-1, offset=offset, bytes_max=1)
        self.answer(self.session, read_max, whole=True)
        assert self.cache.admit(self.session, 0)
        self.epoch = 1

    @rule(
        changed=st.dictionaries(INDICES, OFFSETS),
        forgotten=st.sets(INDICES),
        read_max=st.integers(0, 3),
        fate=st.sampled_from(["answered", "answered", "answered", "lost at once", "lost after reading", "lost"]),
        other_isolation=st.booleans(),
    )
    def incremental(
        self, changed: dict[int, int], forgotten: set[int], read_max: int, fate: str, other_isolation: bool
    ) -> None:
        assert self.session is not None
        self.committed_only ^= other_isolation
        session = self.cache.claim(
            self.session.id, self.epoch, uses_topic_ids=False, committed_only=self.committed_only
        )
        if isinstance(session, SessionRefusal):
            assert not self.wanted, "the cache has room"
            return self.full(changed or {0: 0}, read_max)
        self.epoch = next_epoch(self.epoch)
        for index, offset in changed.items():
            session.put("t", index, leader_epoch=-1, offset=offset, bytes_max=1)
            self.wanted[index] = offset
        for index in forgotten:
            session.forget("t", index)
            self.wanted.pop(index, None)
            self.knows.pop(index, None)
        assert self.cache.keep(session, 0)
        if fate == "lost at once":
            return None
        if fate == "lost after reading":
            self.look(session, read_max)
            return None
        return self.answer(session, read_max, whole=False, lost=fate == "lost")

    # --- the broker

    def look(self, session: FetchSession, read_max: int) -> dict[CachedPartition, tuple[bool, bool]]:
        """Of each partition that is looked at: whether it has records, and whether it has something unread."""
        looked: dict[CachedPartition, tuple[bool, bool]] = {}
        for partition in session.take():
            log = self.logs[partition.index]
            if not log.exists:
                looked[partition] = False, True
            elif partition.offset < log.readable_end(committed_only=session.committed_only):
                looked[partition] = read_max > 0, True
                read_max -= 1
            else:
                looked[partition] = False, False
                log.watchers.add(partition)
                partition.watched = log
        return looked

    def answer(self, session: FetchSession, read_max: int, *, whole: bool, lost: bool = False) -> None:
        for partition, (records, unread) in self.look(session, read_max).items():
            log = self.logs[partition.index]
            news = session.note_answer(
                partition,
                high_watermark=log.high_watermark if log.exists else -1,
                last_stable=log.last_stable if log.exists else -1,
                log_start=log.log_start if log.exists else -1,
                failed=not log.exists,
                records=records,
                unread=unread,
            )
            if (news or whole) and not lost:
                self.knows[partition.index] = log.says()
        if lost:
            return
        session.answered()
        assert self.knows == {index: self.logs[index].says() for index in self.wanted}
        waiting = {partition.index for partition in session.pending}
        for index, offset in self.wanted.items():
            log = self.logs[index]
            unread = log.exists and offset < log.readable_end(committed_only=session.committed_only)
            assert index in waiting or not (unread or not log.exists), "it is looked at again while it has something"

    def teardown(self) -> None:
        assert self.session is not None
        self.cache.close(self.session.id)
        assert not any(log.watchers for log in self.logs)
        assert self.cache.statistics().partitions == 0


TestSessions = pytest.mark.slow(SessionMachine.TestCase)


def test_partitions_are_read_in_turn_when_an_answer_has_room_for_one() -> None:
    """However small `max_bytes` is, no partition waits for ever."""
    machine = SessionMachine()
    machine.begin(dict.fromkeys(range(PARTITIONS), 0))
    for index in range(PARTITIONS):
        machine.append(index, 9, True)
    assert machine.session is not None
    served: list[int] = []
    for _ in range(2 * PARTITIONS):
        session = machine.cache.claim(machine.session.id, machine.epoch, uses_topic_ids=False, committed_only=False)
        assert isinstance(session, FetchSession)
        machine.epoch += 1
        pending = [partition.index for partition in session.pending]
        served.append(pending[0])
        machine.answer(session, 1, whole=False)
    assert sorted(served) == sorted([*range(PARTITIONS)] * 2)
