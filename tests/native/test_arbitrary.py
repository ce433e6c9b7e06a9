"""No request, however made, makes the node do anything but answer it."""

from __future__ import annotations

import cbor2
import trio
from hypothesis import given, settings
from hypothesis import strategies as st
from trio.testing import memory_stream_pair

from fairlog.edge.frame_budget import FrameBudget
from fairlog.edge.log_limiter import LogLimiter
from fairlog.native.protocol import OPS, NativeProtocol
from tests.native.golden_conversation import REQUESTS, new_memory
from tests.native.talking import Talker, frame

NAMES = sorted({name for _, arguments in REQUESTS for name in arguments} | {"group", "no such argument"})
RIGHT = [value for _, arguments in REQUESTS for value in arguments.values()]
SCALARS = (
    st.none() | st.booleans() | st.integers(-(2**63), 2**63 - 1) | st.text(max_size=5) | st.sampled_from(["orders"])
)
VALUES = st.sampled_from(RIGHT) | st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.sampled_from(NAMES), inner, max_size=3),
    max_leaves=8,
)
CHANGES = st.dictionaries(st.sampled_from(NAMES), VALUES, max_size=3)
LEFT_OUT = st.sets(st.sampled_from(NAMES), max_size=2)


@given(st.lists(st.tuples(st.sampled_from(REQUESTS), CHANGES, LEFT_OUT), min_size=1, max_size=5))
@settings(deadline=None)
def test_any_arguments_are_answered(changed):
    """With a result or a refusal, each; the connection goes on, and nothing is a fault of ours."""

    async def talk() -> None:
        ours, theirs = memory_stream_pair()
        protocol = NativeProtocol(new_memory().broker)
        connection = protocol.connection(
            ours, b"", ordinal=1, peer="p", budget=FrameBudget(), lines=LogLimiter(trio.current_time)
        )
        async with trio.open_nursery() as nursery:
            nursery.start_soon(connection.serve)
            talker = Talker(theirs)
            await talker.greet()
            for number, ((op, right), changes, left_out) in enumerate(changed):
                arguments = {name: value for name, value in (right | changes).items() if name not in left_out}
                await theirs.send_all(frame(cbor2.dumps([number, op, arguments])))
                answered, kind, content = await talker.answer()
                assert answered == number
                assert isinstance(content, dict if kind == "ok" else str), (kind, content)
            await theirs.aclose()
        assert all(each.failed == 0 for each in protocol.statistics)

    trio.run(talk)


@given(st.binary(max_size=300))
@settings(deadline=None)
def test_any_bytes_end_in_an_answer_or_a_closed_connection(data):
    """Behind the preamble; nothing is a fault of ours, and nothing hangs."""

    async def talk() -> None:
        ours, theirs = memory_stream_pair()
        protocol = NativeProtocol(new_memory().broker)
        connection = protocol.connection(
            ours, b"FLG1", ordinal=1, peer="p", budget=FrameBudget(), lines=LogLimiter(trio.current_time)
        )
        await theirs.send_all(data)
        await theirs.send_eof()
        with trio.fail_after(30):
            await connection.serve()
        assert all(each.failed == 0 for each in protocol.statistics)

    trio.run(talk)


def test_all_ops_are_tried():
    """Also those that are added."""
    assert set(OPS) <= {op for op, _ in REQUESTS}
