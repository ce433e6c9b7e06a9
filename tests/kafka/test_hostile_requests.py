"""Well-formed requests that hold what no client should say: extreme numbers, empty and endless names, repetitions.

The requests are made from kio's schemas, field by field, so every API and version is covered by what it can hold.
"""

from __future__ import annotations

import datetime
import io
import struct
import types
import typing
from dataclasses import fields
from uuid import UUID

import pytest
import trio
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from kafka.protocol.admin import CreateTopicsRequest, DescribeConfigsRequest
from kio.index import load_payload_module
from kio.serial import entity_writer
from kio.static.constants import EntityType

from fairlog.edge.malformed import Malformed
from fairlog.kafka.api import Client, Deferred, HangUp
from fairlog.kafka.handlers import ALL

LEGACY_STRING_BYTES_MAX = 2**15 - 1
"""Flexible versions can say longer ones, and nobody may."""


def integers(bits):
    low, high = -(1 << (bits - 1)), (1 << (bits - 1)) - 1
    return st.sampled_from([low, -2, -1, 0, 1, 2, high - 1, high]) | st.integers(low, high)


def strings(flexible):
    lengths = [249, 250, 255, 256, 1024, 1025, LEGACY_STRING_BYTES_MAX] + [70_000] * flexible
    long = st.sampled_from(lengths).map("x".__mul__)
    known = st.sampled_from(
        ["", "t", "u", "tx", ".", "..", "\0", "a/b", "-1", "\u00e9", "max.message.bytes", "user", "ip"]
    )
    return known | st.text(st.characters(exclude_categories=["Cs"]), max_size=10) | long


def of_kafka_type(kafka_type, flexible, batch):
    match kafka_type:
        case "int8" | "int16" | "int32" | "int64":
            return integers(int(kafka_type[3:]))
        case "float64":
            return st.floats() | st.sampled_from([1.0, 1000.0])
        case "bool":
            return st.booleans()
        case "string":
            return strings(flexible)
        case "bytes":
            return st.binary(max_size=80)
        case "uuid":
            return st.sampled_from([None, UUID(int=1), UUID(int=2**128 - 1)])
        case "records":
            fields_of_batch = {
                "producer_id": integers(64),
                "epoch": integers(16),
                "sequence": integers(32),
                "attributes": integers(16),
                "timestamp": integers(64),
                "records": st.integers(1, 2**31 - 1),
            }
            good = st.fixed_dictionaries({}, optional=fields_of_batch).map(lambda chosen: batch(**chosen))
            return st.none() | st.binary(max_size=80) | good
        case "timedelta_i32":
            return integers(32).map(lambda ms: datetime.timedelta(milliseconds=ms))
        case "timedelta_i64":
            return integers(48).map(lambda ms: datetime.timedelta(milliseconds=ms))
    raise AssertionError(kafka_type)


def of_entity(entity, flexible, batch):
    """Any value of one of kio's classes; arrays repeat their elements."""
    hints = typing.get_type_hints(entity)
    return st.builds(
        entity,
        **{field.name: of_field(hints[field.name], field, flexible, batch) for field in fields(entity)},
    )


def of_field(hint, field, flexible, batch):
    if isinstance(hint, types.UnionType):
        some = next(option for option in typing.get_args(hint) if option is not types.NoneType)
        return st.none() | of_field(some, field, flexible, batch)
    if typing.get_origin(hint) is tuple:
        element = of_field(typing.get_args(hint)[0], field, flexible, batch)
        once = st.lists(element, max_size=3).map(tuple)
        return once | st.tuples(element, st.integers(2, 4)).map(lambda pair: (pair[0],) * pair[1])
    if "kafka_type" in field.metadata:
        return of_kafka_type(field.metadata["kafka_type"], flexible, batch)
    return of_entity(hint, flexible, batch)


async def answer_or_refuse(asker, api, version, frame):
    try:
        started = await asker.router.start(frame, Client(1, "hostile:1"))
        answer = started.answer
        if isinstance(answer, Deferred):
            asker.client.end_long_polls()
            with trio.move_on_after(0.01) as waiting:
                answer = started.finished(await answer.finish())
            if waiting.cancelled_caught:
                return
    except (Malformed, HangUp):
        return
    if answer is not None:
        asker.read_answer(api.key, version, b"".join(answer))


async def test_message_that_quotes_an_endless_name_is_cut(ask):
    """What a client sends in 32,767 bytes does not fit a legacy string once there are words around it."""
    topic = CreateTopicsRequest.CreatableTopic
    name = "x" * LEGACY_STRING_BYTES_MAX
    config = topic.CreatableTopicConfig(name=name, value=name)
    asked = topic(name="u", num_partitions=1, replication_factor=1, assignments=[], configs=[config])
    answer = await ask(19, 2, topics=[asked], timeout_ms=1000, validate_only=False)
    assert (answer.topics[0].error_code, len(answer.topics[0].error_message)) == (40, 1000)
    resource = DescribeConfigsRequest.DescribeConfigsResource(resource_type=4, resource_name=name)
    answer = await ask(32, 1, resources=[resource], include_synonyms=False)
    assert answer.results[0].error_code == 42
    assert len(answer.results[0].error_message) <= 1000


@pytest.mark.slow
@pytest.mark.parametrize("api", ALL, ids=lambda api: api.name)
@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_hostile_values_end_as_an_answer_or_a_clean_close(make_memory, make_asker, batch, api, data):
    """Whatever stands in a request's fields: an answer that can be read, or the connection is closed on purpose."""
    versions = [each for each in range(api.served.min, api.served.max + 1) if (api.key, each) != (27, 0)]
    version = data.draw(st.sampled_from(versions), "version")  # kio lacks what Kafka 4 has dropped
    flexible = version >= api.flexible_from
    request = getattr(load_payload_module(api.key, version, EntityType.request), f"{api.name}Request")
    with io.BytesIO() as body:
        entity_writer(request)(body, data.draw(of_entity(request, flexible, batch), "request"))
        frame = struct.pack(">hhih", api.key, version, 5, -1) + b"\0" * flexible + body.getvalue()
    memory = make_memory()
    memory.topics.create_now("t")
    trio.run(answer_or_refuse, make_asker(memory), api, version, frame)
