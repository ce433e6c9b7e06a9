"""Readers of a node's small files, and of what tools are given."""

from __future__ import annotations

import struct
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from fairlog.backup.manifest import BadManifest, decode_manifest_untrusted
from fairlog.cluster import records
from fairlog.cluster.content import read_content
from fairlog.groups.persisted_group import decode_group
from fairlog.groups.subscription import subscribed_topics_untrusted
from fairlog.last_run import LastRun
from fairlog_types import CorruptStorage
from tests.fuzz.odd_cbor import with_odd_items
from tests.fuzz.target import Target
from tests.history.history_file import read_history
from tests.history.operations import BadHistory

_GOLDEN = Path(__file__).resolve().parents[1] / "golden"
_SIZES = struct.Struct(">BB")


def _content(data: bytes) -> dict[bytes, bytes]:
    """The records of a small store: for each the lengths of its key and value, the key, the value."""
    content: dict[bytes, bytes] = {}
    at = 0
    while at + _SIZES.size <= len(data):
        key_bytes, value_bytes = _SIZES.unpack_from(data, at)
        at += _SIZES.size
        content[data[at : at + key_bytes]] = data[at + key_bytes : at + key_bytes + value_bytes]
        at += key_bytes + value_bytes
    return content


def read_store(data: bytes) -> None:
    content = _content(data)
    with suppress(CorruptStorage):
        read_content(content)
    for key, value in content.items():
        with suppress(CorruptStorage):
            records.decode_topic(key, value, 3)


def read_persisted_groups(data: bytes) -> None:
    for key, value in _content(data).items():
        with suppress(CorruptStorage):
            decode_group(key, value)


def _stores(*names: str) -> Iterator[bytes]:
    for name in names:
        lines = (_GOLDEN / name).read_text().splitlines()
        items = [(key, value) for key, value in (map(bytes.fromhex, line.split()) for line in lines)]
        yield _store(items)
        for index, (key, value) in enumerate(items):
            for odd in with_odd_items(value):
                if len(odd) < 256:
                    yield _store([*items[:index], (key, odd), *items[index + 1 :]])


def _store(items: list[tuple[bytes, bytes]]) -> bytes:
    return b"".join(_SIZES.pack(len(key), len(value)) + key + value for key, value in items)


def read_last_run(data: bytes) -> None:
    with tempfile.TemporaryDirectory() as name:
        (Path(name) / "last-run").write_bytes(data)
        LastRun.read(Path(name))


def read_manifest(data: bytes) -> None:
    with suppress(BadManifest):
        decode_manifest_untrusted(data)


def read_history_lines(data: bytes) -> None:
    with suppress(BadHistory):
        read_history(data.decode("utf-8", "replace").splitlines())


def read_subscription(data: bytes) -> None:
    subscribed_topics_untrusted(data)


TARGETS = (
    Target(
        "cluster-store",
        "records of the cluster store",
        read_store,
        lambda: _stores("cluster-store-1.txt", "cluster-store-2.txt", "cluster-store-3.txt"),
    ),
    Target(
        "group-members",
        "records of groups",
        read_persisted_groups,
        lambda: _stores("group-membership-3.txt"),
    ),
    Target(
        "last-run",
        "the note of how the last run ended",
        read_last_run,
        lambda: [b"0f0e8a4c-2f7c-4c38-9d6e-7d8a1b2c3d4e closed\n", b"unknown open\n"],
    ),
    Target(
        "backup-manifest",
        "a backup's manifest",
        read_manifest,
        lambda: [(_GOLDEN / f"backup-manifest-{version}.json").read_bytes() for version in (1, 2)],
    ),
    Target(
        "history", "a history of the checker", read_history_lines, lambda: [(_GOLDEN / "history-1.jsonl").read_bytes()]
    ),
    Target(
        "subscription",
        "a group member's metadata",
        read_subscription,
        lambda: [struct.pack(">hih", 3, 2, 1) + b"t" + struct.pack(">h", 6) + b"orders" + bytes(8)],
    ),
)
