"""A file system in memory that keeps what is durable and what is not apart, and what a crash leaves of it.

Every file has its *cached* bytes, which all reads see, and its *durable* bytes. A write changes the cache and is noted
as a piece of the page that it falls into. A sync that began when the piece was there makes it durable when it returns.
Entries of directories (create, rename, unlink) are kept apart in the same way: the sync of a directory makes them
durable, the sync of a file does not.

Fault model: what `power_cut` may leave of that which was not synced. A page is written back whole, with all that the
cache had in it at some moment since the last sync; so each page, or each of its 512-byte sectors, has the content that
it had after any one of the pieces written to it. Besides, one crash in some:

    lost      nothing that was not synced is there
    kept      all of it is
    ordered   all up to one write, of which a part is there, torn at any byte
    sectors   each sector of each page for itself
    pages     each page for itself
    torn      as `pages`, but one page is torn at any byte between two of its versions

A file's size is what it was after any of its writes since the sync (with zeros where nothing was written). Of the
entries, each that was not synced is there or not; what a rename moves, moves as one.

A sync that fails strands its pages, as Linux does: they stay in the cache, count as clean, and no later sync writes
them, unless the page is written to again. A power cut may find them written or not.

A directory that is renamed takes along what is in it. Of its own entries those that were not synced before are lost
if the rename is not: nobody syncs them under their new name.

Not modelled: a disk that says "written" and lies; damage to what was synced; permissions.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import count
from pathlib import PurePosixPath
from random import Random

PAGE_BYTES = 4096
SECTOR_BYTES = 512
KINDS_OF_LOSS = ("lost", "kept", "ordered", "sectors", "sectors", "pages", "torn")


@dataclass(slots=True)
class Piece:
    """What one write has changed in one page."""

    number: int
    start: int
    data: bytes
    stranded: bool = False


@dataclass(slots=True)
class File:
    """One file, under whatever name."""

    cached: bytearray = field(default_factory=bytearray)
    durable: bytearray = field(default_factory=bytearray)
    pieces: dict[int, list[Piece]] = field(default_factory=dict)
    """By page; not durable."""
    sizes: list[tuple[int, int]] = field(default_factory=list)
    """(number of the write, the size after it), of those that changed it and are not durable."""


class Directory:
    """It has no content but its entries, which `Disk` keeps."""


@dataclass(frozen=True, slots=True)
class Change:
    """One change of a directory's entries: `gone` is taken out, `made` is put in (either may be None)."""

    number: int
    parent: str
    within: File | Directory | None
    """The directory that was `parent` then."""
    gone: str | None
    made: str | None
    node: File | Directory | None

    @property
    def moves_directory(self) -> bool:
        return isinstance(self.node, Directory) and self.gone is not None and self.made is not None


class Disk:
    """Files by their paths. Raises what the operating system would, without its own faults (`system_calls`)."""

    def __init__(self) -> None:
        self.nodes: dict[str, File | Directory] = {}
        self._durable_nodes: dict[str, File | Directory] = {}
        self._root = ""
        self._changes: list[Change] = []
        self._numbers = count(1)

    def make_root(self, path: str) -> None:
        """The directory that was always there; all others are below it."""
        self._root = path
        self.make_durable(path, Directory())

    def make_durable(self, path: str, node: File | Directory) -> None:
        """What was there before."""
        self.nodes[path] = self._durable_nodes[path] = node

    # --- names ---

    def file(self, path: str) -> File:
        node = self.nodes.get(path)
        if node is None:
            raise FileNotFoundError(2, "no such file", path)
        if isinstance(node, Directory):
            raise IsADirectoryError(21, "is a directory", path)
        return node

    def durable_bytes(self, path: str) -> bytes | None:
        """What a power cut leaves of a file for sure; None if it may take the file."""
        node = self._durable_nodes.get(path)
        return bytes(node.durable) if isinstance(node, File) else None

    def children(self, path: str) -> list[str]:
        if not isinstance(self.nodes.get(path), Directory):
            raise FileNotFoundError(2, "no such directory", path)
        prefix = path + "/"
        return sorted(name[len(prefix) :] for name in self.nodes if _parent(name) == path)

    def create(self, path: str, node: File | Directory) -> None:
        if not isinstance(self.nodes.get(_parent(path)), Directory):
            raise FileNotFoundError(2, "no such directory", path)
        if path in self.nodes:
            raise FileExistsError(17, "exists", path)
        self._change(None, path, node)

    def unlink(self, path: str) -> None:
        self.file(path)
        self._change(path, None, None)

    def remove_directory(self, path: str) -> None:
        assert not self.children(path), f"{path} is not empty"
        self._change(path, None, None)

    def rename(self, source: str, target: str) -> None:
        """A file, or a directory with all that is in it, if nothing is in its way."""
        if isinstance(self.nodes.get(source), Directory):
            if isinstance(self.nodes.get(target), Directory):
                raise OSError(39, "is not empty", target)
            self._change(source, target, self.nodes[source])
        else:
            self._change(source, target, self.file(source))

    def link(self, source: str, target: str) -> None:
        self.create(target, self.file(source))

    def _change(self, gone: str | None, made: str | None, node: File | Directory | None) -> None:
        parent = _parent(made or gone or "")
        change = Change(next(self._numbers), parent, self.nodes.get(parent), gone, made, node)
        self._changes.append(change)
        _apply(change, self.nodes)

    def unsettled_names(self) -> list[str]:
        """Those that a power cut may bring back or take away."""
        return sorted({name for change in self._changes for name in (change.gone, change.made) if name is not None})

    # --- bytes ---

    def write(self, file: File, offset: int, data: bytes) -> None:
        number = next(self._numbers)
        end = offset + len(data)
        if end > len(file.cached):
            file.cached.extend(bytes(end - len(file.cached)))
            file.sizes.append((number, end))
        file.cached[offset:end] = data
        done = 0
        while done < len(data):
            page, start = divmod(offset + done, PAGE_BYTES)
            part = data[done : done + PAGE_BYTES - start]
            file.pieces.setdefault(page, []).append(Piece(number, start, part))
            done += len(part)

    def write_through(self, file: File, offset: int, data: bytes) -> None:
        """A write that is durable when it returns (O_DSYNC), and with it all that its pages hold."""
        self.write(file, offset, data)
        for page in range(offset // PAGE_BYTES, (offset + len(data) - 1) // PAGE_BYTES + 1):
            for piece in file.pieces.pop(page):
                _put(file.durable, page * PAGE_BYTES + piece.start, piece.data)

    def truncate(self, file: File, size: int) -> None:
        del file.cached[size:]
        file.cached.extend(bytes(size - len(file.cached)))
        file.sizes.append((next(self._numbers), size))

    # --- syncs ---

    def begin_sync(self) -> int:
        """What was written before this moment is what a sync that begins now covers."""
        return next(self._numbers)

    def end_sync(self, file: File, begun: int) -> None:
        for page, pieces in list(file.pieces.items()):
            covered = sum(piece.number < begun for piece in pieces)
            if any(not piece.stranded for piece in pieces[:covered]):
                for piece in pieces[:covered]:
                    _put(file.durable, page * PAGE_BYTES + piece.start, piece.data)
                del pieces[:covered]
                if not pieces:
                    del file.pieces[page]
        sizes = [size for number, size in file.sizes if number < begun]
        if sizes:
            _resize(file.durable, sizes[-1])
            file.sizes = [entry for entry in file.sizes if entry[0] > begun]

    def fail_sync(self, file: File, begun: int) -> None:
        for pieces in file.pieces.values():
            for piece in pieces:
                piece.stranded = piece.stranded or piece.number < begun

    def sync_directory(self, path: str, begun: int) -> None:
        """If a directory was moved here or away, with all changes before that: a file system keeps their order."""
        moved = any(
            change.number < begun and path in (change.parent, _parent(change.gone or ""))
            for change in self._changes
            if change.moves_directory
        )
        kept: list[Change] = []
        for change in self._changes:
            is_here = change.parent == path and change.within is self.nodes.get(path)
            if change.number < begun and (moved or is_here):
                _apply(change, self._durable_nodes)
            else:
                kept.append(change)
        self._changes = kept

    # --- crashes ---

    def power_cut(self, rng: Random) -> tuple[Disk, str]:
        """The disk as the next start finds it, and a word on what it lost."""
        kind = rng.choice(KINDS_OF_LOSS)
        # Of the writes that are not durable: all up to this one are there, if the loss is in order.
        numbers = sorted(self._open_numbers())
        last = rng.choice(numbers) if numbers else 0
        image = Disk()
        image._root = self._root
        image.nodes = dict(self._durable_nodes)
        for change in self._changes:
            if kind == "kept" or (kind == "ordered" and change.number <= last) or _coin(kind, rng):
                _apply(change, image.nodes)
        for path in sorted(image.nodes, key=len):
            if path != self._root and _parent(path) not in image.nodes:
                del image.nodes[path]  # its directory is gone
        lost, files = 0, dict[int, File]()
        for path, node in sorted(image.nodes.items()):
            if isinstance(node, File):
                if id(node) not in files:
                    content = _content_after(node, kind, last, rng)
                    lost += content != node.cached
                    files[id(node)] = File(bytearray(content), bytearray(content))
                image.nodes[path] = files[id(node)]
        image._durable_nodes = dict(image.nodes)
        return image, f"{kind}, {lost} files changed by it"

    def _open_numbers(self) -> Iterator[int]:
        for node in {id(node): node for node in self.nodes.values()}.values():
            if isinstance(node, File):
                yield from (piece.number for pieces in node.pieces.values() for piece in pieces)
        yield from (change.number for change in self._changes)


def _content_after(file: File, kind: str, last: int, rng: Random) -> bytearray:
    content = bytearray(file.durable)
    torn_page = rng.choice(sorted(file.pieces)) if kind == "torn" and file.pieces else -1
    for page, pieces in sorted(file.pieces.items()):
        start = page * PAGE_BYTES
        old = bytearray(file.durable[start : start + PAGE_BYTES])
        old.extend(bytes(PAGE_BYTES - len(old)))
        versions = [bytes(old)]
        for piece in pieces:
            _put(old, piece.start, piece.data)
            versions.append(bytes(old))
        _put(content, start, _chosen(kind, versions, pieces, last, rng, torn=page == torn_page))
    sizes = [len(file.durable), *(size for _, size in file.sizes)]
    if kind == "kept":
        size = sizes[-1]
    elif kind == "lost":
        size = sizes[0]
    elif kind == "ordered":
        size = [sizes[0], *(size for number, size in file.sizes if number <= last)][-1]
    else:
        size = rng.choice(sizes)
        if rng.random() < 0.2:
            size = rng.randint(min(sizes), max(sizes))
    _resize(content, size)
    return content


def _chosen(kind: str, versions: list[bytes], pieces: list[Piece], last: int, rng: Random, *, torn: bool) -> bytes:
    if kind == "lost":
        return versions[0]
    if kind == "kept":
        return versions[-1]
    if kind == "ordered":
        kept = sum(piece.number <= last for piece in pieces)
        if kept and pieces[kept - 1].number == last:
            at = pieces[kept - 1].start + rng.randint(0, len(pieces[kept - 1].data))
            return versions[kept][:at] + versions[kept - 1][at:]
        return versions[kept]
    if kind == "sectors":
        parts = range(0, PAGE_BYTES, SECTOR_BYTES)
        return b"".join(rng.choice(versions)[start : start + SECTOR_BYTES] for start in parts)
    if torn:
        at = rng.randint(0, PAGE_BYTES)
        return rng.choice(versions)[:at] + rng.choice(versions)[at:]
    return rng.choice(versions)


def _coin(kind: str, rng: Random) -> bool:
    return kind not in ("lost", "ordered") and rng.random() < 0.5


def _apply(change: Change, nodes: dict[str, File | Directory]) -> None:
    if nodes.get(change.parent, change.within) is not change.within:
        return  # another directory has that name here
    if change.moves_directory and (nodes.get(change.gone or "") is not change.node or change.made in nodes):
        return  # it is not there, or another one is in its way
    inside: list[str] = []
    if change.gone is not None:
        inside = [path for path in nodes if path.startswith(change.gone + "/")]
        nodes.pop(change.gone, None)
        if change.made is None:
            for path in inside:  # it was empty by then
                del nodes[path]
    if change.made is not None:
        assert change.node is not None
        nodes[change.made] = change.node
    if change.moves_directory:
        gone, made = change.gone or "", change.made or ""
        for path in inside:
            nodes[made + path[len(gone) :]] = nodes.pop(path)


def _put(target: bytearray, offset: int, data: bytes) -> None:
    if offset + len(data) > len(target):
        target.extend(bytes(offset + len(data) - len(target)))
    target[offset : offset + len(data)] = data


def _resize(target: bytearray, size: int) -> None:
    del target[size:]
    target.extend(bytes(size - len(target)))


def _parent(path: str) -> str:
    return str(PurePosixPath(path).parent)
