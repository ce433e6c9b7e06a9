"""A conversation with every op, byte by byte: written anew, compared with the golden file and with the page."""

from __future__ import annotations

import cbor2

from tests.native.golden_conversation import GOLDEN, conversation

ON_THE_PAGE = 11
"""Lines."""


async def test_conversation_is_the_golden_one(page):
    """Whatever changes here changes the protocol: a new version, or an op or argument that is added."""
    text = await conversation()
    assert text == GOLDEN.read_text(encoding="utf-8")
    assert "\n".join(text.splitlines()[:ON_THE_PAGE]) in page


def test_golden_conversation_is_what_the_page_says():
    """Each line is a frame: a length, and one CBOR array of an id, a name and a map or a sentence."""
    frames: list[bytes] = []
    for line in GOLDEN.read_text(encoding="utf-8").splitlines():
        if line.startswith("#"):
            frames.append(b"")
        else:
            frames[-1] += bytes.fromhex(line[2:])
    assert frames[:2] == [b"FLG1", b"FLG1"]
    for asked, answered in zip(frames[2::2], frames[3::2], strict=True):
        assert {int.from_bytes(each[:4], "big") - len(each) for each in (asked, answered)} == {-4}
        request, answer = cbor2.loads(asked[4:]), cbor2.loads(answered[4:])
        assert (len(request), len(answer), request[0]) == (3, 3, answer[0])
        assert isinstance(answer[2], dict if answer[1] == "ok" else str)
