"""A real node under clients gone mad: `python -m tests.fuzz.live --seconds N --seed S`, with `--processes 3` a node
of three processes.

    stock clients, witness ──▶ relay ──▶ node
                                 │        ▲
                              recorded    └── attackers: what was recorded, changed, cut, split, doubled, out of order

First a stock producer, a consumer of a group and a transactional producer do what they do, and a relay writes down
their requests; right requests of every API in every version, and of the native protocol, are added. Then attackers
send these, changed as `tests.fuzz.mutating` does, over connections that they close, break, or leave open in the
middle of a frame. Each process has a relay, and attackers choose a process for each connection. Meanwhile a witness
commits transactions and reads them back.

At the end: the node lives, none of its processes has died, it was never out of memory's bounds, the witness has read
each of its records once and had no round that took longer than `ROUND_S_MAX`, the log tells of no fault of the node,
and after a stop `fairlog verify` finds nothing.

Not tried is what a client may ask for and is granted: topics of thousands of partitions. Requests that make
partitions are sent as they are, or cut.
"""

from __future__ import annotations

import argparse
import contextlib
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

import cbor2
from confluent_kafka import Consumer, Producer, TopicPartition

from scripts.node_process import ROOT, NodeProcess
from tests.fuzz.mutating import mutations
from tests.fuzz.protocol_targets import requests_of_all
from tests.native.golden_conversation import REQUESTS as NATIVE_REQUESTS

ATTACKERS = 4
ROUND_S_MAX = 10.0
"""A transaction of the witness, until it is read. On a machine that does nothing else it takes some milliseconds."""
MEMORY_BYTES_MAX = 512 << 20
"""By so much the node may grow."""
OPEN_MAX = 50
"""Connections that each attacker leaves open, with half a frame."""

_LENGTH = struct.Struct(">i")
_FRAME_BYTES_MAX = 1 << 16
_MAKES_PARTITIONS = (19, 37)
_FAULT_LINES = ("by a fault of the node", "Traceback")


@dataclass(slots=True)
class Outcome:
    """What was done, and what was seen."""

    requests: int = 0
    connections: int = 0
    rounds: int = 0
    slowest_round_s: float = 0.0
    memory_before: int = 0
    memory_max: int = 0
    found: list[str] = field(default_factory=list[str])


def attack(directory: Path, *, seconds: float, seed: str, processes: int = 1) -> Outcome:
    """The whole trial in a new `directory`, on a node of so many processes."""
    outcome = Outcome()
    relays = [Relay() for _ in range(processes)]
    advertised = ",".join(relay.address for relay in relays)
    node = NodeProcess(
        directory / "data",
        arguments=("--advertised", advertised),
        environment={"FAIRLOG_LOG_FORMAT": "console"},
        processes=processes,
    )
    addresses = node.listening.split(",")  # what it tells its clients is where the relays are
    node.start()
    pids = node.pids
    try:
        for relay, address in zip(relays, addresses, strict=True):
            relay.start(address)
        frames = [*_recorded(advertised, relays), *requests_of_all()]
        outcome.memory_before = outcome.memory_max = node.memory_bytes()
        until = time.monotonic() + seconds
        counts: Counter[str] = Counter()
        threads = [
            threading.Thread(target=_attack, args=(addresses, frames, Random(f"{seed}.{n}"), until, counts))
            for n in range(ATTACKERS)
        ]
        for thread in threads:
            thread.start()
        _witness(advertised, node, until, outcome)
        for thread in threads:
            thread.join()
        outcome.requests, outcome.connections = counts["requests"], counts["connections"]
        if node.running and node.pids != pids:
            outcome.found.append(f"a process has died:\n{node.log_tail()}")
        _look_back(node, outcome)
    finally:
        node.kill()
        for relay in relays:
            relay.stop()
    return outcome


def _look_back(node: NodeProcess, outcome: Outcome) -> None:
    """Whether the node is well, and what it leaves."""
    if not node.running:
        outcome.found.append(f"the node has died:\n{node.log_tail()}")
        return
    if outcome.memory_max - outcome.memory_before > MEMORY_BYTES_MAX:
        grown = (outcome.memory_max - outcome.memory_before) >> 20
        outcome.found.append(f"the node has grown by {grown} MiB")
    status = node.stop(60)
    log = node.log_path.read_text(encoding="utf-8", errors="replace")
    lines = log.splitlines()
    for number, line in enumerate(lines):
        if any(fault in line for fault in _FAULT_LINES):
            outcome.found.append("\n".join(lines[max(0, number - 2) : number + 60]))
            break
    if status != 0:
        outcome.found.append(f"the node ended with status {status}")
    verified = subprocess.run(
        [sys.executable, "-m", "fairlog.cli", "verify", str(node.data_dir)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    if verified.returncode != 0:
        outcome.found.append(f"fairlog verify: {verified.stdout[-2000:]}{verified.stderr[-2000:]}")


class Relay:
    """Passes bytes between clients and the node, and writes down the requests while it is told to."""

    def __init__(self) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self.address = f"127.0.0.1:{self.port}"
        self.frames: list[bytes] = []
        self.recording = True
        self._node = ("", 0)
        self._threads: list[threading.Thread] = []

    def start(self, address: str) -> None:
        host, port = address.rsplit(":", 1)
        self._node = host, int(port)
        self._start(self._accept)

    def stop(self) -> None:
        """To be called when the node is gone, and with it all connections."""
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join()
        self._listener.close()

    def _start(self, run: Callable[..., None], *arguments: object) -> threading.Thread:
        thread = threading.Thread(target=run, args=arguments)
        thread.start()
        self._threads.append(thread)
        return thread

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                self._start(self._serve, client)

    def _serve(self, client: socket.socket) -> None:
        with client, contextlib.suppress(OSError), socket.create_connection(self._node) as node:
            back = threading.Thread(target=self._pass, args=(node, client, None))
            back.start()
            self._pass(client, node, self._note())
            back.join()

    def _pass(self, source: socket.socket, sink: socket.socket, note: Callable[[bytes], None] | None) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(1 << 16):
                if note is not None and self.recording:
                    note(data)
                sink.sendall(data)
        for each in (source, sink):
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)

    def _note(self) -> Callable[[bytes], None]:
        """Of one connection: cuts its bytes into frames."""
        rest = bytearray()

        def note(data: bytes) -> None:
            rest.extend(data)
            while len(rest) >= _LENGTH.size:
                end = _LENGTH.size + _LENGTH.unpack_from(rest)[0]
                if len(rest) < end:
                    break
                self.frames.append(bytes(rest[_LENGTH.size : end]))
                del rest[:end]

        return note


def _recorded(address: str, relays: Sequence[Relay]) -> Sequence[bytes]:
    """The requests of stock clients at their work."""
    servers = {"bootstrap.servers": address}
    for codec in ("none", "gzip", "zstd"):
        producer = Producer({**servers, "compression.type": codec, "enable.idempotence": True})
        for number in range(20):
            producer.produce("fuzzed", key=str(number), value=b"a value " * number, headers={"h": b"v"})
        producer.flush(30)
    consumer = Consumer({**servers, "group.id": "fuzzed", "auto.offset.reset": "earliest"})
    consumer.subscribe(["fuzzed"])
    read = consumer.consume(40, 30)
    transactional = Producer({**servers, "transactional.id": "fuzzed"})
    transactional.init_transactions(30)
    for commit in (True, False):
        transactional.begin_transaction()
        transactional.produce("fuzzed", b"in a transaction")
        transactional.send_offsets_to_transaction(
            [TopicPartition("fuzzed", 0, len(read))], consumer.consumer_group_metadata()
        )
        (transactional.commit_transaction if commit else transactional.abort_transaction)(30)
    consumer.close()
    for relay in relays:
        relay.recording = False
        assert relay.frames, "the relay of a process has recorded nothing"
    frames = [frame for relay in relays for frame in relay.frames]
    assert len(frames) > 20, "the relays have recorded next to nothing"
    return frames


def _witness(address: str, node: NodeProcess, until: float, outcome: Outcome) -> None:
    """Commits and reads back, as a client that has nothing to do with all this."""
    topic, group = "witnessed-5d3c", "witness-5d3c"
    producer = Producer({"bootstrap.servers": address, "transactional.id": "witness-5d3c", "linger.ms": 0})
    producer.init_transactions(30)
    consumer = Consumer({"bootstrap.servers": address, "group.id": group, "auto.offset.reset": "earliest"})
    number = 0
    while time.monotonic() < until and node.running:
        started = time.monotonic()
        producer.begin_transaction()
        producer.produce(topic, str(number), partition=0)
        producer.commit_transaction(60)
        if number == 0:
            consumer.assign([TopicPartition(topic, 0, 0)])
        message = consumer.poll(60)
        took = time.monotonic() - started
        value = None if message is None or message.error() else (message.offset(), message.value())
        if value != (number, str(number).encode()):
            outcome.found.append(f"the witness has read {value} where {number} was due")
            break
        outcome.slowest_round_s = max(outcome.slowest_round_s, took if number else 0.0)
        outcome.memory_max = max(outcome.memory_max, node.memory_bytes())
        number += 1
        time.sleep(0.02)
    outcome.rounds = number
    consumer.close()
    if outcome.slowest_round_s > ROUND_S_MAX:
        outcome.found.append(f"a round of the witness took {outcome.slowest_round_s:.1f} s")


def _attack(
    addresses: Sequence[str], frames: Sequence[bytes], random: Random, until: float, counts: Counter[str]
) -> None:
    changed = mutations(
        [frame for frame in frames if int.from_bytes(frame[:2], "big") not in _MAKES_PARTITIONS],
        random,
        bytes_max=_FRAME_BYTES_MAX,
    )
    native = mutations(
        [cbor2.dumps([number, op, arguments]) for number, (op, arguments) in enumerate(NATIVE_REQUESTS)],
        random,
        bytes_max=_FRAME_BYTES_MAX,
    )
    held: list[socket.socket] = []
    while time.monotonic() < until:
        host, port = random.choice(addresses).rsplit(":", 1)
        try:
            stream = socket.create_connection((host, int(port)), 10)
        except OSError:
            time.sleep(0.1)
            continue
        counts["connections"] += 1
        stream.settimeout(0.05)
        with contextlib.suppress(OSError):
            natively = random.random() < 0.2
            script = _script(frames, native if natively else changed, random, known=not natively)
            data = (b"FLG1" if natively else b"") + b"".join(script)
            counts["requests"] += len(script)
            _send(stream, data, random)
        if random.random() < 0.1:
            held.append(stream)  # in the middle of a frame, or waiting for an answer that nobody reads
        else:
            if random.random() < 0.3:
                stream.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            stream.close()
        while len(held) > OPEN_MAX:
            held.pop(0).close()
    for stream in held:
        stream.close()


def _script(frames: Sequence[bytes], changed: Iterator[bytes], random: Random, *, known: bool) -> list[bytes]:
    """What is sent on one connection: right requests and wrong ones, most with a right length in front."""
    script: list[bytes] = []
    for _ in range(random.randint(1, 12)):
        frame = random.choice(frames) if known and random.random() < 0.3 else next(changed)
        length = len(frame)
        if random.random() < 0.05:
            length += random.choice((-1, 1, 1000, 1 << 20, -length - 1, 1 << 30))
        script.append(_LENGTH.pack(max(-(1 << 31), min((1 << 31) - 1, length))) + frame)
    if random.random() < 0.2:
        script[-1] = script[-1][: random.randint(0, len(script[-1]))]
    return script


def _send(stream: socket.socket, data: bytes, random: Random) -> None:
    """At once or in pieces; then read some, or nothing. Raises OSError, TimeoutError among them."""
    piece = random.choice((len(data), len(data), 1000, 100, 7)) or 1
    for at in range(0, len(data), piece):
        stream.sendall(data[at : at + piece])
    while random.random() < 0.9 and stream.recv(1 << 16):
        pass


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz.live", description=__doc__)
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--seed", default="1")
    parser.add_argument("--processes", type=int, default=1, help="of the node")
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as directory:
        outcome = attack(Path(directory), seconds=options.seconds, seed=options.seed, processes=options.processes)
    grown = (outcome.memory_max - outcome.memory_before) >> 20
    print(
        f"seed {options.seed}: {outcome.requests:,} requests on {outcome.connections:,} connections in "
        f"{options.seconds:.0f} s; the node grew by {grown} MiB; the witness made {outcome.rounds:,} rounds, "
        f"the slowest in {outcome.slowest_round_s:.2f} s"
    )
    for finding in outcome.found:
        print(f"found: {finding}")
    return 1 if outcome.found else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
