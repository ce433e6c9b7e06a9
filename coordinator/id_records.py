"""Records of the group journal that tell of one transactional id as it stands.

The machine writes them when it decides (`machine.py`), and a snapshot writes them anew (`recovery.py`): the same state
gives the same record in both. What only an event tells of, such as COMMITTED, is made where the event is. Pure.
"""

from __future__ import annotations

from coordinator.group_records import Expectation, PrepareAbortRecord, PrepareCommitRecord, ProducerRecord
from coordinator.producer import Decided, Producer
from coordinator.states import IdState
from fairlog_types import LogId, TxId


def producer_record(producer: Producer, now_ms: int) -> ProducerRecord:
    """What the group journal is to know of the id, apart from its transactions."""
    return ProducerRecord(
        producer.transactional_id,
        producer.group,
        producer.producer_id,
        producer.epoch,
        producer.last_epoch,
        producer.timeout_ms,
        producer.number,
        producer.state is IdState.MUST_ABORT,
        now_ms,
        producer.ended,
        None if producer.transaction is None else producer.transaction.kept,
    )


def prepare_commit_record(transactional_id: str, decided: Decided) -> PrepareCommitRecord:
    """PREPARE_COMMIT of a transaction that is being prepared, or has been."""
    participants = {log: Expectation(it.leader_epoch, it.records) for log, it in decided.expected.items()}
    return PrepareCommitRecord(
        decided.txid, transactional_id, participants, decided.timestamp_ms, decided.commit_number
    )


def prepare_abort_record(producer: Producer, txid: TxId, logs: tuple[LogId, ...], now_ms: int) -> PrepareAbortRecord:
    """PREPARE_ABORT of the id's transaction, in these logs."""
    return PrepareAbortRecord(txid, producer.transactional_id, logs, now_ms)
