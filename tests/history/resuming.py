"""The client that prepares, and commits later over another connection: Flink's way. Requests by hand.

It writes all records of a transaction, waits for the answers, and notes the transactional id, the producer id and the
epoch, as Flink's sink does at a checkpoint. Then the connection is closed. Later, when the node and the client itself
may have died, a new connection asks to commit with what is noted, and without InitProducerId
(FlinkKafkaInternalProducer.resumeTransaction), until there is an answer. If the client died, its successor does it.
A commit that was answered is asked for again now and then, also when the id has its next transaction open: that must
change nothing.

Each of a client's transactional ids is a *lane*: a process of its own in the history, with one transaction after the
other. A lock keeps two instances out of one lane; the system frees it when its holder dies, and not when it stands
still. The lane's time-out is longer than any clock jumps, and only its own client ends a transaction. So a prepared
one can be committed, whatever has happened: the history says `prepared`, and the checker holds the node to it.
"""

from __future__ import annotations

import fcntl
import json
import os
import random
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from tests.history.layout import OUT, PARTITIONS, place
from tests.history.raw_producer import RawProducer, Refused, Unanswered, versions_of_transactions
from tests.history.recorder import Recorder

TIMEOUT_MS = 24 * 3600 * 1000
WAIT_SHARE, WAIT_S = 0.1, 2.0
"""So many prepared transactions wait for up to so long; the others until their lane's next turn."""
AGAIN_SHARE = 0.2
"""So many commits are asked for again."""
PAUSE_S = 0.005


@dataclass(frozen=True, slots=True)
class Note:
    """What has to be known of a prepared transaction to commit it, and where it stands in the history."""

    process: str
    op: int
    version: int
    transactional_id: str
    producer_id: int
    epoch: int
    micro: list[list[Any]]


@dataclass(frozen=True, slots=True)
class Lane:
    """One transactional id, and the file that has its note while a transaction is prepared."""

    directory: Path
    transactional_id: str

    @property
    def _file(self) -> Path:
        return self.directory / f"{self.transactional_id}.json"

    @contextmanager
    def locked(self) -> Iterator[bool]:
        """Whether the lane could be had: no other instance is at it."""
        descriptor = os.open(self.directory / f"{self.transactional_id}.lock", os.O_RDWR | os.O_CREAT, 0o644)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield False
        else:
            yield True
        finally:
            os.close(descriptor)

    def note(self) -> Note | None:
        return Note(**json.loads(self._file.read_text(encoding="utf-8"))) if self._file.exists() else None

    def keep(self, note: Note) -> None:
        draft = self._file.with_suffix(".new")
        draft.write_text(json.dumps(asdict(note)), encoding="utf-8")
        draft.replace(self._file)

    def forget(self) -> None:
        self._file.unlink()


def prepare_and_resume(
    address: str,
    transactional_ids: Sequence[str],
    directory: Path,
    part: Path,
    process: str,
    rng: random.Random,
    going: Callable[[], bool],
) -> None:
    """In each lane transactions of 1 to 6 records in OUT, prepared in one turn and committed in a later one.

    `directory` has the notes of all instances, `part` is where the history goes. Raises Unanswered, Refused.
    """
    recorders = {each: Recorder(part, f"{process}.{lane}") for lane, each in enumerate(transactional_ids)}
    not_before = dict.fromkeys(transactional_ids, 0.0)
    last: dict[str, Note] = {}
    while going():
        lane = Lane(directory, rng.choice(transactional_ids))
        if time.monotonic() >= not_before[lane.transactional_id]:
            with lane.locked() as had:
                if had and (note := lane.note()) is None:
                    _prepare(address, lane, recorders[lane.transactional_id], rng)
                    _say_again(address, last.get(lane.transactional_id), rng)
                    if rng.random() < WAIT_SHARE:
                        not_before[lane.transactional_id] = time.monotonic() + rng.uniform(0, WAIT_S)
                elif had and note is not None:
                    commit(address, lane, note, part)
                    last[lane.transactional_id] = note
                    _say_again(address, note, rng)
        time.sleep(rng.uniform(0, PAUSE_S))


def _prepare(address: str, lane: Lane, recorder: Recorder, rng: random.Random) -> None:
    """Write a transaction and note it. One of which a record was refused is given up."""
    producer = RawProducer(address, lane.transactional_id, rng.choice(versions_of_transactions(address)), TIMEOUT_MS)
    producer.init()
    out = [index for topic, index in PARTITIONS if topic == OUT]
    planned = [(rng.choice(out), recorder.new_value()) for _ in range(rng.randint(1, 6))]
    micro: list[list[Any]] = [["send", place(OUT, index), value] for index, value in planned]
    op = recorder.invoke("txn", group=lane.transactional_id, micro=micro)
    try:
        for each, (index, value) in zip(micro, planned, strict=True):
            producer.add(index)
            each.append(producer.produce(index, value))
    except (Refused, Unanswered) as error:
        recorder.end(op, "info", error=str(error))
        raise
    finally:
        producer.close()
    lane.keep(
        Note(
            recorder.process,
            op,
            producer.version,
            lane.transactional_id,
            producer.producer_id,
            producer.epoch,
            micro,
        )
    )


def commit(address: str, lane: Lane, note: Note, part: Path) -> None:
    """Commit what is noted, over a new connection, and note what comes of it in its process' name.

    Raises Unanswered: then the note stays.
    """
    with Recorder(part, note.process) as recorder:
        recorder.commit(note.op, micro=note.micro, prepared=True)
        try:
            _ask(address, note)
        except Refused as error:
            outcome: dict[str, Any] = {"outcome": "fail", "error": str(error)}
        else:
            outcome = {"outcome": "ok"}
        lane.forget()
        recorder.end(note.op, **outcome)


def _say_again(address: str, note: Note | None, rng: random.Random) -> None:
    """Ask for a commit again that was answered. Whatever is answered now, it is done."""
    if note is not None and rng.random() < AGAIN_SHARE:
        with suppress(Refused, Unanswered):
            _ask(address, note)


def _ask(address: str, note: Note) -> None:
    producer = RawProducer(address, note.transactional_id, note.version, TIMEOUT_MS)
    producer.producer_id, producer.epoch = note.producer_id, note.epoch
    try:
        producer.end(commit=True)
    finally:
        producer.close()


def resume_all(address: str, transactional_ids: Sequence[str], directory: Path, part: Path) -> None:
    """Commit whatever the last instances have left prepared. To be called when all have ended."""
    for lane in (Lane(directory, each) for each in transactional_ids):
        note = lane.note()
        if note is not None:
            commit(address, lane, note, part)
