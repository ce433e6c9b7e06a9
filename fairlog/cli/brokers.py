"""The brokers of a cluster, each connected to when it is first asked something.

    what every broker knows (topics, configs)           `first`: the broker that the user names
    what each knows of its own (groups, transactions)   `each`: all of them
    what one leads (a partition)                        `led_by`: the one with this node id

Which brokers there are, the first one's Metadata says. If it names no other, everything is asked over the first
connection, whatever address it gives to clients.

A broker that does not answer stops no command that shows something: the command shows what the others say, and then
calls `require_all`, which names the broker and ends it with exit code 1. It is tried only once.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from contextlib import ExitStack, contextmanager
from typing import NamedTuple, TypeVar

from kio.schema.metadata.v9.request import MetadataRequest, MetadataRequestTopic
from kio.schema.metadata.v9.response import MetadataResponse
from kio.schema.types import TopicName

from fairlog.cli.client import Connection, NoAnswer, connect
from fairlog.cli.errors import ClientError
from fairlog.config_values import Address

NO_LEADER = -1
"""Kafka's word for the leader of a partition that has none."""

T = TypeVar("T")


class Broker(NamedTuple):
    """A broker, and the connection to it."""

    node_id: int
    connection: Connection


class Brokers:
    """The brokers that one command asks; use `connect_to_all`."""

    def __init__(self, first: Connection, stack: ExitStack) -> None:
        self.first = first
        self._stack = stack
        self._connections = {first.address: first}
        self._addresses: dict[int, Address] = {}
        self._missing: dict[int, str] = {}
        """Why each did not answer, as a part of a sentence."""

    def metadata(self, topics: Sequence[str] | None) -> MetadataResponse:
        """What the first broker says of these topics (None: of all), and of the brokers. Raises ClientError."""
        request = MetadataRequest(
            topics=None if topics is None else tuple(MetadataRequestTopic(name=TopicName(name)) for name in topics),
            allow_auto_topic_creation=False,
            include_cluster_authorized_operations=False,
            include_topic_authorized_operations=False,
        )
        answer = self.first.request(request, MetadataResponse)
        self._addresses = {int(it.node_id): Address(it.host, int(it.port)) for it in answer.brokers}
        return answer

    def each(self, ask: Callable[[Broker], T]) -> list[T]:
        """What each broker answers, by node id; without those that do not. Raises ClientError, also of `ask`."""
        self.metadata(())
        answers: list[T] = []
        for node_id in sorted(self._addresses):
            connection = self.led_by(node_id)
            if connection is not None:
                try:
                    answers.append(ask(Broker(node_id, connection)))
                except NoAnswer as error:
                    self.miss(node_id, error)
        return answers

    def led_by(self, node_id: int) -> Connection | None:
        """The connection to a broker that `metadata` has named; None if it does not answer."""
        if node_id == NO_LEADER:
            self._missing.setdefault(node_id, "a partition has no leader at the moment")
        if node_id in self._missing:
            return None
        if len(self._addresses) <= 1:
            return self.first
        if node_id not in self._addresses:
            raise ClientError(f"{self.first.address} names broker {node_id} without an address")
        try:
            return self.at(self._addresses[node_id])
        except NoAnswer as error:
            self.miss(node_id, error)
            return None

    def at(self, address: Address) -> Connection:
        """The connection to the broker at this address. Raises NoAnswer."""
        if address not in self._connections:
            self._connections[address] = self._stack.enter_context(connect(address))
        return self._connections[address]

    def miss(self, node_id: int, error: NoAnswer) -> None:
        """Note that this broker does not answer."""
        self._missing[node_id] = f"broker {node_id} does not answer ({error})"

    @property
    def several(self) -> bool:
        """Whether `metadata` has named more than one."""
        return len(self._addresses) > 1

    def require_all(self, otherwise: str) -> None:
        """Raise ClientError if a broker that was asked did not answer; `otherwise` says what follows from it."""
        if self._missing:
            raise ClientError(f"{', and '.join(self._missing.values())}; {otherwise}")


@contextmanager
def connect_to_all(bootstrap: Address) -> Generator[Brokers]:
    """The brokers of the cluster that the broker at `bootstrap` belongs to. Raises ClientError if that is not there."""
    with ExitStack() as stack:
        yield Brokers(stack.enter_context(connect(bootstrap)), stack)
