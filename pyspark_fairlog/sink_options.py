"""What a sink needs of the options of `write` and `writeStream`.

Which options there are, and under which names, is said in `options.py`. Here is what exactly-once adds: settings of the
producer that it decides, or leaves one value, and what `commitGroup` needs to be true.

Pure; everything that is wrong raises OptionRefused.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from fairlog_client_security import ClientSecurity
from pyspark_fairlog.options import OptionRefused, write_options

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
    batch: int | None = None
    """A batch write inside of `foreachBatch`: the number of the micro-batch."""
    checkpoint: str | None = None
    """Where the query's checkpoint is, as far as an option says it."""
    producer: Mapping[str, str] = field(default_factory=dict[str, str], repr=False)
    """More settings of librdkafka's."""
    security: ClientSecurity = ClientSecurity()


def parse(options: Mapping[str, str], *, streaming: bool) -> SinkOptions:
    """The options of a sink. Raises OptionRefused."""
    given = write_options(options, forbidden=DECIDED)
    for name, value in given.client.items():
        if name in ONLY and value.lower() not in ONLY[name]:
            raise OptionRefused(
                f"the option kafka.{name} can only be {ONLY[name][0]!r} and not {value!r}: the sink writes exactly once"
            )
    checkpoint = next((value for name, value in options.items() if name.lower() == "checkpointlocation"), None)
    if given.batch is not None and streaming:
        raise OptionRefused("the option batchId is for writes inside of foreachBatch: writeStream knows its batches")
    if given.batch is not None and given.transactional_id is None:
        raise OptionRefused("the option batchId needs the option transactionalId: the name of this write's own sink")
    if given.commit_group is not None and not streaming and given.batch is None:
        raise OptionRefused(
            "the option commitGroup is for writeStream, and for writes inside of foreachBatch that give batchId: "
            "another batch write has no source that goes on"
        )
    if given.commit_group is not None and checkpoint is None:
        raise OptionRefused(
            "the option commitGroup needs the option checkpointLocation, also where Spark's configuration names a "
            "common place: the offsets of each batch are read from the checkpoint"
        )
    return SinkOptions(
        given.bootstrap,
        given.topic,
        given.transactional_id,
        given.commit_group,
        given.batch,
        checkpoint,
        given.client,
        given.security,
    )
