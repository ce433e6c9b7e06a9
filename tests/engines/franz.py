"""The programs in `go/`, which use the Go client franz-go: its modules, and how a program is run.

Modules come from the Go module proxy, pinned by `go/go.sum`, into Go's own cache (`python -m tests.engines --obtain`,
as CI does at its start). The programs are compiled without the proxy when a test first needs them, and kept beside the
jars.
"""

from __future__ import annotations

import hashlib
import os
import re
import subprocess
from pathlib import Path

import golang
import pytest
from peers import cache

_SOURCES = Path(__file__).resolve().parent / "go"


class ModulesMissing(Exception):
    """The proxy, or Go's cache, does not have them. The message is a sentence for the report."""


def version() -> str:
    """Of franz-go."""
    found = re.search(r"franz-go v(\S+)", (_SOURCES / "go.mod").read_text("utf-8"))
    assert found is not None
    return found[1]


def obtain() -> None:
    """Download the modules and compile the programs. Without Go that is left out. Raises ModulesMissing."""
    if golang.find() is not None:
        _program(os.environ.copy())


def require() -> None:
    """Skip the test if Go or its modules are missing."""
    if golang.find() is None:
        pytest.skip(golang.MISSING)
    try:
        command()
    except ModulesMissing as error:
        pytest.skip(f"{error}: `.venv/bin/python -m tests.engines --obtain` has them from Go's module proxy")


def command(*arguments: str) -> list[str]:
    """The command that runs one of the programs. Raises ModulesMissing."""
    return [str(_program(os.environ | {"GOPROXY": "off"}) / "franz"), *arguments]


def _program(environment: dict[str, str]) -> Path:
    digest = hashlib.sha256()
    for path in sorted(_SOURCES.iterdir()):
        digest.update(path.read_bytes())
    return cache.kept(f"engine-go-{digest.hexdigest()[:12]}", lambda out: _compile(out, environment))


def _compile(out: Path, environment: dict[str, str]) -> None:
    go = golang.find()
    assert go is not None
    built = subprocess.run(
        [go, "build", "-mod=readonly", "-buildvcs=false", "-o", str(out / "franz"), "."],
        cwd=_SOURCES,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    if built.returncode and re.search(r"GOPROXY|dial tcp|proxy\.|missing go.sum", built.stderr):
        raise ModulesMissing(f"the modules of franz-go {version()} are not here")
    assert not built.returncode, built.stderr
