"""What a query asks of topics: the options of `format("fairlog")`, read and checked.

Names and meanings are those of Spark's Kafka connector, so that a query moves by one word. What the connector knows
and Fairlog does not is refused by name, never passed over: a query that asks for a time to start at must not start
somewhere else. A name that nobody knows is refused if it is nearly one that we know, and else left alone, since Spark
hands its own options (`checkpointLocation`) to every source. Names are compared without regard to case, as Spark does.

`kafka.*` goes to librdkafka, whose settings mostly have the names of the Java client's; the few that have another
name are translated, and those that would break what the source promises are refused. What they say about security goes
to the connections of the native protocol as well (`fairlog_client_security.py`); no message and no `repr` has it.

Pure: text in, values out; everything that is wrong raises OptionRefused with a sentence for the user.
"""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import NamedTuple, NoReturn, TypeGuard, cast

from fairlog_client_security import ClientSecurity, SecurityRefused, by_librdkafkas_names

_KAFKA = "kafka."

Config = Mapping[str, str]
"""librdkafka's settings."""

BOOTSTRAP = "kafka.bootstrap.servers"
SELECTIONS = ("subscribe", "subscribePattern", "assign")
READING = (
    *SELECTIONS, "startingOffsets", "endingOffsets", "maxOffsetsPerTrigger", "minPartitions", "failOnDataLoss",
    "includeHeaders", "kafkaConsumer.pollTimeoutMs",
)  # fmt: skip
WRITING = ("topic", "includeHeaders", "transactionalId", "commitGroup", "batchId")
"""`includeHeaders` changes nothing, as in the connector: a column `headers` is written if it is there."""
KNOWN = (BOOTSTRAP, *dict.fromkeys((*READING, *WRITING)))

_TIMES = "Fairlog's source does not start or end at a time; give offsets"
_GROUPS = "readers assign partitions and join no consumer group; to show progress to lag tools write with `commitGroup`"
_FETCH_OFFSET = "offsets come from one request; `kafkaConsumer.pollTimeoutMs` says how long it is repeated"
NOT_OURS: Mapping[str, str] = {
    "startingTimestamp": _TIMES,
    "endingTimestamp": _TIMES,
    "startingOffsetsByTimestamp": _TIMES,
    "endingOffsetsByTimestamp": _TIMES,
    "startingOffsetsByTimestampStrategy": _TIMES,
    "minOffsetsPerTrigger": "a micro-batch takes what there is; a longer trigger interval makes larger ones",
    "maxTriggerDelay": "it only means something with minOffsetsPerTrigger, which Fairlog does not have",
    "maxRecordsPerPartition": "`minPartitions` splits large ranges",
    "fetchOffset.numRetries": _FETCH_OFFSET,
    "fetchOffset.retryIntervalMs": _FETCH_OFFSET,
    "groupIdPrefix": _GROUPS,
    "kafka.group.id": _GROUPS,
    "path": "topics have no path; give `subscribe`, `subscribePattern` or `assign`",
}
"""Options of the connector, or of other sources, that we do not have, and why."""

_OFFSETS = "Spark keeps the offsets of a query in its checkpoint"
_PLAIN = "keys and values are bytes; cast or parse them in the query"
_OWN = "the source sets it itself"
READ_FORBIDDEN: Mapping[str, str] = {
    "auto.offset.reset": "give `startingOffsets`",
    "enable.auto.commit": _OFFSETS,
    "enable.auto.offset.store": _OFFSETS,
    "auto.commit.interval.ms": _OFFSETS,
    "key.deserializer": _PLAIN,
    "value.deserializer": _PLAIN,
    "interceptor.classes": "librdkafka has no Java classes",
    "partition.assignment.strategy": "readers assign partitions themselves",
    "group.instance.id": _GROUPS,
    "enable.partition.eof": _OWN,
    "max.poll.records": "how many rows make an Arrow batch is the source's affair",
    "max.poll.interval.ms": _GROUPS,
}
JAVA_ONLY: Mapping[str, str] = {
    "ssl.truststore.password": "a PEM file of certificates has none: `kafka.ssl.ca.location`",
    "ssl.keystore.password": "the key in a PEM file has one of its own: `kafka.ssl.key.password`",
    "buffer.memory": "librdkafka takes kilobytes: `kafka.queue.buffering.max.kbytes`",
    "partitioner.class": "librdkafka has no Java classes; the column `partition` says where a row goes",
    "max.block.ms": "a task waits for the node until the batch's transaction times out; leave it out",
    "default.api.timeout.ms": "`kafkaConsumer.pollTimeoutMs` says how long a reader waits",
}
RENAMED: Mapping[str, str] = {
    "fetch.max.wait.ms": "fetch.wait.max.ms",
    "receive.buffer.bytes": "socket.receive.buffer.bytes",
    "send.buffer.bytes": "socket.send.buffer.bytes",
    "request.timeout.ms": "socket.timeout.ms",
    "max.request.size": "message.max.bytes",
}
"""The Java client's names for what librdkafka calls otherwise."""

OURS = "#"
"""Names that begin with it say something of the whole in a checkpoint's offsets. No topic has such a name."""

DIGITS_MAX = 10
"""Of a partition's number, an i32. Python makes no number of thousands of digits, and raises an error of its own."""

POLL_TIMEOUT_MS = 120_000
"""The connector's `kafkaConsumer.pollTimeoutMs`, from `spark.network.timeout`."""


class OptionRefused(ValueError):
    """An option that cannot be served; the sentence says which, why, and what to do."""


class Partition(NamedTuple):
    """A partition by name; sorts by topic, then by number."""

    topic: str
    number: int

    def __str__(self) -> str:
        return f"{self.topic}-{self.number}"


class Edge(Enum):
    """An offset that is not a number yet, as the connector writes it in JSON."""

    EARLIEST = -2
    LATEST = -1


Offsets = dict[Partition, int]
Bound = Edge | Mapping[Partition, "int | Edge"]
"""Where all partitions begin or end; or where each does."""


@dataclass(frozen=True, slots=True)
class Subscribe:
    topics: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class SubscribePattern:
    """All topics whose whole name matches."""

    pattern: str


@dataclass(frozen=True, slots=True)
class Assign:
    partitions: tuple[Partition, ...]


Selection = Subscribe | SubscribePattern | Assign


@dataclass(frozen=True, slots=True)
class ReadOptions:
    """What to read. `starting` and `ending` are None where nothing was said: streams and batches differ there."""

    bootstrap: str
    selection: Selection
    starting: Bound | None
    ending: Bound | None
    limit: int | None
    """At most so many records in a micro-batch."""
    partitions_min: int | None
    fail_on_data_loss: bool
    headers: bool
    patience_ms: int
    client: Config = field(repr=False)
    security: ClientSecurity = ClientSecurity()

    def batch_starting(self) -> Bound:
        """Where a batch read begins: at the earliest records unless told otherwise."""
        if begins_at_latest(self.starting):
            _refuse("startingOffsets", "latest", "a batch cannot begin where it ends; give `earliest` or offsets")
        return Edge.EARLIEST if self.starting is None else self.starting

    def batch_ending(self) -> Bound:
        """Where a batch read ends: at what can be read now unless told otherwise."""
        if self.ending is Edge.EARLIEST or _holds(self.ending, Edge.EARLIEST):
            _refuse("endingOffsets", "earliest", "a batch cannot end where it begins; give `latest` or offsets")
        if self.limit is not None:
            _refuse("maxOffsetsPerTrigger", str(self.limit), "only a stream is read in micro-batches")
        return Edge.LATEST if self.ending is None else self.ending

    def stream_starting(self) -> Bound:
        """Where a new stream begins: at the records that come from now on unless told otherwise."""
        if self.ending is not None:
            raise OptionRefused("the option endingOffsets is for batch reads: a stream has no end")
        return Edge.LATEST if self.starting is None else self.starting


@dataclass(frozen=True, slots=True)
class WriteOptions:
    """Where rows go."""

    bootstrap: str
    topic: str | None
    """The topic of all rows; None: a column says each row's."""
    transactional_id: str | None
    """The sink's name; None: the writer makes one up."""
    commit_group: str | None
    """The consumer group under which the source's progress is shown."""
    batch: int | None
    """The number of the micro-batch that a batch write is part of."""
    client: Config = field(repr=False)
    security: ClientSecurity = ClientSecurity()


def read_options(options: Mapping[str, str]) -> ReadOptions:
    """Check the options of a `spark.read` or `spark.readStream`.

    Raises OptionRefused.
    """
    given = _given(options)
    for name in WRITING:
        if name not in READING and name in given:
            raise OptionRefused(f"the option {name} is for writing; a reader does not know it")
    selection = _selection(given)
    client, security = _client(given, READ_FORBIDDEN)
    return ReadOptions(
        bootstrap=_bootstrap(given),
        selection=selection,
        starting=_bound(given, "startingOffsets", selection),
        ending=_bound(given, "endingOffsets", selection),
        limit=_count(given, "maxOffsetsPerTrigger"),
        partitions_min=_count(given, "minPartitions"),
        fail_on_data_loss=_flag(given, "failOnDataLoss", otherwise=True),
        headers=_flag(given, "includeHeaders", otherwise=False),
        patience_ms=_count(given, "kafkaConsumer.pollTimeoutMs") or POLL_TIMEOUT_MS,
        client=client,
        security=security,
    )


def write_options(options: Mapping[str, str], *, forbidden: Mapping[str, str]) -> WriteOptions:
    """Check the options of a `df.write` or `df.writeStream`; `forbidden` are producer settings that are the sink's own.

    Raises OptionRefused.
    """
    given = _given(options)
    for name in READING:
        if name not in WRITING and name in given:
            raise OptionRefused(f"the option {name} is for reading; a writer does not know it")
    client, security = _client(given, forbidden)
    return WriteOptions(
        bootstrap=_bootstrap(given),
        topic=_name(given, "topic"),
        transactional_id=_name(given, "transactionalId"),
        commit_group=_name(given, "commitGroup"),
        batch=_micro_batch(given),
        client=client,
        security=security,
    )


class _Given:
    """Options by name, whatever the case; names are kept as we write them."""

    def __init__(self, options: Mapping[str, str]) -> None:
        self._values = {name.lower(): str(value) for name, value in options.items()}

    def __contains__(self, name: str) -> bool:
        return name.lower() in self._values

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def get(self, name: str) -> str | None:
        return self._values.get(name.lower())


def _given(options: Mapping[str, str]) -> _Given:
    given = _Given(options)
    known = {name.lower(): name for name in KNOWN}
    refused = {name.lower(): (name, why) for name, why in NOT_OURS.items()}
    for name in given:
        if name in refused:
            written, why = refused[name]
            raise OptionRefused(f"the option {written} is not one of Fairlog's: {why}")
        if name in known or name.startswith("kafka."):
            continue
        near = difflib.get_close_matches(name, list(known), n=1, cutoff=0.85)
        if near:
            raise OptionRefused(f"there is no option {name!r}; did you mean {known[near[0]]}?")
    return given


def _bootstrap(given: _Given) -> str:
    value = (given.get(BOOTSTRAP) or "").strip()
    if not value:
        raise OptionRefused(f"the option {BOOTSTRAP} is missing: give the broker's address, HOST:PORT")
    return value


def _selection(given: _Given) -> Selection:
    named = [name for name in SELECTIONS if name in given]
    if len(named) != 1:
        found = f"{' and '.join(named)} were given" if named else "none was given"
        raise OptionRefused(f"give one of the options {', '.join(SELECTIONS)}: {found}")
    value = (given.get(named[0]) or "").strip()
    if named[0] == "subscribePattern":
        if not value:
            _refuse("subscribePattern", value, "it is empty")
        try:
            re.compile(value)
        except re.error as error:
            _refuse("subscribePattern", value, f"it is no regular expression: {error}")
        return SubscribePattern(value)
    if named[0] == "assign":
        return Assign(_assigned(value))
    topics = tuple(dict.fromkeys(topic.strip() for topic in value.split(",") if topic.strip()))
    if not topics:
        _refuse("subscribe", value, "it names no topic")
    return Subscribe(topics)


def _assigned(text: str) -> tuple[Partition, ...]:
    found: set[Partition] = set()
    for topic, numbers in _object("assign", text, '{"orders": [0, 1]}').items():
        if not isinstance(numbers, list) or not numbers:
            _refuse("assign", text, f"{topic!r} needs a list of partitions, as in {{{json.dumps(topic)}: [0, 1]}}")
        for number in cast("list[object]", numbers):
            if not _is_whole(number) or number < 0:
                _refuse("assign", text, f"{number!r} is no partition of {topic!r}")
            found.add(Partition(topic, number))
    if not found:
        _refuse("assign", text, "it names no partition")
    return tuple(sorted(found))


def _bound(given: _Given, name: str, selection: Selection) -> Bound | None:
    text = given.get(name)
    if text is None:
        return None
    word = text.strip().lower()
    if word in ("earliest", "latest"):
        return Edge.EARLIEST if word == "earliest" else Edge.LATEST
    if not word.startswith("{"):
        _refuse(name, text, 'it is neither `earliest` nor `latest` nor JSON like {"orders": {"0": 42, "1": -2}}')
    bound: dict[Partition, int | Edge] = {}
    for partition, offset in _numbers(name, text).items():
        if offset < Edge.EARLIEST.value:
            _refuse(name, text, f"{offset} is no offset (−2 is earliest, −1 is latest)")
        bound[partition] = Edge(offset) if offset < 0 else offset
    if isinstance(selection, Assign) and bound.keys() != set(selection.partitions):
        _refuse(name, text, "it must name the partitions that `assign` names, all of them and no other")
    return bound


def begins_at_latest(starting: Bound | None) -> bool:
    """Whether `starting` is another place whenever it is asked for, of a partition at least."""
    return starting is Edge.LATEST or _holds(starting, Edge.LATEST)


def offsets_from(stored: object) -> Offsets:
    """Offsets as Spark hands them back from a checkpoint: `{"orders": {"0": 42}}`, already parsed.

    Raises OptionRefused if it is nothing that `offsets_to` has made.
    """
    return _numbers("checkpoint", json.dumps(stored))


def offsets_to(offsets: Mapping[Partition, int]) -> dict[str, dict[str, int]]:
    """Offsets in the connector's form, in one order: Spark compares them as text to see whether there is news."""
    stored: dict[str, dict[str, int]] = {}
    for partition in sorted(offsets):
        stored.setdefault(partition.topic, {})[str(partition.number)] = offsets[partition]
    return stored


def _numbers(name: str, text: str) -> Offsets:
    example = '{"orders": {"0": 42}}'
    found: Offsets = {}
    for topic, by_number in _object(name, text, example).items():
        if topic.startswith(OURS):
            _refuse(name, text, f"{topic!r} is no topic, but tells of all of them in a checkpoint: leave it out here")
        if not isinstance(by_number, dict):
            _refuse(name, text, f"{topic!r} needs an offset per partition, as in {example}")
        for number, offset in cast("dict[str, object]", by_number).items():
            if not (number.isascii() and number.isdigit() and len(number) <= DIGITS_MAX) or not _is_whole(offset):
                _refuse(name, text, f"{number!r}: {offset!r} is no offset of a partition of {topic!r}")
            found[Partition(topic, int(number))] = offset
    return found


def _object(name: str, text: str, example: str) -> dict[str, object]:
    try:
        found: object = json.loads(text)
    except (ValueError, RecursionError):
        _refuse(name, text, f"it is no JSON; it should look like {example}")
    if not isinstance(found, dict):
        _refuse(name, text, f"it should look like {example}")
    return cast("dict[str, object]", found)


def _is_whole(value: object) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool)


def _holds(bound: Bound | None, edge: Edge) -> bool:
    return isinstance(bound, Mapping) and edge in bound.values()


def _count(given: _Given, name: str) -> int | None:
    text = given.get(name)
    if text is None:
        return None
    if not (text.strip().isascii() and text.strip().isdigit()) or int(text) == 0:
        _refuse(name, text, "it must be a whole number above 0")
    return int(text)


def _micro_batch(given: _Given) -> int | None:
    text = given.get("batchId")
    if text is not None and not (text.isascii() and text.isdigit()):
        _refuse("batchId", text, "give the number that foreachBatch is called with")
    return None if text is None else int(text)


def _flag(given: _Given, name: str, *, otherwise: bool) -> bool:
    text = given.get(name)
    if text is None:
        return otherwise
    if text.strip().lower() not in ("true", "false"):
        _refuse(name, text, "it must be `true` or `false`")
    return text.strip().lower() == "true"


def _name(given: _Given, name: str) -> str | None:
    text = given.get(name)
    if text is not None and not text.strip():
        _refuse(name, text, "it is empty")
    return text


def _client(given: _Given, forbidden: Mapping[str, str]) -> tuple[Config, ClientSecurity]:
    client: dict[str, str] = {}
    for name in given:
        if not name.startswith(_KAFKA) or name == BOOTSTRAP:
            continue
        setting, value = name.removeprefix(_KAFKA), given.get(name) or ""
        if setting in forbidden or setting in JAVA_ONLY:
            why = forbidden.get(setting) or JAVA_ONLY[setting]
            raise OptionRefused(f"the option kafka.{setting} cannot be set: {why}")
        if setting == "isolation.level" and value != "read_committed":
            _refuse(name, value, "what is read is committed, always; leave it out")
        client[RENAMED.get(setting, setting)] = value
    try:
        named = by_librdkafkas_names(client, prefix=_KAFKA)
        return named, ClientSecurity.of(named, prefix=_KAFKA)
    except SecurityRefused as refused:
        raise OptionRefused(str(refused)) from None


def _refuse(name: str, text: str, why: str) -> NoReturn:
    raise OptionRefused(f"the option {name} cannot be {text!r}: {why}")
