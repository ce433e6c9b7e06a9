"""Connect, distributed, with a source that is written exactly once, while its workers and the node are killed."""

from __future__ import annotations

import json
import socket
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path

from scripts.node_process import NodeProcess
from tests.clients.modes import Mode
from tests.engines import topics
from tests.engines.full import ONE_MODE_ON_CI
from tests.engines.jvm import CONNECT
from tests.engines.programs import WAIT_S, Workers
from tests.processes import kill_some

COUNT = 8000
TASKS = 2


def settings_of_worker(address: str, port: int) -> dict[str, str]:
    converter = "org.apache.kafka.connect.storage.StringConverter"
    internal = {
        f"{name}.storage.{what}": value
        for name in ("config", "offset", "status")
        for what, value in (("topic", f"connect-{name}"), ("replication.factor", "1"))
    }
    return internal | {
        "bootstrap.servers": address,
        "group.id": "connect",
        "exactly.once.source.support": "enabled",
        "key.converter": converter,
        "value.converter": converter,
        "offset.storage.partitions": "1",
        "status.storage.partitions": "1",
        "listeners": f"http://127.0.0.1:{port}",
        "session.timeout.ms": "6000",
        "heartbeat.interval.ms": "1000",
        "scheduled.rebalance.max.delay.ms": "0",
        "reconnect.backoff.max.ms": "200",
        "producer.reconnect.backoff.max.ms": "200",
        "producer.request.timeout.ms": "10000",
        "producer.delivery.timeout.ms": "30000",
    }


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return server.getsockname()[1]


def put(port: int, path: str, body: dict[str, str]) -> None:
    """Ask a worker until it does it: it refuses while it starts, and while the group has no leader."""
    deadline = time.monotonic() + WAIT_S
    request = urllib.request.Request(
        f"http://127.0.0.1:{port}/{path}",
        json.dumps(body).encode(),
        {"Content-Type": "application/json"},
        method="PUT",
    )
    while True:
        try:
            with urllib.request.urlopen(request, timeout=30):
                return
        except (urllib.error.URLError, OSError):
            if time.monotonic() > deadline:
                raise
            time.sleep(0.2)


@ONE_MODE_ON_CI
def test_connect_source_under_kills_writes_each_record_once(
    fresh_node: Callable[..., NodeProcess], mode: Mode, tmp_path: Path
) -> None:
    """Two workers, of which each is SIGKILLed once, and the node as well."""
    CONNECT.require()
    node = fresh_node()
    topics.make(node.address, "numbers", TASKS)
    ports = [free_port() for _ in range(2)]
    commands = []
    for slot, port in enumerate(ports):
        path = tmp_path / f"worker-{slot}.properties"
        lines = (f"{name}={value}\n" for name, value in settings_of_worker(node.address, port).items())
        path.write_text("".join(lines), "utf-8")
        commands.append(CONNECT.command("org.apache.kafka.connect.cli.ConnectDistributed", str(path)))

    def written() -> int:
        return sum(topics.ends(node.address, "numbers", TASKS))

    with Workers(commands, tmp_path / "connect.log") as workers:
        source = {
            "connector.class": "NumbersConnector",
            "tasks.max": str(TASKS),
            "exactly.once.support": "required",
            "topic": "numbers",
            "count": str(COUNT),
        }
        put(ports[0], "connectors/numbers/config", source)
        for share, what in ((0.1, 0), (0.4, "node"), (0.7, 1)):
            workers.run_until(lambda share=share: written() >= share * COUNT, f"{share:.0%} of the numbers")
            if isinstance(what, int):
                workers.kill(what)
            else:
                kill_some(node, 1)
        workers.run_until(lambda: len(topics.read(node.address, "numbers", TASKS)) >= COUNT, "all of the numbers")
        values = topics.committed_values(node.address, "numbers", TASKS, mode)
    assert not topics.differs((value for each in values for value in each), map(str, range(COUNT)))
