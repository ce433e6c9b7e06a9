"""A transactional producer of one partition, by hand: ids, epoch and sequence numbers are in the open."""

from __future__ import annotations

from tests.clients.raw_client import NONE, RawClient, batch


class RawTransaction:
    """One producer's transactions, one after the other; `end` asks for the outcome and says the code."""

    def __init__(self, client: RawClient, transactional_id: str, topic: str, *, timeout_ms: int = 60_000) -> None:
        granted = client.init_producer_id(transactional_id, timeout_ms=timeout_ms)
        assert granted.error_code == NONE
        self.client, self.transactional_id, self.topic = client, transactional_id, topic
        self.producer_id, self.epoch, self.sequence = granted.producer_id, granted.producer_epoch, 0

    def write(self, *values: bytes) -> int:
        """Add the partition and write; the base offset that is answered."""
        added = self.client.add_partitions(self.transactional_id, self.producer_id, self.epoch, self.topic, [0])
        assert added == {0: NONE}
        code, base = self.produce(*values)
        assert code == NONE
        return base

    def produce(self, *values: bytes, epoch: int | None = None) -> tuple[int, int]:
        """(error code, base offset)."""
        records = self.batch(*values, epoch=epoch)
        self.sequence += len(values)
        return self.client.produce(self.topic, 0, records, transactional_id=self.transactional_id)

    def batch(self, *values: bytes, epoch: int | None = None) -> bytearray:
        """The batch that `produce` would send next."""
        return batch(
            values,
            producer_id=self.producer_id,
            epoch=self.epoch if epoch is None else epoch,
            sequence=self.sequence,
            transactional=True,
        )

    def end(self, *, commit: bool, by: RawClient | None = None) -> int:
        return (by or self.client).end(self.transactional_id, self.producer_id, self.epoch, commit=commit)
