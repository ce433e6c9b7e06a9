"""A cluster store that starts from a backup, and must not give out anything a second time.

After the backup was made, the node continued: it was started again, and gave out producer ids that the backup does not
know. A client that still has one of these must not meet another client with the same id, and a leader epoch that
clients have seen must not come again with other data. It is not known how far the node had come; so both continue from
the clock, at a rate that no node reaches:

    producer ids    Unix time in seconds × 2²⁰     a million a second; below 2⁵³ until the year 2242
    starts          Unix time in minutes           one start a minute; below 2³¹ for 4,000 years

and never below what the store has. This also holds if the same backup is restored twice, or a restored node is backed
up and restored again, as long as the clock has not been set back (`fairlog.backup.taking_over` checks this).

With several shards, this holds for the starts of each, also of one that the backup does not know. What a shard has
noted to have dropped is forgotten: its data logs were copied before the store, and may still have it. So are the
brokers' addresses: those of the node that was backed up may still be served.
"""

from __future__ import annotations

from pathlib import Path

import lmdb

from datalog.lmdb_file import check_length
from fairlog.cluster import records
from fairlog.cluster.content import StoreContent, read_content
from fairlog_types import CorruptStorage, ShardNumber, StorageFailure

PRODUCER_IDS_PER_SECOND = 1 << 20
_MAP_BYTES = 256 * 1024 * 1024


def continue_restored(directory: Path, *, now_ms: int) -> StoreContent:
    """Move the store in `directory` on to `now_ms`, durably; may be repeated. Answers what it held. Blocking.

    It is of the present format then: an older program that looks into a restore that was cut short refuses it.
    Raises CorruptStorage, StorageFailure.
    """
    check_length(directory / "data.mdb")
    try:
        environment = lmdb.open(str(directory), map_size=_MAP_BYTES, max_dbs=0, max_readers=16)
        try:
            with environment.begin(write=True) as transaction:
                found = {bytes(key): bytes(value) for key, value in transaction.cursor()}
                content = read_content(found)
                starts = max(content.starts, now_ms // 60_000)
                producer_id = max(content.next_producer_id, now_ms // 1000 * PRODUCER_IDS_PER_SECOND)
                for key, value in records.brought_up(found).items():
                    transaction.put(key, value)
                transaction.put(records.STARTS_KEY, records.encode_count(starts))
                transaction.put(records.PRODUCER_IDS_KEY, records.encode_count(producer_id))
                transaction.delete(records.GROUP_JOURNALS_BEGUN_KEY)  # a backup has none; the start makes them
                for key, value in _of_shards(content, starts).items():
                    transaction.put(key, value)
                for key in found:
                    if key.startswith((records.DROPPED_PREFIX, records.ADDRESS_PREFIX, records.LISTENERS_PREFIX)):
                        transaction.delete(key)
        finally:
            environment.close()
    except (lmdb.CorruptedError, lmdb.InvalidError, lmdb.VersionMismatchError) as error:
        raise CorruptStorage(f"the cluster store {directory / 'data.mdb'} is not readable: {error}") from error
    except lmdb.Error as error:
        raise StorageFailure(f"cannot write the cluster store in {directory}: {error}") from error
    except CorruptStorage as error:
        raise CorruptStorage(f"the cluster store {directory / 'data.mdb'}: {error}") from error
    return content


def _of_shards(content: StoreContent, starts: int) -> dict[bytes, bytes]:
    """The records of several shards, as at this start."""
    if content.shards == 1:
        return {}
    before = {number: content.started[number].starts for number in content.started}
    return {
        records.shard_key(number): records.encode_shard(
            records.ShardRecord(max(before.get(number, 0), starts), group_journals_begun=False)
        )
        for number in map(ShardNumber, range(content.shards))
    }
