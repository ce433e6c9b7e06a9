"""`produce`'s producer: records to one topic of a node, or any other broker, by confluent-kafka.

Plain records are sent with idempotence: once, and in the order of the lines. With a transaction all of them
become visible at once or none does; it is aborted whatever goes wrong, so that nothing half-done is left behind.

A broker that goes away is waited for as long as `_DELIVERY_TIMEOUT_MS`.
"""

from __future__ import annotations

import contextlib
import time
import uuid
from typing import TYPE_CHECKING, Any

from fairlog.cli import stock_client
from fairlog.cli.errors import ClientError
from fairlog.cli.record_forms import NewRecord
from fairlog.config_values import Address

if TYPE_CHECKING:
    from collections.abc import Callable

    from confluent_kafka import KafkaError, Message, Producer

_DELIVERY_TIMEOUT_MS = 30_000
_TRANSACTION_TIMEOUT_MS = 900_000
"""As long as brokers let one be by default (Kafka's transaction.max.timeout.ms): the lines may come slowly."""
_CALL_TIMEOUT_S = 30.0
_LINGER_MS = 5
_POLL_S = 0.2


class Outcome(Exception):
    """The commit was asked for, and how it ended is not known. The message says so."""


class RecordProducer:
    """Produces to one topic: `begin`, `put` for each record, and then `finish`, or `give_up` in its place."""

    def __init__(self, bootstrap: Address, topic: str, *, transaction: bool) -> None:
        self._client: Any = stock_client.load("produce")
        self._topic = topic
        self.transactional_id = f"fairlog-produce-{uuid.uuid4().hex[:12]}" if transaction else None
        """Another one for each command, so that two at a time do not fence each other; brokers forget it in time."""
        self.delivered = 0
        self.committing = False
        """Whether the commit was asked for: then giving up undoes nothing."""
        self._failure: KafkaError | None = None
        config = {
            "enable.idempotence": True,
            "linger.ms": _LINGER_MS,
            "delivery.timeout.ms": _DELIVERY_TIMEOUT_MS,
        }
        if self.transactional_id is not None:
            config |= {"transactional.id": self.transactional_id, "transaction.timeout.ms": _TRANSACTION_TIMEOUT_MS}
        self._producer: Producer = self._client.Producer(stock_client.settings(bootstrap, **config))

    @property
    def unknown(self) -> str:
        """What to say of a commit that was asked for and not answered."""
        return f"it is not known whether it is committed; find out with: fairlog txn show {self.transactional_id}"

    def begin(self) -> None:
        """Begin the transaction, if there is to be one. Raises ClientError."""
        if self.transactional_id is not None:
            self._call("beginning a transaction", self._producer.init_transactions, _CALL_TIMEOUT_S)
            self._call("beginning a transaction", self._producer.begin_transaction)

    def put(self, record: NewRecord) -> None:
        """Send a record, or have it sent with others soon. Raises ClientError, also for one put before."""
        more: dict[str, Any] = {}
        if record.partition is not None:
            more["partition"] = record.partition
        if record.timestamp_ms is not None:
            more["timestamp"] = record.timestamp_ms
        while True:
            self._check()
            try:
                self._producer.produce(
                    self._topic,
                    record.value,
                    record.key,
                    headers=list(record.headers),
                    on_delivery=self._answered,
                    **more,
                )
            except BufferError:
                self._serve(self._producer.poll, _POLL_S)
                continue
            except self._client.KafkaException as error:
                raise ClientError(stock_client.sentence(error.args[0])) from error
            self._serve(self._producer.poll, 0)
            return

    def finish(self) -> None:
        """Return once every record is with the broker, and the transaction committed. Raises ClientError, Outcome."""
        self._flush()
        if self.transactional_id is None:
            return
        deadline = time.monotonic() + _CALL_TIMEOUT_S
        self.committing = True
        while True:
            try:
                self._producer.commit_transaction(max(0.1, deadline - time.monotonic()))
            except self._client.KafkaException as raised:
                error: KafkaError = raised.args[0]
                if error.retriable() and time.monotonic() < deadline:
                    continue
                why = stock_client.sentence(error)
                if error.txn_requires_abort() or error.fatal():
                    raise ClientError(f"committing: {why}") from raised
                raise Outcome(f"committing: {why}; {self.unknown}") from raised
            return

    def give_up(self) -> None:
        """After an error, or in place of `finish`: abort the transaction; without one, send what was put."""
        if self.transactional_id is not None:
            self._producer.purge()
            # If it cannot be aborted now, the broker does it when the time is out. It delays nobody until then.
            with contextlib.suppress(self._client.KafkaException):
                self._producer.abort_transaction(_CALL_TIMEOUT_S)
        elif self._failure is None:
            self._flush()

    def _flush(self) -> None:
        while self._serve(self._producer.flush, _POLL_S):
            self._check()
        self._check()

    def _serve(self, call: Callable[[float], int], timeout_s: float) -> int:
        """Have the client report on records, and answer what it answers. Raises ClientError for its fatal errors."""
        try:
            return call(timeout_s)
        except (self._client.KafkaException, SystemError) as raised:
            # Amid its reports it is raised as such, or, with one more report behind it, as the cause of a SystemError.
            fatal: Any = raised.__cause__ if isinstance(raised, SystemError) else raised
            if not isinstance(fatal, self._client.KafkaException):
                raise
            self._failure = fatal.args[0]  # in place of that of its records, which are only given up for it
            raise ClientError(self._producing(fatal.args[0])) from raised

    def _answered(self, error: KafkaError | None, _message: Message) -> None:
        if error is None:
            self.delivered += 1
        elif self._failure is None:
            self._failure = error

    def _check(self) -> None:
        if self._failure is not None:
            if self.transactional_id is not None and self._failure.code() == self._client.KafkaError._PURGE_QUEUE:
                # The transaction was given up, and its records with it: to commit it is refused, with the reason.
                self._call(f"producing to {self._topic}", self._producer.commit_transaction, _CALL_TIMEOUT_S)
            raise ClientError(self._producing(self._failure))

    def _producing(self, error: KafkaError) -> str:
        return f"producing to {self._topic}: {stock_client.sentence(error)}"

    def _call(self, doing: str, call: Any, *arguments: object) -> None:
        try:
            call(*arguments)
        except self._client.KafkaException as error:
            raise ClientError(f"{doing}: {stock_client.sentence(error.args[0])}") from error
