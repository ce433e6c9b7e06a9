"""A replicated log in memory that keeps the contract of `stream.engine`, and nothing beyond it.

    node ── ModelEngine ── pipeline per stream ──▶ ModelCluster: streams ──▶ readers, each as late as it likes

All that happens is an event with a time, in one queue: an entry lands, an outcome is told, a reader sees more. Fates
are drawn from one random.Random when an append begins, so the same calls at the same times have the same outcomes. It
runs on trio's clock, and under a MockClock that jumps it takes no time.

What it does, as often as `Faults` say:

- appends and outcomes are delayed; the entries of one node's stream land in the order in which they were begun
- an append is *lost*: Unknown, never there; *untold*: Unknown, though it landed; *late*: Unknown, and it lands after
  others, up to `late_s_max` later
- an entry is *doubled*: the other copy lands beside it, or later; the position of one that keeps the order is answered
- each reader sees a prefix of its own length
- `end` fails; or appends an empty entry, as engines may
- `ModelCluster.go_away`, and `cut` of one node: appends wait, and are Unknown after `append_timeout_s`. Then they never
  land, or when the engine is back. Questions raise EngineAway.

It does not pause nodes. What a paused node had begun goes on here, as with a real engine.
"""

from __future__ import annotations

import heapq
import math
import random
from collections import deque
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass

import trio

from stream.engine import (
    EngineAway,
    EntryGone,
    Reader,
    StoredEntry,
    Stream,
    StreamCutOff,
    StreamPosition,
    Unknown,
    WeakStream,
)

Outcome = StreamPosition | Unknown


@dataclass(frozen=True, slots=True, kw_only=True)
class Faults:
    """How often something happens: of 1. And how long it takes: up to so many seconds."""

    lost: float = 0
    untold: float = 0
    late: float = 0
    doubled: float = 0
    end_fails: float = 0
    end_appends: float = 0
    lands_after_timeout: float = 0.5
    """Of those that waited for an engine that was away."""
    append_s_max: float = 0.002
    answer_s_max: float = 0.002
    read_s_max: float = 0.002
    late_s_max: float = 5.0
    append_timeout_s: float = 3.0
    ask_timeout_s: float = 1.0


CALM = Faults()
STORMY = Faults(lost=0.03, untold=0.03, late=0.05, doubled=0.05, end_fails=0.1, end_appends=0.5,
                append_s_max=0.05, answer_s_max=0.05, read_s_max=0.5)  # fmt: skip


class ModelCluster:
    """The streams, and who can reach them. Made by `open_model`."""

    def __init__(self, source: random.Random, faults: Faults) -> None:
        self.random = source
        self.faults = faults
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._event_count = 0
        self._earlier = trio.Event()
        self._logs: dict[str, _Log] = {}
        self._weak: dict[str, str] = {}
        self._away = False
        self._cut: set[str] = set()
        self._pipelines: list[_Pipeline] = []
        self._readers: list[ModelReader] = []

    def engine(self, node: str) -> ModelEngine:
        """A node's handle."""
        return ModelEngine(self, node)

    @asynccontextmanager
    async def opening(self, node: str) -> AsyncGenerator[ModelEngine]:
        """A node's handle, closed on leaving."""
        engine = self.engine(node)
        try:
            yield engine
        finally:
            engine.close()

    def go_away(self) -> None:
        """Answer nobody."""
        self._away = True

    def come_back(self) -> None:
        self._away = False
        self._reachable_again()

    def cut(self, node: str) -> None:
        """Answer this node no more."""
        self._cut.add(node)

    def join(self, node: str) -> None:
        self._cut.discard(node)
        self._reachable_again()

    def delete(self, name: str) -> None:
        """As somebody may: the stream is gone."""
        del self._logs[name]
        self._look_all()

    def make_anew(self, name: str) -> None:
        """As somebody may: the stream is another one, of the same name."""
        self._logs[name] = _Log()
        self._look_all()

    def weaken(self, name: str, sentence: str | None) -> None:
        """The stream is kept less safely than configured; None: no more."""
        if sentence is None:
            self._weak.pop(name, None)
        else:
            self._weak[name] = sentence

    def reaches(self, node: str) -> bool:
        return not self._away and node not in self._cut

    def log(self, name: str) -> _Log | None:
        return self._logs.get(name)

    def open(self, name: str) -> _Log:
        return self._logs.setdefault(name, _Log())

    def check(self, name: str) -> None:
        if (sentence := self._weak.get(name)) is not None:
            raise WeakStream(sentence)

    def add_pipeline(self, pipeline: _Pipeline) -> None:
        self._pipelines.append(pipeline)

    def add_reader(self, reader: ModelReader) -> None:
        self._readers.append(reader)

    def remove_reader(self, reader: ModelReader) -> None:
        self._readers.remove(reader)

    def land(self, name: str, data: bytes) -> StreamPosition | None:
        """Append now; None if the stream is not there."""
        log = self._logs.get(name)
        if log is None:
            return None
        log.entries.append(data)
        for reader in self._readers:
            if reader.reads(name):
                self.after(self.upto(self.faults.read_s_max), reader.look_at(len(log.entries)))
        return StreamPosition(len(log.entries) - 1)

    def upto(self, seconds: float) -> float:
        return self.random.uniform(0, seconds)

    def happens(self, probability: float) -> bool:
        return self.random.random() < probability

    def after(self, seconds: float, call: Callable[[], None]) -> None:
        """Call it in so many seconds. Calls for the same moment run in the order in which they were asked for."""
        self.at(trio.current_time() + seconds, call)

    def at(self, moment: float, call: Callable[[], None]) -> None:
        self._event_count += 1
        heapq.heappush(self._events, (moment, self._event_count, call))
        if self._events[0][1] == self._event_count:
            self._earlier.set()

    async def run(self) -> None:
        while True:
            while self._events and self._events[0][0] <= trio.current_time():
                heapq.heappop(self._events)[2]()
            self._earlier = trio.Event()
            with trio.move_on_at(self._events[0][0] if self._events else math.inf):
                await self._earlier.wait()

    def _reachable_again(self) -> None:
        for pipeline in self._pipelines:
            pipeline.go_on()
        self._look_all()

    def trimmed(self) -> None:
        """Readers of what is gone are told."""
        self._look_all()

    def _look_all(self) -> None:
        for reader in self._readers:
            reader.wake()


@asynccontextmanager
async def open_model(source: random.Random, faults: Faults = CALM) -> AsyncGenerator[ModelCluster]:
    """A cluster without streams. On leaving, nothing more happens in it."""
    cluster = ModelCluster(source, faults)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(cluster.run)
        yield cluster
        nursery.cancel_scope.cancel()


class _Log:
    """One stream's entries; what was trimmed stays in the list, and is not shown."""

    def __init__(self) -> None:
        self.entries: list[bytes] = []
        self.start = 0


@dataclass(slots=True, eq=False)
class _Append:
    data: bytes
    done: Callable[[Outcome], None]
    fate: str
    told: bool = False


class _Pipeline:
    """What one node has begun to append to one stream: lands in this order."""

    def __init__(self, cluster: ModelCluster, node: str, name: str) -> None:
        self._cluster = cluster
        self._node = node
        self._name = name
        self._queue: deque[_Append] = deque()
        self._lands_next = -math.inf
        self.closed = False
        """Nothing is told any more."""

    def begin(self, data: bytes, done: Callable[[Outcome], None]) -> None:
        cluster, faults = self._cluster, self._cluster.faults
        kinds = {"lost": faults.lost, "untold": faults.untold, "late": faults.late, "doubled": faults.doubled}
        fate = cluster.random.choices([*kinds, "plain"], [*kinds.values(), max(0.0, 1 - sum(kinds.values()))])[0]
        append = _Append(data, done, fate)
        self._queue.append(append)
        now = trio.current_time()
        self._lands_next = max(self._lands_next, now + cluster.upto(faults.append_s_max))
        cluster.at(self._lands_next, lambda: self._arrive(append))
        cluster.at(now + faults.append_timeout_s, lambda: self._time_out(append))

    def go_on(self) -> None:
        """The engine is there again: what has waited lands."""
        while self._queue and self._queue[0].fate == "waits" and self._cluster.reaches(self._node):
            self._land(self._queue.popleft(), "plain")

    def _arrive(self, append: _Append) -> None:
        if append not in self._queue:
            return  # it has waited, and landed or was dropped
        if self._queue[0] is not append or not self._cluster.reaches(self._node):
            append.fate = "waits"
            return
        self._queue.popleft()
        self._land(append, append.fate)
        self.go_on()

    def _land(self, append: _Append, fate: str) -> None:
        cluster, faults = self._cluster, self._cluster.faults
        if fate == "lost":
            self._tell_soon(append, Unknown("the model lost it"))
        elif fate == "late":
            self._tell_soon(append, Unknown("the model is late"))
            cluster.after(cluster.upto(faults.late_s_max), lambda: self._land_late(append.data))
        else:
            position = cluster.land(self._name, append.data)
            if fate == "doubled":
                if cluster.happens(0.5):
                    position = cluster.land(self._name, append.data)
                else:
                    cluster.after(cluster.upto(faults.late_s_max), lambda: self._land_late(append.data))
            if position is None or fate == "untold":
                self._tell_soon(append, Unknown("the model does not tell"))
            else:
                self._tell_soon(append, position)

    def _land_late(self, data: bytes) -> None:
        self._cluster.land(self._name, data)

    def _tell_soon(self, append: _Append, outcome: Outcome) -> None:
        self._cluster.after(self._cluster.upto(self._cluster.faults.answer_s_max), lambda: self._tell(append, outcome))

    def _tell(self, append: _Append, outcome: Outcome) -> None:
        if append.told or self.closed:
            return
        if not self._cluster.reaches(self._node) and not isinstance(outcome, Unknown):
            return  # the answer is lost; the time-out tells that it is unknown
        append.told = True
        append.done(outcome)

    def _time_out(self, append: _Append) -> None:
        if append.told:
            return
        if append in self._queue and not self._cluster.happens(self._cluster.faults.lands_after_timeout):
            self._queue.remove(append)
        append.told = True
        if not self.closed:
            append.done(Unknown("the model was away"))


class ModelReader:
    """engine.Reader documents `next`."""

    def __init__(self, cluster: ModelCluster, node: str, name: str, log: _Log | None, start: StreamPosition) -> None:
        self._cluster = cluster
        self._node = node
        self._name = name
        self._log = log
        self._position = start
        self._seen = 0
        self._woken = trio.Event()

    def reads(self, name: str) -> bool:
        return name == self._name

    def look_at(self, end: int) -> Callable[[], None]:
        """A call that shows the reader all before `end`."""

        def look() -> None:
            self._seen = max(self._seen, end)
            self.wake()

        return look

    def wake(self) -> None:
        self._woken.set()
        self._woken = trio.Event()

    async def next(self) -> Sequence[StoredEntry]:
        await trio.lowlevel.checkpoint()
        while True:
            if self._cluster.reaches(self._node):
                log = self._cluster.log(self._name)
                if log is not self._log or log is None:
                    raise StreamCutOff(f"{self._name} was read up to {self._position}, and was deleted")
                if self._position < log.start:
                    raise EntryGone(f"{self._name} was to be read from {self._position} on, and starts at {log.start}")
                if self._position > len(log.entries):
                    raise StreamCutOff(f"{self._name} was read up to {self._position}, and ends at {len(log.entries)}")
                if self._position < self._seen:
                    count = self._cluster.random.randint(1, self._seen - self._position)
                    first, self._position = self._position, StreamPosition(self._position + count)
                    data = log.entries[first : self._position]
                    return [StoredEntry(StreamPosition(first + n), each) for n, each in enumerate(data)]
            await self._woken.wait()


class ModelStream:
    """engine.Stream documents its methods."""

    def __init__(self, cluster: ModelCluster, node: str, name: str) -> None:
        self._cluster = cluster
        self._node = node
        self._name = name
        self._log = cluster.log(name)
        self._pipeline = _Pipeline(cluster, node, name)
        self._read = False
        cluster.add_pipeline(self._pipeline)

    def close(self) -> None:
        self._pipeline.closed = True

    @property
    def name(self) -> str:
        return self._name

    @property
    def entry_bytes_max(self) -> int:
        return 1 << 20

    def append(self, data: bytes, done: Callable[[Outcome], None]) -> None:
        assert 1 <= len(data) <= self.entry_bytes_max, len(data)
        self._pipeline.begin(data, done)

    @asynccontextmanager
    async def open_reader(self, start: StreamPosition) -> AsyncGenerator[Reader]:
        assert not self._read, f"{self._name} has a reader already"
        reader = ModelReader(self._cluster, self._node, self._name, self._log, start)
        self._read = True
        self._cluster.add_reader(reader)
        if self._log is not None:
            self._cluster.after(
                self._cluster.upto(self._cluster.faults.read_s_max), reader.look_at(len(self._log.entries))
            )
        try:
            yield reader
        finally:
            self._cluster.remove_reader(reader)
            self._read = False

    async def start(self) -> StreamPosition:
        return StreamPosition((await self._asked()).start)

    async def end(self) -> StreamPosition:
        log = await self._asked()
        if self._cluster.happens(self._cluster.faults.end_fails):
            raise EngineAway("the model does not say where it ends")
        if self._cluster.happens(self._cluster.faults.end_appends):
            self._cluster.land(self._name, b"")
        return StreamPosition(len(log.entries))

    async def trim(self, before: StreamPosition) -> None:
        log = await self._asked()
        assert before <= len(log.entries), (before, len(log.entries))
        log.start = max(log.start, before)
        self._cluster.trimmed()

    async def _asked(self) -> _Log:
        """The stream's entries, as they are at some moment of the question."""
        cluster = self._cluster
        await trio.sleep(cluster.upto(cluster.faults.append_s_max))
        log = cluster.log(self._name)
        if not cluster.reaches(self._node) or log is None:
            await trio.sleep(cluster.faults.ask_timeout_s)
            raise EngineAway("the model is away")
        return log


class ModelEngine:
    """engine.Engine documents its methods; one for each node."""

    def __init__(self, cluster: ModelCluster, node: str) -> None:
        self._cluster = cluster
        self._node = node
        self._streams: dict[str, ModelStream] = {}

    def close(self) -> None:
        """What was begun goes on, and nobody is told."""
        for stream in self._streams.values():
            stream.close()

    async def open_stream(self, name: str) -> Stream:
        await self._asked()
        self._cluster.open(name)
        self._cluster.check(name)
        if name not in self._streams:
            self._streams[name] = ModelStream(self._cluster, self._node, name)
        return self._streams[name]

    async def check(self, name: str) -> None:
        await self._asked()
        self._cluster.check(name)

    async def _asked(self) -> None:
        await trio.sleep(self._cluster.upto(self._cluster.faults.append_s_max))
        if not self._cluster.reaches(self._node):
            await trio.sleep(self._cluster.faults.ask_timeout_s)
            raise EngineAway("the model is away")
