"""The workload's producers: of transactions, of plain records, and of both. Real clients (confluent-kafka).

A client does what its documentation says: it repeats what may be repeated, aborts when it is told to, and ends when it
cannot go on; then the next one of its slot takes over. What is written down, and when, decides what the checker may
demand: the commit is noted before it is asked for, and "fail" only when the client was told so.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from typing import Any

from confluent_kafka import KafkaError, KafkaException, Message, Producer

from tests.clients.raw_client import NONE
from tests.history.layout import IN, OUT, PARTITIONS, place
from tests.history.recorder import Recorder
from tests.history.routes import MovingRoutes, Routes

ANSWER_S = 8.0
"""How long a client tries. Then the outcome is unknown, and the next client's turn."""
GRANT_S = 30.0
"""How long it tries to be granted its id: a new client would do no better."""
TRANSACTION_MS = 10_000
ABORTED_SHARE = 0.2
HUNG_SHARE = 0.05
HUNG_S = 1.0
"""Some transactions are left open for up to so long: nobody may have to wait for them in journal mode."""
OPEN_SENDS = 25
"""Others are left open until so many plain records have been sent and answered meanwhile (tests/history/held.py)."""
REST_S = 1.0
"""At most so long until the next one of these: with markers nobody reads on as long as one is open."""
PAUSE_S = 0.02
LATEST = -1
"""ListOffsets' timestamp for the end of a partition."""

CLIENT: dict[str, Any] = {
    "reconnect.backoff.ms": 10,
    "reconnect.backoff.max.ms": 50,
    "socket.timeout.ms": 2000,
    "topic.metadata.refresh.fast.interval.ms": 50,
    "log_level": 0,
}
PRODUCER = CLIENT | {"linger.ms": 0, "retry.backoff.ms": 20, "retry.backoff.max.ms": 100}


class TransactionalProducer:
    """A producer that has been granted its transactional id, and notes what becomes of its transactions."""

    def __init__(self, address: str, transactional_id: str, recorder: Recorder) -> None:
        self.recorder = recorder
        self.producer = Producer(
            PRODUCER
            | {
                "bootstrap.servers": address,
                "transactional.id": transactional_id,
                "transaction.timeout.ms": TRANSACTION_MS,
            }
        )
        retried(self.producer.init_transactions, GRANT_S)
        self._offsets: dict[str, int | None] = {}

    def begin(self) -> None:
        self.producer.begin_transaction()
        self._offsets = {}

    def send(self, topic: str, partition: int, value: str) -> None:
        def answered(error: KafkaError | None, message: Message) -> None:
            offset = message.offset()
            if error is None and offset is not None and offset >= 0:
                self._offsets[value] = offset

        self.producer.produce(topic, value.encode(), partition=partition, on_delivery=answered)

    def micro(self, planned: list[list[Any]]) -> list[list[Any]]:
        """The planned sends, with the offsets that were answered."""
        return [[*each, self._offsets.get(each[2])] for each in planned]

    def commit(self, op: int, planned: list[list[Any]], polls: list[list[Any]]) -> bool:
        """Commit, and note what comes of it; False if it was aborted. Raises KafkaException if nobody knows."""
        self.recorder.commit(op, micro=[*polls, *planned])
        try:
            retried(self.producer.commit_transaction)
        except KafkaException as error:
            if not error.args[0].txn_requires_abort():
                self.recorder.end(op, "info", error=str(error))
                raise
            # The node's word that the commit has had no effect: from here on it is held to that.
            self.abort(op, planned, polls, why=str(error))
            return False
        self.recorder.end(op, "ok", micro=[*polls, *self.micro(planned)])
        return True

    def abort(self, op: int, planned: list[list[Any]], polls: list[list[Any]], *, why: str = "on purpose") -> None:
        """Abort, and note it. Raises KafkaException if that fails; the next of this id aborts it then."""
        retried(self.producer.abort_transaction)
        self.recorder.end(op, "fail", micro=[*polls, *self.micro(planned)], error=why)


def retried(call: Callable[[float], object], patience_s: float = ANSWER_S) -> None:
    """Call again while the client says that it may be, for as long as it tries."""
    deadline = time.monotonic() + patience_s
    while True:
        try:
            call(1.0)
        except KafkaException as error:
            if time.monotonic() > deadline or not error.args[0].retriable():
                raise
        else:
            return


def write_transactions(
    address: str,
    transactional_id: str,
    asker: EndAsker,
    recorder: Recorder,
    rng: random.Random,
    going: Callable[[], bool],
) -> None:
    """Transactions of 1 to 6 records in some partitions of OUT; some aborted, some left open for a while."""
    producer = TransactionalProducer(address, transactional_id, recorder)
    out = [index for topic, index in PARTITIONS if topic == OUT]
    while going():
        planned = [["send", place(OUT, rng.choice(out)), recorder.new_value()] for _ in range(rng.randint(1, 6))]
        op = recorder.invoke("txn", group=transactional_id, micro=planned)
        producer.begin()
        failure = _produce(producer, planned, rng)
        if failure is not None:
            producer.abort(op, planned, [], why=failure)
        elif rng.random() < ABORTED_SHARE:
            producer.producer.flush(rng.choice([0, 0.2]))
            producer.abort(op, planned, [])
        elif producer.commit(op, planned, []):
            asker.ask()
        time.sleep(rng.uniform(0, 2 * PAUSE_S))


def _produce(producer: TransactionalProducer, planned: list[list[Any]], rng: random.Random) -> str | None:
    """Hand the records to the client, at a random pace. Why it takes no more of them, if it does not."""
    try:
        for _send, partition, value in planned:
            producer.send(OUT, int(partition.rpartition("/")[2]), value)
            if rng.random() < 0.2:
                producer.producer.flush(0.05)
        if rng.random() < HUNG_SHARE:
            producer.producer.flush(1.0)
            time.sleep(rng.uniform(0, HUNG_S))
    except KafkaException as error:
        return str(error)
    return None


def write_plain(
    address: str, asker: EndAsker, recorder: Recorder, rng: random.Random, going: Callable[[], bool]
) -> None:
    """Records outside transactions, a few at a time, into all partitions, most of them into IN."""
    producer = _plain_producer(address)
    inputs = [each for each in PARTITIONS if each[0] == IN]
    while going():
        chosen = [rng.choice(inputs if rng.random() < 0.8 else PARTITIONS) for _ in range(rng.randint(1, 4))]
        if not send_plain(producer, recorder, chosen):
            return
        asker.ask()
        time.sleep(rng.uniform(0, 2 * PAUSE_S))


def _plain_producer(address: str, patience_s: float = ANSWER_S) -> Producer:
    return Producer(
        PRODUCER
        | {
            "bootstrap.servers": address,
            "enable.idempotence": True,
            "message.timeout.ms": int(patience_s * 1000),
        }
    )


def leave_open(
    address: str,
    transactional_id: str,
    recorder: Recorder,
    beside: Recorder,
    rng: random.Random,
    going: Callable[[], bool],
) -> None:
    """Transactions over all of OUT, left open while plain records go into IN, where no transaction is.

    So the broker does that much while one is open. On a machine on which it takes too long, or if it does not answer,
    the transaction is committed with less beside it, before it times out. The plain records are `beside`'s: a process
    does one operation at a time.
    """
    producer = TransactionalProducer(address, transactional_id, recorder)
    plain = _plain_producer(address, TRANSACTION_MS / 4000)
    inputs = [each for each in PARTITIONS if each[0] == IN]
    while going():
        planned = [["send", place(*each), recorder.new_value()] for each in PARTITIONS if each[0] == OUT]
        op = recorder.invoke("txn", group=transactional_id, micro=planned)
        producer.begin()
        enough = time.monotonic() + TRANSACTION_MS / 2000
        for _send, partition, value in planned:
            producer.send(OUT, int(partition.rpartition("/")[2]), value)
        producer.producer.flush(TRANSACTION_MS / 4000)
        for _ in range(OPEN_SENDS):
            if not going() or time.monotonic() > enough or not send_plain(plain, beside, [rng.choice(inputs)]):
                break
            time.sleep(2 * PAUSE_S)
        producer.commit(op, planned, [])
        time.sleep(rng.uniform(0, REST_S))


class EndAsker:
    """Asks, after answers, where all partitions end: over a connection of its own, as somebody else would."""

    def __init__(self, routes: Routes | MovingRoutes, recorder: Recorder) -> None:
        self._routes, self._recorder = routes, recorder
        self._plain = False

    def ask(self) -> None:
        """Ask for each of the two ends in turn. A question that is not answered tells nothing."""
        self._plain = not self._plain
        op = self._recorder.invoke("end", isolation="plain" if self._plain else "committed")
        try:
            ends = {
                place(topic, index): self._end(topic, index, isolation=0 if self._plain else 1)
                for topic, index in PARTITIONS
            }
        except OSError as error:
            self._routes.close()
            self._recorder.end(op, "info", error=str(error))
        else:
            self._recorder.end(op, "ok", ends=ends)

    def _end(self, topic: str, index: int, *, isolation: int) -> int:
        code, end = self._routes.leader(topic, index).list_offset(topic, index, LATEST, isolation=isolation)
        if code != NONE:
            raise OSError(f"{place(topic, index)}: error {code}")
        return end


def send_plain(
    producer: Producer, recorder: Recorder, partitions: list[tuple[str, int]], patience_s: float = ANSWER_S + 2
) -> bool:
    """Send a record to each of these, wait for the answers, and note them; False if one did not come."""
    planned = [(topic, index, recorder.new_value()) for topic, index in partitions]
    offsets: dict[str, int | None] = {}
    micro = [["send", place(topic, index), value] for topic, index, value in planned]
    op = recorder.invoke("send", micro=micro)
    for topic, index, value in planned:

        def answered(error: KafkaError | None, message: Message, value: str = value) -> None:
            if error is None:
                offsets[value] = message.offset()

        producer.produce(topic, value.encode(), partition=index, on_delivery=answered)
    producer.flush(patience_s)
    known = len(offsets) == len(planned)
    micro = [["send", place(topic, index), value, offsets.get(value)] for topic, index, value in planned]
    recorder.end(op, "ok" if known else "info", micro=micro)
    return known
