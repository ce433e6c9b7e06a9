"""A transactional producer by hand, for clients that do what stock ones do not: in transaction version 1 or 2.

As clients do, it connects again and repeats a request until there is an answer that says something. It tells its
caller more than they do: the code as it is, and whether an earlier try may have been carried out. The same batch keeps
its sequence over all tries; a refused one gives it to the next batch. Each end of a transaction of version 2 (KIP-890)
grants the next epoch.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypeVar

from tests.clients import raw_client as raw
from tests.clients.raw_client import NONE, RawClient, batch
from tests.clients.raw_epochs import END, PRODUCE, EndTxnRequest, EndTxnResponse
from tests.history.layout import OUT
from tests.history.producing import ANSWER_S
from tests.history.routes import Routes

_T = TypeVar("_T")
SOCKET_S = 2.0
AGAIN_S = 0.02
NOT_LEADER_OR_FOLLOWER = 6
NOT_ENOUGH_REPLICAS = 19
REQUEST_TIMED_OUT, NOT_ENOUGH_REPLICAS_AFTER_APPEND = 7, 20
COORDINATOR_LOAD_IN_PROGRESS, COORDINATOR_NOT_AVAILABLE, NOT_COORDINATOR = 14, 15, 16
CONCURRENT_TRANSACTIONS = 51
EFFECT_UNKNOWN = (REQUEST_TIMED_OUT, NOT_ENOUGH_REPLICAS_AFTER_APPEND, COORDINATOR_NOT_AVAILABLE)
RETRIABLE = (
    *EFFECT_UNKNOWN,
    NOT_LEADER_OR_FOLLOWER,
    COORDINATOR_LOAD_IN_PROGRESS,
    NOT_COORDINATOR,
    NOT_ENOUGH_REPLICAS,
    CONCURRENT_TRANSACTIONS,
)
ABORTED_BY_THE_BROKER = (raw.UNKNOWN_PRODUCER_ID, raw.TRANSACTION_ABORTABLE)
"""EndTxn(commit) had no effect, and no earlier try of it."""


class Unanswered(Exception):
    """No answer came in time: nobody knows whether the request was carried out, or will be."""


class Refused(Exception):
    """An error that is not repeated. `unsure`: an earlier try had no answer, and may have been carried out."""

    def __init__(self, what: str, code: int, *, unsure: bool) -> None:
        super().__init__(f"{what}: error {code}{', after a try without an answer' if unsure else ''}")
        self.code, self.unsure = code, unsure

    @property
    def fenced(self) -> bool:
        return self.code in raw.FENCED


def versions_of_transactions(address: str) -> tuple[int, ...]:
    """Those that the node serves. With several brokers only the first: in the second one a partition's leader adds it
    to the transaction, which the coordinator would have to do.
    """
    return (1,) if Routes(address, timeout_s=SOCKET_S).several else (1, 2)


@dataclass(slots=True)
class RawProducer:
    """One transactional id, and the epoch that it was granted. What it raises leaves it as it was."""

    address: str
    transactional_id: str
    version: int
    """Of transactions: 1 or 2."""
    timeout_ms: int
    producer_id: int = -1
    epoch: int = -1
    _routes: Routes = field(init=False)
    _added: set[int] | None = None
    _sequences: dict[int, int] | None = None

    def __post_init__(self) -> None:
        self._routes = Routes(self.address, timeout_s=SOCKET_S)

    def init(self) -> None:
        """A new epoch; of a producer that has one already its own next one (KIP-360). Aborts what is open."""

        def ask(client: RawClient) -> tuple[int, tuple[int, int]]:
            granted = client.init_producer_id(
                self.transactional_id, timeout_ms=self.timeout_ms, producer_id=self.producer_id, epoch=self.epoch
            )
            return granted.error_code, (granted.producer_id, granted.producer_epoch)

        self.producer_id, self.epoch = self._answered("InitProducerId", ask)
        self._sequences, self._added = {}, set()

    def add(self, partition: int) -> None:
        """The partition of OUT takes part. Nothing in version 2, where a batch adds it."""
        assert self._added is not None
        if self.version == 1 and partition not in self._added:
            self._answered(
                "AddPartitionsToTxn", lambda client: (client.add_partitions(*self._who, OUT, [partition])[partition], 0)
            )
            self._added.add(partition)

    def produce(self, partition: int, value: str) -> int | None:
        """Write a record to OUT; the offset that was answered, if any was."""
        assert self._sequences is not None
        sequence = self._sequences.get(partition, 0)
        data = batch(
            [value.encode()],
            producer_id=self.producer_id,
            epoch=self.epoch,
            sequence=sequence,
            transactional=True,
        )

        def ask(client: RawClient) -> tuple[int, int]:
            version = PRODUCE if self.version == 2 else raw.PRODUCE
            return client.produce(OUT, partition, data, transactional_id=self.transactional_id, version=version)

        offset = self._answered("Produce", ask, lambda: self._routes.leader(OUT, partition))
        self._sequences[partition] = sequence + 1
        return offset if offset >= 0 else None

    def end(self, *, commit: bool) -> None:
        """EndTxn."""

        def ask(client: RawClient) -> tuple[int, tuple[int, int]]:
            if self.version == 1:
                return client.end(*self._who, commit=commit), (self.producer_id, self.epoch)
            request = EndTxnRequest[END](
                transactional_id=self.transactional_id,
                producer_id=self.producer_id,
                producer_epoch=self.epoch,
                committed=commit,
            )
            answer = client.call(request, EndTxnResponse)
            return answer.error_code, (answer.producer_id, answer.producer_epoch)

        granted = self._answered("EndTxn", ask)
        self._added = set()
        if granted != (self.producer_id, self.epoch):
            self.producer_id, self.epoch = granted
            self._sequences = {}

    def close(self) -> None:
        """Close all connections. The next request opens another one."""
        self._routes.close()

    @property
    def _who(self) -> tuple[str, int, int]:
        return self.transactional_id, self.producer_id, self.epoch

    def _coordinator(self) -> RawClient:
        return self._routes.coordinator(self.transactional_id)

    def _answered(
        self, what: str, ask: Callable[[RawClient], tuple[int, _T]], whom: Callable[[], RawClient] | None = None
    ) -> _T:
        """Ask until there is an answer that is not to be asked for again: the coordinator, or `whom`.

        Raises Refused, Unanswered.
        """
        deadline = time.monotonic() + ANSWER_S
        unsure = False
        while True:
            try:
                client = (whom or self._coordinator)()
            except OSError:
                self.close()
            else:
                try:
                    code, answer = ask(client)
                except OSError:
                    self.close()
                    unsure = True
                else:
                    if code == NONE:
                        return answer
                    if code not in RETRIABLE:
                        raise Refused(what, code, unsure=unsure)
                    unsure = unsure or code in EFFECT_UNKNOWN
            if time.monotonic() > deadline:
                raise Unanswered(what)
            time.sleep(AGAIN_S)
