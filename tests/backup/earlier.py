"""Backups as earlier versions made them: where their files are, and the cluster store's format."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import lmdb

from fairlog import cbor_records
from fairlog.cluster import records
from fairlog.data_directory import CLUSTER, CLUSTER_STORE, MANIFEST
from shard.directory import earlier_directory
from tests.shards import shard_in


def as_of_version(backup: Path, version: int) -> None:
    """Make a backup one whose manifest is of version 1 or 2."""
    shard, earlier = shard_in(backup), earlier_directory(backup)
    shard.data_logs.rename(earlier.data_logs)
    shard.path.rmdir()
    shard.path.parent.rmdir()
    with lmdb.open(str(backup / CLUSTER)) as environment, environment.begin(write=True) as transaction:
        transaction.put(records.FORMAT_KEY, cbor_records.encode_format(records.MAGIC, 2))
    (backup / CLUSTER / "lock.mdb").unlink()
    document = json.loads((backup / MANIFEST).read_text())
    files = document["files"]
    files[earlier.name_of(earlier.data_logs_file)] = files.pop(shard.name_of(shard.data_logs_file))
    store = (backup / CLUSTER_STORE).read_bytes()
    files[CLUSTER_STORE] = {"bytes": len(store), "sha256": hashlib.sha256(store).hexdigest()}
    if version == 1:
        del document["sinks"]
    (backup / MANIFEST).write_text(json.dumps({**document, "version": version}))
