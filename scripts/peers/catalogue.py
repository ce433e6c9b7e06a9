"""The peers by name, and which of them are available on this machine."""

from __future__ import annotations

from pathlib import Path

from peers import kafka_artifacts
from peers.clusters import FairlogNodes, KafkaAlone
from peers.fairlog_node import FairlogNode
from peers.interface import CLUSTER_NAMES, NAMES, SPREAD_NAMES, Missing, Peer, Tuning
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
        case "kafka" | "kafka-fsync" | "cluster" | "kafka-3":
            try:
                artifacts = kafka_artifacts.obtain()
            except kafka_artifacts.Unavailable as unavailable:
                return Missing(name, str(unavailable))
            match name:
                case "cluster":
                    return FairlogNodes(name, directory, artifacts)
                case "kafka-3":
                    return KafkaAlone(name, directory, artifacts)
                case _:
                    return Kafka(name, directory, artifacts, tuning)
        case "mock":
            return Mock(directory)
        case _:
            raise ValueError(
                f"there is no peer {name!r}; there are {', '.join((*NAMES, *SPREAD_NAMES, *CLUSTER_NAMES))}"
            )
