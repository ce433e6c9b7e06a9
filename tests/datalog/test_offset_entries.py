"""The CBOR form of committed offsets."""

from __future__ import annotations

import cbor2
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from datalog.offset_entries import (
    CommittedOffset,
    GroupEntry,
    MalformedEntries,
    OffsetEntry,
    OffsetKey,
    decode_offset_entries,
    decode_offset_entry,
    encode_offset_entries,
)
from fairlog_types import Offset

keys = st.builds(OffsetKey, st.text(max_size=9), st.text(max_size=9), st.integers(0, 2**31 - 1))
values = st.builds(
    CommittedOffset,
    st.integers(0, 2**63 - 1).map(Offset),
    st.integers(-1, 2**31 - 1),
    st.text(max_size=9),
    st.integers(0, 2**62),
)


groups = st.builds(GroupEntry, st.text(max_size=9), st.none() | st.binary(max_size=9))


@settings(max_examples=50)
@given(st.lists(st.builds(OffsetEntry, keys, st.none() | values) | groups, max_size=3))
def test_entries_survive_the_round_trip(entries: list[OffsetEntry | GroupEntry]) -> None:
    """What was encoded is what is decoded."""
    assert decode_offset_entries(encode_offset_entries(entries)) == entries


@pytest.mark.parametrize(
    "payload", [b"", b"\xff", cbor2.dumps(7), cbor2.dumps([1]), cbor2.dumps([["g", "t", 0]]), cbor2.dumps([["g", "t"]])]
)
def test_entries_malformed_are_refused_by_name(payload: bytes) -> None:
    """Other bytes raise MalformedEntries and nothing else."""
    with pytest.raises(MalformedEntries):
        decode_offset_entries(payload)


def test_record_of_a_group_is_not_a_committed_offset() -> None:
    """It has a table of its own, and in the other one it would be damage."""
    with pytest.raises(MalformedEntries):
        decode_offset_entry(cbor2.dumps(["g", b"who"]))
