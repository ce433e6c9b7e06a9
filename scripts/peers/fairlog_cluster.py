"""Several nodes of Fairlog on this machine, whose journals are kept on a Kafka cluster (`kafka_cluster`).

Each is started as a user starts it. A node has ports of its own, one after the other: its own, then one for each shard,
then one for each shard where other nodes reach it. They stay the same when it is started again. With `hosts` each runs
on one of its own (`network`).
"""

from __future__ import annotations

import json
import os
import signal
import socket
import sys
import time
import urllib.request
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from peers import processes
from peers.interface import PeerDidNotStart
from peers.network import HERE, Host

STOP_S = 30.0
_POLL_S = 0.05
_FIRST_PORT, _LAST_PORT = 21_000, 32_000
"""Below those that the system gives to whoever connects."""
_given: set[int] = set()
"""Ports that a cluster of this process has, whether it runs or not."""


class FairlogCluster:
    """`start` it, use `bootstrap`, `stop` it. Nodes are numbered from 1."""

    def __init__(
        self,
        directory: Path,
        engine: str,
        *,
        name: str = "fairlog",
        nodes: int = 3,
        shards: int = 3,
        settings: Mapping[str, str] | None = None,
        hosts: Mapping[int, Host] | None = None,
        program: Sequence[str] = ("-m", "fairlog.cli"),
        inner_listener: str | None = None,
    ) -> None:
        """`engine` is the Kafka cluster's bootstrap servers; `settings` are variables of all nodes' environment.
        Python runs `program`. With `inner_listener` nodes reach each other by a listener of this name, at the same
        ports.
        """
        self.nodes = range(1, nodes + 1)
        self.name = name
        self.shards = shards
        self._directory = directory
        self._engine = engine
        self._settings = dict(settings or {})
        self._hosts = hosts or dict.fromkeys(self.nodes, HERE)
        self._program_of_node = program
        self._checkouts = dict.fromkeys(self.nodes, Path.cwd())
        self._inner_listener = inner_listener
        self._first_ports = dict(zip(self.nodes, _free_blocks(nodes, 1 + 2 * shards), strict=True))
        self._programs = {node: self._program(node) for node in self.nodes}

    @property
    def bootstrap(self) -> str:
        """All nodes' addresses for clients."""
        return ",".join(map(self.address, self.nodes))

    def admin(self, node: int) -> str:
        """Where the node's admin listener was last."""
        return next(line["address"] for line in reversed(self.lines(node)) if line["event"] == "admin listener")

    def address(self, node: int) -> str:
        """Where clients may begin at this node."""
        return f"{self._hosts[node].address}:{self._first_ports[node]}"

    def address_of(self, node: int, shard: int) -> str:
        """Where clients of the shard come to this node, whether it keeps a copy or not."""
        return f"{self._hosts[node].address}:{self._first_ports[node] + 1 + shard}"

    def inner_address(self, node: int, shard: int) -> tuple[str, int]:
        """Where other nodes reach the shard on this node."""
        return self._hosts[node].address, self._first_ports[node] + 1 + self.shards + shard

    def data(self, node: int) -> Path:
        """The node's data directory."""
        return self._directory / f"node-{node}" / "data"

    def log(self, node: int) -> Path:
        """What the node has written to stdout and stderr."""
        return self._directory / f"node-{node}" / "node.log"

    def start(self, timeout_s: float = 180.0) -> None:
        """Start all, for the first time; return when all serve, and each shard has an owner. Raises PeerDidNotStart."""
        for node in self.nodes:
            self._programs[node].spawn()
        deadline = time.monotonic() + timeout_s
        while len(self._owned()) < self.shards or not all(map(self._is_ready, self.nodes)):
            for node in self.nodes:
                program = self._programs[node]
                if not program.running:
                    raise PeerDidNotStart(f"node {node} ended with status {program.status}:\n{program.output_tail()}")
                if time.monotonic() > deadline:
                    raise PeerDidNotStart(
                        f"not all nodes and shards were served after {timeout_s:.0f} s:\n{program.output_tail()}"
                    )
            time.sleep(_POLL_S)

    def _owned(self) -> set[int]:
        """The shards that some node has said it owns."""
        return {line["shard"] for node in self.nodes for line in self.lines(node) if line["event"] == "owns the shard"}

    def _is_ready(self, node: int) -> bool:
        return any(line["event"] == "ready" for line in self.lines(node))

    def lines(self, node: int) -> list[dict[str, Any]]:
        """What the node has logged so far."""
        try:
            text = self.log(node).read_text(encoding="utf-8", errors="replace")
        except FileNotFoundError:
            return []
        return [json.loads(line) for line in text.splitlines() if line.startswith("{") and line.endswith("}")]

    def is_in_sync(self, node: int) -> bool:
        """Whether the node answers, and says that every copy of each shard is in sync."""
        try:
            with urllib.request.urlopen(f"http://{self.admin(node)}/api/cluster", timeout=5) as answer:
                shards = json.load(answer)["shards"]
        except (OSError, StopIteration):
            return False
        return all(shard["copies"] and all(copy["in_sync"] for copy in shard["copies"]) for shard in shards)

    def stop(self) -> None:
        """Kill what remains: nothing of it is wanted any more."""
        for program in self._programs.values():
            if program.running:
                program.send(signal.SIGCONT)
                program.kill()

    def spawn(self, node: int) -> None:
        """Start one that has ended."""
        self._programs[node].spawn()

    def install(self, node: int, checkout: Path) -> None:
        """One that has ended is started from this checkout of Fairlog from now on."""
        assert not self.running(node)
        self._checkouts[node] = checkout
        self._programs[node] = self._program(node)

    def kill(self, node: int) -> None:
        """SIGKILL; also a paused one."""
        self._programs[node].kill()

    def leave(self, node: int) -> None:
        """SIGTERM, and wait for its end. Raises TimeoutError."""
        self._programs[node].stop(STOP_S)

    def pause(self, node: int) -> None:
        """SIGSTOP."""
        self._programs[node].send(signal.SIGSTOP)

    def resume(self, node: int) -> None:
        """SIGCONT."""
        self._programs[node].send(signal.SIGCONT)

    def running(self, node: int) -> bool:
        return self._programs[node].running

    def status(self, node: int) -> int | None:
        """The exit status of one that has ended."""
        return self._programs[node].status

    def pid(self, node: int) -> int:
        return self._programs[node].pid

    def twin(self, node: int, directory: Path) -> processes.Program:
        """Another process with the node's number, in a directory and at ports of its own."""
        size = 1 + 2 * self.shards
        (first,) = _free_blocks(1, size, max(self._first_ports.values()) + size)
        return self._program_at(node, directory, first)

    def _program(self, node: int) -> processes.Program:
        return self._program_at(node, self._directory / f"node-{node}", self._first_ports[node])

    def _program_at(self, node: int, directory: Path, first_port: int) -> processes.Program:
        host = self._hosts[node]
        listen, inner = f"{host.address}:{first_port}", self._inner_listener
        if inner is not None:
            listen = f"PLAINTEXT://{listen},{inner}://{host.address}:{first_port + 1 + self.shards}"
        settings = {
            "FAIRLOG_NODE_ID": str(node),
            "FAIRLOG_CLUSTER_SHARDS": str(self.shards),
            "FAIRLOG_ADMIN_LISTEN": f"{host.address}:0",
            "FAIRLOG_CLUSTER_RACK": f"rack-{node}",
            **({} if inner is None else {"FAIRLOG_SECURITY_INNER_LISTENER": inner}),
            **self._settings,
        }
        where = ["--data-dir", str(directory / "data"), "--listen", listen]
        command = [sys.executable, *self._program_of_node, "serve", "--journals", f"kafka://{self._engine}",
                   "--cluster", self.name, *where]  # fmt: skip
        return processes.Program(
            [
                *host.prefix,
                "env",
                f"--chdir={self._checkouts[node]}",
                *(f"{key}={value}" for key, value in settings.items()),
                f"PYTHONPATH={self._checkouts[node]}",
                *command,
            ],
            directory / "node.log",
        )


def _free_blocks(count: int, size: int, first: int | None = None) -> list[int]:
    """The first ports of so many blocks of ports on which no program listens at the moment, from `first` on. None of
    them was given before.
    """
    found: list[int] = []
    if first is None:
        first = _FIRST_PORT + os.getpid() % 97 * 100
    while len(found) < count:
        if first + size > _LAST_PORT:
            first = _FIRST_PORT
        block = range(first, first + size)
        if not _given.isdisjoint(block):
            first += 1
            continue
        try:
            with ExitStack() as stack:
                for port in block:
                    stack.enter_context(socket.create_server(("127.0.0.1", port)))
        except OSError:
            first += 1
            continue
        found.append(first)
        _given.update(block)
        first += size
    return found
