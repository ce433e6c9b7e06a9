"""Maven, which downloads the Kafka connector's jars for tests/spark/test_connector.py
(scripts/peers/kafka_artifacts.py).
"""

from __future__ import annotations

import shutil

PACKAGES = ("maven",)

MISSING = (
    "the Kafka connector's jars come from Maven, and there is no mvn on the path: "
    f"`apt-get install {' '.join(PACKAGES)}` (Debian 12 or newer), or `python3 scripts/debian.py` as root"
)


def find() -> str | None:
    """Its path, if it is installed."""
    return shutil.which("mvn")
