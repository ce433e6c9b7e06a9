"""The client that goes on after every error after which Kafka lets it: franz-go's way. Requests by hand.

An error in AddPartitionsToTxn or Produce fails one record and nothing else (franz-go: its promise). The client takes
other partitions, writes on, and commits what was answered. So it stands for every client that goes on where stock ones
abort: whatever of its transaction the broker has aborted meanwhile, a commit that is answered has to hold all records
that were answered, from the first on.

It ends a transaction as franz-go does. A commit that is refused had no effect: it aborts, by EndTxn or by a new epoch
(InitProducerId with the one that it has, KIP-360). Without an answer it takes a new epoch, and so it does if it does
not know what has become of a record. Some transactions are left open until they have timed out, and gone on with.

What is noted: the records that were answered are the transaction's. One that was refused is none of it: whoever reads
it reads a phantom.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from typing import Any

from tests.history.layout import OUT, PARTITIONS, place
from tests.history.producing import ANSWER_S, EndAsker
from tests.history.raw_producer import (
    ABORTED_BY_THE_BROKER,
    RawProducer,
    Refused,
    Unanswered,
    versions_of_transactions,
)
from tests.history.recorder import Recorder
from tests.history.routes import Routes

TIMEOUT_MS = 1_000
"""Of its transactions: the least that a node takes."""
ABORTED_SHARE = 0.1
OPEN_SHARE, OPEN_S = 0.04, 0.5
"""So many records are followed by a pause of up to so long: something may happen to the node."""
LATE_SHARE, LATE_S = 0.002, 1.5
"""And so many by one in which the transaction times out."""
ASKED_SHARE = 0.1
"""After so many commits it asks for the ends."""


def go_on(
    address: str, transactional_id: str, recorder: Recorder, rng: random.Random, going: Callable[[], bool]
) -> None:
    """Transactions of 1 to 6 records in some partitions of OUT, all in one version of transactions.

    Raises Refused if it is fenced, Unanswered.
    """
    producer = RawProducer(address, transactional_id, rng.choice(versions_of_transactions(address)), TIMEOUT_MS)
    producer.init()
    asker = EndAsker(Routes(address, timeout_s=ANSWER_S), recorder)
    out = [index for topic, index in PARTITIONS if topic == OUT]
    while going():
        planned = [(rng.choice(out), recorder.new_value()) for _ in range(rng.randint(1, 6))]
        if _transaction(producer, recorder, planned, rng) and rng.random() < ASKED_SHARE:
            asker.ask()


def _transaction(producer: RawProducer, recorder: Recorder, planned: list[tuple[int, str]], rng: random.Random) -> bool:
    """One transaction; whether it was committed."""
    micro: list[list[Any]] = [["send", place(OUT, index), value] for index, value in planned]
    op = recorder.invoke("txn", group=producer.transactional_id, micro=micro)
    answered: list[list[Any]] = []
    why = ""
    for index, value in planned:
        try:
            answered.append(["send", place(OUT, index), value, _write(producer, index, value, rng)])
        except Unanswered as error:
            why = str(error)
            break
        except Refused as error:
            if error.unsure:
                why = str(error)
                break
        _pause(rng)
    if why or not answered:
        producer.init()
        recorder.end(op, "fail", micro=micro, error=why or "nothing was answered")
        return False
    if rng.random() < ABORTED_SHARE:
        _abort(producer, rng)
        recorder.end(op, "fail", micro=micro, error="on purpose")
        return False
    return _commit(producer, recorder, op, answered, rng)


def _write(producer: RawProducer, index: int, value: str, rng: random.Random) -> int | None:
    """Write a record. franz-go writes also where the partition was refused, if it was with TRANSACTION_ABORTABLE."""
    try:
        producer.add(index)
    except Refused:
        if rng.random() < 0.5:
            raise
    return producer.produce(index, value)


def _pause(rng: random.Random) -> None:
    chosen = rng.random()
    if chosen < LATE_SHARE:
        time.sleep(LATE_S)
    elif chosen < LATE_SHARE + OPEN_SHARE:
        time.sleep(rng.uniform(0, OPEN_S))


def _commit(producer: RawProducer, recorder: Recorder, op: int, answered: list[list[Any]], rng: random.Random) -> bool:
    recorder.commit(op, micro=answered)
    try:
        producer.end(commit=True)
    except Unanswered as error:
        recorder.end(op, "info", error=str(error))
        producer.init()
        return False
    except Refused as error:
        # The node's word that the commit has had no effect: from here on it is held to that. A try without an answer
        # may have been carried out, unless the broker says that it has aborted.
        unknown = error.unsure and error.code not in ABORTED_BY_THE_BROKER
        recorder.end(op, "info" if unknown else "fail", error=str(error))
        if unknown or error.fenced:
            producer.init()
        else:
            _abort(producer, rng)
        return False
    recorder.end(op, "ok")
    return True


def _abort(producer: RawProducer, rng: random.Random) -> None:
    """By EndTxn, or by a new epoch; and that if EndTxn does not do it."""
    if rng.random() < 0.5:
        try:
            producer.end(commit=False)
        except (Refused, Unanswered):
            pass
        else:
            return
    producer.init()
