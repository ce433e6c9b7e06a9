"""A simulation of several nodes with metadata on a stream that loses, doubles and delays entries.

    nodes ─▶ MetadataLog, ReplicatedStore, LocalCopy (the product's) ─▶ `tests.stream.model_engine`
      └── clients' tasks: each change is noted, and what its caller was told        memory in place of LMDB

A seed decides everything: what clients do, faults of the engine, when nodes crash, what a crash leaves of a write, and
the order in which trio runs its tasks. `run_world` raises AssertionError if something is not as it must be:

* All nodes have the content that the accepted entries give, by a fold of its own (`accepted_content`); so has a node
  that begins with nothing.
* What was told as made is there, once. What was told as refused was never made, not even later.
* Blocks of producer ids do not overlap.
* A change that was made is seen by the next reader on the same node.
* Every snapshot that a node may begin at is whole.
"""

from __future__ import annotations

import itertools
import random
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast
from unittest import mock

import cbor2
import structlog.testing
import trio
import trio._core._run as runner
import trio.testing

from fairlog.cluster import metadata_snapshots, records
from fairlog.cluster.cluster_records import NodeNumber
from fairlog.cluster.interface import InvalidTopic, TopicExists, UnknownTopic
from fairlog.cluster.local_copy import LocalCopy
from fairlog.cluster.metadata_entry import NotAnEntry, Origin, Piece, Snapshot, decode_entry_untrusted
from fairlog.cluster.metadata_log import Founding, MetadataLog
from fairlog.cluster.replicated import ReplicatedStore
from fairlog_types import ShardNumber, StorageFailure
from stream.engine import Stream
from tests.cluster.accepted import accepted_changes, accepted_content
from tests.stream.model_engine import CALM, Faults, ModelCluster, ModelStream, open_model

STREAM = "metadata"
SHARDS = 2
FOUNDING = Founding(SHARDS, 4, 4, "-")
ENTRY_BYTES_MAX = 700
"""So that snapshots take several entries."""
STORM = Faults(
    lost=0.04, untold=0.05, late=0.06, doubled=0.08, end_fails=0.05, end_appends=0.3,
    append_s_max=0.05, answer_s_max=0.05, read_s_max=0.2, late_s_max=4.0, append_timeout_s=1.0,
)  # fmt: skip
BULK = {"bulk": "x" * 200}
NAMES = ("a", "b.c", "b_c", "d")


class MemoryEnvironment:
    """What `LocalCopy` uses of an LMDB environment; it remembers all commits."""

    def __init__(self) -> None:
        self.commits: list[dict[bytes, bytes]] = [{}]
        self.writing_since: int | None = None
        """How many commits there were when the write began that is not done yet."""

    @contextmanager
    def begin(self, *, write: bool = False) -> Iterator[MemoryTransaction]:
        transaction = MemoryTransaction(dict(self.commits[-1]))
        yield transaction
        if write:
            self.commits.append(transaction.records)

    def crash(self, source: random.Random) -> MemoryEnvironment:
        """What the next start finds: a write that was under way may be there or not."""
        after = MemoryEnvironment()
        first = len(self.commits) if self.writing_since is None else self.writing_since
        after.commits = self.commits[: source.randint(first, len(self.commits))]
        return after


class MemoryTransaction:
    """See `MemoryEnvironment`."""

    def __init__(self, content: dict[bytes, bytes]) -> None:
        self.records = content

    def put(self, key: bytes, value: bytes) -> None:
        self.records[key] = value

    def delete(self, key: bytes) -> None:
        self.records.pop(key, None)


@dataclass
class Told:
    """What callers were told, by the number of the change."""

    made: set[int] = field(default_factory=set)
    refused: set[int] = field(default_factory=set)
    ids: list[range] = field(default_factory=list)


@dataclass
class Node:
    """One machine."""

    number: int
    environment: MemoryEnvironment
    log: MetadataLog | None = None
    scope: trio.CancelScope | None = None
    is_up: bool = False
    starts: int = 0


class World:
    """One run. See the module's head."""

    def __init__(self, seed: int, nodes: int = 3, changes: int = 12) -> None:
        self.random = random.Random(seed)
        self.nodes = [Node(number, MemoryEnvironment()) for number in range(1, nodes + 1)]
        self.changes = changes
        self.told = Told()
        self.numbers = itertools.count(1)
        self.trims = 0
        self.restarts = 0
        self.fresh_copies = 0
        self._cluster: ModelCluster | None = None
        self._streams: dict[str, Stream] = {}

    @property
    def cluster(self) -> ModelCluster:
        assert self._cluster is not None
        return self._cluster

    @property
    def entries(self) -> list[bytes]:
        """All that ever was in the stream."""
        log = self.cluster.log(STREAM)
        assert log is not None
        return log.entries

    async def run(self) -> None:
        async with open_model(self.random, STORM) as cluster:
            self._cluster = cluster
            async with trio.open_nursery() as nursery:
                for node in self.nodes:
                    nursery.start_soon(self._keep_up, node)
                faults = await nursery.start(self._disturb)
                async with trio.open_nursery() as clients:
                    for node in self.nodes:
                        for _ in range(2):
                            clients.start_soon(self._client, node)
                faults.cancel()
                cluster.come_back()
                for node in self.nodes:
                    cluster.join(f"node {node.number}")
                cluster.faults = CALM
                await trio.sleep(STORM.late_s_max + 1)  # all that is late has landed
                for node in self.nodes:
                    while not node.is_up:  # noqa: ASYNC110
                        await trio.sleep(0.1)
                    assert node.log is not None
                    await self._require_content(node.log, f"node {node.number}")
                nursery.cancel_scope.cancel()
            await self._begin_with_nothing()
        self._check_told()

    # --- nodes ------------------------------------------------------------------------------------------

    async def _keep_up(self, node: Node) -> None:
        """Start the node, and again whenever it has crashed."""
        while True:
            node.starts += 1
            with trio.CancelScope() as node.scope:
                await self._run_node(node)
            node.is_up, node.log = False, None
            if not node.scope.cancelled_caught:
                return
            node.environment = node.environment.crash(self.random)
            if self.random.random() < 0.2:
                node.environment = MemoryEnvironment()
                self.fresh_copies += 1
            self.restarts += 1
            await trio.sleep(self.random.uniform(0, 1))

    async def _run_node(self, node: Node) -> None:
        engine = self.cluster.engine(f"node {node.number}")
        stream = await self._open(engine)
        async with trio.open_nursery() as nursery:
            node.log = self._metadata(node.environment, stream, b"%02d-%013d" % (node.number, node.starts))
            nursery.start_soon(node.log.run)
            await node.log.found(FOUNDING)
            node.is_up = True
            await trio.sleep_forever()

    async def _open(self, engine: Any) -> Stream:
        while True:
            try:
                return await engine.open_stream(STREAM)
            except Exception:  # noqa: BLE001 - away
                await trio.sleep(0.1)

    def _metadata(self, environment: MemoryEnvironment, stream: Stream, identity: bytes) -> MetadataLog:
        copy = LocalCopy(cast("Any", environment), Path("copy"), STREAM, dict(environment.commits[-1]))
        return MetadataLog(stream, copy, identity=identity)

    async def _disturb(self, task_status: trio.TaskStatus[trio.CancelScope]) -> None:
        with trio.CancelScope() as scope:
            task_status.started(scope)
            while True:
                await trio.sleep(self.random.expovariate(1.0))
                node = self.random.choice(self.nodes)
                match self.random.choices(["crash", "cut", "away", "junk"], [5, 2, 1, 2])[0]:
                    case "crash":
                        if node.scope is not None:
                            node.scope.cancel()
                    case "cut":
                        self.cluster.cut(f"node {node.number}")
                        await trio.sleep(self.random.uniform(0, 3))
                        self.cluster.join(f"node {node.number}")
                    case "away":
                        self.cluster.go_away()
                        await trio.sleep(self.random.uniform(0, 3))
                        self.cluster.come_back()
                    case _:
                        if self.cluster.log(STREAM) is not None:
                            self.cluster.land(STREAM, self.random.choice([b"?", b"FLG", b"FLGS" + bytes(60)]))

    # --- clients ----------------------------------------------------------------------------------------

    async def _client(self, node: Node) -> None:
        for _ in range(self.changes):
            await trio.sleep(self.random.expovariate(5.0))
            while not node.is_up:  # noqa: ASYNC110
                await trio.sleep(0.1)
            assert node.log is not None
            assert node.scope is not None
            number = next(self.numbers)
            # A node that crashes takes its clients' requests with it: they are told nothing.
            with trio.CancelScope() as scope:
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(self._cancel_with, node, node.starts, scope)
                    await self._change(ReplicatedStore(node.log, NodeNumber(node.number), ShardNumber(0)), number)
                    nursery.cancel_scope.cancel()

    async def _cancel_with(self, node: Node, start: int, scope: trio.CancelScope) -> None:
        while node.is_up and node.starts == start:  # noqa: ASYNC110
            await trio.sleep(0.05)
        scope.cancel()

    async def _change(self, store: ReplicatedStore, number: int) -> None:
        name = self.random.choice(NAMES)
        kind = self.random.choices(["ids", "token", "create", "delete"], [3, 4, 3, 2])[0]
        try:
            match kind:
                case "ids":
                    self.told.ids.append(await store.allot_producer_ids(self.random.randint(1, 9)))
                case "token":
                    await store.alter_broker_configs("", lambda found: {"t": f"{found.get('t', '')}{number},"})
                    assert f",{number}," in f",{store.broker_configs('')['t']}", "a change is not seen by its maker"
                    self.told.made.add(number)
                case "create":
                    await store.create_topic(name, partitions=1, configs=BULK, now_ms=number)
                    self.told.made.add(number)
                case _:
                    topic = await store.delete_topic(name)
                    for shard in range(SHARDS):
                        other = ReplicatedStore(store._metadata, NodeNumber(1), ShardNumber(shard))
                        await other.forget_topic(topic.topic_id)
        except (TopicExists, InvalidTopic, UnknownTopic):
            self.told.refused.add(number)
        except StorageFailure:
            pass  # nobody knows

    # --- what must be so ----------------------------------------------------------------------------------

    async def _require_content(self, log: MetadataLog, who: str) -> None:
        with trio.fail_after(60):
            while log.read_to < len(self.entries):  # noqa: ASYNC110
                await trio.sleep(0.05)
        found, due = dict(log.memory.raw), accepted_content(self.entries)
        assert found == due, f"{who} has other content than the accepted entries say: {_difference(found, due)}"

    async def _begin_with_nothing(self) -> None:
        stream = await self._open(self.cluster.engine("newcomer"))
        self.trims = int(await stream.start())
        self._check_snapshots(self.trims)
        async with trio.open_nursery() as nursery:
            log = self._metadata(MemoryEnvironment(), stream, b"newcomer".ljust(16))
            nursery.start_soon(log.run)
            with trio.fail_after(60):
                await log.found(FOUNDING)
            await self._require_content(log, "a node that begins with nothing")
            nursery.cancel_scope.cancel()

    def _check_snapshots(self, start: int) -> None:
        """Every one that a node may begin at is whole."""
        pieces: Counter[Origin] = Counter()
        seen: set[tuple[Origin, int]] = set()
        for position, data in enumerate(self.entries):
            entry = decode_entry_untrusted(data)
            if isinstance(entry, NotAnEntry) or entry.base is None or entry.base.position + 1 < start:
                continue
            if isinstance(entry.body, Piece) and (entry.origin, entry.body.index) not in seen:
                seen.add((entry.origin, entry.body.index))
                pieces[entry.origin] += 1
            if isinstance(entry.body, Snapshot):
                due = entry.body.pieces
                assert pieces[entry.origin] == due, f"snapshot {position} has {pieces[entry.origin]} of {due} pieces"

    def _check_told(self) -> None:
        once: set[int] = set()
        for number in itertools.chain.from_iterable(_numbers_made(self.entries)):
            assert number not in once, f"change {number} was made twice"
            once.add(number)
        assert self.told.made <= once, f"told as made, and not made: {self.told.made - once}"
        assert not self.told.refused & once, f"told as refused, and made: {self.told.refused & once}"
        ids = sorted(self.told.ids, key=lambda block: block.start)
        for one, following in itertools.pairwise(ids):
            assert one.stop <= following.start, f"two blocks of producer ids overlap: {one}, {following}"


def _numbers_made(entries: list[bytes]) -> Iterator[list[int]]:
    """The numbers of the changes that were made, each time that one was."""
    topics: set[bytes] = set()
    tokens: list[str] = []
    for changes in accepted_changes(entries):
        for key, value in changes.items():
            if key == records.broker_key("") and value is not None:
                before, tokens = len(tokens), cbor2.loads(value)["t"].split(",")[:-1]
                yield [int(token) for token in tokens[before:]]
                assert len(set(tokens)) == len(tokens), "a token was added twice"
            if key.startswith(records.TOPIC_PREFIX) and value is not None and key not in topics:
                topics.add(key)
                yield [cbor2.loads(value)[3]]


def _difference(found: Mapping[bytes, bytes], due: Mapping[bytes, bytes]) -> str:
    keys = sorted(key for key in found.keys() | due.keys() if found.get(key) != due.get(key))
    return ", ".join(f"{key!r}: {found.get(key)!r} in place of {due.get(key)!r}" for key in keys[:3])


def run_world(seed: int, **arguments: int) -> World:
    """Simulate; the same seed gives the same run."""
    world = World(seed, **arguments)

    async def inline(call: Callable[..., object], *args: Any, **_: Any) -> object:
        """In place of a worker thread, which trio does not cancel: what it writes is there before the cancellation."""
        environment = cast("Any", call).__self__._environment
        environment.writing_since = len(environment.commits)
        with trio.CancelScope(shield=True):
            await trio.sleep(world.random.uniform(0, 0.01))
        result = call(*args)
        await trio.sleep(world.random.uniform(0, 0.1))  # the machine may crash here
        environment.writing_since = None
        return result

    runner._r.seed(f"{seed}/scheduler")
    with (
        structlog.testing.capture_logs(),
        mock.patch.object(runner, "_ALLOW_DETERMINISTIC_SCHEDULING", True),
        mock.patch.object(trio.to_thread, "run_sync", inline),
        mock.patch.object(metadata_snapshots, "SNAPSHOT_ENTRIES", 8),
        mock.patch.object(ModelStream, "entry_bytes_max", property(lambda _: ENTRY_BYTES_MAX)),
    ):
        trio.run(world.run, clock=trio.testing.MockClock(autojump_threshold=0))
    return world
