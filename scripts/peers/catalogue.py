"""The peers by name, and which of them are available on this machine."""

from __future__ import annotations

from pathlib import Path

from peers import certificates, kafka_artifacts
from peers.clusters import FairlogNodes, KafkaAlone
from peers.fairlog_node import FairlogNode
from peers.interface import ALL_NAMES, Missing, Peer, Tuning
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
        case "journal-tls" | "journal-acls" | "kafka-tls":
            try:
                tls = certificates.make(directory / "tls")
                if name == "kafka-tls":
                    return Kafka(name, directory, kafka_artifacts.obtain(), tuning, tls=tls)
                return FairlogNode(name, directory, tuning, tls=tls)
            except (certificates.NoOpenssl, kafka_artifacts.Unavailable) as unavailable:
                return Missing(name, str(unavailable))
        case "journal-2" | "journal-4":
            return FairlogNode(name, directory, tuning, processes=int(name.removeprefix("journal-")))
        case "kafka" | "kafka-fsync" | "cluster" | "kafka-3" | "shards-1" | "shards-8" | "shards-32" | "shards-64":
            try:
                artifacts = kafka_artifacts.obtain()
            except kafka_artifacts.Unavailable as unavailable:
                return Missing(name, str(unavailable))
            match name:
                case "cluster":
                    return FairlogNodes(name, directory, artifacts)
                case "kafka-3":
                    return KafkaAlone(name, directory, artifacts)
                case "kafka" | "kafka-fsync":
                    return Kafka(name, directory, artifacts, tuning)
                case _:
                    shards = int(name.removeprefix("shards-"))
                    return FairlogNodes(name, directory, artifacts, nodes=1, shards=shards)
        case "mock":
            return Mock(directory)
        case _:
            raise ValueError(f"there is no peer {name!r}; there are {', '.join(ALL_NAMES)}")
