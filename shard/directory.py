"""Where everything of a shard lies in a node's data directory. No other module knows.

    DATA/shards/<number>/
        datalog/                   data logs, in LMDB
        groups/                    members of the consumer groups whose offsets logs are here, in LMDB
        journals/local/<log>/      one for each partition and offsets log
        journals/group/<number>/   the group journals; their numbers are the cluster's, so no two shards have the same

What belongs to the node or the cluster lies in the data directory itself (`fairlog.data_directory`).

Earlier versions had one shard, whose files lay in the data directory itself. Of these only backups are read
(`fairlog.directory` refuses the rest), as shard 0.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from fairlog_types import LogId, ShardNumber

SHARDS = "shards"
FIRST_SHARD = ShardNumber(0)
"""The one that every node has."""

_DATA_LOGS, _GROUPS, _JOURNALS = "datalog", "groups", "journals"
_LMDB_FILE = "data.mdb"

EARLIER_NAMES = frozenset({_DATA_LOGS, _JOURNALS})
"""What earlier versions had in the data directory itself, as soon as there was anything to lose."""


@dataclass(frozen=True, slots=True)
class ShardDirectory:
    """The directory of one shard, which need not exist, in a data directory."""

    data_dir: Path
    number: ShardNumber
    path: Path

    @property
    def name(self) -> str:
        """How messages name the shard."""
        return self.name_of(self.path)

    @property
    def data_logs(self) -> Path:
        """The directory of the LMDB environment."""
        return self.path / _DATA_LOGS

    @property
    def data_logs_file(self) -> Path:
        return self.data_logs / _LMDB_FILE

    @property
    def persisted_groups(self) -> Path:
        """The directory of the LMDB environment."""
        return self.path / _GROUPS

    @property
    def persisted_groups_file(self) -> Path:
        return self.persisted_groups / _LMDB_FILE

    @property
    def journals(self) -> Path:
        """What has both kinds."""
        return self.path / _JOURNALS

    @property
    def local_journals(self) -> Path:
        return self.journals / "local"

    @property
    def group_journals(self) -> Path:
        return self.journals / "group"

    def local_journal(self, log: LogId) -> Path:
        return self.local_journals / str(log)

    def group_journal(self, number: int) -> Path:
        return self.group_journals / str(number)

    def name_of(self, path: Path) -> str:
        """How messages and manifests name something in here: from the data directory on."""
        return path.relative_to(self.data_dir).as_posix()


def shard_directory(data_dir: Path, number: ShardNumber) -> ShardDirectory:
    """Where the shard with that number lies, or would."""
    return ShardDirectory(data_dir, number, data_dir / SHARDS / str(number))


def earlier_directory(data_dir: Path) -> ShardDirectory:
    """Where earlier versions had their one shard."""
    return ShardDirectory(data_dir, FIRST_SHARD, data_dir)


def shard_directories(data_dir: Path) -> Sequence[ShardDirectory]:
    """The shards that the data directory has, by number; none of a directory without. Raises OSError."""
    if (earlier := earlier_directory(data_dir)).data_logs.is_dir():
        return [earlier]
    numbers = sorted(int(name) for name in _names(data_dir) if _is_number(name))
    return [shard_directory(data_dir, ShardNumber(number)) for number in numbers]


def strangers_among_shards(data_dir: Path) -> Sequence[str]:
    """What lies beside the shards and is none, named as by `ShardDirectory.name_of`. Raises OSError."""
    return [f"{SHARDS}/{name}" for name in _names(data_dir) if not _is_number(name)]


def _names(data_dir: Path) -> Sequence[str]:
    try:
        return sorted(os.listdir(data_dir / SHARDS))
    except (FileNotFoundError, NotADirectoryError):
        return []


def _is_number(name: str) -> bool:
    return name.isascii() and name.isdecimal() and name == str(int(name))
