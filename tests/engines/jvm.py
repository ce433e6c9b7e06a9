"""The engines of the JVM: their jars, the small programs that are compiled against them, and how one is run.

An engine is a pom in `poms/` and a folder of sources in `java/`. Jars and classes are had once and kept, as
`scripts/peers/java_programs.py` says; the pom of the newest clients is there too, since the benchmark uses them. On CI
`scripts/test.py` has the jars at the start; elsewhere `python -m tests.engines --obtain` does. Where they are missing
the tests are skipped, but on CI.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
from peers.java_programs import CLIENTS_POM, JavaProgram

_HERE = Path(__file__).resolve().parent

OPTIONS = (
    "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-Xshare:auto", "-Xmx512m",
    "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn", f"-Dlog4j2.configurationFile={_HERE / 'log4j2.properties'}",
)  # fmt: skip
"""For processes that live for seconds: the second compiler would take most of their time."""

HOW_TO_GET = "`.venv/bin/python -m tests.engines --obtain` has them from Maven"


class Engine(JavaProgram):
    """Jars that belong together, and the programs that use them, as a test sees them."""

    __slots__ = ()

    def missing(self) -> str | None:
        """What its tests lack on this machine; None if they can run."""
        if (missing := self.tools_missing()) is not None:
            return missing
        return None if self.at_hand() else f"the jars of {self} are not here: {HOW_TO_GET}"

    def require(self) -> None:
        """Skip the test if something is missing."""
        missing = self.missing()
        if missing is not None:
            pytest.skip(missing)

    def command(self, main: str, *arguments: str, options: Sequence[str] = ()) -> list[str]:
        """As the program's own, with OPTIONS before the test's."""
        return JavaProgram.command(self, main, *arguments, options=(*OPTIONS, *options))


def _engine(name: str, artifact: str, sources: str | None = None, pom: Path | None = None) -> Engine:
    """The engine of `poms/NAME.pom.xml`, unless there is another, with the programs in `java/SOURCES`."""
    folder = _HERE / "java" / sources if sources is not None else None
    return Engine(name, pom or _HERE / "poms" / f"{name}.pom.xml", artifact, folder)


CLIENTS_4 = _engine("clients-4", "kafka-clients", "clients", CLIENTS_POM)
CLIENTS_3 = _engine("clients-3", "kafka-clients", "clients")
PLATFORM = _engine("platform", "kafka-tools")
CONNECT = _engine("platform", "kafka-tools", "connect")
TOOLS = _engine("platform", "kafka-tools", "tools")
STREAMS = _engine("streams", "kafka-streams", "streams")
FLINK = _engine("flink", "flink-connector-kafka", "flink")
ENGINES = (CLIENTS_4, CLIENTS_3, PLATFORM, STREAMS, FLINK)
