"""Small Java programs of ours, compiled against jars from Maven: for the benchmark, and for the engines in the tests.

A pom names a program's jars, which are downloaded from Maven once and kept (kafka_artifacts.py). Its classes are
compiled when they are first needed and kept beside the jars, under a name with a hash of both.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import java
import jdk

from peers import cache, kafka_artifacts

CLIENTS_POM = Path(__file__).resolve().parent / "kafka-clients.pom.xml"
"""The newest Java client of the 4 series."""


@dataclass(frozen=True, slots=True)
class JavaProgram:
    """Jars that belong together, and the programs that use them."""

    name: str
    """The name under which the jars are kept."""
    pom: Path
    artifact: str
    """The artifact whose version is the program's."""
    sources: Path | None = None
    """The folder of Java files; None if there are no programs of ours."""

    def __str__(self) -> str:
        return f"{self.artifact}-{self.version}"

    @property
    def version(self) -> str:
        return kafka_artifacts.pom_version(self.pom, self.artifact)

    def obtain(self) -> Path:
        """The directory of its jars, downloaded from Maven if necessary. Raises Unavailable."""
        whose = f"{self.artifact} {self.version}'s"
        return kafka_artifacts.obtain_pom(self.pom, whose, f"engine-{self.name}", self.artifact).jars

    def at_hand(self) -> Path | None:
        """The directory of its jars if they are present, otherwise None."""
        return kafka_artifacts.at_hand(self.pom, f"engine-{self.name}", self.artifact)

    def tools_missing(self) -> str | None:
        """The program that this machine lacks, a Java or its compiler; None if nothing needed is missing."""
        if java.find() is None:
            return java.MISSING
        if self.sources is not None and jdk.find() is None:
            return jdk.MISSING
        return None

    def classes(self) -> Path:
        """The directory of the compiled programs. Jars and compiler must be present."""
        assert self.sources is not None
        paths = sorted(self.sources.rglob("*.java"))
        jars = self._jars
        digest = hashlib.sha256(jars.name.encode())
        for path in paths:
            digest.update(path.read_bytes())
        return cache.kept(f"{jars.name}-classes-{digest.hexdigest()[:12]}", lambda out: _compile(paths, jars, out))

    def command(self, main: str, *arguments: str, options: Sequence[str] = ()) -> list[str]:
        """The command that runs a class, ours or one in the jars. `options` are for the virtual machine."""
        program = java.find()
        assert program is not None
        path = [f"{self._jars}/*"]
        if self.sources is not None:
            path.insert(0, str(self.classes()))
        # A JVM that is killed leaves its temporary files: where the caller's own are, which go with them.
        temporary = f"-Djava.io.tmpdir={tempfile.gettempdir()}"
        return [program, temporary, *options, "-cp", os.pathsep.join(path), main, *arguments]

    @property
    def _jars(self) -> Path:
        jars = self.at_hand()
        assert jars is not None, f"the caller has not checked that {self} is there"
        return jars


def _compile(paths: Sequence[Path], jars: Path, out: Path) -> None:
    javac = jdk.find()
    assert javac is not None
    done = subprocess.run(
        [javac, "-Xlint:-options", "-d", str(out), "-cp", f"{jars}/*", *map(str, paths)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
