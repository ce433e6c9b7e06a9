"""Three nodes of Fairlog on three brokers of Kafka, of which a history can be recorded, and what is done to them.

    clients ──┬── node 1 ──┬── broker 1         each on a host of its own (scripts/peers/network.py):
              ├── node 2 ──┼── broker 2         whatever is cut is cut by the network between them,
              └── node 3 ──┴── broker 3         for connections that there are and for new ones

All clients are on one host. Where the system allows no network of one's own, all are on this machine, and nothing is
cut. A fault is done at once, and has an end, which the workload brings about when it is time: so a node may be killed
while another one is paused or cut off, and the other faults go on.

Of the engine's brokers one at a time is disturbed: with two of them away it takes nothing. The next one has its turn
when all answer again.
"""

from __future__ import annotations

import random
import signal
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from confluent_kafka.admin import AdminClient, NewTopic

from tests.history.brokers import KAFKA_START_S, MIN_SESSION_MS, POLL_S, Unavailable, find_peers
from tests.history.faults import Fault, Planned
from tests.history.layout import PARTITIONS, TOPICS, place
from tests.history.resuming import TIMEOUT_MS
from tests.history.routes import MovingRoutes

if TYPE_CHECKING:
    from peers.kafka_artifacts import Artifacts

FAILOVER_MS = 700
"""Less than nodes stand still for, now and then: so they wake as zombies."""
NODES = range(1, 4)
CLIENTS = "clients"
ADMIN_S = 60.0
SHARDS_OF_A_NODE = 1000
"""A broker's id is so many times its node's number, and the shard's."""

Undo = Callable[[], None]
"""Ends a fault."""


def node_name(node: int) -> str:
    """The host of a node."""
    return f"node-{node}"


def broker_name(broker: int) -> str:
    """The host of one of the engine's brokers."""
    return f"broker-{broker}"


def run_in_own_network(command: Sequence[str]) -> None:
    """See `peers.network`; what comes from Maven is there afterwards. Raises Unavailable, OSError."""
    find_peers()
    from peers import network

    _artifacts()
    network.run_in_own_network(command)


def _artifacts() -> Artifacts:
    from peers import kafka_artifacts

    try:
        return kafka_artifacts.obtain()
    except kafka_artifacts.Unavailable as unavailable:
        raise Unavailable(str(unavailable)) from None


class Cluster:
    """Implements `brokers.Broker`, and `disturb`. Raises Unavailable if Kafka's jars or Java are not to be had."""

    description = "Fairlog, three nodes on three brokers of Kafka"
    processes: Sequence[int] = ()

    def __init__(
        self, directory: Path, environment: Mapping[str, str], program: Sequence[str], seed: int, *, networked: bool
    ) -> None:
        """`networked`: each is on a host of its own; this program is in a network of its own, then."""
        find_peers()
        from peers.fairlog_cluster import FairlogCluster
        from peers.kafka_cluster import KafkaCluster
        from peers.network import HERE, Network

        artifacts = _artifacts()
        self._network = network = Network() if networked else None
        add = network.add if network is not None else lambda _name: HERE
        self.clients = add(CLIENTS)
        more = {
            "FAIRLOG_GROUPS_MIN_SESSION_TIMEOUT_MS": str(MIN_SESSION_MS),
            "FAIRLOG_TRANSACTIONS_MAX_TIMEOUT_MS": str(TIMEOUT_MS),
            "FAIRLOG_CLUSTER_FAILOVER_MS": str(FAILOVER_MS),
        }
        self._engine = KafkaCluster(
            directory / "engine", artifacts, hosts={broker: add(broker_name(broker)) for broker in NODES}
        )
        self._nodes = FairlogCluster(
            directory / "nodes",
            self._engine.bootstrap,
            settings=more | dict(environment),
            hosts={node: add(node_name(node)) for node in NODES},
            program=program,
        )
        self._rng = random.Random(seed)
        self._down: set[int] = set()
        self._has_started = False
        self._engine_is_disturbed = False

    @property
    def address(self) -> str:
        return self._nodes.bootstrap

    @property
    def running(self) -> bool:
        return all(self._nodes.running(node) for node in self._up)

    @property
    def pid(self) -> int:
        return self._nodes.pid(self._any())

    @property
    def _up(self) -> Sequence[int]:
        return [node for node in self._nodes.nodes if node not in self._down]

    def _any(self) -> int:
        return self._rng.choice(self._up)

    def start(self) -> None:
        """All, at first; then what has ended. It is not waited for: the others go on."""
        if not self._has_started:
            self._has_started = True
            self._engine.start()
            self._nodes.start()
            self._wait_until_in_sync()
        for node in self._down:
            self._nodes.spawn(node)
        self._down.clear()

    def wait_for_all(self) -> None:
        """Until each node can be reached, and all copies are in sync."""
        if self._network is not None:
            self._network.join_all()
        self._engine.heal()
        self._wait_until_in_sync()

    def _wait_until_in_sync(self) -> None:
        deadline = time.monotonic() + KAFKA_START_S
        while not all(self._nodes.is_in_sync(node) for node in self._nodes.nodes):
            assert time.monotonic() < deadline, f"copies do not come into sync:\n{self.log_tail()}"
            time.sleep(POLL_S)

    def ends(self) -> Sequence[str]:
        return ()

    def shards(self) -> Mapping[str, int]:
        """Each shard has a broker on every node that keeps a copy of it."""
        routes = MovingRoutes(self.address, timeout_s=ADMIN_S)
        try:
            return {place(*each): routes.leader_number(*each) % SHARDS_OF_A_NODE for each in PARTITIONS}
        finally:
            routes.close()

    def kill(self) -> None:
        node = self._any()
        self._down.add(node)
        self._nodes.kill(node)

    def stop(self) -> None:
        node = self._any()
        self._down.add(node)
        self._nodes.resume(node)
        self._nodes.leave(node)
        status = self._nodes.status(node)
        # It may have been told before it could hear it: a start is not waited for.
        assert status in (0, -signal.SIGTERM), f"node {node} ended with status {status}:\n{self.log_tail()}"

    def create_topics(self) -> None:
        admin = AdminClient({"bootstrap.servers": self.address, "log_level": 0})
        for made in admin.create_topics([NewTopic(topic, count, 1) for topic, count in TOPICS.items()]).values():
            made.result(timeout=ADMIN_S)

    def close(self) -> None:
        self._nodes.stop()
        self._engine.stop()
        if self._network is not None:
            self._network.close()

    def log_tail(self) -> str:
        return "\n".join(self._nodes.log(node).read_text(encoding="utf-8")[-4000:] for node in self._nodes.nodes)

    # --- faults ---

    def disturb(self, planned: Planned) -> Undo | None:
        """Pause a node, kill or pause a broker of the engine, or cut. Answers how that is ended; None: not done."""
        match planned.fault:
            case Fault.STOP_NODE:
                node = self._any()
                self._nodes.pause(node)
                return partial(self._nodes.resume, node)
            case Fault.KILL_ENGINE | Fault.STOP_ENGINE | Fault.CUT_ENGINE_FROM_NODES | Fault.CUT_ENGINE:
                return self._disturb_engine(planned)
            case _:
                return self._cut(self._cuts_of_node(planned))

    def _disturb_engine(self, planned: Planned) -> Undo | None:
        if self._engine_is_disturbed or not self._engine.is_up():
            return None
        victim = self._engine.brokers[int(planned.choice * len(self._engine.brokers))]
        match planned.fault:
            case Fault.KILL_ENGINE:
                self._engine.kill(victim)
                end: Undo | None = partial(self._engine.restart, victim)
            case Fault.STOP_ENGINE:
                self._engine.pause(victim)
                end = partial(self._engine.resume, victim)
            case Fault.CUT_ENGINE:
                others = (broker for broker in NODES if broker != victim)
                end = self._cut([(broker_name(victim), broker_name(other)) for other in others])
            case _:
                end = self._cut([(broker_name(victim), node_name(node)) for node in self._some_nodes()])
        if end is None:
            return None
        self._engine_is_disturbed = True

        def undo() -> None:
            end()
            self._engine_is_disturbed = False

        return undo

    def _some_nodes(self) -> Sequence[int]:
        return self._rng.sample(NODES, self._rng.randint(1, len(NODES)))

    def _cuts_of_node(self, planned: Planned) -> Sequence[tuple[str, str]]:
        node = NODES[int(planned.choice * len(NODES))]
        match planned.fault:
            case Fault.CUT_NODE_FROM_ENGINE:
                others = [broker_name(broker) for broker in NODES]
            case Fault.CUT_NODE_FROM_NODES:
                others = [node_name(other) for other in NODES if other != node]
            case _:
                assert planned.fault is Fault.CUT_NODE_FROM_CLIENTS, planned.fault
                others = [CLIENTS]
        return [(node_name(node), other) for other in others]

    def _cut(self, pairs: Sequence[tuple[str, str]]) -> Undo | None:
        network = self._network
        if network is None:
            return None
        for pair in pairs:
            network.cut(*pair)

        def undo() -> None:
            for pair in pairs:
                network.join(*pair)

        return undo

    # --- what came of it ---

    def changes_of_owner(self) -> tuple[int, int]:
        """How often another epoch of a shard has begun so far, and how many of these were handed over in order."""
        own = {(line["shard"], line["epoch"]) for line in self._lines() if line["event"] == "owns the shard"}
        first = {shard: min(epoch for of, epoch in own if of == shard) for shard, _ in own}
        return len(own) - len(first), sum(line["event"] == "handed the shard over" for line in self._lines())

    def _lines(self) -> Iterator[Mapping[str, object]]:
        for node in self._nodes.nodes:
            yield from self._nodes.lines(node)
