"""Messages between shards as CBOR, and whatever else may come in their place."""

from __future__ import annotations

import typing
from dataclasses import replace
from pathlib import Path

import cbor2
import pytest
from hypothesis import given
from hypothesis import strategies as st

from coordinator.messages import Begun
from fairlog.edge.malformed import Malformed
from fairlog.interbroker.codec import decode_untrusted, encode
from shard.commands import CommandBody, Failed
from shard.conversation import NOT_HEARD_OF, Command, Hello, Listener, Message, Reply, Welcome
from shard.cut_messages import CutAnswer, NoCut
from tests.interbroker.messages import ANSWERS, COMMANDS, EXAMPLES, GOLDEN, LOG, MESSAGES, golden

PAGE = Path(__file__).resolve().parents[2] / "docs/formats/interbroker.md"

ON_THE_PAGE = 17
"""Lines."""

ITEMS = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5) | st.binary(max_size=5) | st.floats(),
    lambda inner: st.lists(inner, max_size=7) | st.dictionaries(st.text(max_size=5) | st.integers(), inner, max_size=3),
    max_leaves=20,
)


@given(MESSAGES)
def test_message_is_read_as_it_was_written(message: Message) -> None:
    """Every message of every kind."""
    read = decode_untrusted(encode(message))
    assert read == message
    assert type(read) is type(message)


def test_every_command_has_an_example() -> None:
    """A command that is added comes into the golden file, too."""
    assert {type(body) for body in COMMANDS} == set(typing.get_args(CommandBody))
    assert len({type(body) for body in ANSWERS}) == len(ANSWERS)
    assert {type(body) for body in ANSWERS} >= set(typing.get_args(CutAnswer))


@given(st.binary(max_size=200))
def test_any_bytes_are_a_message_or_malformed(data: bytes) -> None:
    """And nothing else is raised."""
    _read(data)


@given(ITEMS, st.integers(0, 3), st.integers(0, 14))
def test_any_cbor_in_place_of_a_body_is_a_message_or_malformed(item: object, type_: int, kind: int) -> None:
    """What has the form of a message outside is looked at inside."""
    _read(cbor2.dumps([type_, 1, 1, 1, 0, kind, item] if type_ == 2 else [type_, 1, 1, 1, kind, item]))


@given(st.data(), st.sampled_from(EXAMPLES))
def test_message_with_other_bytes_is_a_message_or_malformed(data: st.DataObject, message: Message) -> None:
    """Bits that flip, in every kind of message: close to what is read."""
    wrong = bytearray(encode(message))
    for _ in range(data.draw(st.integers(1, 3))):
        wrong[data.draw(st.integers(0, len(wrong) - 1))] = data.draw(st.integers(0, 255))
    _read(bytes(wrong))


def _read(data: bytes) -> None:
    try:
        message = decode_untrusted(data)
    except Malformed:
        return
    assert decode_untrusted(encode(message)) == message


@given(st.sampled_from(EXAMPLES), st.binary(min_size=1, max_size=40), st.data())
def test_message_that_is_cut_short_or_goes_on_is_malformed(message: Message, more: bytes, data: st.DataObject) -> None:
    """A frame is one whole message."""
    whole = encode(message)
    for wrong in (whole[: data.draw(st.integers(0, len(whole) - 1))], whole + more):
        with pytest.raises(Malformed):
            decode_untrusted(wrong)


@pytest.mark.parametrize("length", [1, 100])
def test_what_follows_cannot_pass_for_the_end(length: int) -> None:
    """Not even what looks like the mark that the reader puts behind the bytes."""
    whole = encode(Hello(1))
    for zeros in (length, len(whole) + 5 + length):
        with pytest.raises(Malformed, match=r"more than one|not the CBOR"):
            decode_untrusted(whole + b"\x5a" + zeros.to_bytes(4, "big") + bytes(length))


TX = [7, 2, 3]
NAME = str(LOG)


@pytest.mark.parametrize(
    ("item", "why"),
    [
        (0, "the number 0 in place of an array"),
        ([], "an array of 0, which is no message"),
        ([4, 1], "an array of 2, which is no message"),
        ([True, 1, 1], "an array of 3, which is no message"),
        ([0, 1, 1], "an array of 3, which is no message"),
        ([0, -1], "the number -1 in place of a number from 0"),
        ([0, 2**31], "the number 2147483648 in place of a number from 0"),
        ([0, True], "the number True in place of a number"),
        ([0, 1.0], "float in place of a number"),
        ([0, None], "NoneType in place of a number"),
        ([2, 1, 1, 2**63, 0, 5, [TX, []]], "in place of a number"),
        ([2, 1, 1, 1, 0, 20, None], "the number 20 in place of a kind of body"),
        ([2, 1, 1, 1, 0, 0, None], "the number 0 in place of a kind of body"),
        ([3, 1, 1, 1, 15, None], "the number 15 in place of a kind of body"),
        ([3, 1, 1, 1, True, [{}, {}]], "in place of a kind of body"),
        ([3, 1, 1, 1, 0, 0], "the number 0 in place of null"),
        ([2, 1, 1, 1, 0, 5, [TX]], "an array of 1 in place of the 2 fields of DiscardTransaction"),
        ([2, 1, 1, 1, 0, 5, [[7, 2], []]], "an array of 2 in place of the 3 fields of a transaction's id"),
        ([2, 1, 1, 1, 0, 5, [[7, 2**15, 3], []]], "the number 32768 in place of a number from 0 to 32767"),
        ([2, 1, 1, 1, 0, 5, [TX, {}]], "a map of 0 in place of an array"),
        ([2, 1, 1, 1, 0, 5, [TX, [b"x"]]], "bytes in place of a text"),
        ([2, 1, 1, 1, 0, 5, [TX, ["t-../../etc-0"]]], "the text 't-../../etc-0' in place of a log"),
        ([2, 1, 1, 1, 0, 5, [TX, [NAME.upper()]]], "in place of a log"),
        ([2, 1, 1, 1, 0, 5, [TX, [NAME + "\n"]]], "in place of a log"),
        ([2, 1, 1, 1, 0, 5, [TX, [NAME[:-1] + "01"]]], "in place of a log"),
        ([2, 1, 1, 1, 0, 5, [TX, [NAME[:-1] + "2147483648"]]], "in place of a number from 0 to 2147483647"),
        ([2, 1, 1, 1, 0, 5, [TX, ["o-offsets--1"]]], "in place of a log"),
        ([2, 1, 1, 1, 0, 3, [[TX, {NAME: 4}, {NAME: [4, -2]}, False]]], "the number -2 in place of a number from -1"),
        ([2, 1, 1, 1, 0, 3, [[TX, {NAME: 4}, None, 0]]], "the number 0 in place of true or false"),
        ([2, 1, 1, 1, 0, 6, [4, [[TX, [{}, False]], [TX, [{}, False]]]]], "a transaction that is there twice"),
        ([3, 1, 1, 1, 1, [{1: 4}, {}]], "not the CBOR of a message"),
        ([3, 1, 1, 1, 5, 1], "the number 1 in place of a text"),
        ([2, 1, 1, 1, 0, 7, {NAME: 0}], "a map of 1 in place of an array"),
        ([2, 1, 1, 1, 0, 7, [3]], "the number 3 in place of a text"),
        ([2, 1, 1, 1, 0, 8, -1], "the number -1 in place of a number from 0"),
        ([2, 1, 1, 1, 0, 8, True], "the number True in place of a number"),
        ([2, 1, 1, 1, 0, 9, NAME], "in place of an array"),
        ([2, 1, 1, 1, 0, 10, 2**63], "in place of a number from 0"),
        ([2, 1, 1, 1, 0, 10, [1]], "an array of 1 in place of a number"),
        ([2, 1, 1, 1, 0, 11, ["t-1"]], "the text 't-1' in place of a log"),
        ([3, 1, 1, 1, 6, 1], "the number 1 in place of true or false"),
        ([3, 1, 1, 1, 7, [[NAME, [0, 1, 1]]]], "an array of 1 in place of a map"),
        ([3, 1, 1, 1, 7, {"x": [0, 1, 1]}], "the text 'x' in place of a log"),
        ([3, 1, 1, 1, 7, {NAME: [0, 1]}], "an array of 2 in place of the 3 fields of a log's part of a cut"),
        ([3, 1, 1, 1, 7, {NAME: [0, -1, 1]}], "the number -1 in place of a number from 0"),
        ([3, 1, 1, 1, 8, None], "NoneType in place of a text"),
        ([2, 1, 1, 1, 0, 13, ["t", -1, 0, NAME]], "the number -1 in place of a number from 0"),
        ([2, 1, 1, 1, 0, 13, ["t", 1, 2**15, NAME]], "the number 32768 in place of a number from 0 to 32767"),
        ([2, 1, 1, 1, 0, 13, ["t", 1, 0]], "an array of 3 in place of the 4 fields of AddLog"),
        ([3, 1, 1, 1, 10, 16], "the number 16 in place of a number from 0 to 15"),
        ([2, 1, 1, 1, 0, 14, 0], "the number 0 in place of null"),
        ([2, 1, 1, 1, 0, 15, -1], "the number -1 in place of a number from 0"),
        ([2, 1, 1, 1, 0, 16, [1]], "an array of 1 in place of the 2 fields of KeepEnds"),
        ([2, 1, 1, 1, 0, 17, {NAME: -1}], "the number -1 in place of a number from 0"),
        ([2, 1, 1, 1, 0, 18, [1, [NAME], 0]], "the number 0 in place of true or false"),
        ([3, 1, 1, 1, 11, None], "NoneType in place of a number"),
        (
            [3, 1, 1, 1, 12, [1, 1, 0, {NAME: [0, 1, None, None]}]],
            "in place of the 8 fields of what a shard knows",
        ),
        (
            [3, 1, 1, 1, 12, [1, 1, 0, {NAME: [0, 1, [1], None, None, 0, 1, 1]}]],
            "in place of the 2 fields of a row",
        ),
        ([3, 1, 1, 1, 13, [1, {NAME: None}]], "NoneType in place of a number"),
    ],
)
def test_cbor_of_another_form_is_malformed_saying_what_is_wrong(item: object, why: str) -> None:
    """Arity, types and bounds are exact."""
    with pytest.raises(Malformed) as raised:
        decode_untrusted(cbor2.dumps(item))
    assert why in str(raised.value)


@pytest.mark.parametrize(
    "data",
    [
        b"\x82\x00\xd8\x23\x64(a+)",  # a regular expression
        b"\x82\x00\xc2\x41\x01",  # the number 1 as a bignum
        b"\x82\x00\xd9\xd9\xf7\x01",  # the number 1, marked as CBOR
        b"\x82\x00\xd8\x99\x01",  # a tag that nobody knows
        b"\xd8\x1c\x82\x00\x01",  # an array to be referred to
        b"\x9f\x00\x01\xff",  # an array of indefinite length
        b"\xa2\x60\x00\x60\x00",  # a key twice
        b"\x81" * 1_000_000,  # nested too deep
        b"\x81" * 9 + b"\0",  # by one
        b"\x9b" + b"\xff" * 8,  # announces more than there is
        b"\x61\xff",  # a text that is not UTF-8
        b"",
    ],
)
def test_cbor_that_messages_do_not_need_is_malformed(data: bytes) -> None:
    """What a reader of CBOR could be abused for is turned off."""
    with pytest.raises(Malformed, match=r"^not the CBOR of a message"):
        decode_untrusted(data)


def test_reason_that_is_not_utf8_is_sent_escaped() -> None:
    """A reason may name a file of any name; the answer arrives."""
    failed = Reply(1, 1, 1, Failed("a\udcff"))
    assert decode_untrusted(encode(failed)).body == Failed("a\\udcff")
    none = Reply(1, 1, 1, NoCut("a\udcff"))
    assert decode_untrusted(encode(none)).body == NoCut("a\\udcff")
    begun = Reply(1, 1, 1, Begun({}, {LOG: "ä\udcff"}))
    assert decode_untrusted(encode(begun)).body.refused == {LOG: "ä\\udcff"}


def test_welcome_of_a_listener_that_has_not_heard_of_the_speaker_is_read() -> None:
    """Shards announce themselves to each other in any order, when their connection begins."""
    announced = Listener(6).announce()
    assert announced == Welcome(6, NOT_HEARD_OF)
    assert decode_untrusted(encode(announced)) == announced


def test_frames_are_the_golden_ones() -> None:
    """Whatever changes here is a new version of the protocol."""
    assert golden() == GOLDEN.read_text(encoding="utf-8")
    assert "\n".join(golden().splitlines()[:ON_THE_PAGE]) in PAGE.read_text(encoding="utf-8")


def test_message_is_encoded_as_it_is_whatever_its_numbers_type() -> None:
    """Commands and replies have tables of their own: the same number may stand for one of each."""
    command, reply = Command(4, 6, 1, 0, COMMANDS[0]), Reply(6, 4, 1, ANSWERS[1])
    assert cbor2.loads(encode(command))[5] == cbor2.loads(encode(reply))[4] == 1
    assert cbor2.loads(encode(Welcome(6, 4))) == [1, 6, 4]
    assert replace(COMMANDS[0]) == decode_untrusted(encode(command)).body
