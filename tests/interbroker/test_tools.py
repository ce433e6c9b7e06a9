"""A tool of the data directory, which knows its secret and is none of its processes, has the node hold."""

from __future__ import annotations

import threading
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import AbstractContextManager

import pytest
import trio

from fairlog.edge.malformed import Malformed
from fairlog.interbroker.asking_to_hold import CannotHold, HoldingNode, connected
from fairlog.interbroker.codec import encode
from fairlog.interbroker.handshake import TOOL
from fairlog.interbroker.sealing import Opener, Sealer
from fairlog_types import ShardNumber
from shard.conversation import Command, Hello
from shard.cut_messages import CutLogs, Hold, NoCut, Release
from tests.interbroker.processes import CLUSTER, SECRET, Directory, Process


class Node:
    """What holds, as far as the process of shard 0 is told."""

    def __init__(self) -> None:
        self.outcome: bool | NoCut = True
        """Of the next hold, to its end."""
        self.begins = True
        self.lasts_s = 60.0
        self.holding = 0
        self.gone = trio.Event()
        """Set when a hold has ended with its tool."""

    async def while_all_hold(self, inside: Callable[[], Awaitable[None]]) -> bool | NoCut:
        if not self.begins:
            return self.outcome
        self.holding += 1
        try:
            with trio.move_on_after(self.lasts_s) as scope:
                await inside()
        except (trio.BrokenResourceError, Malformed):
            self.gone.set()
            raise
        finally:
            self.holding -= 1
        return False if scope.cancelled_caught else self.outcome


@pytest.fixture
async def directory(nursery: trio.Nursery) -> AsyncGenerator[Directory]:
    directory = Directory(nursery)
    yield directory
    directory.close()


@pytest.fixture
def node() -> Node:
    return Node()


@pytest.fixture
async def process(directory: Directory, node: Node) -> Process:
    """The process of shard 0, which serves tools."""
    process = Process(directory, 0, while_all_hold=node.while_all_hold)
    await process.start()
    return process


def to(process: Process, *, secret: bytes = SECRET) -> AbstractContextManager[HoldingNode]:
    return connected(process.address[:2], CLUSTER, secret)


async def test_tool_has_the_node_hold_until_it_releases(process: Process, node: Node) -> None:
    """As often as it likes; what it is told in the end is what came of the hold."""

    def tool() -> list[bool]:
        with to(process) as holding:
            told: list[bool] = []
            for outcome in (True, False, True):
                node.outcome = outcome
                told += [holding.hold(), node.holding == 1, holding.release(), node.holding == 0]
            return told

    held = [True, True, True, True]
    assert await trio.to_thread.run_sync(tool) == [*held, True, True, False, True, *held]


async def test_tool_is_told_why_the_node_cannot_hold(process: Process, node: Node) -> None:
    """At once, or at the end; and that it can hold no more, if it does not say why."""

    def tool() -> None:
        with to(process) as holding:
            node.begins, node.outcome = False, NoCut("shard 1 is down")
            with pytest.raises(CannotHold, match=r"^shard 1 is down$"):
                holding.hold()
            node.outcome = False
            assert not holding.hold()
            node.begins, node.outcome = True, NoCut("shard 1 has gone")
            assert holding.hold()
            with pytest.raises(CannotHold, match=r"^shard 1 has gone$"):
                holding.release()

    await trio.to_thread.run_sync(tool)


async def test_release_of_a_hold_that_has_ended_by_itself_is_answered_with_no(process: Process, node: Node) -> None:
    """The tool was too slow. The next hold is good."""
    node.lasts_s = 0.05

    def tool() -> None:
        with to(process) as holding:
            assert holding.hold()
            while node.holding:
                threading.Event().wait(0.01)
            assert not holding.release()
            node.lasts_s = 60.0
            assert holding.hold()
            assert holding.release()

    await trio.to_thread.run_sync(tool)


async def test_hold_ends_with_its_tool(process: Process, node: Node) -> None:
    """However long it would have lasted."""

    def tool() -> None:
        with to(process) as holding:
            assert holding.hold()

    await trio.to_thread.run_sync(tool)
    with trio.fail_after(5):
        await node.gone.wait()


async def test_two_tools_do_not_disturb_each_other(process: Process, node: Node) -> None:
    """They are none of the peers, of which a second connection takes the place of the first."""

    def tool() -> None:
        with to(process) as one, to(process) as two:
            assert one.hold()
            assert two.hold()
            assert one.release()
            assert two.release()

    await trio.to_thread.run_sync(tool)


async def test_tool_without_the_secret_is_refused(process: Process) -> None:
    """It sees that by the other side's proof, and says what is wrong."""

    def tool() -> None:
        with (
            pytest.raises(CannotHold, match="does not know the secret of the brokers"),
            to(process, secret=b"x" * 32),
        ):
            raise AssertionError("there is no connection")

    await trio.to_thread.run_sync(tool)


async def test_process_that_takes_no_cuts_serves_no_tool(directory: Directory) -> None:
    """Nor does one whose shard is another one."""
    other, none = Process(directory, 1), Process(directory, 0)
    await other.start()
    await none.start()

    def tool() -> None:
        with pytest.raises(CannotHold, match="it is shard 1, and not shard 0"), to(other):
            raise AssertionError("there is no connection")
        with pytest.raises(CannotHold, match="cannot be reached"), to(none):
            raise AssertionError("there is no connection")

    await trio.to_thread.run_sync(tool)


async def test_no_process_at_the_address_is_told(process: Process) -> None:
    """As while it is started again."""
    await process.stop()

    def tool() -> None:
        with pytest.raises(CannotHold, match=r"shard 0 cannot be reached: .*refused"), to(process):
            raise AssertionError("there is no connection")

    await trio.to_thread.run_sync(tool)


async def test_tool_is_told_of_the_end_of_its_process(process: Process, node: Node) -> None:
    """In the middle of a hold."""
    holds, stopped = trio.Event(), threading.Event()

    def tool() -> None:
        with to(process) as holding:
            assert holding.hold()
            trio.from_thread.run_sync(holds.set)
            stopped.wait(10)
            with pytest.raises(CannotHold, match="cannot be reached"):
                holding.release()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(trio.to_thread.run_sync, tool)
        await holds.wait()
        await process.stop()
        stopped.set()


@pytest.mark.parametrize(
    "messages",
    [
        [Hello(1)],
        [Command(0, 0, 1, 0, CutLogs(()))],
        [Command(0, 0, 1, 0, Hold(1)), Command(0, 0, 2, 1, Release(2))],
    ],
)
async def test_what_no_tool_may_say_ends_the_connection(
    directory: Directory, process: Process, messages: list[Hello | Command]
) -> None:
    """It knows the secret, and may decide no transaction with it here."""
    recorded, key = await directory.connect_as(TOOL, process)
    sealer = Sealer(key)
    for message in messages:
        await recorded.send(sealer.seal(encode(message)))
    assert await recorded.is_closed()


async def test_answer_cannot_be_made_of_what_the_tool_has_sent(directory: Directory, process: Process) -> None:
    """Each direction has its key."""
    recorded, key = await directory.connect_as(TOOL, process)
    await recorded.send(Sealer(key).seal(encode(Command(0, 0, 1, 0, Hold(1)))))
    length = await recorded.receive_exactly(4)
    frame = await recorded.receive_exactly(int.from_bytes(length, "big"))
    with pytest.raises(Malformed):
        Opener(key).open_untrusted(frame)


def test_tool_is_no_shard() -> None:
    """No data directory has so many."""
    assert ShardNumber(2**32 - 1) == TOOL
