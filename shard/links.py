"""The conversations of one shard with all others: what is said, what is heard, and what is said again.

    ask ─▶ Speaker ─▶ transport ┈┈▶ the other shard's Links ─▶ Listener ─▶ Executes ─▶ Reply ┈┈▶ ask's answer

The transport may lose, delay, double and reorder messages (`conversation`). A command is begun in the step in which it
is heard: what is done in that step (*apply*, *discard*, SaidAll) takes effect in the order in which it was said. What
is awaited for the answer (a disk, the copier, all of *begin*, *resume* and *prepare*) comes beside all others, and must
look whether a later command has overtaken it.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextlib import suppress
from typing import Any, NamedTuple, Protocol

import trio

from coordinator.messages import Stopped
from fairlog_types import ShardNumber, StorageFailure
from shard.conversation import Command, Hello, Listener, Message, Speaker

REPEAT_AFTER_S = 0.5
"""What is not answered for so long is said again; what waits for a disk is simply heard twice."""


class Executes(Protocol):
    """What is done with the commands of other shards. Must not raise."""

    def execute(self, shard: ShardNumber, body: Any) -> Callable[[], Awaitable[Any]]:
        """Begin a command of that shard, in the step of the call; what it returns is awaited for the answer."""
        ...

    def restarted(self, shard: ShardNumber) -> None:
        """That shard speaks in a new epoch: its next commands are those of a coordinator that has started again."""
        ...


Confirm = Callable[[], Callable[[], Awaitable[None]]]
"""What it answers is awaited until this process is known to have owned the shard at the call (StreamedJournals)."""


class Transport(Protocol):
    """The way to other shards."""

    def send(self, shard: ShardNumber, message: Message) -> None:
        """Send the message; whether and when it arrives, nobody knows. Does not raise."""
        ...


class Asked:
    """Something that was said, and is answered once."""

    __slots__ = ("_answer", "_answered", "epoch")

    def __init__(self) -> None:
        self.epoch: int | None = None
        """In which epoch of the other shard it was answered."""
        self._answered = trio.Event()
        self._answer: Any = _NOTHING

    def set(self, answer: Any, epoch: int | None) -> None:
        self._answer, self.epoch = answer, epoch
        self._answered.set()

    def give_up(self) -> None:
        """Nobody will hear the answer."""
        self._answered.set()

    @property
    def is_answered(self) -> bool:
        """Whether it is, or nobody will hear the answer."""
        return self._answered.is_set()

    async def answer(self) -> Any:
        """Wait for it, for as long as it takes. Cancelling changes nothing.

        Raises Stopped if this shard stops before it is there.
        """
        await self._answered.wait()
        if self._answer is _NOTHING:
            raise Stopped("this shard has stopped before another one has answered")
        return self._answer


_NOTHING = object()
"""In place of an answer that has not come."""


class _Hearing(NamedTuple):
    """What `run` was given, as long as it runs."""

    nursery: trio.Nursery
    executes: Executes
    welcomed: Callable[[ShardNumber], None]


class Links:
    """What a shard has to do with the others."""

    def __init__(
        self,
        epoch: int,
        others: Iterable[ShardNumber],
        transport: Transport,
        given_up: Callable[[ShardNumber], None],
        confirm: Confirm | None = None,
    ) -> None:
        """`epoch` grows with every start of this shard; `confirm` is None if no other process can own it.

        `given_up` is called when this shard stops and does not wait for that one, which is lost.
        """
        self._transport = transport
        self._given_up = given_up
        self._confirm = confirm
        self._speakers = {shard: Speaker(epoch) for shard in others}
        self._listeners = {shard: Listener(epoch) for shard in self._speakers}
        self._asked: dict[tuple[ShardNumber, int], Asked] = {}
        """By shard and key."""
        self._executing: dict[ShardNumber, set[trio.CancelScope]] = {}
        """By shard, what its present epoch has asked for."""
        self._hearing: _Hearing | None = None
        self._lost: set[ShardNumber] = set()
        self._stops = False
        self._closed = False

    @property
    def others(self) -> Sequence[ShardNumber]:
        """The other shards."""
        return tuple(self._speakers)

    def epoch_of(self, shard: ShardNumber) -> int | None:
        """In which epoch the other shard is, as far as it was heard of; None if it was not."""
        return self._speakers[shard].listener_epoch

    def ask(self, shard: ShardNumber, body: Any) -> Asked:
        """Say it to that shard, in this step, and until it is answered."""
        if self._closed:
            asked = Asked()
            asked.give_up()
            return asked
        key, messages = self._speakers[shard].say(body, trio.current_time())
        asked = self._asked[shard, key] = Asked()
        self._send(shard, messages)
        if self._stops and shard in self._lost:
            asked.give_up()  # but it is said before what follows, if that shard is reached again
        return asked

    def say_as_owner(self, say: Callable[[], None]) -> None:
        """Call `say` once it is certain that this process owns the shard, at this moment at least; or never.

        Only while this runs.
        """
        if self._confirm is None:
            say()
        elif self._hearing is not None:
            self._hearing.nursery.start_soon(self._say_once_confirmed, self._confirm(), say)

    async def _say_once_confirmed(self, confirmed: Callable[[], Awaitable[None]], say: Callable[[], None]) -> None:
        with suppress(StorageFailure):
            await confirmed()
            say()

    def receive(self, shard: ShardNumber, message: Message) -> None:
        """A message of that shard has come. While this one does not run, it is lost."""
        hearing = self._hearing
        if hearing is None:
            return
        if isinstance(message, Hello | Command):
            self._hear(shard, message, hearing)
            return
        before = self.epoch_of(shard)
        answer, messages = self._speakers[shard].hear(message, trio.current_time())
        if answer is not None:
            key, body = answer
            self._asked.pop((shard, key)).set(body, self.epoch_of(shard))
        self._send(shard, messages)
        if self.epoch_of(shard) != before:
            hearing.welcomed(shard)

    async def run(
        self,
        executes: Executes,
        welcomed: Callable[[ShardNumber], None],
        *,
        task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED,
    ) -> None:
        """Hear and execute, and say again what is not answered; until cancelled.

        `welcomed` is called when another shard is heard of in a new epoch, after what it had not answered was said
        again. They are passed here, and not to the constructor, because both are built on this object.
        """
        async with trio.open_nursery() as nursery:
            self._hearing = _Hearing(nursery, executes, welcomed)
            task_status.started()
            try:
                while True:
                    for shard, listener in self._listeners.items():
                        if (announcement := listener.announce()) is not None:
                            self._transport.send(shard, announcement)
                    for shard in self._speakers:
                        self.repeat(shard, REPEAT_AFTER_S)
                    await trio.sleep(REPEAT_AFTER_S / 2)
            finally:
                self._hearing = None
                self.close()

    def close(self) -> None:
        """Say nothing new, and wait for no answer any more; other shards are heard and answered on."""
        self._closed = True
        for asked in self._asked.values():
            asked.give_up()

    def stop(self) -> None:
        """This shard stops: from now on it waits for no answer of a shard that is lost, which may have stopped, too."""
        self._stops = True
        for shard in self._lost:
            self._give_up(shard)

    def lost(self, shard: ShardNumber) -> None:
        """No message reaches that shard, until it is `reached`."""
        self._lost.add(shard)
        if self._stops:
            self._give_up(shard)

    def reached(self, shard: ShardNumber) -> None:
        """Messages reach that shard again: what it has not answered need not wait for its time.

        It may be another process by now. One that has been given commands by an owner of this shard that was deposed
        says nothing of itself, and this shard may have been welcomed by one that was deposed: so it is greeted.
        """
        self._lost.discard(shard)
        self.repeat(shard)
        if self._confirm is not None:
            self._transport.send(shard, Hello(self._speakers[shard].epoch))

    def repeat(self, shard: ShardNumber, after_s: float = 0.0) -> None:
        """Say again what that shard has not answered for so long."""
        self._send(shard, self._speakers[shard].repeat(trio.current_time(), after_s))

    def _give_up(self, shard: ShardNumber) -> None:
        self._given_up(shard)
        for (of, _), asked in self._asked.items():
            if of == shard:
                asked.give_up()

    def _hear(self, shard: ShardNumber, message: Hello | Command, hearing: _Hearing) -> None:
        listener = self._listeners[shard]
        heard = listener.hear(message)
        if heard.forget:
            for scope in self._executing.pop(shard, ()):
                scope.cancel()
            hearing.executes.restarted(shard)
        if heard.send is not None:
            self._transport.send(shard, heard.send)
        if heard.execute is not None:
            scope = trio.CancelScope()
            self._executing.setdefault(shard, set()).add(scope)
            result = hearing.executes.execute(shard, heard.execute)
            hearing.nursery.start_soon(self._finish, shard, heard.number, result, scope)

    async def _finish(
        self, shard: ShardNumber, number: int, result: Callable[[], Awaitable[Any]], scope: trio.CancelScope
    ) -> None:
        """Wait for what a command leads to, and answer, unless an epoch has followed the one that gave it."""
        with scope:
            body = await result()
            executing = self._executing.get(shard, set())
            if scope in executing:
                executing.remove(scope)
                self._transport.send(shard, self._listeners[shard].answer(number, body))

    def _send(self, shard: ShardNumber, messages: Iterable[Message]) -> None:
        for message in messages:
            self._transport.send(shard, message)
