"""What a shard says to others, where none of them answers."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

import pytest
import trio
import trio.testing

from fairlog_types import ShardNumber, StorageFailure
from shard.conversation import Command, Hello, Message, Reply, Welcome
from shard.links import REPEAT_AFTER_S, Links

OWN, OTHER = ShardNumber(0), ShardNumber(1)


@dataclass
class Sent:
    """Everything that was sent to the other shard. A `shard.links.Transport`."""

    messages: list[Message] = field(default_factory=list)

    def send(self, shard: ShardNumber, message: Message) -> None:
        assert shard == OTHER
        self.messages.append(message)


@dataclass
class Executed:
    """Answers each command with its own body, when `answering` is set. A `shard.links.Executes`."""

    bodies: list[Any] = field(default_factory=list)
    answering: trio.Event = field(default_factory=trio.Event)
    restarts: int = 0

    def execute(self, shard: ShardNumber, body: Any) -> Callable[[], Awaitable[Any]]:
        self.bodies.append(body)

        async def answer() -> Any:
            await self.answering.wait()
            return body

        return answer

    def restarted(self, shard: ShardNumber) -> None:
        self.restarts += 1


@pytest.fixture
def sent() -> Sent:
    return Sent()


@pytest.fixture
async def links(sent: Sent, nursery: trio.Nursery) -> Links:
    links = Links(1, [OTHER], sent, _nothing)
    await nursery.start(links.run, Executed(), _nothing)
    return links


def _nothing(_shard: ShardNumber) -> None:
    pass


async def test_links_greet_and_announce_themselves_until_they_are_heard(
    links: Links, sent: Sent, autojump_clock: object
) -> None:
    """Though there is nothing to say: the other shard would not notice that this one has started."""
    await trio.sleep(2 * REPEAT_AFTER_S)
    assert {type(each) for each in sent.messages} == {Hello, Welcome}
    links.receive(OTHER, Welcome(5, 1))
    links.receive(OTHER, Command(5, 1, 1, 0, "x"))
    sent.messages.clear()
    await trio.sleep(4 * REPEAT_AFTER_S)
    assert sent.messages == []


async def test_ask_after_a_restart_of_the_other_shard_is_said_before_what_follows_its_welcome(
    sent: Sent, nursery: trio.Nursery
) -> None:
    """`welcomed` may say what is undecided then: what was decided has been said again by that time."""
    links = Links(1, [OTHER], sent, _nothing)
    await nursery.start(links.run, Executed(), lambda shard: links.ask(shard, "undecided") and None)
    links.ask(OTHER, "decided")
    links.receive(OTHER, Welcome(5, 1))
    sent.messages.clear()
    links.receive(OTHER, Welcome(6, 1))
    assert [(it.listener_epoch, it.number, it.body) for it in sent.messages if isinstance(it, Command)] == [
        (6, 1, "decided"),
        (6, 2, "undecided"),
        (6, 3, "undecided"),
    ]


async def test_what_only_an_owner_may_say_waits_until_it_is_confirmed(sent: Sent, nursery: trio.Nursery) -> None:
    """And is never said by one that was deposed."""
    confirmed, is_owner, said = trio.Event(), True, list[int]()

    def confirm() -> Callable[[], Awaitable[None]]:
        async def wait() -> None:
            await confirmed.wait()
            if not is_owner:
                raise StorageFailure("deposed")

        return wait

    links = Links(1, [OTHER], sent, _nothing, confirm)
    await nursery.start(links.run, Executed(), _nothing)
    links.say_as_owner(lambda: said.append(1))
    await trio.testing.wait_all_tasks_blocked()
    assert said == []
    confirmed.set()
    await trio.testing.wait_all_tasks_blocked()
    assert said == [1]
    is_owner = False
    links.say_as_owner(lambda: said.append(2))
    await trio.testing.wait_all_tasks_blocked()
    assert said == [1]


async def test_what_only_an_owner_may_say_is_said_at_once_where_nobody_else_can_be(links: Links) -> None:
    """Shards of one machine have one process each."""
    said: list[int] = []
    links.say_as_owner(lambda: said.append(1))
    assert said == [1]


async def test_shard_that_is_reached_again_is_greeted_where_it_may_be_another_process(
    sent: Sent, nursery: trio.Nursery
) -> None:
    """Also if it has answered everything: the one that has may be deposed, and the present one not heard of."""
    links = Links(1, [OTHER], sent, _nothing, lambda: trio.lowlevel.checkpoint)
    await nursery.start(links.run, Executed(), _nothing)
    links.receive(OTHER, Welcome(6, 1))
    sent.messages.clear()
    links.reached(OTHER)
    assert sent.messages == [Hello(1)]
    links.receive(OTHER, Welcome(7, -1))
    assert links.epoch_of(OTHER) == 7


async def test_answer_is_given_up_when_the_links_are_closed(links: Links, autojump_clock: object) -> None:
    """A shard that stops would else wait for ever for one that is down; later questions are not even asked."""
    links.receive(OTHER, Welcome(5, 1))
    asked = links.ask(OTHER, "x")
    with trio.move_on_after(100) as waiting:
        await asked.answer()
    assert waiting.cancelled_caught
    links.close()
    for each in (asked, links.ask(OTHER, "y")):
        with pytest.raises(StorageFailure, match="has stopped before"):
            await each.answer()


async def test_shard_that_stops_waits_for_no_lost_one(sent: Sent, nursery: trio.Nursery) -> None:
    """Both stop, and the other was the first to end. What was said is said again, in its order, if it comes back."""
    given_up: list[ShardNumber] = []
    links = Links(1, [OTHER], sent, given_up.append)
    await nursery.start(links.run, Executed(), _nothing)
    links.receive(OTHER, Welcome(5, 1))
    asked = links.ask(OTHER, "x")
    links.lost(OTHER)
    assert not asked.is_answered
    assert given_up == []
    links.stop()
    assert given_up == [OTHER]
    for each in (asked, links.ask(OTHER, "y")):
        with pytest.raises(StorageFailure, match="has stopped before"):
            await each.answer()
    sent.messages.clear()
    links.reached(OTHER)
    assert not links.ask(OTHER, "z").is_answered
    assert [it.body for it in sent.messages if isinstance(it, Command)] == ["x", "y", "z"]


async def test_shard_that_stops_waits_for_another_until_it_is_lost(links: Links, sent: Sent) -> None:
    links.receive(OTHER, Welcome(5, 1))
    links.lost(OTHER)
    links.reached(OTHER)
    links.stop()
    first, second = links.ask(OTHER, "x"), links.ask(OTHER, "y")
    (command, _) = (it for it in sent.messages if isinstance(it, Command))
    links.receive(OTHER, Reply(5, 1, command.number, "answer"))
    assert await first.answer() == "answer"
    assert not second.is_answered
    links.lost(OTHER)
    assert second.is_answered


async def test_new_epoch_of_the_other_shard_ends_what_its_earlier_one_has_asked_for(sent: Sent) -> None:
    """Its answer would be taken for that of another command with the same number."""
    executed = Executed()
    links = Links(1, [OTHER], sent, _nothing)
    async with trio.open_nursery() as nursery:
        await nursery.start(links.run, executed, _nothing)
        links.receive(OTHER, Command(5, 1, 1, 0, "of the earlier one"))
        links.receive(OTHER, Command(6, 1, 1, 0, "of the new one"))
        executed.answering.set()
        await trio.testing.wait_all_tasks_blocked()
        nursery.cancel_scope.cancel()
    assert executed.bodies == ["of the earlier one", "of the new one"]
    assert executed.restarts == 2
    replies = [it for it in sent.messages if not isinstance(it, Hello | Welcome)]
    assert [it.body for it in replies] == ["of the new one"]
