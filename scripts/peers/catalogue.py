"""The peers by name, and which of them are available on this machine."""

from __future__ import annotations

from pathlib import Path

from peers import kafka_artifacts
from peers.fairlog_node import FairlogNode
from peers.interface import NAMES, SPREAD_NAMES, Missing, Peer, Tuning
from peers.kafka import Kafka
from peers.mock import Mock

_DEFAULTS = Tuning()


def available(name: str, directory: Path, tuning: Tuning = _DEFAULTS) -> Peer | Missing:
    """The peer with this name in `directory`, which it creates; not started. The first time, Kafka is downloaded from
    Maven.
    """
    directory = directory.resolve()
    match name:
        case "journal" | "markers":
            return FairlogNode(name, directory, tuning)
        case "journal-2" | "journal-4":
            return FairlogNode(name, directory, tuning, processes=int(name.removeprefix("journal-")))
        case "kafka" | "kafka-fsync":
            try:
                return Kafka(name, directory, kafka_artifacts.obtain(), tuning)
            except kafka_artifacts.Unavailable as unavailable:
                return Missing(name, str(unavailable))
        case "mock":
            return Mock(directory)
        case _:
            raise ValueError(f"there is no peer {name!r}; there are {', '.join((*NAMES, *SPREAD_NAMES))}")
