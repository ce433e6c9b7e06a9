"""What a backup says about itself: its manifest, as JSON. Pure. Format: docs/formats/backup-manifest.md.

The manifest is written last. Its name (in `fairlog.data_directory`) shows the state:

    backup.json.new       the backup is not finished; no node may start from it
    backup.json           a whole backup
    restoring.json        a node has begun to make a data directory of it
    restored-from.json    it has done so: this is no longer a backup, but a note of where the data came from
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import cast

from coordinator.group_records import SinkRecord
from coordinator.sinks.sink import check_fence
from datalog.stored import parse_log_untrusted
from fairlog_types import LogId, Offset, Placement

FORMAT = "fairlog-backup"
VERSION = 3
READ_VERSIONS = (1, 2, 3)

_NUMBER_MAX = 2**63 - 1
_PARTITION_MAX = 2**31 - 1


class BadManifest(ValueError):
    """Bytes are not a manifest that this program can read. The message completes "the manifest …"."""


@dataclass(frozen=True, slots=True)
class CopiedFile:
    """A file of the backup."""

    size_bytes: int
    sha256: str
    """64 hex digits."""


@dataclass(frozen=True, slots=True)
class CopiedLog:
    """A data log of the backup."""

    topic: str | None
    """Its name when the backup was made; None for an offsets log, or a topic that was deleted meanwhile."""
    log_start: int
    high_watermark: int
    size_bytes: int
    """Of its batches."""


@dataclass(frozen=True, slots=True)
class Manifest:
    """Everything that a backup says of itself."""

    cluster_id: str
    node_id: int
    made_ms: int
    """Unix time in milliseconds at which the copy was begun: all that was visible then is in it."""
    files: Mapping[str, CopiedFile]
    """By path in the backup, with `/`."""
    logs: Mapping[str, CopiedLog]
    """By `str(LogId)`."""
    sinks: tuple[SinkRecord, ...] | None
    """The fence of each sink that has a batch in the data logs, by name. None: a backup of version 1, which does not
    know what sinks had."""
    users: int = 0
    """How many users are in it, with what is kept of their passwords."""


def encode_manifest(manifest: Manifest) -> bytes:
    """The text of the file."""
    assert manifest.sinks is not None, "a backup that is made knows its sinks"
    document = {
        "format": FORMAT,
        "version": VERSION,
        "cluster_id": manifest.cluster_id,
        "node_id": manifest.node_id,
        "made_ms": manifest.made_ms,
        "files": {
            path: {"bytes": file.size_bytes, "sha256": file.sha256} for path, file in sorted(manifest.files.items())
        },
        "logs": {
            name: {
                "topic": log.topic,
                "log_start": log.log_start,
                "high_watermark": log.high_watermark,
                "bytes": log.size_bytes,
            }
            for name, log in sorted(manifest.logs.items())
        },
        "sinks": {
            fence.sink: {
                "query": fence.query,
                "batch": fence.batch,
                "used_ms": fence.timestamp_ms,
                **({} if fence.planned_ms is None else {"planned_ms": fence.planned_ms}),
                "placements": [
                    {"log": str(place.log), "base_offset": place.base_offset, "records": place.count}
                    for place in fence.placements
                ],
            }
            for fence in sorted(manifest.sinks, key=lambda fence: fence.sink)
        },
        **({"users": manifest.users} if manifest.users else {}),
    }
    return (json.dumps(document, indent=1, ensure_ascii=False) + "\n").encode()


def decode_manifest_untrusted(data: bytes) -> Manifest:
    """Read what `encode_manifest` wrote. Raises BadManifest."""
    try:
        document: object = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise BadManifest(f"is not JSON: {error}") from error
    fields = _fields(document, "it")
    if fields.get("format") != FORMAT:
        raise BadManifest(f"is not of the format {FORMAT}")
    version = fields.get("version")
    if type(version) is not int or version not in READ_VERSIONS:
        raise BadManifest(f"has version {version!r}, but this program reads versions {READ_VERSIONS[0]} to {VERSION}")
    files: dict[str, CopiedFile] = {}
    for path, value in _fields(fields.get("files"), "files").items():
        file = _fields(value, path)
        files[path] = CopiedFile(_number(file, "bytes"), _text(file, "sha256"))
    logs: dict[str, CopiedLog] = {}
    for name, value in _fields(fields.get("logs"), "logs").items():
        log = _fields(value, name)
        topic = None if log.get("topic") is None else _text(log, "topic")
        logs[name] = CopiedLog(topic, _number(log, "log_start"), _number(log, "high_watermark"), _number(log, "bytes"))
    return Manifest(
        cluster_id=_text(fields, "cluster_id"),
        node_id=_number(fields, "node_id"),
        made_ms=_number(fields, "made_ms"),
        files=files,
        logs=logs,
        sinks=None if version == 1 else _sinks(fields),
        users=_number(fields, "users") if "users" in fields else 0,
    )


def _sinks(fields: Mapping[str, object]) -> tuple[SinkRecord, ...]:
    fences: list[SinkRecord] = []
    for name, value in _fields(fields.get("sinks"), "sinks").items():
        sink = _fields(value, name)
        query, batch = _text(sink, "query"), _number(sink, "batch")
        refused = check_fence(name, query, batch)
        if refused is not None:
            raise BadManifest(f"has an impossible sink: {refused.sentence}")
        listed = sink.get("placements")
        if not isinstance(listed, list):
            raise BadManifest(f"should have a list for placements, not {listed!r}")
        placements: list[Placement] = []
        for entry in cast("list[object]", listed):
            place = _fields(entry, "a placement")
            placements.append(Placement(_log(place), Offset(_number(place, "base_offset")), _number(place, "records")))
        planned_ms = _number(sink, "planned_ms") if "planned_ms" in sink else None
        fences.append(SinkRecord(name, query, batch, tuple(placements), _number(sink, "used_ms"), planned_ms))
    return tuple(sorted(fences, key=lambda fence: fence.sink))


def _fields(value: object, name: str) -> dict[str, object]:
    if not isinstance(value, dict):
        raise BadManifest(f"should have an object for {name}")
    return cast("dict[str, object]", value)


def _number(fields: Mapping[str, object], name: str) -> int:
    value = fields.get(name)
    if type(value) is not int or not 0 <= value <= _NUMBER_MAX:
        raise BadManifest(f"should have a number for {name}, not {value!r}")
    return value


def _text(fields: Mapping[str, object], name: str) -> str:
    value = fields.get(name)
    if not isinstance(value, str):
        raise BadManifest(f"should have a text for {name}, not {value!r}")
    return value


def _log(fields: Mapping[str, object]) -> LogId:
    name = _text(fields, "log")
    log = parse_log_untrusted(name.encode(errors="replace"))
    if log is None or log.partition > _PARTITION_MAX:
        raise BadManifest(f"should have the name of a log, not {name!r}")
    return log
