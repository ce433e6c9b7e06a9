"""What two shards say to each other, over a way that loses, delays, doubles and reorders."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from shard.conversation import Command, Hello, Listener, Message, Reply, Speaker, Welcome

REPEAT_S = 1.0


@dataclass
class Way:
    """All that was ever sent in one direction: any of it may arrive, at any time, as often as it likes."""

    messages: list[Message] = field(default_factory=list)


class ConversationMachine(RuleBasedStateMachine):
    """A speaker and a listener, either of which may be started again; a replaced one goes on, and does not know it."""

    @initialize()
    def begin(self) -> None:
        self.now_s = 0.0
        self.bodies = 0
        self.there, self.back = Way(), Way()
        self.speakers: list[Speaker] = []
        self.said: dict[int, list[int]] = {}
        """By speaker's epoch."""
        self.answers: dict[tuple[int, int], Any] = {}
        """By speaker's epoch and key."""
        self.listener = Listener(1)
        self.executed: list[tuple[int, int, int]] = []
        """Epoch of the listener and of the speaker, and the body; in order."""
        self.pending: list[tuple[int, int, int]] = []
        """What the present listener has begun: speaker's epoch, number and body."""
        self.start_speaker()

    def start_speaker(self) -> None:
        self.speakers.append(Speaker(len(self.speakers) + 1))
        self.said[len(self.speakers)] = []

    @rule()
    def speaker_is_replaced(self) -> None:
        if len(self.speakers) < 3 and self.bodies > 4 * len(self.speakers):
            self.start_speaker()

    @rule()
    def listener_is_started_again(self) -> None:
        if self.listener.epoch < 4 and len(self.executed) > 3 * self.listener.epoch:
            self.listener = Listener(self.listener.epoch + 1)
            self.pending.clear()

    @rule(which=st.integers(0, 2))
    def say(self, which: int) -> None:
        speaker = self.speakers[which % len(self.speakers)]
        self.bodies += 1
        _, messages = speaker.say(self.bodies, self.now_s)
        self.said[speaker.epoch].append(self.bodies)
        self.there.messages += messages

    @rule(which=st.integers(0, 2), later_s=st.sampled_from([0.0, 0.6, 1.0]))
    def repeat(self, which: int, later_s: float) -> None:
        self.now_s += later_s
        self.there.messages += self.speakers[which % len(self.speakers)].repeat(self.now_s, REPEAT_S)

    @rule(at=st.integers(0, 10_000))
    def arrives_there(self, at: int) -> None:
        if not self.there.messages:
            return
        message = self.there.messages[at % len(self.there.messages)]
        assert isinstance(message, Hello | Command)
        heard = self.listener.hear(message)
        if heard.forget:
            self.pending.clear()
        if heard.send is not None:
            self.back.messages.append(heard.send)
        if heard.execute is not None:
            assert message.epoch == self.listener.speaker_epoch, "a replaced shard is obeyed"
            self.executed.append((self.listener.epoch, message.epoch, heard.execute))
            self.pending.append((message.epoch, heard.number, heard.execute))

    @rule(at=st.integers(0, 10_000))
    def is_done(self, at: int) -> None:
        if self.pending:
            _, number, body = self.pending.pop(at % len(self.pending))
            self.back.messages.append(self.listener.answer(number, -body))

    @rule(at=st.integers(0, 10_000), which=st.integers(0, 2))
    def arrives_back(self, at: int, which: int) -> None:
        if not self.back.messages:
            return
        message = self.back.messages[at % len(self.back.messages)]
        assert isinstance(message, Welcome | Reply)
        speaker = self.speakers[which % len(self.speakers)]
        answer, messages = speaker.hear(message, self.now_s)
        self.there.messages += messages
        if answer is not None:
            key, body = answer
            assert self.answers.setdefault((speaker.epoch, key), body) == body
            assert self.said[speaker.epoch][key - 1] == -body, "an answer comes to what it answers"

    @invariant()
    def each_is_executed_once_and_in_order(self) -> None:
        """In one pair of epochs. After the listener's start what was not answered is executed again, in its order."""
        for listener in range(1, self.listener.epoch + 1):
            for speaker, said in self.said.items():
                bodies = [body for *epochs, body in self.executed if epochs == [listener, speaker]]
                assert bodies == sorted(set(bodies))
                places = [said.index(body) for body in bodies]
                # Without a gap, but for what another start of the listener has answered.
                skipped = {said[place] for place in range(max(places, default=-1))} - set(bodies)
                answered = {said[key - 1] for epoch, key in self.answers if epoch == speaker}
                assert skipped <= answered

    def teardown(self) -> None:
        """On a way that loses nothing more, all that the last speaker has said is executed and answered."""
        if not hasattr(self, "speakers"):
            return
        speaker = self.speakers[-1]
        for _ in range(4):
            self.now_s += REPEAT_S
            for message in speaker.repeat(self.now_s, REPEAT_S):
                self._settle(speaker, message)
        answered = {key for epoch, key in self.answers if epoch == speaker.epoch}
        assert answered == set(range(1, len(self.said[speaker.epoch]) + 1))
        assert not speaker.repeat(self.now_s + REPEAT_S, REPEAT_S)

    def _settle(self, speaker: Speaker, message: Message) -> None:
        """Carry the message there, and whatever follows from it."""
        assert isinstance(message, Hello | Command)
        heard = self.listener.hear(message)
        if heard.forget:
            self.pending.clear()
        back = [] if heard.send is None else [heard.send]
        if heard.execute is not None:
            self.executed.append((self.listener.epoch, message.epoch, heard.execute))
            self.pending.append((message.epoch, heard.number, heard.execute))
        back += [self.listener.answer(number, -body) for _, number, body in self.pending]
        self.pending.clear()
        for each in back:
            assert isinstance(each, Welcome | Reply)
            answer, messages = speaker.hear(each, self.now_s)
            if answer is not None:
                self.answers[speaker.epoch, answer[0]] = answer[1]
            for following in messages:
                self._settle(speaker, following)


TestConversation = ConversationMachine.TestCase


def test_replaced_speaker_learns_of_it_and_is_silent() -> None:
    """Whatever a shard says that was started a second time, the first one has nothing to say any more."""
    listener, old, new = Listener(1), Speaker(1), Speaker(2)
    old.say("a", 0.0)
    assert listener.hear(Hello(new.epoch)).send == Welcome(1, 2)
    heard = listener.hear(Hello(old.epoch))
    assert heard.execute is None
    assert isinstance(heard.send, Welcome)
    assert old.hear(heard.send, 0.0) == (None, ())
    assert old.is_deposed
    assert not old.repeat(10.0, 1.0)


def test_command_for_an_earlier_start_of_the_listener_is_not_executed() -> None:
    """It may be half of something whose beginning that start has forgotten."""
    speaker = Speaker(1)
    speaker.say("a", 0.0)
    _, (first,) = speaker.hear(Welcome(1, 1), 0.0)
    assert first == Command(1, 1, 1, 0, "a")
    heard = Listener(2).hear(first)
    assert heard == (None, 0, True, Welcome(2, 1))
    assert speaker.hear(Welcome(2, 1), 0.0) == (None, [Command(1, 2, 1, 0, "a")])


def talking(bodies: str) -> tuple[Speaker, Listener, list[Command]]:
    """Both know each other, and these commands are on their way."""
    speaker, listener = Speaker(1), Listener(1)
    for body in bodies:
        speaker.say(body, 0.0)
    _, messages = speaker.hear(Welcome(1, 1), 0.0)
    return speaker, listener, [each for each in messages if isinstance(each, Command)]


def test_answer_that_was_lost_comes_again_and_nothing_is_done_twice() -> None:
    """The command that is repeated finds the answer, as long as the speaker may want it."""
    speaker, listener, (command,) = talking("a")
    assert listener.hear(command).execute == "a"
    assert listener.hear(command) == (None, 0, False, None), "it is being executed"
    answer = listener.answer(1, "done")
    (again,) = speaker.repeat(1.0, 1.0)
    assert isinstance(again, Command)
    assert listener.hear(again) == (None, 0, False, answer)
    assert speaker.hear(answer, 1.0) == ((1, "done"), ())
    assert speaker.hear(answer, 1.0) == (None, ()), "it is heard once"
    _, (following,) = speaker.say("b", 2.0)
    assert isinstance(following, Command)
    assert following.answered == 1
    assert listener.hear(following).execute == "b"
    assert listener.hear(again).send is None, "the answer is kept no longer"


def test_answer_of_another_start_is_not_taken_for_that_of_the_same_number() -> None:
    """Numbers begin anew with each start of either side."""
    speaker, listener, (command,) = talking("a")
    listener.hear(command)
    late = listener.answer(1, "of the first start")
    speaker.hear(Welcome(2, 1), 0.0)
    assert speaker.hear(late, 0.0) == (None, ())
    successor = Speaker(2)
    successor.say("b", 0.0)
    successor.hear(Welcome(1, 2), 0.0)
    assert successor.hear(late, 0.0) == (None, ())
