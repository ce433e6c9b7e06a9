"""The cache: what is kept was made whole, once, not too long ago."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from peers import cache

DAY_S = 86_400.0


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache that is not there yet."""
    monkeypatch.setattr(cache, "DIRECTORY", tmp_path / "above" / "cache")
    return tmp_path / "above" / "cache"


def writing(text: str) -> Callable[[Path], None]:
    """Makes a directory of one file."""

    def make(directory: Path) -> None:
        assert not directory.exists(), "what an earlier making has left is in it"
        directory.mkdir()
        (directory / "file").write_text(text)

    return make


def breaking(directory: Path) -> None:
    """Makes half a directory."""
    writing("half")(directory)
    raise KeyboardInterrupt


def never(_directory: Path) -> None:
    raise AssertionError("it is there already")


def test_cache_keeps_what_was_made_and_makes_it_once(place: Path) -> None:
    """Under the name asked for; another name is another directory."""
    assert cache.kept("one", writing("1")) == place / "one"
    assert (cache.kept("one", never) / "file").read_text() == "1"
    assert (cache.kept("two", writing("2")) / "file").read_text() == "2"


def test_cache_does_not_take_an_interrupted_making_for_whole(place: Path) -> None:
    """Nothing has the name before it is whole, and the next making begins anew."""
    with pytest.raises(KeyboardInterrupt):
        cache.kept("one", breaking)
    assert not (place / "one").exists()
    assert (cache.kept("one", writing("1")) / "file").read_text() == "1"


def test_cache_makes_anew_what_is_too_old(place: Path) -> None:
    """Only what has an age is asked for it, and what is old is gone even if the new making is interrupted."""
    old = cache.kept("one", writing("old"))
    long_ago = time.time() - 2 * DAY_S
    os.utime(old, (long_ago, long_ago))
    assert cache.kept("one", never) == cache.kept("one", never, age_s_max=3 * DAY_S) == old
    with pytest.raises(KeyboardInterrupt):
        cache.kept("one", breaking, age_s_max=DAY_S)
    assert not (place / "one").exists()
    assert (cache.kept("one", writing("new"), age_s_max=DAY_S) / "file").read_text() == "new"


def test_cache_does_not_take_what_is_half_deleted_for_young_and_whole(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Deleting changes a directory's time: what is old loses its name first."""
    old = cache.kept("one", writing("old"))

    def interrupted(directory: Path, *, ignore_errors: bool) -> None:
        if directory.exists():
            raise KeyboardInterrupt

    with monkeypatch.context() as broken:
        broken.setattr(cache.shutil, "rmtree", interrupted)
        with pytest.raises(KeyboardInterrupt):
            cache.kept("one", never, age_s_max=0.0)
    assert not old.exists()
    assert (cache.kept("one", writing("new"), age_s_max=DAY_S) / "file").read_text() == "new"


def test_cache_lets_the_second_of_two_wait_for_the_first() -> None:
    """Two runs that want the same make it once, and the second never deletes what the first is making."""
    begun, go_on = threading.Event(), threading.Event()

    def slowly(directory: Path) -> None:
        begun.set()
        assert go_on.wait(30)
        writing("first")(directory)

    first = threading.Thread(target=cache.kept, args=["one", slowly])
    first.start()
    assert begun.wait(30)
    threading.Timer(0.1, go_on.set).start()
    assert (cache.kept("one", never) / "file").read_text() == "first"
    first.join(30)
