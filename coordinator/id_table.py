"""All transactional ids of a shard, in memory: by name, by producer id, and which have a transaction open.

Used on the event loop. What an id does is decided by the machine (machine.py); here only the result is kept.
"""

from __future__ import annotations

import trio

from coordinator.id_entry import IdEntry
from coordinator.producer import Producer
from coordinator.states import IdState
from coordinator.steps import EPOCH_MAX
from coordinator.transaction_groups import group_of, journal_of
from fairlog_types import NO_PRODUCER_ID, ProducerEpoch, ProducerId


class IdTable:
    """The transactional ids of one shard, which has every `shards`-th of the group journals."""

    def __init__(self, journal_count: int, group_separator: str, *, shards: int = 1) -> None:
        """Groups are hashed over `journal_count` group journals, those of all shards together."""
        self.entries: dict[str, IdEntry] = {}
        """By transactional id."""
        self.open: dict[str, IdEntry] = {}
        """Those with a transaction that is open or being decided, in the order in which these began."""
        self.begun = 0
        """So many transactions have begun in this run."""
        self._journal_count = journal_count
        self._shards = shards
        self._group_separator = group_separator
        self._owners: dict[ProducerId, str] = {}

    def entry_of(self, transactional_id: str) -> IdEntry:
        """The id's entry; a new one, not yet kept, if the id is unknown."""
        entry = self.entries.get(transactional_id)
        if entry is None:
            group = group_of(transactional_id, self._group_separator)
            producer = Producer(transactional_id, member_of="" if group == transactional_id else group)
            entry = IdEntry(producer, self.journal_of(group))
        return entry

    def journal_of(self, group: str) -> int:
        """Which of the shard's group journals has the group's records, by its place among them."""
        return journal_of(group, self._journal_count) // self._shards

    def known(self, transactional_id: str) -> Producer | None:
        """The producer of an id; None if the id is unknown."""
        entry = self.entries.get(transactional_id)
        return None if entry is None or entry.producer.state is IdState.UNKNOWN else entry.producer

    def keep(self, entry: IdEntry) -> None:
        self.entries[entry.producer.transactional_id] = entry

    def forget(self, entry: IdEntry) -> None:
        del self.entries[entry.producer.transactional_id]

    def adopt(self, producer: Producer, journal: int, *, idle_ms: int, open_ms: int) -> None:
        """Take over an id that a journal knows, unused for `idle_ms`, with a transaction that is open for `open_ms`."""
        entry = IdEntry(Producer(producer.transactional_id), journal)
        self.keep(entry)
        entry.used_s -= idle_ms / 1000
        self.become(entry, producer)
        if entry.opened_s is not None:
            entry.opened_s -= open_ms / 1000

    def become(self, entry: IdEntry, producer: Producer) -> None:
        """The id's producer is this one from now on."""
        before = entry.producer
        entry.producer = producer
        if producer.transaction is not None and before.transaction is None:
            entry.opened_s, entry.began_ms, entry.prepared_s = (
                trio.current_time(),
                producer.transaction.started_ms,
                None,
            )
            self.open[producer.transactional_id] = entry
            self.begun += 1
        elif producer.transaction is None and before.transaction is not None:
            del self.open[producer.transactional_id]
        if producer.producer_id != before.producer_id or (
            producer.transaction is not before.transaction and producer.is_kept != before.is_kept
        ):
            ids = _producer_ids(producer)
            for producer_id in _producer_ids(before) - ids:
                self._owners.pop(producer_id, None)
            self._owners.update(dict.fromkeys(ids, producer.transactional_id))

    # ------------------------------------------------------------------------------------ by producer id

    def owner_of(self, producer_id: ProducerId) -> str | None:
        """The transactional id of a producer, also that of a transaction that was kept; None if it is not one's."""
        return self._owners.get(producer_id)

    def epoch_of(self, producer_id: ProducerId) -> ProducerEpoch | None:
        """The current epoch of a transactional producer; None if the producer id is not one's.

        Of an id that has had its last epoch, and of which a transaction is still open, it is one that nobody has.
        """
        owner = self._owners.get(producer_id)
        if owner is None:
            return None
        producer = self.entries[owner].producer
        return producer.epoch if producer_id == producer.producer_id else ProducerEpoch(EPOCH_MAX)


def _producer_ids(producer: Producer) -> set[ProducerId]:
    return {producer.producer_id, producer.txid.producer_id} - {NO_PRODUCER_ID}
