"""Apache Kafka's jars, and those of Spark's connector to it: downloaded from Maven once, and kept in a directory that
git ignores.

`mvn dependency:copy-dependencies` on kafka.pom.xml copies the broker and its dependencies, on spark-connector.pom.xml
the connector. The machine's Maven settings determine the source; by default it is Maven's own central repository. The
directory's name contains a hash of the pom, so another version is another directory.
"""

from __future__ import annotations

import hashlib
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path
from xml.etree import ElementTree

from peers import cache

POM = Path(__file__).resolve().parent / "kafka.pom.xml"
CONNECTOR_POM = POM.with_name("spark-connector.pom.xml")
_CONNECTOR = "spark-sql-kafka"
_RESOLVE_S = 900.0
_NAMESPACE = {"pom": "http://maven.apache.org/POM/4.0.0"}


class Unavailable(Exception):
    """The jars, or the programs that they need, are not available. The message is a sentence for the report."""


@dataclass(frozen=True, slots=True)
class Artifacts:
    java: str
    """The program."""
    jars: Path
    """A directory of jars: the whole class path."""
    version: str


def obtain() -> Artifacts:
    """The broker's jars, downloaded from Maven if necessary (a minute, about 45 MB). Raises Unavailable."""
    return obtain_pom(POM, "Kafka's", "kafka", "kafka_")


def obtain_connector() -> Artifacts:
    """The jars of Spark's connector to Kafka, in the same way; those of Spark itself are in pyspark. Raises
    Unavailable.
    """
    return obtain_pom(CONNECTOR_POM, "the Kafka connector's", "spark-connector", _CONNECTOR)


def connector_at_hand() -> Path | None:
    """The directory of the connector's jars if they are downloaded already; does not run Maven."""
    return at_hand(CONNECTOR_POM, "spark-connector", _CONNECTOR)


def connector_version() -> str:
    """The connector's version, whether it is downloaded or not."""
    return pom_version(CONNECTOR_POM, _CONNECTOR)


def at_hand(pom: Path, name: str, artifact: str) -> Path | None:
    """The directory of a pom's jars if they are downloaded already; does not run Maven."""
    directory = cache.DIRECTORY / _directory(pom, name, artifact)
    return directory if directory.is_dir() else None


def obtain_pom(pom_path: Path, whose: str, name: str, artifact: str) -> Artifacts:
    """The jars that a pom names, downloaded if necessary.

    `whose` names them in messages. `name` is the beginning of their directory's name; the version in it is that of the
    first dependency whose artifact begins with `artifact`. Raises Unavailable.
    """
    java = shutil.which("java")
    if java is None:
        raise Unavailable("there is no `java` on the path (Kafka 4 and Spark 4 need Java 17 or newer)")
    directory = _directory(pom_path, name, artifact)
    jars = cache.kept(directory, lambda partial: _copy_dependencies(pom_path, whose, partial))
    return Artifacts(java, jars, pom_version(pom_path, artifact))


def _directory(pom: Path, name: str, artifact: str) -> str:
    """The name under which the jars are kept."""
    return f"{name}-{pom_version(pom, artifact)}-{hashlib.sha256(pom.read_bytes()).hexdigest()[:8]}"


def pom_version(pom: Path, artifact: str) -> str:
    """The version, in a pom, of the first dependency whose artifact begins with this text."""
    for dependency in ElementTree.fromstring(pom.read_bytes()).iterfind(".//pom:dependency", _NAMESPACE):
        if dependency.findtext("pom:artifactId", "", _NAMESPACE).startswith(artifact):
            return dependency.findtext("pom:version", "", _NAMESPACE)
    raise AssertionError(f"{pom} names no {artifact}* artifact")


def _copy_dependencies(pom: Path, whose: str, jars: Path) -> None:
    mvn = shutil.which("mvn")
    if mvn is None:
        raise Unavailable(f"there is no `mvn` on the path to have {whose} jars with")
    print(f"having {whose} jars from Maven …", flush=True)
    command = [
        mvn, "--batch-mode", "--quiet", "--file", str(pom),
        "dependency:copy-dependencies", "-DincludeScope=runtime", f"-DoutputDirectory={jars}",
    ]  # fmt: skip
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_RESOLVE_S, check=False)
    except subprocess.TimeoutExpired:
        raise Unavailable(f"Maven had not resolved {whose} jars after {_RESOLVE_S:.0f} s") from None
    if done.returncode != 0:
        errors = [line for line in (done.stdout + done.stderr).splitlines() if "[ERROR]" in line]
        raise Unavailable(f"Maven could not resolve {whose} jars: {errors[0] if errors else done.stderr[-500:]}")
