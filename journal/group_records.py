"""The records of a group journal, as values, and their codec.

One frame holds one record. The frame's CBOR header is a short array of the fields in the order in which
they stand here (docs/formats/group-journal.md); there is no payload. Every record names its transactional
id: so each can be read alone, also when the id has got another producer id since.

What a replay makes of them is the coordinator's matter; a snapshot is a sequence of the same records.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from fairlog_types import LeaderEpoch, LogId, Placement, ProducerEpoch, ProducerId, TxId


class Expectation(NamedTuple):
    """What a participant must hold in order to prepare."""

    leader_epoch: LeaderEpoch
    records: int


@dataclass(frozen=True, slots=True)
class ProducerRecord:
    """The transactional id as it stands; replaces what was known of its producer."""

    transactional_id: str
    group: str
    producer_id: ProducerId
    epoch: ProducerEpoch
    last_epoch: ProducerEpoch
    """The one before `epoch`, -1 for none: a retry of the request that made `epoch` names it."""
    timeout_ms: int
    next_number: int
    """Of the next transaction in this epoch: numbers are not used again after a restart."""
    must_abort: bool
    """The coordinator aborted a transaction that the client may believe to be open."""
    timestamp_ms: int


@dataclass(frozen=True, slots=True)
class ExpiredRecord:
    """The transactional id is forgotten."""

    transactional_id: str


@dataclass(frozen=True, slots=True)
class BeginRecord:
    """The transaction writes to these logs. Written again, with the new logs only, when logs are added."""

    txid: TxId
    transactional_id: str
    logs: Mapping[LogId, LeaderEpoch]
    """The leader epoch in which each log began it."""
    timestamp_ms: int


@dataclass(frozen=True, slots=True)
class PrepareCommitRecord:
    """The transaction is committed if every participant holds what is expected of it."""

    txid: TxId
    transactional_id: str
    participants: Mapping[LogId, Expectation]
    timestamp_ms: int


@dataclass(frozen=True, slots=True)
class CommittedRecord:
    """The transaction is copied in all its logs: its index. In a snapshot: one of the id's last."""

    txid: TxId
    transactional_id: str
    placements: tuple[Placement, ...]
    timestamp_ms: int


@dataclass(frozen=True, slots=True)
class PrepareAbortRecord:
    """The transaction is aborted; these logs are to discard it."""

    txid: TxId
    transactional_id: str
    logs: tuple[LogId, ...]
    timestamp_ms: int


@dataclass(frozen=True, slots=True)
class AbortedRecord:
    """The logs of the aborted transaction have been told."""

    txid: TxId
    transactional_id: str
    timestamp_ms: int


GroupRecord = (
    ProducerRecord
    | ExpiredRecord
    | BeginRecord
    | PrepareCommitRecord
    | CommittedRecord
    | PrepareAbortRecord
    | AbortedRecord
)


def encode_group(record: GroupRecord) -> tuple[int, list[object]]:
    """The record as (frame kind, CBOR header)."""
    raise NotImplementedError


def decode_group(kind: int, header: Sequence[object]) -> GroupRecord:
    """Read what `encode_group` wrote. Raises CorruptStorage on anything else."""
    raise NotImplementedError
