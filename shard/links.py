"""The conversations of one shard with all others: what is said, what is heard, and what is said again.

    ask ─▶ Speaker ─▶ transport ┈┈▶ the other shard's Links ─▶ Listener ─▶ execute ─▶ Reply ┈┈▶ ask's answer

The transport may lose, delay, double and reorder messages (`conversation`). A command begins in the step in which it is
heard, so that commands of one shard take effect in the order in which they were said; what it waits for, a disk or the
copier, it waits for beside all others.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Any, Protocol

import trio

from fairlog_types import ShardNumber
from shard.conversation import Command, Hello, Listener, Message, Speaker

REPEAT_AFTER_S = 0.5
"""What is not answered for so long is said again; what waits for a disk is simply heard twice."""

Execute = Callable[[ShardNumber, Any], Callable[[], Awaitable[Any]]]
"""Begin a command of that shard, in the step of the call; what it returns is awaited for the answer."""


class Transport(Protocol):
    """The way to other shards."""

    def send(self, shard: ShardNumber, message: Message) -> None:
        """Send the message; whether and when it arrives, nobody knows. Does not raise."""
        ...


class Asked:
    """Something that was said, and is answered once."""

    __slots__ = ("_answer", "_answered")

    def __init__(self) -> None:
        self._answered = trio.Event()
        self._answer: Any = None

    def set(self, answer: Any) -> None:
        self._answer = answer
        self._answered.set()

    async def answer(self) -> Any:
        """Wait for it, for as long as it takes. Cancelling changes nothing."""
        await self._answered.wait()
        return self._answer


class Links:
    """What a shard has to do with the others."""

    def __init__(self, epoch: int, others: Iterable[ShardNumber], transport: Transport, execute: Execute) -> None:
        """`epoch` grows with every start of this shard. `execute` must not raise."""
        self._transport = transport
        self._execute = execute
        self._speakers = {shard: Speaker(epoch) for shard in others}
        self._listeners = {shard: Listener(epoch) for shard in self._speakers}
        self._asked: dict[tuple[ShardNumber, int], Asked] = {}
        """By shard and key."""
        self._executing: dict[ShardNumber, set[trio.CancelScope]] = {}
        """By shard, what its present epoch has asked for."""
        self._nursery: trio.Nursery | None = None

    @property
    def others(self) -> Sequence[ShardNumber]:
        """The other shards."""
        return tuple(self._speakers)

    def ask(self, shard: ShardNumber, body: Any) -> Asked:
        """Say it to that shard, in this step, and until it is answered."""
        key, messages = self._speakers[shard].say(body, trio.current_time())
        asked = self._asked[shard, key] = Asked()
        self._send(shard, messages)
        return asked

    def receive(self, shard: ShardNumber, message: Message) -> None:
        """A message of that shard has come. While this one does not run, it is lost."""
        if self._nursery is None:
            return
        if isinstance(message, Hello | Command):
            self._hear(shard, message, self._nursery)
            return
        answer, messages = self._speakers[shard].hear(message, trio.current_time())
        if answer is not None:
            key, body = answer
            self._asked.pop((shard, key)).set(body)
        self._send(shard, messages)

    async def run(self, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Hear and execute, and say again what is not answered; until cancelled."""
        async with trio.open_nursery() as nursery:
            self._nursery = nursery
            task_status.started()
            try:
                while True:
                    await trio.sleep(REPEAT_AFTER_S / 2)
                    for shard, speaker in self._speakers.items():
                        self._send(shard, speaker.repeat(trio.current_time(), REPEAT_AFTER_S))
            finally:
                self._nursery = None

    def _hear(self, shard: ShardNumber, message: Hello | Command, nursery: trio.Nursery) -> None:
        listener = self._listeners[shard]
        heard = listener.hear(message)
        if heard.forget:
            for scope in self._executing.pop(shard, ()):
                scope.cancel()
        if heard.send is not None:
            self._transport.send(shard, heard.send)
        if heard.execute is not None:
            scope = trio.CancelScope()
            self._executing.setdefault(shard, set()).add(scope)
            nursery.start_soon(self._finish, shard, heard.number, self._execute(shard, heard.execute), scope)

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
