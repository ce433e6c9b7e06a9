"""The contract of `stream.engine`, promise by promise, on an engine that nothing happens to.

Each is tried on every kind of engine (test_contract.py). What holds also while things happen is tried by `trials`.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import pytest
import trio

from stream.engine import EntryGone, Stream, StreamCutOff, StreamPosition
from tests.stream.rigs import World, append, append_all, known, raised_by, read_all, read_until

START = StreamPosition(0)


async def an_entry_lies_where_it_was_answered(world: World) -> None:
    """What was appended is read back at its position, as it was."""
    async with world.open_engine("a") as engine:
        stream = await engine.open_stream("shard-0")
        entries = [b"first", b"\0\xff" * 500, b"x"]
        positions = [known(await append(stream, data)) for data in entries]
        found = dict(await read_all(stream))
        assert [found[position] for position in positions] == entries
        assert positions == sorted(positions)


async def positions_have_no_gaps(world: World) -> None:
    """A reader sees 0, 1, 2, … whatever was appended, by whom."""
    async with world.open_engine("a") as one, world.open_engine("b") as other:
        streams = [await one.open_stream("shard-0"), await other.open_stream("shard-0")]
        for stream in streams * 3:
            await append_all(stream, [b"e%d" % n for n in range(7)])
            await stream.end()
        read = await read_all(streams[0])
        assert [entry.position for entry in read] == list(range(len(read)))
        assert len([entry for entry in read if entry.data]) == 42
        assert await read_all(streams[1]) >= read


async def entries_that_are_under_way_together_keep_their_order(world: World) -> None:
    """Appends that are begun one after the other come to lie in this order."""
    async with world.open_engine("a") as engine:
        stream = await engine.open_stream("shard-0")
        entries = [b"%04d" % n for n in range(500)]
        positions = [known(outcome) for outcome in await append_all(stream, entries)]
        assert positions == sorted(set(positions))
        found = dict(await read_all(stream))
        assert [found[position] for position in positions] == entries


async def the_end_is_behind_what_was_answered(world: World) -> None:
    """`end`, asked by another node, is behind each entry that was answered before."""
    async with world.open_engine("a") as one, world.open_engine("b") as other:
        stream, elsewhere = await one.open_stream("shard-0"), await other.open_stream("shard-0")
        for n in range(20):
            position = known(await append(stream, b"e%d" % n))
            assert await elsewhere.end() > position


async def an_empty_stream_starts_at_its_end(world: World) -> None:
    """A stream that was just made starts at 0."""
    async with world.open_engine("a") as engine:
        stream = await engine.open_stream("shard-0")
        assert await stream.start() == START
        assert "shard-0" in stream.name


async def a_reader_at_the_end_waits_and_goes_on(world: World) -> None:
    """A reader that is opened at the end returns what is appended later, and is idle until then."""
    async with world.open_engine("a") as engine:
        stream = await engine.open_stream("shard-0")
        known(await append(stream, b"before"))
        end = await stream.end()
        async with stream.open_reader(end) as reader:
            with trio.move_on_after(0.3) as waited:
                await reader.next()
            assert waited.cancelled_caught
            for n in range(3):
                position = known(await append(stream, b"after %d" % n))
                (entry, *more) = await reader.next()
                assert (entry.position, entry.data, more) == (position, b"after %d" % n, [])


async def a_reader_begins_in_the_middle(world: World) -> None:
    """A reader returns what lies from its start on, and nothing before."""
    async with world.open_engine("a") as engine:
        stream = await engine.open_stream("shard-0")
        positions = [known(outcome) for outcome in await append_all(stream, [b"%d" % n for n in range(50)])]
        async with stream.open_reader(positions[20]) as reader:
            read = await read_until(reader, StreamPosition(positions[-1] + 1))
        assert [entry.data for entry in read if entry.data] == [b"%d" % n for n in range(20, 50)]


async def a_cancelled_read_loses_nothing(world: World) -> None:
    """Cancelled at any moment, the next call goes on where the last one that returned was."""
    async with world.open_engine("a") as engine:
        stream = await engine.open_stream("shard-0")
        async with trio.open_nursery() as nursery, stream.open_reader(START) as reader:
            nursery.start_soon(_append_slowly, stream, 60)
            data: list[bytes] = []
            while len(data) < 60:
                with trio.move_on_after(0.003):
                    data += [entry.data for entry in await reader.next() if entry.data]
        assert data == [b"%d" % n for n in range(60)]


async def _append_slowly(stream: Stream, count: int) -> None:
    for n in range(count):
        await append(stream, b"%d" % n)


async def a_reader_can_be_opened_again(world: World) -> None:
    """One reader after the other, from wherever each begins."""
    async with world.open_engine("a") as engine:
        stream = await engine.open_stream("shard-0")
        positions = [known(outcome) for outcome in await append_all(stream, [b"%d" % n for n in range(30)])]
        for start in (positions[25], positions[3], positions[10], START):
            async with stream.open_reader(start) as reader:
                (first, *_) = await reader.next()
                assert first.position == start


async def several_nodes_read_the_same(world: World) -> None:
    """Every node reads the same entries at the same positions, wherever they came from."""
    async with world.open_engine("a") as one, world.open_engine("b") as other:
        streams = [await one.open_stream("shard-0"), await other.open_stream("shard-0")]
        async with trio.open_nursery() as nursery:
            for stream in streams:
                nursery.start_soon(append_all, stream, [b"%d" % n for n in range(100)])
        end = await streams[0].end()
        read = [await read_all(stream) for stream in streams]
        assert [entry for entry in read[0] if entry.position < end] == [e for e in read[1] if e.position < end]


async def streams_do_not_mix(world: World) -> None:
    """What is appended to one stream is in no other; each has a reader at the same time."""
    async with world.open_engine("a") as engine:
        streams = [await engine.open_stream(f"shard-{n}") for n in range(8)]
        assert await engine.open_stream("shard-0") is streams[0]
        read: dict[int, list[bytes]] = {}

        async def use(number: int) -> None:
            async with streams[number].open_reader(START) as reader:
                for n in range(20):
                    await append(streams[number], b"%d/%d" % (number, n))
                data: list[bytes] = []
                while len(data) < 20:
                    data += [entry.data for entry in await reader.next() if entry.data]
                read[number] = data

        async with trio.open_nursery() as nursery:
            for number in range(len(streams)):
                nursery.start_soon(use, number)
        assert read == {number: [b"%d/%d" % (number, n) for n in range(20)] for number in range(len(streams))}


async def what_was_trimmed_is_gone(world: World) -> None:
    """After `trim` the stream starts there, a reader before it raises EntryGone, and the rest is as it was."""
    async with world.open_engine("a") as engine:
        stream = await engine.open_stream("shard-0")
        positions = [known(outcome) for outcome in await append_all(stream, [b"%d" % n for n in range(40)])]
        for _ in range(2):
            await stream.trim(positions[30])
        await stream.trim(positions[10])
        assert await stream.start() == positions[30]
        async with stream.open_reader(positions[29]) as reader:
            gone = await raised_by(reader)
            assert isinstance(gone, EntryGone)
            assert stream.name in str(gone)
            assert str(positions[29]) in str(gone)
            assert str(positions[30]) in str(gone)
            with pytest.raises(EntryGone):
                await reader.next()
        read = await read_all(stream)
        assert [entry.data for entry in read if entry.data] == [b"%d" % n for n in range(30, 40)]


async def a_stream_can_be_trimmed_to_its_end(world: World) -> None:
    """Then it starts where it ends, and goes on from there."""
    async with world.open_engine("a") as engine:
        stream = await engine.open_stream("shard-0")
        known(await append(stream, b"before"))
        end = await stream.end()
        await stream.trim(end)
        assert await stream.start() == end
        async with stream.open_reader(end) as reader:
            position = known(await append(stream, b"after"))
            read = await read_until(reader, StreamPosition(position + 1))
        assert [entry.data for entry in read if entry.data] == [b"after"]


async def a_reader_beyond_the_end_is_cut_off(world: World) -> None:
    """Whoever has read further than the stream reaches is told that it was cut off."""
    async with world.open_engine("a") as engine:
        stream = await engine.open_stream("shard-0")
        position = known(await append(stream, b"only"))
        async with stream.open_reader(StreamPosition(position + 1000)) as reader:
            cut = await raised_by(reader)
            assert isinstance(cut, StreamCutOff)
            assert stream.name in str(cut)
            assert str(position + 1000) in str(cut)


async def a_reader_of_a_deleted_stream_is_cut_off(world: World) -> None:
    """If somebody deletes the stream, its reader says so."""
    async with world.open_engine("a") as engine:
        stream = await engine.open_stream("shard-0")
        known(await append(stream, b"entry"))
        async with stream.open_reader(START) as reader:
            await reader.next()
            await world.delete("shard-0")
            cut = await raised_by(reader)
            assert isinstance(cut, StreamCutOff)
            assert "deleted" in str(cut)


async def a_slow_reader_stops_nobody_else(world: World) -> None:
    """One reader that rests does not stop another, and goes on later with all that came meanwhile."""
    async with world.open_engine("a") as engine:
        slow, quick = await engine.open_stream("slow"), await engine.open_stream("quick")
        size = slow.entry_bytes_max // 4
        entries = [n.to_bytes(4, "big") + bytes(size - 4) for n in range(60)]
        async with slow.open_reader(START) as slow_reader, quick.open_reader(START) as quick_reader:
            for data in entries:
                known(await append(slow, data))
            for n in range(20):
                position = known(await append(quick, b"%d" % n))
                await read_until(quick_reader, StreamPosition(position + 1))
            data: list[bytes] = []
            while len(data) < len(entries):
                data += [entry.data for entry in await slow_reader.next() if entry.data]
            assert data == entries


async def the_largest_entry_fits(world: World) -> None:
    """An entry of `entry_bytes_max` is appended and read back, alone and among others."""
    async with world.open_engine("a") as engine:
        stream = await engine.open_stream("shard-0")
        large = bytes(range(256)) * (stream.entry_bytes_max // 256)
        entries = [b"small", large, b"small too", large[::-1]]
        for outcome in await append_all(stream, entries):
            known(outcome)
        assert [entry.data for entry in await read_all(stream) if entry.data] == entries


async def an_engine_can_be_closed_while_appends_are_under_way(world: World) -> None:
    """Nothing is told after the engine was closed, and what was answered before is there."""
    answered: list[object] = []
    async with world.open_engine("a") as engine:
        stream = await engine.open_stream("shard-0")
        position = known(await append(stream, b"kept"))
        for n in range(100):
            stream.append(b"%d" % n, answered.append)
    told = len(answered)
    async with world.open_engine("b") as engine:
        found = dict(await read_all(await engine.open_stream("shard-0")))
        assert found[position] == b"kept"
    assert len(answered) == told


PROMISES: tuple[Callable[[World], Awaitable[None]], ...] = (
    an_entry_lies_where_it_was_answered,
    positions_have_no_gaps,
    entries_that_are_under_way_together_keep_their_order,
    the_end_is_behind_what_was_answered,
    an_empty_stream_starts_at_its_end,
    a_reader_at_the_end_waits_and_goes_on,
    a_reader_begins_in_the_middle,
    a_cancelled_read_loses_nothing,
    a_reader_can_be_opened_again,
    several_nodes_read_the_same,
    streams_do_not_mix,
    what_was_trimmed_is_gone,
    a_stream_can_be_trimmed_to_its_end,
    a_reader_beyond_the_end_is_cut_off,
    a_reader_of_a_deleted_stream_is_cut_off,
    a_slow_reader_stops_nobody_else,
    the_largest_entry_fits,
    an_engine_can_be_closed_while_appends_are_under_way,
)
