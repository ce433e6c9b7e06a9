"""How a cluster store is made, opened and read for the first time, as `embedded` does it.

Others may not read it. The group may, if an operator lets it: readers of the data logs find topics' names here.
"""

from __future__ import annotations

import base64
import uuid
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from pathlib import Path

import lmdb

from datalog.lmdb_file import check_length
from datalog.new_file import make_file
from fairlog.cluster import environments, records, rights
from fairlog.cluster.features import Feature, unsupported
from fairlog.cluster.memory import Changes, StoreMemory
from fairlog_types import CorruptStorage, ShardNumber, StorageFailure

STORE_FILE = "data.mdb"

_MAP_BYTES = 256 * 1024 * 1024
"""Room for about a million topics; address space, not disk."""
_READERS_ELSE = 15
"""Besides one for each shard: backups and local readers."""


class StoreMismatch(Exception):
    """The directory is another node's, has other shards, or is a newer program's. The message says which."""


def make(directory: Path, shards: int) -> None:
    """Make the file unless it is there, and check it. Nobody else has it open. Raises as `EmbeddedStore.open`."""
    with _readable(directory):
        make_file(directory, lambda place: _open_environment(place, shards))
        check_length(directory / STORE_FILE)


def opened(directory: Path, shards: int) -> lmdb.Environment:
    """The environment of a file that is there; `environments.release` it. Raises as `EmbeddedStore.open`."""

    def open_and_check() -> lmdb.Environment:
        environment = _open_environment(directory, shards)
        try:
            rights.close(directory, rights.OTHERS)
        except BaseException:
            environment.close()
            raise
        # A process that was killed leaves its place among the readers, which holds back pages from reuse.
        environment.reader_check()
        return environment

    with _readable(directory):
        return environments.acquire(directory, open_and_check)


def _open_environment(directory: Path, shards: int) -> lmdb.Environment:
    readers = _READERS_ELSE + shards
    return lmdb.open(str(directory), map_size=_MAP_BYTES, max_dbs=0, max_readers=readers, mode=rights.FILE_MODE)


@contextmanager
def _readable(directory: Path) -> Generator[None]:
    """Raises CorruptStorage, StorageFailure for what LMDB raises when it opens a file."""
    try:
        yield
    except (lmdb.CorruptedError, lmdb.InvalidError, lmdb.VersionMismatchError) as error:
        path = directory / STORE_FILE
        raise CorruptStorage(f"the cluster store {path} is not readable from byte 0: {error}") from error
    except (lmdb.Error, OSError) as error:
        raise StorageFailure(f"cannot open the cluster store in {directory}: {error}") from error


@contextmanager
def named(directory: Path) -> Generator[None]:
    """Names the file in what a first transaction raises."""
    try:
        yield
    except KeyError as error:
        raise CorruptStorage(f"the cluster store {directory / STORE_FILE} lacks the record {error}") from error
    except CorruptStorage as error:
        raise corrupt(directory, error) from error
    except (lmdb.Error, OSError) as error:
        raise StorageFailure(f"cannot write the cluster store in {directory}: {error}") from error


def corrupt(directory: Path, error: CorruptStorage) -> CorruptStorage:
    """The same error, with the name of the file."""
    return CorruptStorage(f"the cluster store {directory / STORE_FILE} is corrupt: {error}")


def content(transaction: lmdb.Transaction) -> dict[bytes, bytes]:
    """All records."""
    return {bytes(key): bytes(value) for key, value in transaction.cursor()}


def put(transaction: lmdb.Transaction, changes: Changes) -> None:
    """Write changed records."""
    for key, value in changes.items():
        if value is None:
            transaction.delete(key)
        else:
            transaction.put(key, value)


def begin(
    transaction: lmdb.Transaction,
    directory: Path,
    node_id: int,
    group_journal_count: int,
    shards: int,
    shard: ShardNumber,
    features: Mapping[str, Feature],
) -> StoreMemory:
    """Read the store, after making it or bringing one of an older format up to this one in the same transaction."""
    found = content(transaction)
    if found:
        _require_format(found, directory)
        added = records.brought_up(found)
    else:
        added = _first_records(node_id, group_journal_count, shards)
    put(transaction, added)
    memory = StoreMemory({**found, **added}, shard, features)
    if memory.node.node_id != node_id:
        raise of_another_node(directory.parent, memory.node.node_id, node_id)
    if memory.shards != shards:
        raise StoreMismatch(
            f"the data in {directory.parent} is spread over {memory.shards} shard{'s' if memory.shards > 1 else ''}, "
            f"and it is opened for {shards}: restart the whole node"
        )
    if (problem := unsupported(features, memory.features.chosen)) is not None:
        raise StoreMismatch(
            f"in the cluster store in {directory}, {problem} Run the version of Fairlog that set it, and take it down"
            " there first (UpdateFeatures)"
        )
    return memory


def of_another_node(data_dir: Path, found: int, node_id: int) -> StoreMismatch:
    """The refusal of what is node `found`'s."""
    return StoreMismatch(
        f"the data in {data_dir} is that of node {found}, but node_id is {node_id}: "
        "set node_id to what it was, or give another data directory"
    )


def of_another_separator(data_dir: Path, found: str, separator: str) -> StoreMismatch:
    """The refusal of what has `found`."""
    return StoreMismatch(
        f"the transactional ids in {data_dir} have {_named(found)}, which is fixed at the first start with several "
        f"processes: set transactions.group_separator to {found!r} instead of {separator!r}"
    )


def _named(separator: str) -> str:
    return f"the group separator {separator!r}" if separator else "no group separator"


def fix_group_separator(transaction: lmdb.Transaction, directory: Path, separator: str) -> None:
    """Let several shards keep the separator of their first start. Raises StoreMismatch if this is another one.

    By it each transactional id has its coordinator: with another one, the new coordinator would not know the id, and
    would fence nobody.
    """
    found = transaction.get(records.GROUP_SEPARATOR_KEY)
    if found is None:
        transaction.put(records.GROUP_SEPARATOR_KEY, records.encode_group_separator(separator))
    elif (known := records.decode_group_separator(bytes(found))) != separator:
        raise of_another_separator(directory.parent, known, separator)


def _first_records(node_id: int, group_journal_count: int, shards: int) -> dict[bytes, bytes]:
    if group_journal_count < shards:
        raise StoreMismatch(
            f"each of {shards} processes has at least one group journal, but journal.group_journals is "
            f"{group_journal_count}: set it to {shards} or more"
        )
    cluster_id = base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")
    first = {
        records.FORMAT_KEY: records.encode_format(),
        records.NODE_KEY: records.encode_node(records.NodeRecord(cluster_id, node_id, group_journal_count)),
        records.STARTS_KEY: records.encode_count(0),
        records.PRODUCER_IDS_KEY: records.encode_count(0),
        records.OFFSETS_LOGS_KEY: records.encode_count(max(records.OFFSETS_LOGS, shards)),
    }
    return first if shards == 1 else {**first, records.SHARDS_KEY: records.encode_count(shards)}


def _require_format(found: Mapping[bytes, bytes], directory: Path) -> None:
    """Raises StoreMismatch for a format that is not read; KeyError, CorruptStorage."""
    version = records.decode_format(found[records.FORMAT_KEY])
    if version not in records.READ_VERSIONS:
        raise StoreMismatch(
            f"the cluster store in {directory} has format {version}, and this program reads "
            f"{records.READ_VERSIONS[0]} to {records.READ_VERSIONS[-1]}: "
            "run the version of Fairlog that wrote it, or a newer one"
        )
