"""Finds out which kind of file this is and which files are beside it, and shows it. Blocking, read-only.

The neighbours of a journal's segment matter: if there is a later segment, this one must be whole, and a nameless one
may contain the witness that this one's tail was on disk.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path

from datalog.lmdb_pages import DamagedPage, LmdbFile, is_lmdb_untrusted
from datalog.snapshot import lmdb_snapshot
from fairlog.cluster import records
from fairlog.groups import persisted_group
from fairlog.inspection.cluster_stores import show_cluster_store
from fairlog.inspection.data_logs import show_data_logs
from fairlog.inspection.lines import Line
from fairlog.inspection.persisted_groups import show_persisted_groups
from fairlog.inspection.segments import Selection, durable_elsewhere, show_segment
from fairlog_types import CorruptStorage, JournalPosition, LogKind
from journal.segment import NEW_SUFFIX, SUFFIX, BadHeader, JournalKind, base_of, decode_segment_header_untrusted
from journal.segment_scan import hear_spares, list_files

_HEAD_BYTES = 64


class NotInspectable(Exception):
    """There is nothing here that could be shown. The message is one sentence."""


def inspect_file(path: Path, selection: Selection) -> Iterator[Line]:
    """Everything in the file, in its order. Raises NotInspectable; StorageFailure and OSError if the disk refuses."""
    if path.is_dir():
        raise NotInspectable(f"{path} is a directory: name a file, a segment ({SUFFIX}) or a data.mdb")
    head = _head(path)
    if path.suffix in (SUFFIX, NEW_SUFFIX) or head.startswith(b"FAIRJNL"):
        yield from _inspect_segment(path, selection)
    elif path.name == "data.mdb" or is_lmdb_untrusted(head):
        yield from _inspect_lmdb(path, selection)
    else:
        raise NotInspectable(f"{path} is neither a journal's segment nor an LMDB file")


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
            elif (store := _small_store(path, file.unread())) is not None:
                yield from _SMALL_STORES[store](file)
            else:
                yield from show_data_logs(file, selection)
    except CorruptStorage as error:
        yield Line("LMDB file", {"bytes": path.stat().st_size}, str(error).removeprefix(f"{path}: "))


_SMALL_STORES: Mapping[str, Callable[[LmdbFile], Iterator[Line]]] = {
    "cluster": show_cluster_store,
    "groups": show_persisted_groups,
}
"""By the directory in which a node has them."""


def _small_store(path: Path, file: LmdbFile) -> str | None:
    """Which of them: by its main tree, which has records and no databases; by its directory if that cannot be read."""
    try:
        for item in file.items(file.meta.main):
            if item.key == records.FORMAT_KEY and item.tree is None:
                return "groups" if persisted_group.is_format(bytes(item.value)) else "cluster"
    except DamagedPage:
        name = path.resolve().parent.name
        return name if name in _SMALL_STORES else None
    return None
