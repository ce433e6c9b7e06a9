"""The seed of the trials that the test suite makes anew for each state of the code."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests import seeds


def test_seed_follows_from_the_packages_source_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same source has the same one, wherever it is and whatever was made of it; any other has another."""
    monkeypatch.setattr(seeds, "ROOT", tmp_path)
    source, single = tmp_path / "journal" / "frame.py", tmp_path / "fairlog_types.py"
    source.parent.mkdir()
    source.write_text("a = 1\n")
    single.write_text("")
    first = seeds.seed_of_the_code.__wrapped__()
    (source.parent / "frame.cpython-311.pyc").write_bytes(b"compiled")
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests" / "test_frame.py").write_text("")
    assert seeds.seed_of_the_code.__wrapped__() == first
    found = {first}
    single.write_text("b = 2\n")
    found.add(seeds.seed_of_the_code.__wrapped__())
    source.write_text("a = 2\n")
    found.add(seeds.seed_of_the_code.__wrapped__())
    source.rename(source.with_name("other.py"))
    found.add(seeds.seed_of_the_code.__wrapped__())
    assert len(found) == 4
