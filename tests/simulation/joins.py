"""Nodes that get a copy of a shard from another node: the product's own code, without sockets and without LMDB's file.

    node that joins   falls_short ─▶ get_copy ─▶ each giver in turn ─▶ Draft ─▶ in its place
                                         │  parts, late or cut off in the middle (`CopyWays`)
    node that gives                  Giver, in whatever role it is, while it goes on

What stands in for something: the connection, and the data logs' file, whose bytes are here all that the environment in
memory holds. A node's data logs belong to the directory in which they lie: when a copy has come in its place, those of
the copy are there; when nothing is there, there are none (`environment_of`).

Copies are made by nodes that come late, by those whose disk was lost, and by those that the stream was trimmed past.
The one that gives and the one that gets die in the middle.
"""

from __future__ import annotations

import pickle
import secrets
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from random import Random
from typing import TYPE_CHECKING, Any, cast
from unittest import mock

import trio
from crc32c import crc32c

from fairlog.cluster import reports
from fairlog.cluster.interface import InnerAddress
from fairlog.interbroker import getting_copies
from fairlog.interbroker.getting_copies import CannotGet, get_copy
from fairlog_types import CorruptStorage, ShardNumber, StorageFailure
from shard import giving, stream_mark
from shard.copy_parts import CannotGive, FileBegins, FileBytes, FileEnds, Part, decode_part_untrusted, encode_part
from shard.directory import ShardDirectory
from shard.giving import NothingToGive, Send
from shard.joining import falls_short
from shard.progress import CopyProgress
from stream.engine import EngineAway, Stream
from stream.fold import FoldState
from tests.simulation.disk import Directory, Disk, File
from tests.simulation.memory_lmdb import MemoryEnvironment, State, Table
from tests.simulation.plan import Plan
from tests.simulation.world import CURRENT, Crashed, World

if TYPE_CHECKING:
    from tests.simulation.replicas import ReplicaMachine

PART_BYTES = 8 * 1024
"""Of a file, at most: so that there are many parts."""
SILENCE_S = 2.0
GIVEN, GOT = "copy.given", "copy.got"
"""Where nodes die: a part was sent, a part was written."""


# --- the data logs' file ---


def environment_of(
    disk: Disk,
    directory: ShardDirectory,
    known: tuple[Directory | None, MemoryEnvironment],
    make: Callable[[State], Any],
) -> tuple[Directory, MemoryEnvironment]:
    """The environment of the data logs that lie in `directory` now, and the directory that they lie in.

    `known` are those of the start before. If nothing is there, an empty one is made, which is durable at once.
    """
    place = str(directory.data_logs)
    here = disk.nodes.get(place)
    if isinstance(here, Directory):
        if here is known[0]:
            return here, known[1]
        file = disk.nodes[str(directory.data_logs_file)]
        assert isinstance(file, File)
        return here, make(_loaded(bytes(file.cached)))
    for path in (*reversed(directory.data_logs.parents), directory.data_logs):
        if path.is_relative_to(directory.data_dir) and path != directory.data_dir:
            there = disk.nodes.get(str(path))
            disk.make_durable(str(path), Directory() if there is None else there)
    made = disk.nodes[place]
    assert isinstance(made, Directory)
    return made, make({})


def _dumped(data_logs: Any) -> bytes:
    with data_logs._in_use():
        state: State = data_logs._env.state
        return pickle.dumps({name: table.values for name, table in state.items()})


def _loaded(data: bytes) -> State:
    tables: dict[bytes, dict[bytes, bytes]] = pickle.loads(data)
    return {name: Table(sorted(values), values) for name, values in tables.items()}


async def _send_data_logs(name: str, data_logs: Any, send: Send) -> None:
    """In place of the one that reads LMDB's file from a pipe."""
    await send(FileBegins(name))
    data = await trio.to_thread.run_sync(_dumped, data_logs)
    for start in range(0, len(data), PART_BYTES):
        await send(FileBytes(data[start : start + PART_BYTES]))
    await send(FileEnds(len(data), crc32c(data)))


# --- connections ---


class CopyWays:
    """In place of connections between nodes that give copies and nodes that get them."""

    def __init__(self, world: World, plan: Plan, machines: Sequence[ReplicaMachine]) -> None:
        self._world = world
        self._plan = plan
        self._machines = machines
        self._rng: Random = world.stream("copies")

    async def make_anew_if_it_falls_short(
        self, machine: ReplicaMachine, stream: Stream, progress: CopyProgress
    ) -> None:
        """What `fairlog.cluster_node.shard_copy` does before a copy is opened."""
        while True:
            try:
                falls = await falls_short(machine.directory, stream)
            except EngineAway:
                await trio.sleep(0.05)
            else:
                break
        if not falls:
            return
        self._world.note("copies", f"{machine.name} makes its copy anew")
        machine.joins = True
        try:
            await get_copy(
                machine.directory,
                stream.name,
                lambda: [
                    InnerAddress(other.name, other.number) for other in machine.others if other.giving is not None
                ],
                cluster_id="",
                secret=b"",
                progress=progress,
            )
        finally:
            machine.joins = False
        self._world.note("copies", f"{machine.name} has a copy")
        self._world.count("copies of other nodes")

    async def receive(
        self, address: InnerAddress, _shard: ShardNumber, stream: str, _joins: object, taker: Any
    ) -> None:
        """In place of `getting_copies._receive`."""
        giver, nursery = self._machines[address.port], self._machines[address.port].giving
        if nursery is None:
            raise CannotGet("nobody listens there")
        taking = cast("Any", CURRENT.get())
        parts_left = self._rng.randint(1, 60) if self._rng.random() < self._plan.lost_requests else 1 << 30
        sender, receiver = trio.open_memory_channel[bytes](0)
        nursery.start_soon(self._give, giver, stream, sender)
        with receiver:
            while True:
                with trio.move_on_after(SILENCE_S) as waiting:
                    try:
                        data = await receiver.receive()
                    except trio.EndOfChannel:
                        raise CannotGet("the connection has ended before the copy was whole") from None
                if waiting.cancelled_caught:
                    raise CannotGet(f"it has sent nothing for {SILENCE_S:g} s")
                await trio.sleep(0.003 * self._rng.random())
                parts_left -= 1
                if not parts_left:
                    self._world.count("copies that were cut off")
                    raise CannotGet("the connection is cut")
                part = decode_part_untrusted(data)
                assert part is not None
                if isinstance(part, CannotGive):
                    raise CannotGet(part.reason)
                if await taker.take(part):
                    return
                _die_at(self._machines[taking.number], GOT)

    async def _give(self, giver: ReplicaMachine, stream: str, sender: trio.MemorySendChannel[bytes]) -> None:
        CURRENT.set(giver.world)
        await trio.lowlevel.checkpoint()

        async def send(part: Part) -> None:
            await sender.send(encode_part(part))
            _die_at(giver, GIVEN)

        with sender, suppress(trio.BrokenResourceError):
            try:
                await giver.giver.give(stream, send)
            except (NothingToGive, StorageFailure, CorruptStorage) as why:
                await send(CannotGive(str(why)))


def _die_at(machine: ReplicaMachine, point: str) -> None:
    with suppress(Crashed):
        machine.reached(point)


def decode_mark(data: bytes) -> FoldState | None:
    """The mark in these bytes of its file."""
    found = stream_mark.decode_mark_untrusted(data)
    return None if found is None else found[1]


@contextmanager
def joining(world: World, ways: CopyWays) -> Iterator[None]:
    """Nodes get copies of one another, over these ways."""
    bits = world.stream("names of copies")
    with ExitStack() as stack:
        for owner, name, new in (
            (getting_copies, "_receive", ways.receive),
            (getting_copies, "PAUSE_S", 0.05),
            (giving, "_send_data_logs", _send_data_logs),
            (giving, "FILE_BYTES_MAX", PART_BYTES),
            (reports, "JOINING_AGE_S", 1.0),
            (reports, "JOINING_S_MAX", 5.0),
            (secrets, "token_hex", lambda count: f"{bits.getrandbits(8 * count):0{2 * count}x}"),
        ):
            stack.enter_context(mock.patch.object(owner, name, new))
        yield
