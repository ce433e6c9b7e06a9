"""The store of what is kept of groups: a small LMDB environment of its own, fully synced. Blocking.

How it works. `open` reads everything and notes the start, in one transaction; `write` puts what has changed, in one
transaction, and returns when it is on disk. LMDB's commit is atomic: a crash leaves the old state or the new one.

What was written in a run that is not the last one before this start is not given back, but removed: another program,
which does not know the store, has coordinated the groups meanwhile, or the node's directory was restored.

The first failed write closes the store until a restart: what a failed commit or fsync left on disk is not known
(invariant 12). Only a full map is told before anything is written, and passes.

Format: docs/formats/group-membership.md. Why it is here: docs/decisions/0040-membership-outlives-a-restart.md.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import lmdb

from datalog.lmdb_file import check_length
from datalog.new_file import make_file
from fairlog.cluster.embedded import StoreMismatch
from fairlog.groups import persisted_group
from fairlog.groups.persisted_group import PersistedGroup
from fairlog_types import CorruptStorage, LeaderEpoch, StorageFailure
from journal.failpoints import reach

_MAP_BYTES = 2 << 30
"""Address space, not disk. Groups take 256 MiB at most (`service.MEMBERSHIP_BYTES_MAX`); a commit that changes all of
them needs as much again, and LMDB keeps what the commit before it has freed."""


class PersistedGroupStore:
    """What is kept of all groups of a node. Make one with `open`."""

    def __init__(self, environment: lmdb.Environment, directory: Path) -> None:
        self._environment = environment
        self._directory = directory
        self._failed: StorageFailure | None = None

    @classmethod
    def open(cls, directory: Path, start: LeaderEpoch) -> tuple[PersistedGroupStore, Mapping[str, PersistedGroup]]:
        """Open the store in `directory`, making both if need be; answers what is kept, by group id.

        `start` is the leader epoch of this start, which is noted, durably. Raises StoreMismatch if a newer program has
        written the store, CorruptStorage if its content is not what was written, StorageFailure if the disk refuses.
        """
        path = directory / "data.mdb"
        try:
            make_file(directory, _open_environment)
            check_length(path)
            environment = _open_environment(directory)
        except (lmdb.CorruptedError, lmdb.InvalidError, lmdb.VersionMismatchError) as error:
            raise _corrupt(path, f"is not readable from byte 0: {error}") from error
        except (lmdb.Error, OSError) as error:
            raise StorageFailure(f"cannot open the groups' members in {directory}: {error}") from error
        try:
            with environment.begin(write=True) as transaction:
                groups = _start(transaction, directory, start)
        except (lmdb.CorruptedError, lmdb.PageNotFoundError) as error:
            environment.close()
            raise _corrupt(path, f"is damaged: {error}") from error
        except lmdb.Error as error:
            environment.close()
            raise StorageFailure(f"cannot write the groups' members in {directory}: {error}") from error
        except BaseException:
            environment.close()
            raise
        return cls(environment, directory), groups

    def write(self, changes: Mapping[str, PersistedGroup | None]) -> None:
        """Keep these groups from now on, by id; of those that are None nothing. On disk when this returns.

        One thread at a time. Raises StorageFailure, and after the first that leaves it open what is on disk, always.
        """
        if self._failed is not None:
            raise StorageFailure(str(self._failed)) from self._failed
        try:
            with self._environment.begin(write=True) as transaction:
                for group_id, group in changes.items():
                    key = persisted_group.group_key(group_id)
                    if group is None:
                        transaction.delete(key)
                    else:
                        transaction.put(key, persisted_group.encode_group(group_id, group))
                reach("groups.keep.before_commit")
            reach("groups.keep.after_commit")
        except lmdb.MapFullError as error:
            raise StorageFailure(
                f"the groups' members in {self._directory} take more than {_MAP_BYTES} bytes; the change was refused"
            ) from error
        except (lmdb.Error, OSError) as error:
            self._failed = StorageFailure(
                f"cannot write the groups' members in {self._directory}: {error}; the change was refused, and so are "
                "all later ones. See to the disk, then restart the node"
            )
            raise self._failed from error

    def close(self) -> None:
        """Close the environment. All that `write` has returned from is durable already."""
        self._environment.close()


def _open_environment(directory: Path) -> lmdb.Environment:
    return lmdb.open(str(directory), map_size=_MAP_BYTES, max_dbs=0, max_readers=16)


def _start(transaction: lmdb.Transaction, directory: Path, start: LeaderEpoch) -> dict[str, PersistedGroup]:
    """Note the start, and answer what is kept from the one before it."""
    content = {bytes(key): bytes(value) for key, value in transaction.cursor()}
    groups: dict[str, PersistedGroup] = {}
    if content:
        last = _last_start(content, directory)
        for key, value in content.items():
            if not key.startswith(persisted_group.GROUP_PREFIX):
                continue
            if last != start - 1:
                transaction.delete(key)
                continue
            try:
                group_id, group = persisted_group.decode_group(key, value)
            except CorruptStorage as error:
                raise _corrupt(directory / "data.mdb", f"is corrupt: {error}") from error
            groups[group_id] = group
    transaction.put(persisted_group.FORMAT_KEY, persisted_group.encode_format())
    transaction.put(persisted_group.START_KEY, persisted_group.encode_start(start))
    return groups


def _last_start(content: Mapping[bytes, bytes], directory: Path) -> int:
    try:
        version = persisted_group.decode_format(content[persisted_group.FORMAT_KEY])
        if version not in persisted_group.VERSIONS_READ:
            raise StoreMismatch(
                f"the groups' members in {directory} have format {version}, and this program reads "
                f"{persisted_group.VERSION}: run the version of Fairlog that wrote it, or a newer one"
            )
        return persisted_group.decode_start(content[persisted_group.START_KEY])
    except KeyError as error:
        raise _corrupt(directory / "data.mdb", f"lacks the record {error}") from error
    except CorruptStorage as error:
        raise _corrupt(directory / "data.mdb", f"is corrupt: {error}") from error


def _corrupt(path: Path, what: str) -> CorruptStorage:
    return CorruptStorage(
        f"the store of the groups' members {path} {what}. Put it back, or remove {path.parent}: then all members join "
        "anew"
    )
