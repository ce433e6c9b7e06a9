"""Which producers may write offsets in their transactions.

The one that the transactional id's coordinator knows as its current producer, in its current epoch. If the coordinator
is another shard's, the offsets log itself decides, by the transaction that is open there; after a restart of either
shard that coordinator is heard first, because the log may not know yet which transactions go on.

*Late requests* (invariant 10, in spirit): a TxnOffsetCommit has no number, so one that was delayed on an old
connection could overwrite a later one's offsets. It is refused on an earlier connection than the latest of the same
producer and epoch, as the coordinator does with EndTxn. With transaction version 2, too: there the epoch tells
transactions apart, and not the requests of one.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, Protocol

from coordinator.answers import Description, Refusal
from coordinator.messages import Stopped
from coordinator.states import IdState
from fairlog.groups.offset_values import TransactionalProducer
from fairlog_types import ProducerEpoch, ProducerId

FOREIGN_CONNECTIONS_KEPT_MS = 3_600_000
"""How long the connection of a producer whose coordinator is another shard's is remembered after its last commit. TCP
gives up a connection on which nothing arrives after a quarter of an hour."""


class Transactions(Protocol):
    """What is needed of the coordinator."""

    def describe(self, transactional_id: str) -> Description | None: ...

    def producer_id_of(self, transactional_id: str) -> ProducerId | None: ...

    def epoch_of(self, producer_id: ProducerId) -> ProducerEpoch | None: ...


class OtherCoordinators(Protocol):
    """What is needed of the coordinators of other shards."""

    def coordinates(self, transactional_id: str) -> bool:
        """Whether one of them coordinates the id."""
        ...

    async def hear(self, transactional_id: str) -> None:
        """See `fairlog.broker.OtherCoordinators`. Raises Stopped."""
        ...


class _Latest(NamedTuple):
    """The latest commit of a producer in a transaction."""

    epoch: ProducerEpoch
    connection: int
    used_ms: int


class OffsetProducers:
    """The producers of a shard's offsets logs."""

    def __init__(
        self, transactions: Transactions, others: OtherCoordinators | None = None, *, now_ms: Callable[[], int]
    ) -> None:
        """`others`: None if there are no other shards."""
        self._transactions = transactions
        self._others = others
        self._now_ms = now_ms
        self._latest: dict[ProducerId, _Latest] = {}

    async def hear(self, producer: TransactionalProducer) -> bool:
        """Wait until it is known here which transactions of the producer's coordinator are open.

        False: this shard stops before that.
        """
        if self._others is not None:
            try:
                await self._others.hear(producer.transactional_id)
            except Stopped:
                return False
        return True

    def may_write(self, producer: TransactionalProducer) -> Refusal | None:
        """None: it may, as far as the coordinator knows."""
        known = self._transactions.describe(producer.transactional_id)
        if known is None and self._others is not None and self._others.coordinates(producer.transactional_id):
            return self._late(producer)
        if known is None or self._transactions.producer_id_of(producer.transactional_id) != producer.producer_id:
            return Refusal.UNKNOWN_PRODUCER_ID_MAPPING
        if self._transactions.epoch_of(producer.producer_id) != producer.epoch:
            return Refusal.FENCED
        if known.state == IdState.MUST_ABORT.name:
            return Refusal.MUST_ABORT
        return self._late(producer)

    def _late(self, producer: TransactionalProducer) -> Refusal | None:
        """Whether the request was overtaken, on a later connection, by another one of the same epoch."""
        latest = self._latest.get(producer.producer_id)
        if latest is None:
            return None
        return Refusal.LATE if latest.epoch == producer.epoch and producer.connection < latest.connection else None

    def wrote(self, producer: TransactionalProducer, at_ms: int) -> None:
        """It has written offsets, on this connection."""
        self._latest[producer.producer_id] = _Latest(producer.epoch, producer.connection, at_ms)

    @property
    def remembered(self) -> int:
        """How many producers are remembered."""
        return len(self._latest)

    def forget_expired(self) -> None:
        """Forget the producers of which nothing can come late any more."""
        for producer_id, latest in list(self._latest.items()):
            if self._transactions.epoch_of(producer_id) is None and not self._may_be_foreign(latest):
                del self._latest[producer_id]

    def _may_be_foreign(self, latest: _Latest) -> bool:
        """Whether the producer may be another shard's, and requests of it on their way."""
        return self._others is not None and self._now_ms() - latest.used_ms < FOREIGN_CONNECTIONS_KEPT_MS
