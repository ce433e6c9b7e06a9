"""Finds out which kind of file this is and which files are beside it, and shows it. Blocking, read-only.

The neighbours of a journal's segment matter: if there is a later segment, this one must be whole, and a nameless one
may contain the witness that this one's tail was on disk.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from datalog.lmdb_pages import DamagedPage, LmdbFile, is_lmdb_untrusted
from datalog.snapshot import lmdb_snapshot
from fairlog.cluster import records
from fairlog.cluster.metadata_content import COPY_KEY
from fairlog.data_directory import CLUSTER, METADATA
from fairlog.inspection.cluster_stores import show_cluster_store
from fairlog.inspection.data_logs import show_data_logs
from fairlog.inspection.lines import Line
from fairlog.inspection.metadata_copies import show_metadata_copy
from fairlog.inspection.segments import Selection, durable_elsewhere, show_segment
from fairlog.inspection.stream_marks import show_stream_mark
from fairlog_types import CorruptStorage, JournalPosition, LogKind
from journal.segment import NEW_SUFFIX, SUFFIX, BadHeader, JournalKind, base_of, decode_segment_header_untrusted
from journal.segment_scan import hear_spares, list_files
from shard.stream_mark import MAGIC as MARK

_HEAD_BYTES = 64


class NotInspectable(Exception):
    """There is nothing here that could be shown. The message is one sentence."""


def inspect_file(path: Path, selection: Selection) -> Iterator[Line]:
    """Everything in the file, in its order. Raises NotInspectable; StorageFailure and OSError if the disk refuses."""
    if path.is_dir():
        raise NotInspectable(f"{path} is a directory: name a file, a segment ({SUFFIX}), a data.mdb or a stream-mark")
    head = _head(path)
    if path.suffix in (SUFFIX, NEW_SUFFIX) or head.startswith(b"FAIRJNL"):
        yield from _inspect_segment(path, selection)
    elif path.name == "data.mdb" or is_lmdb_untrusted(head):
        yield from _inspect_lmdb(path, selection)
    elif head.startswith(MARK):
        yield show_stream_mark(path.read_bytes())
    else:
        raise NotInspectable(f"{path} is neither a journal's segment nor an LMDB file, nor the mark of a stream")


def _head(path: Path) -> bytes:
    with path.open("rb") as file:
        return file.read(_HEAD_BYTES)


def _inspect_segment(path: Path, selection: Selection) -> Iterator[Line]:
    files = list_files(path.parent)
    base = base_of(path.name)
    sealed = base is not None and any(other > base for other in files.bases)
    witness = JournalPosition(0)
    if base is not None and not sealed:
        with suppress(FileNotFoundError):  # a running node has just given it its name
            witness = max(hear_spares(files.spares, kind).through for kind in JournalKind)
    offsets_log = path.resolve().parent.name.startswith(f"{LogKind.OFFSETS.value}-")
    # Read at once: a node may write into the zeros meanwhile, and that shows as a torn tail at most.
    content = path.read_bytes()
    if decode_segment_header_untrusted(content) is BadHeader.EARLIER:
        raise NotInspectable(f"{path}: {BadHeader.EARLIER.value}")
    for line in show_segment(content, sealed=sealed, offsets_log=offsets_log, selection=selection):
        yield durable_elsewhere(line, witness)


def _inspect_lmdb(path: Path, selection: Selection) -> Iterator[Line]:
    try:
        with lmdb_snapshot(path) as file:
            if file is None:
                yield Line("an empty file: a crash in its making, or nothing was ever in it")
            elif _has_record(path, file.unread(), COPY_KEY, METADATA):
                yield from show_metadata_copy(file)
            elif _has_record(path, file.unread(), records.FORMAT_KEY, CLUSTER):
                yield from show_cluster_store(file)
            else:
                yield from show_data_logs(file, selection)
    except CorruptStorage as error:
        yield Line("LMDB file", {"bytes": path.stat().st_size}, str(error).removeprefix(f"{path}: "))


def _has_record(path: Path, file: LmdbFile, key: bytes, directory: str) -> bool:
    """By its main tree, which has records and no databases; by its directory if that cannot be read."""
    try:
        return any(item.key == key and item.tree is None for item in file.items(file.meta.main))
    except DamagedPage:
        return path.resolve().parent.name == directory
