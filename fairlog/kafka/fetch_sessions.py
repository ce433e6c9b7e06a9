"""Fetch sessions (KIP-227): what a client fetches and what it was last told, kept between its requests.

    request ──▶ put, forget ──▶ FetchSession, a Watchlist ──▶ fairlog.reading.service.read ──▶ note_answer ──▶ answer

A session is a watchlist (`fairlog.reading.watchlist`) that knows for each partition where the client reads, and the
high watermark, last stable offset and log start that it was told last. A partition is *pending* if it may have news:
the request has named it, its log has moved since the last look, or the last answer left something unread, or had an
error. Only pending partitions are looked at, so an empty incremental fetch costs as much for ten thousand partitions as
for one.

Every Fetch runs over a `FetchSession`. That of a full fetch without a session is dropped with the answer; that of one
with epoch 0 goes into the `FetchSessionCache`, if there is space.

The order of `pending` is the order of reading. Partitions that had their records in the last answer go to the end, so
that a small `max_bytes` reaches all of them in turn.

Limits. The cache has slots, and evicts as Kafka's does: first a session that was not used for `EVICTION_MS`, then one
that is as old and has fewer partitions than the new one. Kafka has no other limits. Here the partitions of a session
and of all sessions together are limited too, as is the length of a topic's name. A client that asks for more gets no
session: a full fetch is answered with session 0, an incremental one as if its session had been evicted.

A fetch may find that its session has got another request meanwhile, from another connection, or was closed. It then
does not touch the session any more (`is_current`). Because its answer is not recorded, everything is sent again.

No I/O; time comes in as an argument. Not here: reading, waiting (`fairlog.reading`), error codes of partitions
(`handlers/api_01_fetch.py`).
"""

from __future__ import annotations

import secrets
from bisect import bisect_left, insort
from collections import OrderedDict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import Enum

from fairlog.kafka.wire import TopicKey
from fairlog.reading.watchlist import WatchedLog, Watchlist

EVICTION_MS = 120_000
"""After this time without a request a session may be evicted. Kafka's constant."""

SESSION_PARTITIONS_MAX = 20_000
"""The partitions of one session. Each takes half a kilobyte."""

CACHED_PARTITIONS_MAX = 200_000
"""The partitions of all sessions together: 100 MB."""

TOPIC_NAME_MAX = 249
"""Characters of a topic's name, which a session has to remember even if there is no such topic. Kafka's limit."""

INITIAL_EPOCH = 0
FINAL_EPOCH = -1

_ID_MAX = 2**31 - 1
_EPOCH_MAX = 2**31 - 1
_NEVER_TOLD = -2
"""An offset that no answer has; -1 does occur."""


class SessionRefusal(Enum):
    """Why an incremental fetch is not served. The client continues with a full one."""

    NOT_FOUND = "there is no such session"
    WRONG_EPOCH = "the session expects another epoch"
    TOPIC_IDS = "the session names topics by id and the request by name, or the other way round"


def is_full(epoch: int) -> bool:
    """Whether a fetch of this session epoch names all its partitions."""
    return epoch in (INITIAL_EPOCH, FINAL_EPOCH)


def next_epoch(epoch: int) -> int:
    """The epoch of the session's next request: after the largest comes 1."""
    return 1 if epoch == _EPOCH_MAX else epoch + 1


class CachedPartition(WatchedLog):
    """One partition of a session: what the client asked for, and what it was told. Created by `FetchSession.put`."""

    __slots__ = (
        "bytes_max",
        "high_watermark",
        "index",
        "last_stable",
        "leader_epoch",
        "log_start",
        "offset",
        "topic",
    )

    def __init__(self, session: FetchSession, topic: TopicKey, index: int) -> None:
        super().__init__(session)
        self.topic = topic
        self.index = index
        self.leader_epoch = -1
        self.offset = 0
        self.bytes_max = 0
        self.tell_anew()

    def tell_anew(self) -> None:
        """The next answer must contain the offsets, whatever they are."""
        self.high_watermark = self.last_stable = self.log_start = _NEVER_TOLD


class FetchSession(Watchlist[CachedPartition]):
    """The partitions that one client fetches."""

    __slots__ = (
        "_is_answered",
        "_long_name",
        "_partitions",
        "_served",
        "cached_size",
        "created_ms",
        "epoch",
        "id",
        "last_used_ms",
        "uses_topic_ids",
    )

    def __init__(self, *, uses_topic_ids: bool, committed_only: bool) -> None:
        """A session without an id, in its first turn."""
        super().__init__(committed_only=committed_only)
        self.id = 0
        """0: the session is not in the cache."""
        self.epoch = next_epoch(INITIAL_EPOCH)
        """The epoch of the next request."""
        self.uses_topic_ids = uses_topic_ids
        self.created_ms = self.last_used_ms = 0
        self.cached_size = 0
        """Its size, as the cache counts it."""
        self._partitions: dict[TopicKey, dict[int, CachedPartition]] = {}
        self._is_answered = False
        self._long_name = False
        self._served: list[CachedPartition] = []
        """Partitions that had records in this turn's answer: the others come first in the next one."""

    @property
    def fits(self) -> bool:
        """Whether the session is small enough to be kept."""
        return self.size <= SESSION_PARTITIONS_MAX and not self._long_name

    def partitions(self) -> Iterator[CachedPartition]:
        for of_topic in self._partitions.values():
            yield from of_topic.values()

    # --- what the request says ----------------------------------------------------------------

    def begin(self, *, committed_only: bool) -> None:
        """Begin the turn of the next request: the previous turn is over, whether it was answered or not."""
        self.end_turn()
        if not self._is_answered:
            for partition in self.partitions():
                partition.tell_anew()
        if not self._is_answered or committed_only != self.committed_only:
            self.pending.update(dict.fromkeys(self.partitions()))
        self._is_answered = False
        self._served = []
        self.committed_only = committed_only

    def put(self, topic: TopicKey, index: int, *, leader_epoch: int, offset: int, bytes_max: int) -> None:
        """The client wants this partition, from now on or with other values than before."""
        of_topic = self._partitions.setdefault(topic, {})
        partition = of_topic.get(index)
        if partition is None:
            partition = of_topic[index] = CachedPartition(self, topic, index)
            self.add(partition)
            self._long_name |= isinstance(topic, str) and len(topic) > TOPIC_NAME_MAX
        else:
            self.pending[partition] = None
        partition.leader_epoch, partition.offset, partition.bytes_max = leader_epoch, offset, bytes_max

    def forget(self, topic: TopicKey, index: int) -> None:
        """The client no longer wants this partition. Does nothing if the session does not have it."""
        of_topic = self._partitions.get(topic, {})
        partition = of_topic.pop(index, None)
        if partition is None:
            return
        if not of_topic:
            del self._partitions[topic]
        self.remove(partition)

    # --- one turn ------------------------------------------------------------------------------

    @property
    def why_over(self) -> SessionRefusal:
        """The answer for a turn that is no longer current."""
        return SessionRefusal.WRONG_EPOCH if self.id else SessionRefusal.NOT_FOUND

    def note_answer(
        self,
        partition: CachedPartition,
        *,
        high_watermark: int,
        last_stable: int,
        log_start: int,
        failed: bool,
        records: bool,
        unread: bool,
    ) -> bool:
        """Record what the answer can say about a partition that was checked. Returns whether it must: if not, there is
        nothing new.

        `records`: it has some. `unread`: there are more than it has.
        """
        news = (
            failed
            or records
            or high_watermark != partition.high_watermark
            or last_stable != partition.last_stable
            or log_start != partition.log_start
        )
        partition.high_watermark, partition.last_stable, partition.log_start = high_watermark, last_stable, log_start
        if failed:
            partition.tell_anew()
        if records:
            self._served.append(partition)
        elif failed or unread:
            self.pending[partition] = None
        return news

    def answered(self) -> None:
        """The turn's answer is complete."""
        for partition in self._served:
            self.pending.pop(partition, None)
            self.pending[partition] = None
        self._served = []
        self._is_answered = True
        self.waiter = None

    def close(self) -> None:
        """The session is no longer used. It and its partitions let go of each other, so that no garbage is left."""
        for partition in self.partitions():
            self.unwatch(partition)
        self._partitions.clear()
        self.pending.clear()
        self._served.clear()
        self.end_turn()


@dataclass(frozen=True, slots=True)
class FetchSessionStatistics:
    sessions: int
    partitions: int
    evictions: int
    """Counted since the start."""


class FetchSessionCache:
    """The sessions of one node."""

    def __init__(
        self,
        slots: int,
        *,
        partitions_max: int = CACHED_PARTITIONS_MAX,
        new_id: Callable[[], int] = lambda: 1 + secrets.randbelow(_ID_MAX),
    ) -> None:
        """At most `slots` sessions. `new_id` gives a number from 1 to 2**31 - 1 that clients cannot guess."""
        self._slots = slots
        self._partitions_max = partitions_max
        self._new_id = new_id
        self._sessions: OrderedDict[int, FetchSession] = OrderedDict()
        """By id, least recently used first."""
        self._old: list[tuple[int, int]] = []
        """Size and id, in order: sessions that larger ones may evict."""
        self._partitions = 0
        self._evictions = 0

    def statistics(self) -> FetchSessionStatistics:
        return FetchSessionStatistics(len(self._sessions), self._partitions, self._evictions)

    def claim(
        self, session_id: int, epoch: int, *, uses_topic_ids: bool, committed_only: bool
    ) -> FetchSession | SessionRefusal:
        """The session of an incremental fetch, whose turn begins. The caller then puts what the request names, and
        calls `keep`.
        """
        session = self._sessions.get(session_id)
        if session is None:
            return SessionRefusal.NOT_FOUND
        if session.epoch != epoch:
            return SessionRefusal.WRONG_EPOCH
        if session.uses_topic_ids != uses_topic_ids:
            return SessionRefusal.TOPIC_IDS
        session.epoch = next_epoch(epoch)
        session.begin(committed_only=committed_only)
        return session

    def keep(self, session: FetchSession, now_ms: int) -> bool:
        """The session was used, and its size may have changed. A session without partitions leaves the cache and
        continues without it.

        False if it has become too large; then it is closed.
        """
        if not session.size:
            self._take_out(session)
            return True
        more = session.size - session.cached_size
        self._sessions.move_to_end(session.id)  # or making room might evict it
        session.last_used_ms = now_ms
        if not session.fits or (more > 0 and not self._make_room(session.size, more, now_ms, sparing=session)):
            self.close(session.id)
            return False
        self._count(session, now_ms)
        return True

    def admit(self, session: FetchSession, now_ms: int) -> bool:
        """Store a new session under an id of its own, if there is space or space can be made."""
        if not session.fits:
            return False
        if len(self._sessions) >= self._slots and not self._evict(session.size, now_ms):
            return False
        if not self._make_room(session.size, session.size, now_ms):
            return False
        session.id = self._new_id()
        while session.id in self._sessions:
            session.id = self._new_id()
        session.created_ms = session.last_used_ms = now_ms
        self._sessions[session.id] = session
        self._count(session, now_ms)
        return True

    def close(self, session_id: int) -> None:
        """Forget the session with this id, if there is one."""
        session = self._sessions.get(session_id)
        if session is not None:
            self._take_out(session)
            session.close()

    def _count(self, session: FetchSession, now_ms: int) -> None:
        self._drop_old(session)
        self._partitions += session.size - session.cached_size
        session.cached_size = session.size
        if now_ms - session.created_ms > EVICTION_MS:
            insort(self._old, (session.cached_size, session.id))

    def _drop_old(self, session: FetchSession) -> None:
        entry = (session.cached_size, session.id)
        at = bisect_left(self._old, entry)
        if at < len(self._old) and self._old[at] == entry:
            del self._old[at]

    def _take_out(self, session: FetchSession) -> None:
        self._drop_old(session)
        self._partitions -= session.cached_size
        session.cached_size = 0
        del self._sessions[session.id]
        session.id = 0

    def _make_room(self, size: int, more: int, now_ms: int, sparing: FetchSession | None = None) -> bool:
        """Make space for `more` partitions, for a session that then has `size`."""
        while self._partitions + more > self._partitions_max:
            if not self._evict(size, now_ms, sparing):
                return False
        return True

    def _evict(self, size: int, now_ms: int, sparing: FetchSession | None = None) -> bool:
        """Close a session that has a lower rank than one with `size` partitions, if there is one."""
        oldest = next(iter(self._sessions.values()), None)
        if oldest is None or oldest is sparing:
            return False
        if now_ms - oldest.last_used_ms > EVICTION_MS:
            victim = oldest
        else:
            spared = None if sparing is None else sparing.id
            small = next((entry for entry in self._old[:2] if entry[1] != spared), None)
            if small is None or small[0] >= size:
                return False
            victim = self._sessions[small[1]]
        self._evictions += 1
        self.close(victim.id)
        return True
