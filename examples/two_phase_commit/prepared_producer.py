"""A transactional producer for two-phase commit with another system (KIP-939), on the messages of kio.

No client library lets a program set the two new fields of InitProducerId 6 yet, so this one does: `Enable2Pc` (the
transactions have no time-out) and `KeepPreparedTxn` (what the last instance left open stays open). It has just what
the example needs: one broker, one connection, one request at a time, partition 0. Each method waits for its answer, so
there is nothing to flush. When the connection breaks, the program starts anew.
"""

from __future__ import annotations

import io
import socket
import struct
import time
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from kio.records.schema import NewRecordBatch, Record
from kio.records.writers import write_new_batch
from kio.schema.end_txn.v5.request import EndTxnRequest
from kio.schema.end_txn.v5.response import EndTxnResponse
from kio.schema.errors import ErrorCode
from kio.schema.init_producer_id.v6.request import InitProducerIdRequest
from kio.schema.init_producer_id.v6.response import InitProducerIdResponse
from kio.schema.produce.v12.request import PartitionProduceData, ProduceRequest, TopicProduceData
from kio.schema.produce.v12.response import ProduceResponse
from kio.schema.sasl_authenticate.v1.request import SaslAuthenticateRequest
from kio.schema.sasl_authenticate.v1.response import SaslAuthenticateResponse
from kio.schema.sasl_handshake.v1.request import SaslHandshakeRequest
from kio.schema.sasl_handshake.v1.response import SaslHandshakeResponse
from kio.schema.types import ProducerId, TopicName, TransactionalId
from kio.serial import entity_reader, entity_writer
from kio.static.primitive import TZAwareMicros, i8, i16, i32, i32Timedelta, i64

from fairlog_client_security import ClientSecurity

PATIENCE = i32Timedelta.parse(timedelta(seconds=30))
TRANSACTIONAL = i16(0b1_0000)
"""The attributes of an uncompressed batch that belongs to a transaction."""
ALL = i16(-1)
"""The `acks` of a transactional producer."""
ASK_AGAIN_S = 0.1


_HINTS = {
    ErrorCode.transactional_id_authorization_failed: (
        ": start the node with FAIRLOG_TRANSACTIONS_TWO_PHASE_COMMIT_ENABLE=true"
    )
}


class Refused(Exception):
    """The broker's answer has an error code."""


@dataclass(frozen=True, slots=True)
class Epoch:
    """Which transaction: with transaction version 2 each one has an epoch of its own."""

    producer_id: int
    epoch: int

    def __str__(self) -> str:
        return f"{self.producer_id}.{self.epoch}"


class PreparedProducer:
    """One instance of the producer with this transactional id. Call `take_over` first."""

    def __init__(self, bootstrap: str, transactional_id: str, security: ClientSecurity = ClientSecurity()) -> None:
        host, _, port = bootstrap.rpartition(":")
        self._stream = socket.create_connection((host, int(port)), PATIENCE.total_seconds())
        self._transactional_id = TransactionalId(transactional_id)
        self._requests = 0
        self._sequences: dict[str, int] = {}
        self._epoch = Epoch(-1, -1)
        try:
            self._stream = security.secured(self._stream, host)
            if security.mechanism is not None:
                self._ask(SaslHandshakeRequest(mechanism=security.mechanism), SaslHandshakeResponse)
                security.sign_in(self._sign_in_step)
        except BaseException:
            self._stream.close()
            raise

    @property
    def epoch(self) -> Epoch:
        """The transaction that `send` writes to; the other system's note names it."""
        return self._epoch

    def _sign_in_step(self, message: bytes) -> bytes:
        return self._ask(SaslAuthenticateRequest(auth_bytes=message), SaslAuthenticateResponse).auth_bytes

    def close(self) -> None:
        """A transaction that is open stays so."""
        self._stream.close()

    def take_over(self) -> Epoch | None:
        """Fence the last instance. Return the transaction that it left open, which `end` has to end first, or None."""
        request = InitProducerIdRequest(
            transactional_id=self._transactional_id,
            transaction_timeout=PATIENCE,  # without a meaning: there is no time-out with enable2_pc
            enable2_pc=True,
            keep_prepared_txn=True,
        )
        answer = self._ask(request, InitProducerIdResponse)
        self._go_on_with(answer)
        if answer.ongoing_txn_producer_id == -1:
            return None
        return Epoch(answer.ongoing_txn_producer_id, answer.ongoing_txn_producer_epoch)

    def send(self, topic: str, value: bytes) -> None:
        """Write a record. From Produce 12 on, the first one adds its partition to the transaction."""
        sequence = self._sequences.get(topic, 0)
        record = Record(
            attributes=i8(0),
            timestamp=TZAwareMicros.parse(datetime.now(UTC)),
            offset=i64(0),
            key=None,
            value=value,
            headers=(),
        )
        batch = NewRecordBatch(
            producer_id=i64(self._epoch.producer_id),
            producer_epoch=i16(self._epoch.epoch),
            base_sequence=i32(sequence),
            attributes=TRANSACTIONAL,
            records=(record,),
        )
        written = io.BytesIO()
        write_new_batch(written, batch)
        partition = PartitionProduceData(index=i32(0), records=written.getvalue())
        request = ProduceRequest(
            transactional_id=self._transactional_id,
            acks=ALL,
            timeout=PATIENCE,
            topic_data=(TopicProduceData(name=TopicName(topic), partition_data=(partition,)),),
        )
        answer = self._exchange(request, ProduceResponse)
        code = answer.responses[0].partition_responses[0].error_code
        if code is not ErrorCode.none:
            raise Refused(f"writing to {topic}: {code.name.upper()}")
        self._sequences[topic] = sequence + 1

    def end(self, *, commit: bool) -> None:
        """Commit or abort what is open, this instance's or the last one's. The next transaction has a new epoch."""
        request = EndTxnRequest(
            transactional_id=self._transactional_id,
            producer_id=ProducerId(self._epoch.producer_id),
            producer_epoch=i16(self._epoch.epoch),
            committed=commit,
        )
        self._go_on_with(self._ask(request, EndTxnResponse))

    def _go_on_with(self, granted: Any) -> None:
        self._epoch = Epoch(granted.producer_id, granted.producer_epoch)
        self._sequences.clear()

    def _ask(self, request: Any, answer: type[Any]) -> Any:
        """Ask until the broker has an answer: it may have to finish something first."""
        while (got := self._exchange(request, answer)).error_code.retriable:
            time.sleep(ASK_AGAIN_S)
        if got.error_code is not ErrorCode.none:
            hint = _HINTS.get(got.error_code, "")
            raise Refused(f"{type(request).__name__}: {got.error_code.name.upper()}{hint}")
        return got

    def _exchange(self, request: Any, answer: type[Any]) -> Any:
        self._requests += 1
        header = request.__header_schema__(
            request_api_key=request.__api_key__,
            request_api_version=request.__version__,
            correlation_id=i32(self._requests),
            client_id="two-phase-commit",
        )
        frame = io.BytesIO()
        entity_writer(type(header))(frame, header)
        entity_writer(type(request))(frame, request)
        self._stream.sendall(struct.pack(">i", len(frame.getvalue())) + frame.getvalue())
        (size,) = struct.unpack(">i", self._receive(4))
        received = self._receive(size)
        _, offset = entity_reader(answer.__header_schema__)(received, 0)
        return entity_reader(answer)(received, offset)[0]

    def _receive(self, count: int) -> bytes:
        received = b""
        while len(received) < count:
            part = self._stream.recv(count - len(received))
            if not part:
                raise ConnectionError("the broker closed the connection")
            received += part
        return received
