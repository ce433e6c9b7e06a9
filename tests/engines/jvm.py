"""The engines of the JVM: their jars, the small programs that are compiled against them, and how one is run.

An engine is a pom in `poms/` and a folder of sources in `java/`. Its jars come from Maven once and are kept
(`scripts/peers/kafka_artifacts.py`); its classes are compiled when a test first needs them and kept beside the jars,
under a name with a hash of both. On CI `scripts/test.py` has the jars at the start; elsewhere
`python -m tests.engines --obtain` does. Where they are missing the tests are skipped, but on CI.
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
import pytest
from peers import cache, kafka_artifacts

_HERE = Path(__file__).resolve().parent

OPTIONS = (
    "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-Xshare:auto", "-Xmx512m",
    "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn", f"-Dlog4j2.configurationFile={_HERE / 'log4j2.properties'}",
)  # fmt: skip
"""For processes that live for seconds: the second compiler would take most of their time."""

HOW_TO_GET = "`.venv/bin/python -m tests.engines --obtain` has them from Maven"


@dataclass(frozen=True, slots=True)
class Engine:
    """Jars that belong together, and the programs that use them."""

    name: str
    """Of its pom, `poms/NAME.pom.xml`."""
    artifact: str
    """Whose version is the engine's."""
    sources: str | None = None
    """The folder in `java/`; None if it has no programs of ours."""

    def __str__(self) -> str:
        return f"{self.artifact}-{self.version}"

    @property
    def _pom(self) -> Path:
        return _HERE / "poms" / f"{self.name}.pom.xml"

    @property
    def version(self) -> str:
        return kafka_artifacts.pom_version(self._pom, self.artifact)

    def obtain(self) -> Path:
        """The directory of its jars, from Maven if they are not there yet. Raises Unavailable."""
        whose = f"{self.artifact} {self.version}'s"
        return kafka_artifacts.obtain_pom(self._pom, whose, f"engine-{self.name}", self.artifact).jars

    def at_hand(self) -> Path | None:
        """The same if they are there, else None."""
        return kafka_artifacts.at_hand(self._pom, f"engine-{self.name}", self.artifact)

    def missing(self) -> str | None:
        """What its tests lack on this machine; None if they can run."""
        if java.find() is None:
            return java.MISSING
        if self.sources is not None and jdk.find() is None:
            return jdk.MISSING
        return None if self.at_hand() else f"the jars of {self} are not here: {HOW_TO_GET}"

    def require(self) -> None:
        """Skip the test if something is missing; on CI that is a failure."""
        missing = self.missing()
        if missing is not None:
            assert "CI" not in os.environ, missing
            pytest.skip(missing)

    def classes(self) -> Path:
        """The directory of the compiled programs."""
        assert self.sources is not None
        paths = sorted((_HERE / "java" / self.sources).rglob("*.java"))
        jars = self._jars
        digest = hashlib.sha256(jars.name.encode())
        for path in paths:
            digest.update(path.read_bytes())
        return cache.kept(f"{jars.name}-classes-{digest.hexdigest()[:12]}", lambda out: _compile(paths, jars, out))

    def command(self, main: str, *arguments: str, options: Sequence[str] = ()) -> list[str]:
        """The command that runs a class, of ours or of the engine's own."""
        program = java.find()
        assert program is not None
        path = [f"{self._jars}/*"]
        if self.sources is not None:
            path.insert(0, str(self.classes()))
        # A JVM that is killed leaves its temporary files: where the tests' own are, which go with them.
        temporary = f"-Djava.io.tmpdir={tempfile.gettempdir()}"
        return [program, *OPTIONS, temporary, *options, "-cp", os.pathsep.join(path), main, *arguments]

    @property
    def _jars(self) -> Path:
        jars = self.at_hand()
        assert jars is not None, f"the test did not ask whether {self} is there"
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


CLIENTS_4 = Engine("clients-4", "kafka-clients", "clients")
CLIENTS_3 = Engine("clients-3", "kafka-clients", "clients")
PLATFORM = Engine("platform", "kafka-tools")
CONNECT = Engine("platform", "kafka-tools", "connect")
STREAMS = Engine("streams", "kafka-streams", "streams")
FLINK = Engine("flink", "flink-connector-kafka", "flink")
ENGINES = (CLIENTS_4, CLIENTS_3, PLATFORM, STREAMS, FLINK)
