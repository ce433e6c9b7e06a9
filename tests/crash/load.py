"""Writers that keep a node busy over many crashes, and write down what they were told.

Each writer is a thread with a stock client (confluent-kafka): some commit and abort transactions over several
partitions, one leaves its transactions open for ever (every reader and every other commit must pass them by),
one sends plain records; and one, with a client of our own, commits an offset in each of its transactions. A client
sits through a crash as it would in production: it reconnects, repeats what was not answered, aborts when told to,
and is replaced by a new instance after a fatal error. So the repeated EndTxn, the late Produce and the retried
InitProducerId of real clients are all part of the load.

librdkafka takes one to two seconds to find its coordinator again. So the harness says at each crash whether the
transactional writers are to be patient; if not, a new instance takes the id over as soon as the node is back,
and what the old one had asked for stays unknown.

What is written down, and when, decides what the checker may demand (`history.Outcome`): ASKED stands before the
commit is sent, DONE and REFUSED only after the client has said so.
"""

from __future__ import annotations

import itertools
import random
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace

from confluent_kafka import KafkaError, KafkaException, Message, Producer

from tests.clients.raw_client import MUST_ABORT, NONE, RawClient, batch
from tests.crash.history import History, Outcome, PlainRecord, Transaction
from tests.crash.layout import Layout

ANSWER_S = 20.0
"""How long a client may take to come to an end after the node is back; much longer than it should."""

TRANSACTIONAL_WRITERS = 3
OFFSETS_GROUP = "offsets"
"""The writer that commits offsets, and the group that it commits them for."""
SLICE_S = 0.2
"""After this a client's call is to come back, for the writer to look around; librdkafka goes on where it was."""
PAUSE_S = 0.01
"""Between two transactions of a writer, on average: a crash wants many states, not many records."""

_CLIENT = {
    "enable.idempotence": True,
    "linger.ms": 0,
    "reconnect.backoff.ms": 10,
    "reconnect.backoff.max.ms": 50,
    "retry.backoff.ms": 20,
    "retry.backoff.max.ms": 100,
    "socket.timeout.ms": 3000,
    "topic.metadata.refresh.fast.interval.ms": 50,
    "log_level": 0,
}


class Load:
    """The writers, running until `stop`; `rest` holds them at a point where every outcome is known."""

    def __init__(
        self,
        address: str,
        layout: Layout,
        *,
        seed: int,
        more: Mapping[str, type[Writer]] | None = None,
        history: History | None = None,
    ) -> None:
        """`more` are writers beside the usual ones, by name. `history` is where all put down what they did."""
        self.history = History() if history is None else history
        self.slowest_rest = (0.0, "")
        """The longest that the load took to come to rest, in seconds, and what it had waited for."""
        self.errors: list[BaseException] = []
        self._go = threading.Event()
        self._stopping = threading.Event()
        self._go.set()
        self._node_is_there = threading.Event()
        self._node_is_there.set()
        self._replacements = 0
        rng = random.Random(seed)
        kinds = [(_TransactionalWriter, f"w{number}") for number in range(TRANSACTIONAL_WRITERS)]
        writers = [*kinds, (_HangingWriter, "hung"), (_PlainWriter, "plain"), (_OffsetsWriter, OFFSETS_GROUP)]
        writers += [(kind, name) for name, kind in (more or {}).items()]
        self._writers = [kind(self, name, address, layout, random.Random(rng.random())) for kind, name in writers]
        for writer in self._writers:
            writer.start()

    def rest(self, node_is_running: Callable[[], bool]) -> History | None:
        """Hold all writers where nothing is under way; the history then has no outcome that is still to come.

        None if the node dies first: the writers wait for it, and `rest` may be called again. AssertionError if a
        writer does not come to an end although the node is there.
        """
        self._go.clear()
        started = time.monotonic()
        deadline = started + 2 * ANSWER_S
        for writer in self._writers:
            while not writer.at_rest.wait(0.02):
                if not node_is_running():
                    return None
                self.slowest_rest = max(self.slowest_rest, (time.monotonic() - started, writer.doing))
                assert time.monotonic() < deadline, f"writer {writer.label} does not come to rest; at: {writer.doing}"
        if self.errors:
            raise self.errors[0]
        return self.history.snapshot()

    def go_on(self) -> None:
        """End a rest."""
        for writer in self._writers:
            writer.at_rest.clear()
        self._go.set()

    def node_is_gone(self, *, patient: bool) -> None:
        """The node was killed. Impatient writers give their clients up."""
        self._node_is_there.clear()
        if not patient:
            self._replacements += 1

    def node_is_back(self) -> None:
        self._node_is_there.set()

    @property
    def replacements(self) -> int:
        """Grows whenever clients are to be given up: one made before that is to be replaced."""
        return self._replacements

    def wait_for_the_node(self) -> None:
        """Called by a writer before it makes a new client: one made now would only back off."""
        self._node_is_there.wait(ANSWER_S)

    @property
    def stopped(self) -> bool:
        return self._stopping.is_set()

    def stop(self) -> None:
        self._stopping.set()
        self._go.set()
        for writer in self._writers:
            writer.join(2 * ANSWER_S)
        if self.errors:
            raise self.errors[0]

    def wait_for_a_rest(self) -> None:
        """Called by the writer that hangs: return when the load is to rest or to stop."""
        while self._go.is_set() and not self._stopping.is_set():
            time.sleep(0.02)

    def may_go_on(self, writer: Writer) -> bool:
        """Called by a writer when it has nothing under way; blocks while the load rests. False: end."""
        if not self._go.is_set():
            writer.settle()
            writer.doing = "resting"
            writer.at_rest.set()
            self._go.wait()
        return not self._stopping.is_set()


class Writer(threading.Thread):
    """A thread that does one thing after the other, and says what it is at."""

    def __init__(self, load: Load, name: str, address: str, layout: Layout, rng: random.Random) -> None:
        super().__init__(name=f"load-{name}", daemon=True)
        self.label, self.load, self.rng = name, load, rng
        self.address, self.layout = address, layout
        self.numbers = itertools.count()
        self.at_rest = threading.Event()
        self.doing = "starting"

    def run(self) -> None:
        try:
            while self.load.may_go_on(self):
                self.step()
        except Exception as error:  # noqa: BLE001 - carried to the test's thread
            self.load.errors.append(error)
            self.at_rest.set()
        finally:
            self.give_up()

    def give_up(self) -> None:
        """Let go of what the writer holds: the next step begins anew."""

    def settle(self) -> None:
        """Before the writer rests: leave nothing open for which readers of committed records would wait."""

    def step(self) -> None:
        raise NotImplementedError


class _TransactionalWriter(Writer):
    """Transactions of 1 to 5 records in some of the partitions; one in five is aborted on purpose."""

    producer: Producer | None = None
    made_at = 0

    def step(self) -> None:
        if self.producer is None or self.made_at != self.load.replacements:
            self.doing = "starting a new instance"
            self.producer = None
            with suppress(KafkaException):
                self.producer = self.started()
        producer = self.producer
        if producer is None:
            return
        number = next(self.numbers)
        partitions = self.layout.partitions
        chosen = self.rng.sample(range(partitions), self.rng.randint(1, partitions))
        transaction = Transaction(self.label, number, {p: self.rng.randint(1, 5) for p in chosen}, Outcome.OPEN)
        self.note(transaction)
        try:
            self.doing = f"writing {number}"
            producer.begin_transaction()
            self.produce(producer, transaction)
            if self.rng.random() < 0.2:
                self.doing = f"aborting {number}"
                producer.flush(self.rng.choice([0, SLICE_S]))
                self.abort(producer, transaction)
            else:
                self.doing = f"committing {number}"
                self.commit(producer, transaction)
        except KafkaException:
            # Fatal, or not to be resolved: a successor of the same id takes over. An outcome that was asked for stays
            # unknown, and what was never asked for stays open: it may not appear.
            self.producer = None
        time.sleep(self.rng.uniform(0, 2 * PAUSE_S))

    def produce(self, producer: Producer, transaction: Transaction) -> None:
        for partition in transaction.counts:
            topic, index = self.layout.place(partition)
            for value in transaction.values(partition):
                producer.produce(topic, value, partition=index)

    def settle(self) -> None:
        """A new instance ends what the last one left."""
        while self.layout.marked and self.producer is None and not self.load.stopped:
            self.doing = "ending what the last instance left"
            with suppress(KafkaException):
                self.producer = self.started()

    def started(self) -> Producer:
        self.load.wait_for_the_node()
        self.made_at = self.load.replacements
        producer = Producer(
            _CLIENT
            | {"bootstrap.servers": self.address, "transactional.id": self.label, "transaction.timeout.ms": 60_000}
        )
        self.retried(producer.init_transactions)
        return producer

    def commit(self, producer: Producer, transaction: Transaction) -> None:
        self.note(replace(transaction, outcome=Outcome.ASKED))
        try:
            self.retried(producer.commit_transaction)
        except KafkaException as error:
            if not _error(error).txn_requires_abort():
                raise
            # The node's word that the commit has had no effect: from here on the checker holds it to that.
            self.abort(producer, transaction)
        else:
            self.note(replace(transaction, outcome=Outcome.DONE))

    def abort(self, producer: Producer, transaction: Transaction) -> None:
        self.retried(producer.abort_transaction)
        self.note(replace(transaction, outcome=Outcome.REFUSED))

    def retried(self, call: Callable[[float], object]) -> None:
        """Call again while the client says that it may be (a time-out of its own) and nobody is impatient."""
        deadline = time.monotonic() + ANSWER_S
        while True:
            try:
                call(SLICE_S)
            except KafkaException as error:
                given_up = self.made_at != self.load.replacements or time.monotonic() > deadline
                if given_up or not _error(error).retriable():
                    raise
            else:
                return

    def note(self, transaction: Transaction) -> None:
        self.load.history.transactions[transaction.writer, transaction.number] = transaction


class _HangingWriter(_TransactionalWriter):
    """Opens a transaction in every partition and leaves it so; a new instance and a new one after each rest.

    Where there are markers, readers would wait for it at the rest: there it ends with the rest, by its successor.
    """

    def step(self) -> None:
        number = next(self.numbers)
        everywhere = dict.fromkeys(range(self.layout.partitions), 2)
        transaction = Transaction(self.label, number, everywhere, Outcome.OPEN)
        self.note(transaction)
        with suppress(KafkaException):
            self.doing = f"starting to hang {number}"
            producer = self.producer or self.started()
            producer.begin_transaction()
            self.produce(producer, transaction)
            producer.flush(1.0)
        self.doing = "hanging"
        if not self.layout.marked:
            self.at_rest.set()  # open on purpose: for this writer that is at rest
        self.load.wait_for_a_rest()
        self.producer = None


class _OffsetsWriter(Writer):
    """Transactions of records and of an offset, which says the number of the transaction, and one more.

    By hand, because librdkafka's send_offsets_to_transaction does not come back while its coordinator is away
    (librdkafka#5456). Some are aborted, some are left open to the next instance.
    """

    client: RawClient | None = None

    def step(self) -> None:
        number = next(self.numbers)
        partitions = self.layout.partitions
        chosen = self.rng.sample(range(partitions), self.rng.randint(1, partitions))
        transaction = Transaction(self.label, number, {p: self.rng.randint(1, 3) for p in chosen}, Outcome.OPEN)
        self.note(transaction)
        try:
            self.doing = f"starting {number}"
            client = self.client or self.started()
            self.doing = f"writing {number}"
            going_on = self.write(client, transaction)
            self.doing = f"ending {number}"
            if going_on and self.rng.random() < 0.1:
                self.give_up()  # left open
            elif going_on and self.rng.random() < 0.8:
                self.commit(client, transaction)
            else:
                self.abort(client, transaction)
        except (OSError, _Unexpected):
            self.give_up()
        time.sleep(self.rng.uniform(0, 2 * PAUSE_S))

    def give_up(self) -> None:
        if self.client is not None:
            self.client.close()
        self.client = None

    def settle(self) -> None:
        while self.layout.marked and self.client is None and not self.load.stopped:
            self.doing = "ending what the last instance left"
            try:
                self.started()
            except (OSError, _Unexpected):
                self.give_up()

    def started(self) -> RawClient:
        self.load.wait_for_the_node()
        self.client = RawClient(self.address, timeout_s=ANSWER_S / 4)
        granted = self.client.init_producer_id(self.label)
        if granted.error_code != NONE:
            raise _Unexpected(granted.error_code)
        self.who = (self.label, granted.producer_id, granted.producer_epoch)
        self.sequences = dict.fromkeys(range(self.layout.partitions), 0)
        return self.client

    def write(self, client: RawClient, transaction: Transaction) -> bool:
        """False if the node has refused something: then the transaction can only be aborted."""
        for topic in self.layout.topics():
            places = map(self.layout.place, transaction.counts)
            indexes = [index for name, index in places if name == topic]
            if indexes and set(client.add_partitions(*self.who, topic, indexes).values()) != {NONE}:
                return False
        for partition in transaction.counts:
            topic, index = self.layout.place(partition)
            values = transaction.values(partition)
            sequence = self.sequences[partition]
            data = batch(values, producer_id=self.who[1], epoch=self.who[2], sequence=sequence, transactional=True)
            if client.produce(topic, index, data, transactional_id=self.label)[0] != NONE:
                return False
            self.sequences[partition] += len(values)
        if client.add_offsets(*self.who, self.label) != NONE:
            return False
        offset = transaction.number + 1
        return client.commit_offset_in_transaction(*self.who, self.label, *self.layout.place(0), offset) == NONE

    def commit(self, client: RawClient, transaction: Transaction) -> None:
        self.note(replace(transaction, outcome=Outcome.ASKED))
        code = client.end(*self.who, commit=True)
        if code == MUST_ABORT:
            self.abort(client, transaction)
        elif code == NONE:
            self.note(replace(transaction, outcome=Outcome.DONE))
        else:
            raise _Unexpected(code)

    def abort(self, client: RawClient, transaction: Transaction) -> None:
        code = client.end(*self.who, commit=False)
        if code != NONE:
            raise _Unexpected(code)
        self.note(replace(transaction, outcome=Outcome.REFUSED))

    def note(self, transaction: Transaction) -> None:
        self.load.history.transactions[transaction.writer, transaction.number] = transaction


class _Unexpected(Exception):
    """The node has answered with a code after which only a new instance goes on: fenced, say, or unknown."""


class _PlainWriter(Writer):
    """One idempotent producer for its whole life; small bursts of plain records, each answer noted."""

    producer: Producer | None = None

    def step(self) -> None:
        producer = self.producer
        if producer is None:
            producer = self.producer = Producer(
                _CLIENT | {"bootstrap.servers": self.address, "message.timeout.ms": int(2000 * ANSWER_S)}
            )
        burst = [
            PlainRecord(self.label, next(self.numbers), self.rng.randrange(self.layout.partitions), Outcome.ASKED)
            for _ in range(self.rng.randint(1, 5))
        ]
        self.doing = f"sending {burst[0].number} to {burst[-1].number}"
        try:
            for record in burst:
                self.note(record)
                topic, index = self.layout.place(record.partition)
                producer.produce(topic, record.value, partition=index, on_delivery=self.answered(record))
            producer.flush(2 * ANSWER_S)
        except (KafkaException, SystemError):
            # A fatal error; SystemError when confluent-kafka stumbles over a delivery report that is due as well.
            self.producer = None
        time.sleep(2 * PAUSE_S)

    def answered(self, record: PlainRecord) -> Callable[[KafkaError | None, Message], None]:
        def note(error: KafkaError | None, message: Message) -> None:
            if error is None:
                self.note(replace(record, outcome=Outcome.DONE, offset=message.offset()))
            else:
                # A time-out, or the client's own giving up after a fatal error: the effect is unknown.
                self.producer = None

        return note

    def note(self, record: PlainRecord) -> None:
        self.load.history.plain[record.writer, record.number] = record


def _error(exception: KafkaException) -> KafkaError:
    return exception.args[0]
