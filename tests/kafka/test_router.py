"""The router: whatever bytes come, they end as an answer or as a clean refusal."""

from __future__ import annotations

import struct
from dataclasses import replace

import pytest
import trio
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fairlog.edge.malformed import Malformed
from fairlog.kafka.api import Client, Deferred, HangUp
from fairlog.kafka.handlers import ALL
from fairlog.kafka.router import Router


def header(key: int, version: int, correlation_id: int = 5) -> bytes:
    return struct.pack(">hhih", key, version, correlation_id, -1)


async def test_versions_above_ours_are_answered_in_version_0(ask):
    """With the versions of ApiVersions alone (KIP-511): a newer client asks again in one of them, with its name."""
    started = await ask.router.start(header(18, 5) + b"\0" + b"\x05kgo!\x02x\0", ask.client)
    answer = b"".join(started.answer)
    assert struct.unpack_from(">ihi", answer) == (5, 35, 1)
    assert list(struct.iter_unpack(">hhh", answer[10:])) == [(18, 0, 4)]


@pytest.mark.parametrize(("key", "version"), [(4, 0), (-1, 0), (73, 0), (0, 2), (0, 14), (1, 3), (26, -1)])
async def test_apis_and_versions_not_served_close_the_connection(ask, key, version):
    """As in Kafka: the answer's header depends on the version, so there is nothing that could be said."""
    with pytest.raises(HangUp, match="not served"):
        await ask.router.start(header(key, version) + bytes(50), ask.client)


async def test_malformed_request_is_named_by_api_and_version(ask):
    """The log line shall say what the client was trying to send."""
    with pytest.raises(Malformed, match=r"^EndTxn v1: "):
        await ask.router.start(header(26, 1) + b"\0", ask.client)


async def test_client_id_is_remembered(ask):
    """For log lines."""
    await ask(18, 0)
    assert ask.client.client_id == "asker"


async def test_commits_that_were_answered_are_placed_before_a_handler_begins(ask, memory, example_request, monkeypatch):
    """Right before: more may have been answered while this broker heard of what the others have changed."""
    memory.spread(3, 0)
    (api,) = [api for api in ALL if api.key == 3]
    order = []

    async def notice():
        await trio.lowlevel.checkpoint()
        order.append("notice")

    async def handle(context, request):
        order.append("handle")
        return await api.handle(context, request)

    monkeypatch.setattr(memory.cluster, "notice", notice)
    monkeypatch.setattr(memory.coordinator, "place_due", lambda: order.append("place"))
    await Router(memory.broker, [replace(api, handle=handle)]).start(example_request(3, 12), ask.client)
    assert order == ["notice", "place", "handle"]


def test_apis_are_served_once_and_in_versions_that_exist():
    """Keys are unique; ranges are not empty."""
    assert len({api.key for api in ALL}) == len(ALL)
    assert all(0 <= api.served.min <= api.served.max for api in ALL)


FRAMES = st.one_of(
    st.binary(max_size=200),
    st.builds(
        lambda api, version, body: header(api.key, version) + body,
        st.sampled_from(ALL),
        st.integers(0, 16),
        st.binary(max_size=200),
    ),
)


@st.composite
def damaged_requests(draw, make_asker):
    """A request that kafka-python made, with some bytes changed, cut or put in."""
    api = draw(st.sampled_from(ALL))
    version = draw(st.integers(api.served.min, api.served.max))
    frame = bytearray(make_asker(api.key, version))
    for _ in range(draw(st.integers(0, 4))):
        at = draw(st.integers(8, max(8, len(frame) - 1)))
        how = draw(st.sampled_from(["change", "cut", "insert"]))
        if how == "change" and at < len(frame):
            frame[at] = draw(st.integers(0, 255))
        elif how == "cut":
            del frame[at:]
        else:
            frame[at:at] = draw(st.binary(max_size=8))
    return bytes(frame)


async def answer_or_refuse(memory, asker, frame):
    """Start and finish one frame; anything but an answer, Malformed or HangUp is let through."""
    memory.topics.create_now("t", partitions=2)
    try:
        started = await asker.router.start(frame, Client(1, "fuzz:1"))
        if isinstance(started.answer, Deferred):
            with trio.move_on_after(0):
                started.finished(await started.answer.finish())
        elif started.answer is not None:
            assert b"".join(started.answer)
    except (Malformed, HangUp):
        pass


@pytest.mark.slow
@given(frame=FRAMES)
@settings(
    max_examples=500, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)
def test_any_bytes_end_as_an_answer_or_a_refusal(make_memory, make_asker, frame):
    """No frame makes the router raise anything but Malformed or HangUp."""
    memory = make_memory()
    trio.run(answer_or_refuse, memory, make_asker(memory), frame)


@pytest.mark.slow
@given(data=st.data())
@settings(
    max_examples=500, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)
def test_damaged_requests_end_as_an_answer_or_a_refusal(make_memory, make_asker, example_request, data):
    """Nor do requests of every API and version that were right before some bytes of them were changed."""
    memory = make_memory()
    trio.run(answer_or_refuse, memory, make_asker(memory), data.draw(damaged_requests(example_request)))
