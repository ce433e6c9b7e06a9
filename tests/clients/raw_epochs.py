"""A producer of transaction version 2 (KIP-890), by hand: no AddPartitions, and an epoch for each transaction."""

from __future__ import annotations

import warnings

from tests.clients.raw_client import NONE, RawClient, batch

with warnings.catch_warnings():
    # kafka-python 3.0 reads its message schemas with importlib.resources.read_text, deprecated since Python 3.11.
    warnings.simplefilter("ignore", DeprecationWarning)
    from kafka.protocol.producer import (
        EndTxnRequest,
        EndTxnResponse,
        ProduceRequest,
        ProduceResponse,
        TxnOffsetCommitRequest,
        TxnOffsetCommitResponse,
    )

PRODUCE, END, COMMIT_OFFSETS = 12, 5, 5
"""The versions of its requests."""


class EpochProducer:
    """Its sequences begin with 0 in each epoch. Any of its requests may go over any connection (`by`)."""

    def __init__(self, client: RawClient, transactional_id: str, *, timeout_ms: int = 60_000) -> None:
        granted = client.init_producer_id(transactional_id, timeout_ms=timeout_ms)
        assert granted.error_code == NONE
        self.client, self.transactional_id = client, transactional_id
        self.producer_id, self.epoch = granted.producer_id, granted.producer_epoch
        self.sequences: dict[tuple[str, int], int] = {}

    def write(
        self, topic: str, *values: bytes, partition: int = 0, epoch: int | None = None, sequence: int | None = None
    ) -> int:
        """The error code; what was taken counts in the epoch's sequence."""
        next_sequence = self.sequences.get((topic, partition), 0)
        data = batch(
            values,
            producer_id=self.producer_id,
            epoch=self.epoch if epoch is None else epoch,
            sequence=next_sequence if sequence is None else sequence,
            transactional=True,
        )
        rows = ProduceRequest.TopicProduceData
        request = ProduceRequest[PRODUCE](
            transactional_id=self.transactional_id,
            acks=-1,
            timeout_ms=10_000,
            topic_data=[
                rows(name=topic, partition_data=[rows.PartitionProduceData(index=partition, records=bytes(data))])
            ],
        )
        response = self.client.call(request, ProduceResponse)
        code = response.responses[0].partition_responses[0].error_code
        if code == NONE and epoch is None and sequence is None:
            self.sequences[topic, partition] = next_sequence + len(values)
        return code

    def end(self, *, commit: bool, by: RawClient | None = None, epoch: int | None = None) -> tuple[int, int, int]:
        """(error code, producer id, epoch); what is granted is not yet taken."""
        request = EndTxnRequest[END](
            transactional_id=self.transactional_id,
            producer_id=self.producer_id,
            producer_epoch=self.epoch if epoch is None else epoch,
            committed=commit,
        )
        response = (by or self.client).call(request, EndTxnResponse)
        return response.error_code, response.producer_id, response.producer_epoch

    def take(self, granted: tuple[int, int, int]) -> None:
        """Go on with what an end has granted."""
        code, self.producer_id, self.epoch = granted
        assert code == NONE
        self.sequences = {}

    def commit_offset(self, group: str, topic: str, offset: int) -> int:
        """Error code of TxnOffsetCommit, by who is no member."""
        rows = TxnOffsetCommitRequest.TxnOffsetCommitRequestTopic
        row = rows.TxnOffsetCommitRequestPartition(
            partition_index=0, committed_offset=offset, committed_leader_epoch=-1, committed_metadata=""
        )
        request = TxnOffsetCommitRequest[COMMIT_OFFSETS](
            transactional_id=self.transactional_id,
            group_id=group,
            producer_id=self.producer_id,
            producer_epoch=self.epoch,
            generation_id=-1,
            member_id="",
            group_instance_id=None,
            topics=[rows(name=topic, partitions=[row])],
        )
        response = self.client.call(request, TxnOffsetCommitResponse)
        return response.topics[0].partitions[0].error_code
