"""Backups as earlier versions made them."""

from __future__ import annotations

import json
from pathlib import Path

from fairlog.data_directory import MANIFEST
from shard.directory import earlier_directory
from tests.shards import shard_in


def as_of_version(backup: Path, version: int) -> None:
    """Put a backup's files and what its manifest says of them to where version 1 or 2 had them."""
    shard, earlier = shard_in(backup), earlier_directory(backup)
    shard.data_logs.rename(earlier.data_logs)
    shard.path.rmdir()
    shard.path.parent.rmdir()
    document = json.loads((backup / MANIFEST).read_text())
    files = document["files"]
    files[earlier.name_of(earlier.data_logs_file)] = files.pop(shard.name_of(shard.data_logs_file))
    if version == 1:
        del document["sinks"]
    (backup / MANIFEST).write_text(json.dumps({**document, "version": version}))
