"""The records of listeners, in both stores: what their bytes are, and which are none."""

from __future__ import annotations

import cbor2
import pytest

from fairlog.cluster import cluster_records, records
from fairlog.cluster.cluster_records import InnerTlsRecord, ListenerPlaces, ListenersRecord, NodeNumber
from fairlog_types import CorruptStorage, ShardNumber

ENDPOINTS = {"CLIENTS": ("b.example", 9093), "LOCAL": ("::1", 9092)}
BYTES = bytes.fromhex("a267434c49454e54538269622e6578616d706c65192385654c4f43414c82633a3a31192384")
OF_NODE = ListenersRecord(
    bytes(range(16)), {"CLIENTS": ListenerPlaces("b.example", {ShardNumber(0): 9093, ShardNumber(2): 0})}
)
BYTES_OF_NODE = bytes.fromhex(
    "8250000102030405060708090a0b0c0d0e0fa167434c49454e54538269622e6578616d706c65a2001923850200"
)


def test_records_are_the_bytes_of_the_pages() -> None:
    """Both are read back. With PLAINTEXT alone there is none."""
    assert records.encode_listeners(ENDPOINTS) == BYTES
    assert records.decode_listeners({records.listeners_key(7): BYTES}) == {7: ENDPOINTS}
    assert records.encode_listeners({"PLAINTEXT": ("b", 1)}) is None
    assert records.encode_listeners({"PLAINTEXT": ("b", 1), "SSL": ("b", 2)}) is not None
    key = cluster_records.listeners_key(NodeNumber(7))
    assert cluster_records.encode_listeners(OF_NODE) == BYTES_OF_NODE
    assert cluster_records.decode_listeners({key: BYTES_OF_NODE}, 3) == {7: OF_NODE}
    assert (records.gone_listeners([key, b"node/7"]), cluster_records.gone_listeners([key])) == ([7], [7])


@pytest.mark.parametrize(
    "value", [{}, [], {"A": 1}, {"A": ["h"]}, {"A": ["h", -1]}, {"A": ["h", 1 << 16]}, {1: ["h", 1]}, {"A": [1, 1]}]
)
def test_record_that_is_none_is_corrupt(value: object) -> None:
    """Nothing is guessed."""
    with pytest.raises(CorruptStorage, match="the record listeners/7 reads"):
        records.decode_listeners({b"listeners/7": cbor2.dumps(value)})


@pytest.mark.parametrize(
    "value",
    [
        [bytes(16), {}],
        [bytes(15), {"A": ["h", {0: 1}]}],
        [bytes(16), {"A": ["h", {3: 1}]}],
        [bytes(16), {"A": ["h", {0: 1 << 16}]}],
        [bytes(16), {"A": ["h", [1]]}],
        [bytes(16), {"A": ["h"]}],
        [bytes(16), {1: ["h", {}]}],
        {"A": ["h", {}]},
    ],
)
def test_record_of_a_node_that_is_none_is_corrupt(value: object) -> None:
    """Likewise."""
    with pytest.raises(CorruptStorage, match="the record listeners/7 reads"):
        cluster_records.decode_listeners({b"listeners/7": cbor2.dumps(value)}, 3)


def test_record_of_a_node_with_tls_is_the_bytes_of_the_page() -> None:
    """What is none is corrupt."""
    key = cluster_records.inner_tls_key(NodeNumber(7))
    value = bytes.fromhex("8150000102030405060708090a0b0c0d0e0f")
    assert key == b"inner-tls/7"
    assert cluster_records.encode_inner_tls(InnerTlsRecord(bytes(range(16)))) == value
    assert cluster_records.decode_inner_tls({key: value, b"node/7": b""}) == {7: InnerTlsRecord(bytes(range(16)))}
    assert cluster_records.gone_inner_tls([key, b"node/7"]) == [7]
    for other in ([], [bytes(15)], [bytes(16), 1], {}, bytes(16)):
        with pytest.raises(CorruptStorage, match="the record inner-tls/7 reads"):
            cluster_records.decode_inner_tls({key: cbor2.dumps(other)})
    with pytest.raises(CorruptStorage):
        cluster_records.decode_inner_tls({b"inner-tls/07": value})


@pytest.mark.parametrize("key", [b"listeners/", b"listeners/07", b"listeners/x"])
def test_key_without_a_number_is_corrupt(key: bytes) -> None:
    """Whose listeners are they?"""
    with pytest.raises(CorruptStorage):
        records.decode_listeners({key: BYTES})
    with pytest.raises(CorruptStorage):
        cluster_records.decode_listeners({key: BYTES_OF_NODE}, 3)
