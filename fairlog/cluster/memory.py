"""An embedded store's content as values, kept in step with its records. Pure.

    records in LMDB ──▶ at the start: all of them ─────────────┐
    a change of this process, once it is committed ────────────┼──▶ `apply` ──▶ what readers ask
    what other processes committed: `differences` from `_raw` ─┘

`common_memory` has what a store of several machines holds as well.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from uuid import UUID

from fairlog.cluster import records
from fairlog.cluster.common_memory import Changes as Changes
from fairlog.cluster.common_memory import CommonMemory
from fairlog.cluster.features import Feature
from fairlog.security.listeners import PLAIN
from fairlog_types import ShardNumber


class StoreMemory(CommonMemory):
    """What a store holds, as one shard's process sees it."""

    def __init__(self, content: Mapping[bytes, bytes], shard: ShardNumber, features: Mapping[str, Feature]) -> None:
        """`content` is all records of a store of this format. Raises CorruptStorage; KeyError for a missing one."""
        self.node = records.decode_node(content[records.NODE_KEY])
        super().__init__(content, features)
        self.shard = shard
        self.addresses: dict[int, records.AddressRecord] = {}
        self._listeners: dict[int, Mapping[str, tuple[str, int]]] = {}
        self._shard_records: dict[ShardNumber, records.ShardRecord] = {}
        self.apply(content)

    def record_of(self, shard: ShardNumber) -> records.ShardRecord:
        """How far the shard has come."""
        if self.shards == 1:
            return records.ShardRecord(self.total_starts, records.GROUP_JOURNALS_BEGUN_KEY in self._raw)
        return self._shard_records.get(shard, records.ShardRecord(0, group_journals_begun=False))

    def endpoints(self, node_id: int) -> Mapping[str, tuple[str, int]]:
        """Host and port of each listener of a broker that has started, by name; the first one is its main one."""
        address = self.addresses[node_id]
        return self._listeners.get(node_id) or {PLAIN.name: (address.host, address.port)}

    def announced(
        self, node_id: int, endpoints: Mapping[str, tuple[str, int]], internal: tuple[str, int] | None
    ) -> Changes:
        """What says where a broker is reached."""
        host, port = next(iter(endpoints.values()))
        return {
            records.address_key(node_id): records.encode_address(records.AddressRecord(host, port, internal)),
            records.listeners_key(node_id): records.encode_listeners(endpoints),
        }

    def start(self) -> dict[bytes, bytes]:
        """What counts one more start of this shard."""
        changes = {records.STARTS_KEY: records.encode_count(self.total_starts + 1)}
        if self.shards > 1:
            before = self.record_of(self.shard)
            changes[records.shard_key(self.shard)] = records.encode_shard(
                records.ShardRecord(before.starts + 1, before.group_journals_begun)
            )
        return changes

    def begun(self) -> Changes:
        """What notes that all group journals of this shard are on disk."""
        if self.shards == 1:
            return {records.GROUP_JOURNALS_BEGUN_KEY: records.encode_count(self.node.group_journal_count)}
        record = records.ShardRecord(self.record_of(self.shard).starts, group_journals_begun=True)
        return {records.shard_key(self.shard): records.encode_shard(record)}

    def forgotten(self, topic_id: UUID) -> Changes:
        """What notes that this shard has dropped a topic that is being deleted."""
        return self.forgotten_by(topic_id, self.shard)

    def _decode_own(self, after: Mapping[bytes, bytes], gone: Collection[bytes], /) -> Callable[[], bool]:
        shards = records.decode_shard_records(after, self.shards)
        addresses = records.decode_addresses(after)
        listeners, gone_listeners = records.decode_listeners(after), records.gone_listeners(gone)

        def take_in() -> bool:
            self.addresses |= addresses
            self._listeners |= listeners
            for node_id in gone_listeners:
                self._listeners.pop(node_id, None)
            self._shard_records |= shards
            return bool(addresses or listeners or gone_listeners)

        return take_in

    @property
    def _locked_format(self) -> bytes:
        return records.encode_format(records.LOCKED_VERSION)

    @property
    def _counts_levels(self) -> bool:
        # One shard alone can count from the start on; several agree on what is in the store.
        return self.shards > 1
