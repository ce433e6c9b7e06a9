"""Resident memory with many partitions, and with many transactional ids that committed once and never came back.

Ten thousand stock clients would take longer to start than to measure, so the ids commit through the plainest
possible client: four requests in old versions, packed by hand, on one connection.
"""

from __future__ import annotations

import socket
import struct
import time

from crc32c import crc32c
from node_process import NodeProcess

from benchmarks.measuring import Bench, make_topics

SCENARIO = "memory"
TOPICS, PARTITIONS_PER_TOPIC = 10, 100
IDS = 10_000
SETTLE_S = 2.0


def run(bench: Bench) -> None:
    ids = bench.amount(IDS)
    per_topic = bench.amount(PARTITIONS_PER_TOPIC)
    empty: list[float] = []
    with_partitions: list[float] = []
    with_ids: list[float] = []
    for _ in range(min(bench.rounds, 3)):
        with bench.node() as node:
            empty.append(_settled_mb(node))
            names = [f"memory-{number}" for number in range(TOPICS)]
            make_topics(node.address, names, per_topic)
            client = _Client(node.address)
            for name in names:
                for partition in range(per_topic):
                    client.produce(name, partition, batch(-1, -1, -1), None)
            with_partitions.append(_settled_mb(node))
            for number in range(ids):
                client.commit_once(f"id-{number}", names[number % TOPICS], number % per_topic)
            client.close()
            with_ids.append(_settled_mb(node))
    bench.note(SCENARIO, "just started", "MB", empty)
    bench.note(SCENARIO, f"{TOPICS * per_topic:,} partitions, a record in each", "MB", with_partitions)
    bench.note(SCENARIO, f"and {ids:,} transactional ids", "MB", with_ids)


def _settled_mb(node: NodeProcess) -> float:
    time.sleep(SETTLE_S)
    return node.memory_bytes() / 1e6


class _Client:
    """InitProducerId v0, AddPartitionsToTxn v0, Produce v3 and EndTxn v0, one at a time."""

    def __init__(self, address: str) -> None:
        host, port = address.rsplit(":", 1)
        self._socket = socket.create_connection((host, int(port)), 60)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._file = self._socket.makefile("rb")

    def close(self) -> None:
        self._file.close()
        self._socket.close()

    def commit_once(self, transactional_id: str, topic: str, partition: int) -> None:
        answer = self._call(22, 0, _text(transactional_id) + struct.pack(">i", 60_000))
        _throttle_ms, code, producer_id, epoch = struct.unpack(">ihqh", answer)
        _must_be_none(code, "InitProducerId")
        who = _text(transactional_id) + struct.pack(">qh", producer_id, epoch)
        answer = self._call(24, 0, who + struct.pack(">i", 1) + _text(topic) + struct.pack(">ii", 1, partition))
        _must_be_none(struct.unpack(">h", answer[-2:])[0], "AddPartitionsToTxn")
        self.produce(topic, partition, batch(producer_id, epoch, 0), transactional_id)
        answer = self._call(26, 0, who + b"\x01")
        _must_be_none(struct.unpack(">ih", answer)[1], "EndTxn")

    def produce(self, topic: str, partition: int, records: bytes, transactional_id: str | None) -> None:
        who = struct.pack(">h", -1) if transactional_id is None else _text(transactional_id)
        where = _text(topic) + struct.pack(">iii", 1, partition, len(records))
        answer = self._call(0, 3, who + struct.pack(">hii", -1, 30_000, 1) + where + records)
        code_at = 4 + 2 + len(topic.encode()) + 4 + 4
        _must_be_none(struct.unpack_from(">h", answer, code_at)[0], "Produce")

    def _call(self, key: int, version: int, body: bytes) -> bytes:
        request = struct.pack(">hhi", key, version, 0) + _text("bench") + body
        self._socket.sendall(struct.pack(">i", len(request)) + request)
        length = struct.unpack(">i", self._file.read(4))[0]
        return self._file.read(length)[4:]


def _text(value: str) -> bytes:
    data = value.encode()
    return struct.pack(">h", len(data)) + data


def batch(producer_id: int, epoch: int, sequence: int) -> bytes:
    """A record batch (v2) of one record with a value of five bytes; transactional if it has a producer."""
    record = bytes([0, 0, 0, 1, 10]) + b"value" + bytes([0])
    attributes = 0x10 if producer_id >= 0 else 0
    body = struct.pack(">hiqqqhii", attributes, 0, 1, 1, producer_id, epoch, sequence, 1)
    body += bytes([2 * len(record)]) + record
    return struct.pack(">qiibI", 0, len(body) + 9, -1, 2, crc32c(body)) + body


def _must_be_none(code: int, what: str) -> None:
    if code != 0:
        raise RuntimeError(f"{what} was answered with error {code}")
