"""The options of `format("fairlog")`: the connector's names, and refusals that say what to do."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyspark_fairlog.options import (
    BOOTSTRAP,
    NOT_OURS,
    Assign,
    Edge,
    OptionRefused,
    Partition,
    Subscribe,
    SubscribePattern,
    offsets_from,
    offsets_to,
    read_options,
    write_options,
)

ADDRESS = {BOOTSTRAP: "localhost:9092"}
ORDERS = ADDRESS | {"subscribe": "orders"}


def refusal(**options: str) -> str:
    with pytest.raises(OptionRefused) as refused:
        read_options(ORDERS | {name.replace("__", "."): value for name, value in options.items()})
    return str(refused.value)


def test_read_options_of_a_bare_query_are_the_connectors_defaults() -> None:
    """Batches run from the earliest record to the latest, streams from the latest; lost data is an error."""
    options = read_options(ORDERS)
    assert (options.selection, options.bootstrap) == (Subscribe(("orders",)), "localhost:9092")
    assert (options.batch_starting(), options.batch_ending()) == (Edge.EARLIEST, Edge.LATEST)
    assert options.stream_starting() is Edge.LATEST
    assert options.fail_on_data_loss
    assert not options.headers
    assert (options.limit, options.partitions_min, options.client) == (None, None, {})


def test_read_options_are_known_in_any_case_and_with_blanks() -> None:
    """Spark hands names over in lower case, and people write blanks behind commas."""
    options = read_options({"KAFKA.Bootstrap.Servers": "a:1", "SUBSCRIBE": " a, b ,a", "FailOnDataLoss": "FALSE"})
    assert options.selection == Subscribe(("a", "b"))
    assert not options.fail_on_data_loss


def test_read_options_with_offsets_take_the_connectors_json() -> None:
    """−2 is the earliest and −1 the latest offset, for each partition."""
    options = read_options(ORDERS | {"startingOffsets": '{"orders": {"0": 23, "1": -2, "2": -1}}'})
    assert options.stream_starting() == {
        Partition("orders", 0): 23,
        Partition("orders", 1): Edge.EARLIEST,
        Partition("orders", 2): Edge.LATEST,
    }


def test_read_options_select_by_list_pattern_or_partitions() -> None:
    """Each of the three ways, and exactly one of them."""
    assert read_options(ADDRESS | {"subscribePattern": "or.*"}).selection == SubscribePattern("or.*")
    assigned = read_options(ADDRESS | {"assign": '{"b": [1, 0], "a": [2]}'}).selection
    assert assigned == Assign((Partition("a", 2), Partition("b", 0), Partition("b", 1)))
    with pytest.raises(OptionRefused, match="none was given"):
        read_options(ADDRESS)
    assert "subscribe and assign were given" in refusal(assign='{"a": [0]}')


@pytest.mark.parametrize("name", [name for name in NOT_OURS if name != "path"])
def test_option_of_the_connector_that_we_lack_is_refused_by_name(name: str) -> None:
    """A query that asks for what we do not have must not do something else."""
    assert f"the option {name} is not one of Fairlog's" in refusal(**{name.replace(".", "__"): "1"})


@pytest.mark.parametrize(
    ("name", "value", "told"),
    [
        ("startingOffset", "earliest", "did you mean startingOffsets"),
        ("maxOffsetPerTrigger", "5", "did you mean maxOffsetsPerTrigger"),
        ("startingOffsets", "first", "neither `earliest` nor `latest`"),
        ("startingOffsets", '{"orders": {"0": -3}}', "-3 is no offset"),
        ("startingOffsets", '{"#version": 2}', "'#version' is no topic"),
        ("startingOffsets", '{"orders": {"zero": 3}}', "no offset of a partition"),
        ("startingOffsets", '{"orders": [3]}', "needs an offset per partition"),
        ("startingOffsets", '{"orders": ', "no JSON"),
        ("maxOffsetsPerTrigger", "0", "whole number above 0"),
        ("maxOffsetsPerTrigger", "many", "whole number above 0"),
        ("minPartitions", "-1", "whole number above 0"),
        ("includeHeaders", "yes", "`true` or `false`"),
        ("transactionalId", "sink", "for writing"),
        ("batchId", "3", "for writing"),
        ("kafka__auto.offset.reset", "earliest", "give `startingOffsets`"),
        ("kafka__enable.auto.commit", "true", "checkpoint"),
        ("kafka__isolation.level", "read_uncommitted", "committed, always"),
        ("kafka__ssl.truststore.location", "x.jks", "kafka.ssl.ca.location"),
        ("kafka__ssl.truststore.password", "x", "kafka.ssl.ca.location"),
        ("kafka__sasl.kerberos.keytab", "x", "is not understood by Fairlog's own client"),
        ("kafka__buffer.memory", "33554432", "kafka.queue.buffering.max.kbytes"),
        ("kafka__partitioner.class", "org.example.Mine", "the column `partition`"),
    ],
)
def test_option_that_is_wrong_is_refused_with_what_to_do(name: str, value: str, told: str) -> None:
    """The sentence names the option, and says what is wrong with it."""
    sentence = refusal(**{name: value})
    assert told in sentence
    assert name.replace("__", ".").lower() in sentence.lower()  # Spark hands over lower case


def test_option_of_spark_itself_is_left_alone() -> None:
    """Spark hands `checkpointLocation` and others to every source."""
    assert read_options(ORDERS | {"checkpointLocation": "/tmp/x", "mergeSchema": "true"}) == read_options(ORDERS)


def test_client_settings_go_to_librdkafka_under_its_names() -> None:
    """Most names are the same in both clients; those that are not are translated."""
    given = {
        "kafka.fetch.max.wait.ms": "50",
        "kafka.socket.nagle.disable": "true",
        "kafka.isolation.level": "read_committed",
    }
    client = read_options(ORDERS | given).client
    assert client == {"fetch.wait.max.ms": "50", "socket.nagle.disable": "true", "isolation.level": "read_committed"}


def test_assign_with_offsets_of_other_partitions_is_refused() -> None:
    """The connector asks for all partitions of a JSON; so do we."""
    with pytest.raises(OptionRefused, match="all of them and no other"):
        read_options(ADDRESS | {"assign": '{"a": [0, 1]}', "startingOffsets": '{"a": {"0": 1}}'})


def test_batch_that_begins_at_the_end_or_ends_at_the_beginning_is_refused() -> None:
    """As in the connector; also for one partition of a JSON."""
    for starting in ("latest", '{"orders": {"0": -1}}'):
        with pytest.raises(OptionRefused, match="startingOffsets"):
            read_options(ORDERS | {"startingOffsets": starting}).batch_starting()
    for ending in ("earliest", '{"orders": {"0": -2}}'):
        with pytest.raises(OptionRefused, match="endingOffsets"):
            read_options(ORDERS | {"endingOffsets": ending}).batch_ending()
    with pytest.raises(OptionRefused, match="maxOffsetsPerTrigger"):
        read_options(ORDERS | {"maxOffsetsPerTrigger": "5"}).batch_ending()
    with pytest.raises(OptionRefused, match="a stream has no end"):
        read_options(ORDERS | {"endingOffsets": "latest"}).stream_starting()


def test_write_options_know_what_writers_know() -> None:
    """A reader's option is refused by name, and settings that the sink makes itself are the sink's to refuse."""
    options = write_options(
        ADDRESS | {"topic": "out", "transactionalId": "sink", "commitGroup": "g", "kafka.linger.ms": "5"}, forbidden={}
    )
    assert (options.topic, options.transactional_id, options.commit_group) == ("out", "sink", "g")
    assert options.client == {"linger.ms": "5"}
    renamed = write_options(ADDRESS | {"kafka.max.request.size": "5000000"}, forbidden={})
    assert renamed.client == {"message.max.bytes": "5000000"}
    write_options(ADDRESS | {"includeHeaders": "true"}, forbidden={})  # the connector's writers take it, too
    with pytest.raises(OptionRefused, match="startingOffsets is for reading"):
        write_options(ADDRESS | {"startingOffsets": "latest"}, forbidden={})
    with pytest.raises(OptionRefused, match=r"kafka\.acks cannot be set: all, always"):
        write_options(ADDRESS | {"kafka.acks": "1"}, forbidden={"acks": "all, always"})


partitions = st.builds(Partition, st.from_regex(r"[A-Za-z0-9._-]{1,9}", fullmatch=True), st.integers(0, 10_000))


@given(st.dictionaries(partitions, st.integers(0, 2**63 - 1)))
def test_offsets_survive_the_checkpoint(offsets: dict[Partition, int]) -> None:
    """What Spark stores as JSON comes back as it was."""
    assert offsets_from(json.loads(json.dumps(offsets_to(offsets)))) == offsets


@given(st.dictionaries(partitions, st.integers(0, 9)))
def test_offsets_that_are_equal_are_equal_text(offsets: dict[Partition, int]) -> None:
    """Spark sees by comparing text whether there is news: the order in which offsets were found must not show."""
    shuffled = dict(reversed(offsets.items()))
    assert json.dumps(offsets_to(shuffled)) == json.dumps(offsets_to(offsets))


def test_offsets_of_many_partitions_are_in_the_order_of_numbers() -> None:
    """People read checkpoints: 10 comes after 9."""
    stored = offsets_to({Partition("t", number): 0 for number in (10, 9, 1)})
    assert list(stored["t"]) == ["1", "9", "10"]
