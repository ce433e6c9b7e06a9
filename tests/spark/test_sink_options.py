"""The sink's options: what exactly-once decides is refused with a reason."""

from __future__ import annotations

import pytest

from pyspark_fairlog.options import OptionRefused
from pyspark_fairlog.sink_options import SinkOptions, parse

ADDRESS = {"kafka.bootstrap.servers": "localhost:9092"}


def test_options_of_a_stream_are_taken_whatever_their_case() -> None:
    """Spark hands names over in small letters."""
    given = {"topic": "t", "transactionalid": "totals", "commitgroup": "g", "checkpointlocation": "/c"}
    assert parse(ADDRESS | given | {"kafka.linger.ms": "20"}, streaming=True) == SinkOptions(
        "localhost:9092", "t", "totals", "g", None, "/c", {"linger.ms": "20"}
    )


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("kafka.transactional.id", "mine"),
        ("kafka.enable.idempotence", "false"),
        ("kafka.acks", "1"),
        ("kafka.value.serializer", "org.example.Serializer"),
        ("kafka.delivery.report.only.error", "false"),
        ("topic", ""),
        ("transactionalId", " "),
    ],
)
def test_option_that_would_break_the_promise_is_refused_by_name(option: str, value: str) -> None:
    with pytest.raises(OptionRefused, match=option):
        parse(ADDRESS | {option: value}, streaming=True)


@pytest.mark.parametrize(("option", "value"), [("kafka.enable.idempotence", "true"), ("kafka.acks", "all")])
def test_option_that_says_what_is_done_anyway_is_taken(option: str, value: str) -> None:
    """Jobs that come from the connector often say so."""
    parse(ADDRESS | {option: value}, streaming=True)


def test_commit_group_needs_a_checkpoint_that_is_known() -> None:
    with pytest.raises(OptionRefused, match="checkpointLocation"):
        parse(ADDRESS | {"commitGroup": "g"}, streaming=True)


@pytest.mark.parametrize(
    ("options", "streaming", "said"),
    [
        ({"batchId": "1"}, False, "transactionalId"),
        ({"batchId": "-1", "transactionalId": "t"}, False, "'-1'"),
        ({"batchId": "1", "transactionalId": "t"}, True, "foreachBatch"),
        ({"batch_id": "1", "transactionalId": "t"}, False, "did you mean batchId"),
    ],
)
def test_batch_id_is_for_named_sinks_inside_of_foreach_batch(
    options: dict[str, str], streaming: bool, said: str
) -> None:
    """Misspelt it would make a sink of its own, and a replay would write the batch twice."""
    with pytest.raises(OptionRefused, match=said):
        parse(ADDRESS | options, streaming=streaming)


def test_commit_group_of_a_batch_write_is_refused_unless_it_is_a_micro_batch() -> None:
    """That one has a source that goes on."""
    given = ADDRESS | {"commitGroup": "g", "checkpointLocation": "/c", "batchId": "1", "transactionalId": "t"}
    assert parse(given, streaming=False).commit_group == "g"
    with pytest.raises(OptionRefused, match="writeStream"):
        parse(ADDRESS | {"commitGroup": "g", "checkpointLocation": "/c"}, streaming=False)
