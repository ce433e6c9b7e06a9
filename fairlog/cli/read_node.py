"""`consume` from a node, or any other broker: confluent-kafka's consumer, by offsets or as a member of a group.

Which partitions there are, and where they begin and end, is asked first and without confluent-kafka: what is wrong with
the address, a topic or an offset is then one sentence at once, where librdkafka would try again in silence.

A group's offsets are committed behind what was shown, never before: after each few seconds, when partitions are given
away, and at the end. A record may so be shown twice (a crash), and none is left out.

A broker that goes away is waited for; only when it cannot be reached for `GIVE_UP_S` is that the end.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Generator, Iterable
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, cast

from fairlog.cli import stock_client
from fairlog.cli.brokers import Brokers, connect_to_all
from fairlog.cli.errors import ClientError
from fairlog.cli.record_forms import ReadRecord
from fairlog.cli.selection import Range, Selection, Start, begin_at
from fairlog.cli.topics_admin import describe_topic, partition_count
from fairlog.config_values import Address

if TYPE_CHECKING:
    from confluent_kafka import Consumer, KafkaError, Message, TopicPartition

GIVE_UP_S = 30.0
_COMMIT_EVERY_S = 5.0
_POLL_S = 0.2
_CHUNK_RECORDS = 1_000
_JOIN_GROUP = 11

_Place = tuple[str, int]


class _Reading:
    """What reading by assignment and reading in a group have in common."""

    def __init__(self, bootstrap: Address, selection: Selection, ends: dict[_Place, int]) -> None:
        self._client: Any = stock_client.load("consume")
        self._bootstrap = bootstrap
        self._selection = selection
        self._ends = ends
        self._ended: set[_Place] = set()
        self._down_since: float | None = None
        self._consumer: Consumer

    def chunks(self, stop: threading.Event) -> Generator[list[ReadRecord]]:
        """Records as they come, in order within a partition, until all that was asked for is read or `stop` is set."""
        left = self._selection.count
        try:
            while not stop.is_set() and left != 0 and not self._all_read():
                chunk = self._poll(_CHUNK_RECORDS if left is None else min(left, _CHUNK_RECORDS))
                left = None if left is None else left - len(chunk)
                yield chunk
                self._shown(chunk)
            self._finish()
        finally:
            self._consumer.close()

    def _all_read(self) -> bool:
        """Is everything read that `--until-end` asks for?"""
        raise NotImplementedError

    def _shown(self, chunk: list[ReadRecord]) -> None:
        """`chunk` was written out."""

    def _finish(self) -> None:
        """All was read that was asked for, or the user has seen enough."""

    def _config(self, **more: object) -> dict[str, Any]:
        return stock_client.settings(
            self._bootstrap,
            **{
                "enable.auto.commit": False,
                "enable.partition.eof": self._selection.until_end,
                "isolation.level": "read_committed" if self._selection.committed_only else "read_uncommitted",
                "error_cb": self._note_error,
                **more,
            },
        )

    def _note_error(self, error: KafkaError) -> None:
        codes = self._client.KafkaError
        if error.code() in (codes._ALL_BROKERS_DOWN, codes._TRANSPORT) and self._down_since is None:
            self._down_since = time.monotonic()

    def _poll(self, records_max: int) -> list[ReadRecord]:
        try:
            first = self._consumer.poll(_POLL_S)
            # `consume` with a time-out would wait for that long or for as many; without one it takes what is there.
            rest = self._consumer.consume(records_max - 1, 0) if first is not None and records_max > 1 else []
        except self._client.KafkaException as error:
            raise self._refused(error) from error
        if first is None:
            self._check_broker()
            return []
        self._down_since = None
        return list(self._records([first, *rest]))

    def _records(self, messages: Iterable[Message]) -> Generator[ReadRecord]:
        for message in messages:
            error = message.error()
            place = cast(str, message.topic()), cast(int, message.partition())
            offset = cast(int, message.offset())
            if error is not None:
                if error.code() != self._client.KafkaError._PARTITION_EOF:
                    raise ClientError(f"reading {', '.join(self._selection.topics)}: {stock_client.sentence(error)}")
                if offset >= self._ends.get(place, 0):
                    self._ended.add(place)
                continue
            if self._selection.until_end:
                end = self._ends.get(place, 0)
                if offset + 1 >= end:
                    self._ended.add(place)
                if offset >= end:
                    continue  # it came after the reading began
            yield _record(message, place, offset, self._client.TIMESTAMP_NOT_AVAILABLE)

    def _check_broker(self) -> None:
        """Has the broker, or a leader, been away for too long? Asked when nothing comes."""
        since = self._down_since
        if since is None:
            return
        try:
            with connect_to_all(self._bootstrap) as brokers:
                for topic in self._selection.topics:
                    _held(brokers, topic, self._selection)
            self._down_since = None
        except ClientError:
            if time.monotonic() - since > GIVE_UP_S:
                raise

    def _refused(self, error: Exception) -> ClientError:
        return ClientError(f"reading {', '.join(self._selection.topics)}: {stock_client.sentence(error.args[0])}")


class AssignedReading(_Reading):
    """Partitions by name, from offsets that the command line gives. `total` offsets are there when it begins."""

    def __init__(self, bootstrap: Address, selection: Selection, held: dict[str, dict[int, Range]]) -> None:
        ranges = {
            (topic, partition): each
            for topic in selection.topics
            for partition, each in begin_at(selection, topic, held[topic]).items()
        }
        super().__init__(bootstrap, selection, {place: each.end for place, each in ranges.items()})
        self.total = sum(each.end - each.start for each in ranges.values())
        self._to_read = {place for place, each in ranges.items() if each.start < each.end}
        # librdkafka wants a group's name even where there is none; "error": nothing is to be guessed.
        config = self._config(**{"group.id": "fairlog-cli", "auto.offset.reset": "error"})
        self._consumer = self._client.Consumer(config)
        partitions = [self._client.TopicPartition(*place, each.start) for place, each in ranges.items()]
        self._consumer.assign(partitions)

    def _all_read(self) -> bool:
        return self._selection.until_end and self._to_read <= self._ended


class GroupReading(_Reading):
    """A member of a group: partitions are given and taken, and the group remembers how far it is."""

    total = None

    def __init__(self, bootstrap: Address, selection: Selection, held: dict[str, dict[int, Range]], group: str) -> None:
        ends = {(topic, partition): each.end for topic, found in held.items() for partition, each in found.items()}
        super().__init__(bootstrap, selection, ends)
        self._group = group
        self._assigned: set[_Place] | None = None
        self._uncommitted: dict[_Place, int] = {}
        self._committed_at = time.monotonic()
        reset = "earliest" if selection.start is Start.EARLIEST else "latest"
        self._consumer = self._client.Consumer(self._config(**{"group.id": group, "auto.offset.reset": reset}))
        self._consumer.subscribe(
            list(selection.topics), on_assign=self._given, on_revoke=self._taken, on_lost=self._lost
        )

    def _all_read(self) -> bool:
        return self._selection.until_end and self._assigned is not None and self._assigned <= self._ended

    def _shown(self, chunk: list[ReadRecord]) -> None:
        self._uncommitted |= {(record.topic, record.partition): record.offset + 1 for record in chunk}
        if self._uncommitted and time.monotonic() - self._committed_at > _COMMIT_EVERY_S:
            self._commit(list(self._uncommitted))

    def _finish(self) -> None:
        self._commit(list(self._uncommitted))

    def _given(self, _consumer: object, partitions: list[TopicPartition]) -> None:
        self._assigned = {(each.topic, each.partition) for each in partitions}
        self._ended -= self._assigned

    def _taken(self, _consumer: object, partitions: list[TopicPartition]) -> None:
        places = [(each.topic, each.partition) for each in partitions]
        self._commit(places)
        self._assigned = None

    def _lost(self, _consumer: object, partitions: list[TopicPartition]) -> None:
        """Taken without having been asked: another member reads from the last commit, these records once more."""
        for each in partitions:
            self._uncommitted.pop((each.topic, each.partition), None)
        self._assigned = None

    def _commit(self, places: list[_Place]) -> None:
        offsets = [
            self._client.TopicPartition(*place, self._uncommitted.pop(place))
            for place in places
            if place in self._uncommitted
        ]
        if not offsets:
            return
        self._committed_at = time.monotonic()
        try:
            answered = self._consumer.commit(offsets=offsets, asynchronous=False)
        except self._client.KafkaException as error:
            raise ClientError(self._not_committed(error.args[0])) from error
        for each in answered:
            if each.error is not None:
                raise ClientError(self._not_committed(each.error))

    def _not_committed(self, error: KafkaError) -> str:
        why = stock_client.sentence(error)
        return f"the offsets of the last records shown are not committed for group {self._group}: {why}"


@contextmanager
def open_node(bootstrap: Address, selection: Selection, group: str | None) -> Generator[AssignedReading | GroupReading]:
    """Begin to read. Raises ClientError, here and from `chunks`."""
    stock_client.load("consume")
    with connect_to_all(bootstrap) as brokers:
        if group is not None and not brokers.first.serves(_JOIN_GROUP):
            raise ClientError(f"the broker at {bootstrap} does not serve consumer groups")
        held = {topic: _held(brokers, topic, selection) for topic in selection.topics}
    if group is None:
        yield AssignedReading(bootstrap, selection, held)
    else:
        yield GroupReading(bootstrap, selection, held, group)


def _held(brokers: Brokers, topic: str, selection: Selection) -> dict[int, Range]:
    if partition_count(brokers, topic) is None:
        raise ClientError(f"there is no topic {topic}")
    found = {each.partition: each.offsets for each in describe_topic(brokers, topic)}
    brokers.require_all(f"it leads partitions of {topic}, which cannot be read")
    return {
        partition: Range(offsets.start, offsets.stable if selection.committed_only else offsets.end)
        for partition, offsets in found.items()
        if offsets is not None
    }


def _record(message: Message, place: _Place, offset: int, no_timestamp: int) -> ReadRecord:
    """Raises ClientError for a record that the client cannot read."""
    kind, timestamp_ms = message.timestamp()
    try:
        headers = cast("list[tuple[str, bytes | None]]", message.headers() or [])
    except (SystemError, UnicodeDecodeError) as error:  # the one out of the other, in confluent_kafka 2.16
        topic, partition = place
        raise ClientError(
            f"the record at offset {offset} of {topic}, partition {partition}, has a header whose name is not UTF-8, "
            "which the Kafka client cannot read: begin behind it with --offset, or read with --data-dir"
        ) from error
    return ReadRecord(
        *place,
        offset,
        -1 if kind == no_timestamp else timestamp_ms,
        message.key(),
        message.value(),
        tuple(headers),
    )
