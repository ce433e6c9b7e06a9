"""A node as a process, as the fault tests see it: its files, its last sentence, and a producer that counts.

A producer here remembers what it was answered. What was answered is the measure: after whatever happened to the
node, a reader must find all of it, once and in order, and beside it at most what had no answer.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeVar

from copier.copier import OUTRUN_BYTES
from scripts.node_process import START_S, NodeProcess
from tests.clients import raw_client as raw
from tests.clients.raw_client import RawClient, batch, records_of
from tests.shards import shard_in

TOPIC = "t"
REQUEST_TIMED_OUT = 7
KAFKA_STORAGE_ERROR = 56
WAIT_S = 15.0


T = TypeVar("T")


def until(look: Callable[[], T], otherwise: str = "it did not come") -> T:
    """What `look` answers as soon as that is true; after 15 seconds the test fails with the sentence."""
    deadline = time.monotonic() + WAIT_S
    while not (found := look()):
        assert time.monotonic() < deadline, otherwise
        time.sleep(0.02)
    return found


def refusal(node: NodeProcess) -> str:
    """Start a node that must refuse to: its one sentence. No traceback, exit status 1."""
    node.spawn()
    status = node.wait_end(START_S)
    log = node.log_path.read_text(encoding="utf-8")
    assert status == 1, f"exit status {status}\n{log}"
    assert "Traceback" not in log
    last = log.splitlines()[-1]
    assert last.startswith("fairlog: "), log
    return last.removeprefix("fairlog: ")


def journal(node: NodeProcess, partition: int = 0) -> Path:
    """The directory of the local journal of the only topic's partition."""
    (found,) = shard_in(node.data_dir).local_journals.glob(f"t-*-{partition}")
    return found


def segments(directory: Path) -> list[Path]:
    return sorted(directory.glob("*.journal"))


def produce(node: NodeProcess, *values: bytes, partition: int = 0) -> None:
    """Plain records, one batch each, all answered."""
    with RawClient(node.address) as client:
        for value in values:
            code, _ = client.produce(TOPIC, partition, batch([value]))
            assert code == raw.NONE, code


def read(node: NodeProcess, partition: int = 0) -> list[bytes | None]:
    """All records of the partition up to the end that the answers tell, asserted to be dense.

    After a failure of the disk that end may not be reached before the restart: see `read_when`.
    """
    deadline = time.monotonic() + WAIT_S
    while True:
        found, end = _read_what_is_there(node, partition)
        if len(found) >= end:
            return found
        assert time.monotonic() < deadline, f"{len(found)} records of {end}"


def read_when(node: NodeProcess, count: int, partition: int = 0) -> list[bytes | None]:
    """What can be read, once there are `count` records: an answer is there a moment before its copy."""
    deadline = time.monotonic() + WAIT_S
    while len(found := _read_what_is_there(node, partition)[0]) < count:
        assert time.monotonic() < deadline, f"{len(found)} records of {count}"
    return found


def wait_for_the_copy(address: str, topic: str, partitions: int = 1) -> None:
    """Until all that was answered can be read from the files as well: whoever asks for an end waits for that."""
    with RawClient(address) as client:
        for partition in range(partitions):
            assert client.list_offset(topic, partition, -1)[0] == raw.NONE


def _read_what_is_there(node: NodeProcess, partition: int) -> tuple[list[bytes | None], int]:
    """The records that can be read now, asserted to be dense, and the high watermark that was told last."""
    found: list[tuple[int, bytes | None]] = []
    with RawClient(node.address) as client:
        while True:
            row = client.fetch(TOPIC, partition, len(found), wait_ms=0)
            assert row.error_code == raw.NONE, row.error_code
            new = records_of(bytes(row.records or b""))
            found += new
            if not new:
                break
    assert [offset for offset, _ in found] == list(range(len(found)))
    return [value for _, value in found], row.high_watermark


def assert_all_but_the_last(found: Sequence[bytes | None], answered: Sequence[bytes]) -> None:
    """What waited for its copy when that stopped is missing, until the restart."""
    assert found
    assert found == answered[: len(found)]
    missing = answered[len(found) :]
    assert sum(map(len, missing)) <= OUTRUN_BYTES + len(max(missing, default=b""))


class Producer:
    """A transactional producer, by hand. It writes to partitions 0 … `partitions` - 1 of the topic alike."""

    def __init__(
        self, client: RawClient, transactional_id: str = "txn", *, partitions: int = 1, topic: str = TOPIC
    ) -> None:
        granted = client.init_producer_id(transactional_id)
        assert granted.error_code == raw.NONE, granted.error_code
        self.client, self.transactional_id, self.partitions = client, transactional_id, range(partitions)
        self.topic = topic
        self.producer_id, self.epoch, self.sequence = granted.producer_id, granted.producer_epoch, 0

    def on(self, client: RawClient) -> Producer:
        """The same producer on another connection, as after the node was restarted."""
        self.client = client
        return self

    def begin(self) -> set[int]:
        """Add all partitions; the error codes."""
        added = self.client.add_partitions(
            self.transactional_id, self.producer_id, self.epoch, self.topic, list(self.partitions)
        )
        return set(added.values())

    def send(self, *values: bytes) -> set[int]:
        """One batch to each partition; the error codes."""
        data = batch(
            list(values), producer_id=self.producer_id, epoch=self.epoch, sequence=self.sequence, transactional=True
        )
        codes = {
            self.client.produce(self.topic, partition, data, transactional_id=self.transactional_id)[0]
            for partition in self.partitions
        }
        self.sequence += len(values) if codes == {raw.NONE} else 0
        return codes

    def end(self, *, commit: bool) -> int:
        return self.client.end(self.transactional_id, self.producer_id, self.epoch, commit=commit)

    def commit(self, *values: bytes) -> None:
        """A whole transaction, answered."""
        assert self.begin() == {raw.NONE}
        for value in values:
            assert self.send(value) == {raw.NONE}
        assert self.end(commit=True) == raw.NONE


def interleave(long: Producer, short: Producer, hanging: Producer) -> None:
    """One transaction that is aborted, within it one that is committed and one that is not; and one that stays open."""
    long.begin()
    long.send(b"long")
    short.commit(b"committed")
    short.begin()
    short.send(b"aborted")
    assert short.end(commit=False) == raw.NONE
    long.send(b"long as well")
    assert long.end(commit=False) == raw.NONE
    hanging.begin()
    hanging.send(b"hanging")


def produce_until_refused(
    node: NodeProcess, *, value_bytes: int, count_max: int = 400
) -> tuple[list[bytes], bytes, int | None]:
    """Plain records until one is not answered with success: the answered ones, that one, its code (None: hung up)."""
    answered: list[bytes] = []
    with RawClient(node.address) as client:
        for number in range(count_max):
            value = b"%06d" % number + bytes(value_bytes)
            try:
                code, _ = client.produce(TOPIC, 0, batch([value]))
            except ConnectionError:
                return answered, value, None
            if code != raw.NONE:
                return answered, value, code
            answered.append(value)
    raise AssertionError(f"{count_max} records, and none was refused")


def assert_writes_are_refused(node: NodeProcess, partitions: Sequence[int] = (0,)) -> None:
    """Plain batches and transactions, on connections of their own, get KAFKA_STORAGE_ERROR."""
    with RawClient(node.address) as client:
        for partition in partitions:
            assert client.produce(TOPIC, partition, batch([b"refused"]))[0] == KAFKA_STORAGE_ERROR
        granted = client.init_producer_id("newcomer")
        if granted.error_code == raw.NONE:
            added = client.add_partitions("newcomer", granted.producer_id, granted.producer_epoch, TOPIC, partitions)
            assert set(added.values()) == {KAFKA_STORAGE_ERROR}
        else:
            assert granted.error_code == KAFKA_STORAGE_ERROR


def assert_holds_answered(
    found: Sequence[bytes | None], answered: Sequence[bytes], *, perhaps: Sequence[bytes]
) -> None:
    """`found` is what was answered, in order and once; then at most what had no answer, in order and once."""
    assert list(found[: len(answered)]) == list(answered)
    rest = list(found[len(answered) :])
    assert rest == list(perhaps)[: len(rest)]


def pretend_reboot(node: NodeProcess) -> None:
    """Let the note of the last run speak of another boot of the system, as after a loss of power."""
    notes = [node.data_dir / "last-run"] if node.processes == 1 else node.data_dir.glob("shards/*/last-run")
    for note in notes:
        note.write_text(re.sub(r"^\S+", "another-boot", note.read_text()))
