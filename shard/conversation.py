"""What two shards say to each other arrives once and in order, whatever the way between them does. Pure.

A coordinator's shard speaks (`Speaker`), a participant's shard listens (`Listener`): a pair for each direction.

    Speaker   Hello ─▶ Welcome        (who is there, and in which epoch)
              Command 1, 2, 3 … ─▶ Listener: executes each once, in this order ─▶ Reply 1, 2, 3 … in any order

What is not answered is sent again. A command is executed only if it is the next one; one that is known already is
answered again, if its answer is there. So the way may lose, delay, double and reorder messages.

Each shard has an *epoch*, which grows with every start. Messages name both. A listener obeys the largest epoch that it
has heard of, and no smaller one: a coordinator that was replaced, and does not know it, moves nothing. A speaker that
is welcomed by a new epoch begins to count anew, and says again what was not answered: the listener has forgotten the
conversation, not what it did. So a command may be executed twice then; all of them are idempotent.

Each side learns of the other's start, though neither may have anything to say: a speaker says Hello until it is
welcomed, and a listener announces itself with Welcome until it is given a command in its epoch.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

NOT_HEARD_OF = -1
"""In place of a speaker's epoch."""


class Hello(NamedTuple):
    """The speaker does not know in which epoch the listener is."""

    epoch: int


class Welcome(NamedTuple):
    """The listener is there, in this epoch."""

    epoch: int
    speaker_epoch: int
    """The largest that it has heard of, or NOT_HEARD_OF."""


class Command(NamedTuple):
    """Something to be executed."""

    epoch: int
    """The speaker's."""
    listener_epoch: int
    number: int
    """From 1 on, in each pair of epochs."""
    answered: int
    """Answers up to this number have come; they need not be kept."""
    body: Any


class Reply(NamedTuple):
    """What the execution of a command has led to."""

    epoch: int
    """The listener's."""
    speaker_epoch: int
    number: int
    body: Any


Message = Hello | Welcome | Command | Reply


@dataclass(slots=True)
class _Said:
    """A command that is not answered."""

    key: int
    body: Any
    sent_s: float


class Speaker:
    """One shard's commands to another one."""

    def __init__(self, epoch: int) -> None:
        self.epoch = epoch
        self.is_deposed = False
        """The listener knows a larger epoch of this shard."""
        self._listener_epoch: int | None = None
        self._numbers = 0
        self._keys = 0
        self._unanswered: dict[int, _Said] = {}
        """By number; before the first Welcome by key."""
        self._hello_s: float | None = None

    @property
    def listener_epoch(self) -> int | None:
        """None until the listener has been heard of."""
        return self._listener_epoch

    def say(self, body: Any, now_s: float) -> tuple[int, Sequence[Message]]:
        """Say something: the key under which its answer will come, and what is to be sent."""
        self._keys += 1
        said = _Said(self._keys, body, now_s)
        if self._listener_epoch is None:
            self._unanswered[-self._keys] = said
            return said.key, self._hello(now_s)
        return said.key, (self._send(said, now_s),)

    def hear(self, message: Welcome | Reply, now_s: float) -> tuple[tuple[int, Any] | None, Sequence[Message]]:
        """The answer, as key and body, if this is a new one; and what is to be sent."""
        if message.speaker_epoch > self.epoch:
            self.is_deposed = True
            return None, ()
        if isinstance(message, Welcome):
            return None, self._begin_anew(message.epoch, now_s)
        if message.epoch != self._listener_epoch or message.speaker_epoch != self.epoch:
            return None, ()
        said = self._unanswered.pop(message.number, None)
        return (None if said is None else (said.key, message.body)), ()

    def repeat(self, now_s: float, after_s: float) -> Sequence[Message]:
        """What is to be sent again, since it was not answered for so long. The first Hello, too, comes from here."""
        if self.is_deposed:
            return ()
        if self._listener_epoch is None:
            return self._hello(now_s, after_s)
        return [
            self._command(number, said, now_s)
            for number, said in self._unanswered.items()
            if now_s - said.sent_s >= after_s
        ]

    def _begin_anew(self, listener_epoch: int, now_s: float) -> Sequence[Message]:
        """The listener has begun in this epoch: what is unanswered is said to it in the old order."""
        if self._listener_epoch is not None and listener_epoch <= self._listener_epoch:
            return ()
        self._listener_epoch = listener_epoch
        waiting, self._unanswered = self._unanswered, {}
        self._numbers = 0
        return [self._send(said, now_s) for said in waiting.values()]

    def _send(self, said: _Said, now_s: float) -> Command:
        self._numbers += 1
        self._unanswered[self._numbers] = said
        return self._command(self._numbers, said, now_s)

    def _command(self, number: int, said: _Said, now_s: float) -> Command:
        said.sent_s = now_s
        assert self._listener_epoch is not None
        return Command(self.epoch, self._listener_epoch, number, next(iter(self._unanswered)) - 1, said.body)

    def _hello(self, now_s: float, after_s: float = 0.0) -> Sequence[Message]:
        if self._hello_s is not None and now_s - self._hello_s < after_s:
            return ()
        self._hello_s = now_s
        return (Hello(self.epoch),)


class Heard(NamedTuple):
    """What a message leads to."""

    execute: Any = None
    """The body of a command whose turn it is; None if there is none."""
    number: int = 0
    """Its number, under which it is answered."""
    forget: bool = False
    """What was begun for an earlier epoch is to be given up."""
    send: Message | None = None


@dataclass(slots=True)
class Listener:
    """What another shard says to this one."""

    epoch: int
    speaker_epoch: int = NOT_HEARD_OF
    """The largest heard of."""
    is_known: bool = False
    """The speaker knows this epoch: it has given a command in it."""
    _next: int = 1
    _answered: int = 0
    """Answers up to this number have come, as the speaker has said."""
    _replies: dict[int, Any] = field(default_factory=dict[int, Any])

    def hear(self, message: Hello | Command) -> Heard:
        """Take in a message; the caller does what it leads to before the next one."""
        if message.epoch < self.speaker_epoch:
            return Heard(send=self._welcome())
        forget = message.epoch > self.speaker_epoch
        if forget:
            self.speaker_epoch, self._next, self._answered = message.epoch, 1, 0
            self._replies.clear()
        if isinstance(message, Hello) or message.listener_epoch != self.epoch:
            return Heard(forget=forget, send=self._welcome())
        self.is_known = True
        while self._answered < min(message.answered, self._next - 1):
            self._answered += 1
            self._replies.pop(self._answered, None)
        if message.number == self._next:
            self._next += 1
            return Heard(message.body, message.number, forget)
        if message.number in self._replies:
            return Heard(send=self._reply(message.number))
        return Heard(forget=forget)

    def announce(self) -> Welcome | None:
        """What tells the speaker of this epoch; None if it knows."""
        return None if self.is_known else self._welcome()

    def answer(self, number: int, body: Any) -> Reply:
        """The command of this number, of the present epoch, has been executed."""
        self._replies[number] = body
        return self._reply(number)

    def _reply(self, number: int) -> Reply:
        return Reply(self.epoch, self.speaker_epoch, number, self._replies[number])

    def _welcome(self) -> Welcome:
        return Welcome(self.epoch, self.speaker_epoch)
