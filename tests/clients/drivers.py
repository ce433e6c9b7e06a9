"""The three stock clients behind one face, so that a promise is tested with each of them by one test.

Only the face is ours: each driver calls its client's public API as that client's documentation does, and
configures nothing but addresses, ids, time-outs and compression. Errors keep the client's own words in
`ClientError`; the drivers only say which of them mean "you are fenced".
"""

from __future__ import annotations

import asyncio
import contextlib
import warnings
from abc import ABC, abstractmethod
from collections.abc import Coroutine
from dataclasses import dataclass
from types import TracebackType
from typing import Any, TypeVar

import aiokafka
import aiokafka.errors
import confluent_kafka

with warnings.catch_warnings():
    # kafka-python 3.0 reads its message schemas with importlib.resources.read_text, deprecated since Python 3.11.
    warnings.simplefilter("ignore", DeprecationWarning)
    import kafka
    import kafka.errors

WAIT_S = 15.0
Result = TypeVar("Result")


class ClientError(Exception):
    """The client reported an error."""


class Fenced(ClientError):
    """The client reported that another instance has taken over its transactional id."""


class ProducerDriver(ABC):
    """A producer; transactional if it was made with an id. `send` only hands over, `flush` waits."""

    def __enter__(self) -> ProducerDriver:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @abstractmethod
    def begin(self) -> None: ...

    @abstractmethod
    def send(
        self,
        topic: str,
        partition: int,
        value: bytes | None,
        *,
        key: bytes | None = None,
        headers: list[tuple[str, bytes]] | None = None,
        timestamp_ms: int | None = None,
    ) -> None: ...

    @abstractmethod
    def flush(self) -> list[int | None]:
        """Wait for the answers to all that was sent since the last flush; the offsets that the client reports."""

    @abstractmethod
    def commit(self) -> None: ...

    @abstractmethod
    def abort(self) -> None: ...

    @abstractmethod
    def close(self) -> None: ...


# --- confluent-kafka -----------------------------------------------------------------------------


class ConfluentProducer(ProducerDriver):
    def __init__(self, address: str, transactional_id: str | None, timeout_ms: int, compression: str | None) -> None:
        config: dict[str, Any] = {
            "bootstrap.servers": address,
            "enable.idempotence": True,
            "linger.ms": 5,
            "log_level": 2,
            "reconnect.backoff.ms": 20,
            "reconnect.backoff.max.ms": 100,
        }
        if transactional_id is not None:
            config |= {"transactional.id": transactional_id, "transaction.timeout.ms": timeout_ms}
        if compression is not None:
            config["compression.type"] = compression
        self._producer = confluent_kafka.Producer(config)
        self._answers: list[tuple[confluent_kafka.KafkaError | None, int | None]] = []
        if transactional_id is not None:
            self._call(self._producer.init_transactions, WAIT_S)

    def _call(self, function: Any, *arguments: Any) -> None:
        try:
            function(*arguments)
        except confluent_kafka.KafkaException as error:
            raise _confluent_error(error.args[0]) from error

    def begin(self) -> None:
        self._call(self._producer.begin_transaction)

    def send(
        self,
        topic: str,
        partition: int,
        value: bytes | None,
        *,
        key: bytes | None = None,
        headers: list[tuple[str, bytes]] | None = None,
        timestamp_ms: int | None = None,
    ) -> None:
        more: dict[str, Any] = {}
        if headers is not None:
            more["headers"] = headers
        if timestamp_ms is not None:
            more["timestamp"] = timestamp_ms
        self._call(
            lambda: self._producer.produce(topic, value, key, partition=partition, on_delivery=self._answered, **more)
        )

    def _answered(self, error: confluent_kafka.KafkaError | None, message: confluent_kafka.Message) -> None:
        self._answers.append((error, message.offset()))

    def flush(self) -> list[int | None]:
        self._call(self._flush)
        answers, self._answers = self._answers, []
        for error, _offset in answers:
            if error is not None:
                raise _confluent_error(error)
        return [offset for _error, offset in answers]

    def _flush(self) -> None:
        try:
            left = self._producer.flush(WAIT_S)
        except SystemError as error:
            # confluent-kafka raises a fatal error out of flush, and stumbles if a delivery report is due as well.
            if isinstance(error.__cause__, confluent_kafka.KafkaException):
                raise error.__cause__ from error
            raise
        assert left == 0, f"{left} records were not answered"

    def commit(self) -> None:
        self._call(self._producer.commit_transaction, WAIT_S)

    def abort(self) -> None:
        self._call(self._producer.abort_transaction, WAIT_S)

    def close(self) -> None:
        self._producer.purge()
        with contextlib.suppress(confluent_kafka.KafkaException, SystemError):
            self._producer.flush(0)  # raises a fatal error again that a call has raised before


def _confluent_error(error: confluent_kafka.KafkaError) -> ClientError:
    fenced = (confluent_kafka.KafkaError._FENCED, confluent_kafka.KafkaError.PRODUCER_FENCED)
    return (Fenced if error.code() in fenced else ClientError)(f"{error.name()}: {error.str()}")


# --- kafka-python --------------------------------------------------------------------------------


class KafkaPythonProducer(ProducerDriver):
    def __init__(self, address: str, transactional_id: str | None, timeout_ms: int, compression: str | None) -> None:
        config: dict[str, Any] = {
            "bootstrap_servers": address,
            "enable_idempotence": True,
            "compression_type": compression,
            "max_block_ms": WAIT_S * 1000,
            "reconnect_backoff_max_ms": 1_000,  # else it may look away for longer than it waits: a node takes its time
            "linger_ms": 5,
        }
        if transactional_id is not None:
            config |= {"transactional_id": transactional_id, "transaction_timeout_ms": timeout_ms}
        self._producer = kafka.KafkaProducer(**config)
        self._futures: list[Any] = []
        if transactional_id is not None:
            self._call(self._producer.init_transactions)

    def _call(self, function: Any, *arguments: Any, **named: Any) -> Any:
        try:
            return function(*arguments, **named)
        except kafka.errors.KafkaError as error:
            fenced = (kafka.errors.ProducerFencedError, kafka.errors.InvalidProducerEpochError)
            kind = Fenced if isinstance(error, fenced) else ClientError
            raise kind(f"{type(error).__name__}: {error}") from error

    def begin(self) -> None:
        self._call(self._producer.begin_transaction)

    def send(
        self,
        topic: str,
        partition: int,
        value: bytes | None,
        *,
        key: bytes | None = None,
        headers: list[tuple[str, bytes]] | None = None,
        timestamp_ms: int | None = None,
    ) -> None:
        future = self._call(
            self._producer.send,
            topic,
            value=value,
            key=key,
            partition=partition,
            headers=headers,
            timestamp_ms=timestamp_ms,
        )
        self._futures.append(future)

    def flush(self) -> list[int | None]:
        self._call(self._producer.flush, WAIT_S)
        futures, self._futures = self._futures, []
        return [self._call(future.get, WAIT_S).offset for future in futures]

    def commit(self) -> None:
        self._call(self._producer.commit_transaction)

    def abort(self) -> None:
        self._call(self._producer.abort_transaction)

    def close(self) -> None:
        self._producer.close(timeout=1)


# --- aiokafka ------------------------------------------------------------------------------------


class AiokafkaProducer(ProducerDriver):
    """Owns an event loop, which runs while one of its methods does."""

    def __init__(self, address: str, transactional_id: str | None, timeout_ms: int, compression: str | None) -> None:
        self._runner = asyncio.Runner()
        self._futures: list[asyncio.Future[Any]] = []
        more: dict[str, Any] = {}
        if transactional_id is not None:
            more = {"transactional_id": transactional_id, "transaction_timeout_ms": timeout_ms}

        async def start() -> aiokafka.AIOKafkaProducer:
            producer = aiokafka.AIOKafkaProducer(
                bootstrap_servers=address, enable_idempotence=True, compression_type=compression, linger_ms=5, **more
            )
            try:
                await producer.start()
            except BaseException:
                await producer.stop()
                raise
            return producer

        try:
            self._producer = self._run(start())
        except BaseException:
            self._runner.close()
            raise

    def _run(self, call: Coroutine[Any, Any, Result]) -> Result:
        async def bounded() -> Result:
            return await asyncio.wait_for(call, WAIT_S)

        try:
            return self._runner.run(bounded())
        except aiokafka.errors.KafkaError as error:
            fenced = (aiokafka.errors.ProducerFenced, aiokafka.errors.InvalidProducerEpoch)
            kind = Fenced if isinstance(error, fenced) else ClientError
            raise kind(f"{type(error).__name__}: {error}") from error

    def begin(self) -> None:
        self._run(self._producer.begin_transaction())

    def send(
        self,
        topic: str,
        partition: int,
        value: bytes | None,
        *,
        key: bytes | None = None,
        headers: list[tuple[str, bytes]] | None = None,
        timestamp_ms: int | None = None,
    ) -> None:
        future = self._run(
            self._producer.send(
                topic, value=value, key=key, partition=partition, headers=headers, timestamp_ms=timestamp_ms
            )
        )
        self._futures.append(future)

    def flush(self) -> list[int | None]:
        futures, self._futures = self._futures, []

        async def answers() -> list[int | None]:
            return [(await future).offset for future in futures]

        return self._run(answers())

    def commit(self) -> None:
        self._run(self._producer.commit_transaction())

    def abort(self) -> None:
        self._run(self._producer.abort_transaction())

    def close(self) -> None:
        try:
            self._run(self._producer.stop())
        finally:
            self._runner.close()


@dataclass(frozen=True, slots=True)
class ClientKind:
    """One stock client: its name, its producer and the codecs that it can write on this machine."""

    name: str
    producer_class: type[ProducerDriver]
    codecs: tuple[str, ...]

    def producer(
        self,
        address: str,
        transactional_id: str | None = None,
        *,
        timeout_ms: int = 60_000,
        compression: str | None = None,
    ) -> ProducerDriver:
        """A started producer; with a transactional id its InitProducerId has been answered."""
        make: Any = self.producer_class
        return make(address, transactional_id, timeout_ms, compression)


CONFLUENT = ClientKind("confluent-kafka", ConfluentProducer, ("gzip", "snappy", "lz4", "zstd"))
KAFKA_PYTHON = ClientKind("kafka-python", KafkaPythonProducer, ("gzip", "lz4", "zstd"))
AIOKAFKA = ClientKind("aiokafka", AiokafkaProducer, ("gzip", "snappy", "lz4", "zstd"))
CLIENTS = (CONFLUENT, KAFKA_PYTHON, AIOKAFKA)
