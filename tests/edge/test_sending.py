"""What is left of an answer, while the system takes as much of it as it likes."""

from __future__ import annotations

import trio
from hypothesis import given
from hypothesis import strategies as st

from fairlog.edge.sending import Unsent


@given(
    buffers=st.lists(st.binary(max_size=20), max_size=30),
    steps=st.lists(st.tuples(st.sampled_from(["sent", "take", "copy"]), st.integers(0, 60)), max_size=30),
)
def test_all_bytes_are_sent_once_and_in_order(buffers: list[bytes], steps: list[tuple[str, int]]) -> None:
    """However they are cut, and when they are copied."""
    whole = b"".join(buffers)
    unsent, sent = Unsent(buffers), b""
    for step, size in [*steps, ("take", len(whole))]:
        left = b"".join(unsent.first())
        assert unsent.bytes_left == len(left) == len(whole) - len(sent)
        if step == "take":
            sent += unsent.take(size)
        elif step == "sent":
            size = min(size, len(left))
            unsent.sent(size)
            sent += left[:size]
        else:
            trio.run(unsent.copy)
    assert sent == whole
    assert not unsent.first()


async def test_copy_is_of_what_is_left_when_it_is_made() -> None:
    """More may be sent while a thread makes it. Then nothing of the old buffers is used any more."""
    old = bytearray(b"0123456789")
    unsent = Unsent([b"abc", memoryview(old)])
    async with trio.open_nursery() as nursery:
        nursery.start_soon(unsent.copy)
        await trio.lowlevel.checkpoint()
        assert unsent.take(5) == b"abc01"
    old[:] = b"x" * 10
    assert unsent.take(100) == b"23456789"


def test_no_call_gets_more_buffers_than_the_system_takes() -> None:
    unsent = Unsent([b"x"] * 2000)
    assert len(unsent.first()) == 512
    unsent.sent(512)
    assert unsent.bytes_left == 1488
