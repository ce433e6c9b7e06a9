"""Where everything of a shard lies in a node's data directory. No other module knows.

    DATA/shards/<number>/
        datalog/                   data logs, in LMDB
        journals/local/<log>/      one for each partition and offsets log
        journals/group/<number>/   the group journals; their numbers are the cluster's, so no two shards have the same
        stream-mark                with journals on a replicated log: how far they are here (`shard.stream_mark`)
    DATA/copies/                   what is there while a copy of a shard is given or made; removed at the next start

What belongs to the node or the cluster lies in the data directory itself (`fairlog.data_directory`).

Earlier versions had one shard, whose files lay in the data directory itself. Of these only backups are read
(`fairlog.directory` refuses the rest), as shard 0.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from fairlog_types import LogId, ShardNumber

SHARDS = "shards"
FIRST_SHARD = ShardNumber(0)
"""The one that every node has."""

COPIES = "copies"

_DATA_LOGS, _JOURNALS = "datalog", "journals"
_EARLIER_GROUPS = "groups"
_LMDB_FILE = "data.mdb"
_MARK = "stream-mark"
_COPIED = re.compile(
    rf"{_MARK}|{_DATA_LOGS}/{re.escape(_LMDB_FILE)}|{_JOURNALS}/(local/[a-z0-9-]{{1,100}}|group/[0-9]{{1,9}})/[0-9]{{20}}\.journal"
)

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
    def earlier_groups(self) -> Path:
        """Where an earlier version kept who is in which consumer group; a start removes it."""
        return self.path / _EARLIER_GROUPS

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

    @property
    def stream_mark(self) -> Path:
        return self.path / _MARK

    def local_journal(self, log: LogId) -> Path:
        return self.local_journals / str(log)

    def group_journal(self, number: int) -> Path:
        return self.group_journals / str(number)

    def name_of(self, path: Path) -> str:
        """How messages and manifests name something in here: from the data directory on."""
        return path.relative_to(self.data_dir).as_posix()

    def name_in(self, path: Path) -> str:
        """What something in here is called in a copy of it."""
        return path.relative_to(self.path).as_posix()


def shard_directory(data_dir: Path, number: ShardNumber) -> ShardDirectory:
    """Where the shard with that number lies, or would."""
    return ShardDirectory(data_dir, number, data_dir / SHARDS / str(number))


def draft_of_copy(data_dir: Path, number: ShardNumber) -> ShardDirectory:
    """Where a copy of that shard is made."""
    return ShardDirectory(data_dir, number, data_dir / COPIES / f"{number}.joining")


def replaced_by_copy(data_dir: Path, number: ShardNumber) -> Path:
    """Where the shard's directory goes that a copy replaces."""
    return data_dir / COPIES / f"{number}.replaced"


def links_for_copy(data_dir: Path, number: ShardNumber, name: str) -> Path:
    """Where the files of a copy that is being given stay until they are sent; `name` is one of this copy's own."""
    return data_dir / COPIES / f"{number}.giving-{name}"


def belongs_to_copy(name: str) -> bool:
    """Whether a copy of a shard has files of this name, which is relative to the shard's directory."""
    return _COPIED.fullmatch(name) is not None


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
