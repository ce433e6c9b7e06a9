"""Where it is kept who is in each group: in the offsets log of the group, beside its offsets.

    write ─▶ a record of the group's offsets log, in its journal ─▶ copier ─▶ table in the data logs ─▶ load, at a start

So it is on every replica of the shard (docs/decisions/0066-groups-in-the-offsets-log.md), and `journal.fsync` says when
it is on disk. What is written again replaces what was written before; the log's order is the order of the writes.

What is not kept for certain may be kept all the same: it stands in the journal, and was not copied in time. Nobody was
told of it then, and whatever is written of the group afterwards follows it in the log.

Format: docs/formats/group-membership.md.
"""

from __future__ import annotations

from collections.abc import Mapping

import trio

from datalog.offset_entries import GroupEntry, encode_offset_entries
from fairlog.groups.committed import PATIENCE_S, OffsetsStorage, offsets_log_of
from fairlog.groups.persisted_group import PersistedGroup, decode_group, encode_group
from fairlog_types import CorruptStorage, LogId, Offset, StorageFailure
from journal.failpoints import reach
from partition.answers import RefusedAppend

_NOT_IN_TIME = "the journals take no more, or nothing more is copied, for the moment"


class GroupsLog:
    """What is kept of the groups that this shard coordinates."""

    def __init__(self, storage: OffsetsStorage, *, record_bytes_max: int) -> None:
        """`record_bytes_max`: what a group may take as it is journaled."""
        self._storage = storage
        self._record_bytes_max = record_bytes_max

    async def load(self) -> Mapping[str, PersistedGroup]:
        """What is kept, by group id, once all that was decided before the start is copied.

        Raises StorageFailure, CorruptStorage.
        """
        return await trio.to_thread.run_sync(self._load)

    def _load(self) -> dict[str, PersistedGroup]:
        found: dict[str, PersistedGroup] = {}
        for log in self._storage.own_logs:
            for digest, record in self._storage.data_logs.groups(log):
                try:
                    group_id, group = decode_group(digest, record)
                except CorruptStorage as error:
                    raise CorruptStorage(f"the data logs are corrupt, in {log}: {error}") from error
                found[group_id] = group
        return found

    async def write(self, changes: Mapping[str, PersistedGroup | None]) -> Mapping[str, str]:
        """Keep these groups from now on, by id; of those that are None nothing. They share flushes and copies.

        Durable and copied when this returns, but for those that it names, each with the reason. Cancelled: any of them
        is written or not.
        """
        not_kept = dict.fromkeys(changes, _NOT_IN_TIME)
        written: dict[str, tuple[LogId, Offset]] = {}
        try:
            payloads = await trio.to_thread.run_sync(_encode, changes)
            with trio.move_on_after(PATIENCE_S):
                for group_id, payload in payloads.items():
                    outcome = await self._append(group_id, payload)
                    if isinstance(outcome, str):
                        not_kept[group_id] = outcome
                    else:
                        written[group_id] = outcome
            with trio.move_on_after(PATIENCE_S):
                for group_id, (log, visible_at) in written.items():
                    await self._storage.logs.visible(log, visible_at)
                    reach("groups.keep.visible")
                    del not_kept[group_id]
        except (StorageFailure, OSError) as failure:
            return {group_id: str(failure) if why == _NOT_IN_TIME else why for group_id, why in not_kept.items()}
        return not_kept

    async def _append(self, group_id: str, payload: bytes) -> tuple[LogId, Offset] | str:
        if len(payload) > self._record_bytes_max:
            return (
                f"the group {group_id} takes more than {self._record_bytes_max} bytes, with what its members say of "
                "themselves and their assignments: let it have fewer members, or a larger journal.segment_bytes_max"
            )
        log = offsets_log_of(group_id, self._storage.log_count)
        outcome = await self._storage.logs.append_offsets(log, payload, unless=_never)
        return outcome.value if isinstance(outcome, RefusedAppend) else (log, outcome)


def _encode(changes: Mapping[str, PersistedGroup | None]) -> dict[str, bytes]:
    """In a thread, for a large group takes long enough to be felt."""
    payloads = {
        group_id: encode_offset_entries(
            [GroupEntry(group_id, None if group is None else encode_group(group_id, group))]
        )
        for group_id, group in changes.items()
    }
    reach("groups.keep.encoded")
    return payloads


def _never() -> None:
    """Nothing is in the way of a record."""
