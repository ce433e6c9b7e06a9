"""Which process serves which shard: the file `DATA/allotment`. Blocking.

    {"version": 1, "processes": [0, 1, 0]}      shards 0 and 2 are served by process 0, shard 1 by process 1

Without the file each shard has the process of its own number. Whoever writes it holds the data directory. A new shard
is added to it before there is one in the cluster store: what the file has beyond the shards is not read.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

from fairlog.config import PROCESSES_MAX
from fairlog_types import CorruptStorage, StorageFailure
from journal.failpoints import reach
from journal.segment_file import sync_directory

FILE_NAME = "allotment"
_VERSION = 1


def load(data_dir: Path, shards: int) -> Sequence[int]:
    """The process of each of so many shards. Raises CorruptStorage, StorageFailure."""
    file = data_dir / FILE_NAME
    try:
        document: Any = json.loads(file.read_bytes())
    except FileNotFoundError:
        return range(shards)
    except OSError as error:
        raise StorageFailure(f"cannot read {file}: {error.strerror}") from error
    except ValueError as error:
        raise _corrupt(file) from error
    match document:
        case {"version": 1, "processes": [*processes]} if len(processes) >= shards and _are_processes(processes):
            return cast("list[int]", processes)[:shards]
        case _:
            raise _corrupt(file)


def save(data_dir: Path, processes: Sequence[int]) -> None:
    """Write the process of each shard, durably; after a crash it is this or what it was. Raises StorageFailure."""
    file = data_dir / FILE_NAME
    draft = file.with_name(f"{FILE_NAME}.new")
    try:
        with draft.open("wb") as opened:
            opened.write(json.dumps({"version": _VERSION, "processes": [*processes]}).encode() + b"\n")
            opened.flush()
            os.fsync(opened.fileno())
        reach("shards.allot.before_name")
        draft.replace(file)
        sync_directory(data_dir)
        reach("shards.allot.after_name")
    except OSError as error:
        raise StorageFailure(f"cannot write {file}: {error.strerror}") from error


def _are_processes(processes: Sequence[object]) -> bool:
    return all(type(each) is int and 0 <= each < PROCESSES_MAX for each in processes)


def _corrupt(file: Path) -> CorruptStorage:
    return CorruptStorage(
        f"{file} does not say which process serves which shard: remove it, then each shard is served by the process of "
        "its own number"
    )
