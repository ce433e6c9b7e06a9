"""The recorder misses nothing, and what is rebuilt from a recording is what a power cut could have left."""

from __future__ import annotations

import os
import random
import subprocess
import sys
from pathlib import Path

import pytest

from scripts import c_compiler
from tests.crash.rebuilding import Rebuilding
from tests.crash.recording import Kind, environment, read_trace

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(c_compiler.find() is None, reason=c_compiler.MISSING),
]

BEGIN = "import os, lmdb, mmap; from pathlib import Path; data = Path({data!r}); data.mkdir()\n"


class Recorded:
    """A program that was run under the recorder; `{data}` is where it works."""

    def __init__(self, directory: Path, program: str, *, status: int = 0) -> None:
        self.data, self.trace = directory.resolve() / "under" / "data", directory / "trace"
        self.data.parent.mkdir()
        done = subprocess.run(
            [sys.executable, "-c", BEGIN.format(data=str(self.data)) + program],
            env={**os.environ, **environment(self.data, self.trace)},
            stderr=subprocess.PIPE,
            text=True,
            check=False,
        )
        self.errors = done.stderr
        assert done.returncode == status, done.stderr

    def rebuilt(self, end: int = 1 << 60) -> Rebuilding:
        rebuilding = Rebuilding(self.data, self.trace)
        rebuilding.go_to(end)
        return rebuilding

    def images(self, target: Path, count: int = 40) -> list[dict[str, bytes]]:
        """What may be there when the program has ended: each file's content, by its path."""
        found: list[dict[str, bytes]] = []
        for seed in range(count):
            place = target / str(seed)
            self.rebuilt().write_image(place, random.Random(seed))
            found.append({str(it.relative_to(place)): it.read_bytes() for it in place.rglob("*") if it.is_file()})
        return found


def test_recording_has_all_that_is_done_to_files(tmp_path: Path) -> None:
    """Every way in which the node, and LMDB below it, changes a file; in the end rebuilt and true files agree."""
    recorded = Recorded(
        tmp_path,
        """
fd = os.open(data / "a", os.O_RDWR | os.O_CREAT)
os.pwrite(fd, b"one", 5000)
os.pwritev(fd, [b"two", b"", b"three"], 100)
os.write(fd, b"four")
os.writev(fd, [b"five", b"six"])
os.posix_fallocate(fd, 0, 9000)
os.ftruncate(fd, 8000)
os.fdatasync(fd)
with open(data / "b", "w") as file:
    file.write("seven")
with open(data / "b", "a") as file:
    file.write("eight")
(data / "b").rename(data / "c")
with open(data / "c", "r+") as file:
    file.truncate(6)
(data / "d").write_text("nine")
(data / "d").write_text("ten")
(data / "d").unlink()
(data / "e").mkdir()
with os.fdopen(os.open("e/f", os.O_WRONLY | os.O_CREAT, dir_fd=os.open(data, os.O_RDONLY)), "w") as file:
    file.write("eleven")
env = lmdb.open(str(data / "e"), metasync=False)
for number in range(200):
    with env.begin(write=True) as txn:
        txn.put(b"%d" % number, bytes(number * 50))
        txn.delete(b"%d" % (number - 50))
""",
    )
    assert list(recorded.rebuilt().differences()) == []
    kinds = {event.kind for event in read_trace(recorded.trace)}
    assert kinds == set(Kind) - {Kind.REMOVED_DIRECTORY}


@pytest.mark.parametrize(
    ("what", "program"),
    [
        ("a mapping that may be written to", "lmdb.open(str(data), writemap=True)"),
        ("sendfile", 'os.sendfile(os.open(data / "a", os.O_RDWR | os.O_CREAT), os.open("/etc/passwd", 0), 0, 10)'),
        ("a link", '(data / "a").touch(); os.link(data / "a", data / "b")'),
        ("moved into the directory", 'x = data.parent.parent / "x"; x.touch(); x.rename(data / "x")'),
    ],
)
def test_recording_of_what_it_does_not_understand_ends_the_program(tmp_path: Path, what: str, program: str) -> None:
    """A trace with a hole in it would prove nothing."""
    recorded = Recorded(tmp_path, program, status=-6)
    assert what in recorded.errors


def test_image_keeps_what_was_synced_and_may_lose_the_rest(tmp_path: Path) -> None:
    """Of a file and its name that were synced all is there, always; of others, sometimes."""
    recorded = Recorded(
        tmp_path,
        """
for directory in (data.parent, data):
    os.fsync(os.open(directory, os.O_RDONLY))
fd = os.open(data / "a", os.O_RDWR | os.O_CREAT)
os.write(fd, b"kept" * 100)
os.fsync(fd)
os.fsync(os.open(data, os.O_RDONLY))
os.write(fd, b"lost" * 1000)
os.open(data / "b", os.O_RDWR | os.O_CREAT)
""",
    )
    images = recorded.images(tmp_path / "images")
    assert all(image["a"][:400] == b"kept" * 100 for image in images)
    assert {image["a"] == b"kept" * 100 for image in images} == {True, False}
    assert any(image["a"] == b"kept" * 100 + b"lost" * 1000 for image in images)
    assert {"b" in image for image in images} == {True, False}


def test_image_of_a_write_through_has_it(tmp_path: Path) -> None:
    """O_DSYNC, with which LMDB writes its meta page: durable when it returns, where another one's fsync may be due."""
    recorded = Recorded(
        tmp_path,
        """
for directory in (data.parent, data):
    os.fsync(os.open(directory, os.O_RDONLY))
fd = os.open(data / "a", os.O_RDWR | os.O_CREAT)
os.fsync(os.open(data, os.O_RDONLY))
os.pwrite(fd, b"loose", 8192)
os.pwrite(os.open(data / "a", os.O_WRONLY | os.O_DSYNC), b"through", 0)
""",
    )
    images = recorded.images(tmp_path / "images")
    assert all(image["a"][:7] == b"through" for image in images)
    assert {image["a"][8192:] == b"loose" for image in images} == {True, False}


def test_image_of_lmdb_without_its_syncs_is_damaged(tmp_path: Path) -> None:
    """Proof that LMDB's pages are lost as well: with sync=False what comes of it cannot be read."""
    program = """
env = lmdb.open(str(data), sync={sync}, metasync=False)
for number in range(30):
    with env.begin(write=True) as txn:
        for key in range(number, 300, 7):
            txn.put(b"%03d" % key, b"%d" % number * 100)
"""
    reading = "import lmdb, sys; e = lmdb.open(sys.argv[1]); t = e.begin(); print(e.stat(), sum(1 for _ in t.cursor()))"
    damaged = {}
    for sync in (True, False):
        (tmp_path / str(sync)).mkdir()
        recorded = Recorded(tmp_path / str(sync), program.format(sync=sync))
        damaged[sync] = 0
        for seed in range(20):
            place = tmp_path / str(sync) / str(seed)
            events = [event.end for event in read_trace(recorded.trace)]
            rng = random.Random(seed)
            recorded.rebuilt(rng.choice(events[60:])).write_image(place, rng)
            if (place / "data.mdb").exists():
                command = [sys.executable, "-c", reading, str(place)]
                damaged[sync] += subprocess.run(command, capture_output=True, check=False).returncode != 0
    assert damaged[True] == 0
    assert damaged[False] > 0
