"""The options of `write` and `writeStream`: which there are, and what is wrong with the ones that were given.

They have the names of Spark's Kafka connector where they mean the same. What the connector does not have:
`transactionalId` names the sink, and `commitGroup` lets a consumer group go along with the batches. `kafka.*` go to the
producer, which is librdkafka's, under its names; those that the exactly-once sink decides are refused.

Pure. Everything unknown is refused by name, so that a misspelled option is not silently without effect.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

KAFKA_PREFIX = "kafka."

BOOTSTRAP = "kafka.bootstrap.servers"

NAMES = ("topic", "transactionalId", "commitGroup", "checkpointLocation")
"""Besides `kafka.*`. Spark hands options over in small letters."""

DECIDED = {
    "transactional.id": "the node hands out a transactional id to each task; the option transactionalId names the sink",
    "delivery.report.only.error": "the sink reads the producer's reports itself",
    "key.serializer": "keys are written as they are, bytes or UTF-8",
    "value.serializer": "values are written as they are, bytes or UTF-8",
    "interceptor.classes": "the producer is librdkafka's, which knows no Java classes",
}
"""Settings of the producer that cannot be chosen, and why."""

ONLY = {"enable.idempotence": ("true",), "acks": ("all", "-1"), "request.required.acks": ("all", "-1")}
"""Settings that exactly-once leaves one value."""


class OptionRefused(ValueError):
    """An option is missing, unknown or cannot have this value; the sentence says which, and what to do."""


@dataclass(frozen=True, slots=True)
class SinkOptions:
    """What was asked for, checked."""

    bootstrap: str
    """HOST:PORT[,HOST:PORT] of the node, for both protocols."""
    topic: str | None = None
    """All rows' topic; None: a column says it."""
    transactional_id: str | None = None
    """The sink's name; None: one is made from the query."""
    commit_group: str | None = None
    """The consumer group whose offsets are committed with the batches."""
    checkpoint: str | None = None
    """Where the query's checkpoint is, as far as an option says it."""
    producer: Mapping[str, str] = field(default_factory=dict[str, str])
    """More settings of librdkafka's."""


def parse(options: Mapping[str, str], *, streaming: bool) -> SinkOptions:
    """The options of a sink, whose names are compared without case. Raises OptionRefused."""
    given = {name.lower(): value for name, value in options.items()}
    producer = {
        name.removeprefix(KAFKA_PREFIX): value
        for name, value in given.items()
        if name.startswith(KAFKA_PREFIX) and name != BOOTSTRAP
    }
    known = {name.lower() for name in NAMES}
    for name in given:
        if name not in known and not name.startswith(KAFKA_PREFIX):
            raise OptionRefused(
                f"the sink has no option {name!r}; it has {', '.join(NAMES)}, and {KAFKA_PREFIX}* for the producer"
            )
    for name, value in producer.items():
        _check_setting(name, value)
    if not given.get(BOOTSTRAP):
        raise OptionRefused(f"the option {BOOTSTRAP} is missing: the node's HOST:PORT")
    for name in ("topic", "transactionalId", "commitGroup"):
        if given.get(name.lower()) == "":
            raise OptionRefused(f"the option {name} is empty; leave it out, or give it a name")
    group, checkpoint = given.get("commitgroup"), given.get("checkpointlocation")
    if group is not None and not streaming:
        raise OptionRefused("the option commitGroup is for writeStream: a batch write has no source that goes on")
    if group is not None and checkpoint is None:
        raise OptionRefused(
            "the option commitGroup needs the option checkpointLocation, also where Spark's configuration names a "
            "common place: the offsets of each batch are read from the checkpoint"
        )
    return SinkOptions(
        given[BOOTSTRAP], given.get("topic"), given.get("transactionalid"), group, checkpoint, producer
    )


def _check_setting(name: str, value: str) -> None:
    """Raises OptionRefused for a setting of the producer that would break the promise."""
    if name in DECIDED:
        raise OptionRefused(f"the option {KAFKA_PREFIX}{name} cannot be set: {DECIDED[name]}")
    if name in ONLY and value.lower() not in ONLY[name]:
        raise OptionRefused(
            f"the option {KAFKA_PREFIX}{name} can only be {ONLY[name][0]!r} and not {value!r}: the sink writes "
            "exactly once"
        )
