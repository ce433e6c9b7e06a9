"""Raw connections to all brokers of a node, and which of them to ask: as every client of a cluster finds out.

Addresses come as clients are given them, `HOST:PORT,HOST:PORT`, in the order of the brokers' ids. A broker is reached
at the address that stands here, not at the one that Metadata tells: so the same code goes through proxies, or past
them. Partitions and coordinators do not move, so what was found out stays known. With one broker nothing is asked.

Those of a cluster of several nodes do move: `MovingRoutes` are reached where Metadata says, and are asked for anew
after each `close`.
"""

from __future__ import annotations

import warnings

from tests.clients.raw_client import NONE, RawClient

with warnings.catch_warnings():
    # kafka-python 3.0 reads its message schemas with importlib.resources.read_text, deprecated since Python 3.11.
    warnings.simplefilter("ignore", DeprecationWarning)
    from kafka.protocol.metadata import FindCoordinatorRequest, FindCoordinatorResponse

TRANSACTION = 1
"""FindCoordinator's key type."""


class Routes:
    """Connections, opened when they are needed. Every method raises OSError if there is no way."""

    def __init__(self, addresses: str, *, timeout_s: float) -> None:
        self._addresses = addresses.split(",")
        self._timeout_s = timeout_s
        self._clients: dict[int, RawClient] = {}
        self._leaders: dict[tuple[str, int], int] = {}
        self._coordinators: dict[str, int] = {}

    @property
    def several(self) -> bool:
        """Whether there are several brokers."""
        return len(self._addresses) > 1

    def close(self) -> None:
        """Close all connections. The next request opens another one."""
        for client in self._clients.values():
            client.close()
        self._clients = {}

    def leader(self, topic: str, partition: int) -> RawClient:
        """Of the partition."""
        return self._client(self.leader_number(topic, partition))

    def leader_number(self, topic: str, partition: int) -> int:
        """Of the partition: which of the addresses is its leader's, from 0."""
        if not self.several:
            return 0
        if (topic, partition) not in self._leaders:
            answer = self._any().metadata(topic)
            ids = sorted(broker.node_id for broker in answer.brokers)
            for row in answer.topics[0].partitions:
                if row.error_code == NONE and row.leader_id in ids:
                    self._leaders[topic, row.partition_index] = ids.index(row.leader_id)
            if (topic, partition) not in self._leaders:
                raise OSError(f"no leader is known of {topic}/{partition}")
        return self._leaders[topic, partition]

    def coordinator(self, transactional_id: str) -> RawClient:
        """Of the id's transactions."""
        return self._client(self.coordinator_number(transactional_id))

    def coordinator_number(self, transactional_id: str) -> int:
        """Of the id's transactions: which of the addresses is its coordinator's, from 0."""
        if not self.several:
            return 0
        if transactional_id not in self._coordinators:
            client = self._any()
            ids = sorted(broker.node_id for broker in client.metadata("").brokers)
            request = FindCoordinatorRequest[1](key=transactional_id, key_type=TRANSACTION)
            answer = client.call(request, FindCoordinatorResponse)
            if answer.error_code != NONE:
                raise OSError(f"no coordinator is known of {transactional_id}: error {answer.error_code}")
            self._coordinators[transactional_id] = ids.index(answer.node_id)
        return self._coordinators[transactional_id]

    def _any(self) -> RawClient:
        """A broker that can be reached."""
        for number in range(len(self._addresses) - 1):
            try:
                return self._client(number)
            except OSError:
                continue
        return self._client(len(self._addresses) - 1)

    def _client(self, number: int) -> RawClient:
        if number not in self._clients:
            self._clients[number] = RawClient(self._addresses[number], timeout_s=self._timeout_s)
        return self._clients[number]


class MovingRoutes:
    """The same to partitions of several nodes; `doors` are addresses of any of their brokers. With `to_copies` to a
    broker that does not lead the partition, but has a copy of it.
    """

    def __init__(self, doors: str, *, timeout_s: float, to_copies: bool = False) -> None:
        self._doors = doors.split(",")
        self._timeout_s = timeout_s
        self._to_copies = to_copies
        self._clients: dict[int, RawClient] = {}
        self._addresses: dict[int, str] = {}
        self._leaders: dict[tuple[str, int], int] = {}

    def close(self) -> None:
        """Close all connections, and forget who leads what."""
        for client in self._clients.values():
            client.close()
        self._clients = {}
        self._leaders = {}

    def leader(self, topic: str, partition: int) -> RawClient:
        """Of the partition, as it was known after the last `close`."""
        number = self.leader_number(topic, partition)
        if number not in self._clients:
            self._clients[number] = RawClient(self._addresses[number], timeout_s=self._timeout_s)
        return self._clients[number]

    def leader_number(self, topic: str, partition: int) -> int:
        """The id of the broker that is asked about the partition."""
        if (topic, partition) not in self._leaders:
            self._ask(topic)
        if (topic, partition) not in self._leaders:
            raise OSError(f"no broker is known of {topic}/{partition}")
        return self._leaders[topic, partition]

    def _ask(self, topic: str) -> None:
        """Any node that answers."""
        failure = OSError("there is no door")
        for door in self._doors:
            try:
                with RawClient(door, timeout_s=self._timeout_s) as client:
                    answer = client.metadata(topic)
            except OSError as error:
                failure = error
                continue
            self._addresses = {each.node_id: f"{each.host}:{each.port}" for each in answer.brokers}
            for row in answer.topics[0].partitions:
                there = [each for each in row.replica_nodes if each in self._addresses and each != row.leader_id]
                if not self._to_copies:
                    there = [row.leader_id] if row.leader_id in self._addresses else []
                if row.error_code == NONE and there:
                    self._leaders[topic, row.partition_index] = there[0]
            return
        raise failure
