"""The long form of the contract suite: `python -m tests.stream --seconds N [--seed N] [--model-only]`.

Random histories one after the other, each with a seed of its own, until the time is over: those on the model take a
third of it, those on a cluster of three brokers the rest, with all the trouble of `disturbances`. A finding ends it,
with the seed and the first sentences. Exit status 0: nothing was found.
"""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
import time
from itertools import count
from pathlib import Path

_ROOT = Path(__file__).resolve().parent.parent.parent
sys.path[:0] = [str(_ROOT), str(_ROOT / "scripts")]

from peers import kafka_artifacts  # noqa: E402  (after the path was set)
from peers.kafka_cluster import KafkaCluster  # noqa: E402

from stream.kafka_settings import KafkaEngineSettings  # noqa: E402
from tests.stream.disturbances import LASTS_S  # noqa: E402
from tests.stream.history import StreamHistory  # noqa: E402
from tests.stream.rigs import KafkaRig  # noqa: E402
from tests.stream.trials import kafka_trial, model_trial  # noqa: E402

MODEL_S, KAFKA_S = 15.0, 120.0


def main() -> int:
    """The exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, required=True)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(1 << 32))
    parser.add_argument("--model-only", action="store_true")
    chosen = parser.parse_args()
    _tell(f"first seed {chosen.seed}")
    begun = time.monotonic()
    model_s = chosen.seconds if chosen.model_only else chosen.seconds / 3
    seeds = count(chosen.seed)
    total = 0
    for seed in seeds:
        if time.monotonic() > begun + model_s:
            break
        total += 1
        if not _judged(model_trial(seed, MODEL_S), seed, "model", quiet=True):
            return 1
    _tell(f"{total} histories on the model")
    return 0 if chosen.model_only else _on_kafka(seeds, begun + chosen.seconds)


def _on_kafka(seeds: count[int], until: float) -> int:
    with tempfile.TemporaryDirectory() as directory:
        cluster = KafkaCluster(Path(directory), kafka_artifacts.obtain(), links=True)
        try:
            cluster.start()
            settings = KafkaEngineSettings(
                bootstrap_servers=cluster.bootstrap, cluster="long", entry_bytes_max=4 << 20, request_timeout_s=3.0
            )
            rig = KafkaRig("kafka-3", settings, count(1))
            for seed in seeds:
                seconds = min(KAFKA_S, until - time.monotonic())
                if seconds < LASTS_S:
                    return 0
                if not _judged(kafka_trial(rig, cluster, seed, seconds), seed, "Kafka"):
                    return 1
        finally:
            cluster.stop()
    return 0


def _judged(histories: list[StreamHistory], seed: int, where: str, *, quiet: bool = False) -> bool:
    """Whether the contract was kept; says so, and how much was done."""
    findings = [finding for history in histories for finding in history.findings]
    if findings or not quiet:
        _tell(
            f"seed {seed} on {where}: {sum(history.answered() for history in histories)} answered, "
            f"{sum(history.unknown() for history in histories)} unknown, of which "
            f"{sum(history.landed_unknown() for history in histories)} landed, "
            f"{sum(history.twice() for history in histories)} twice, "
            f"{sum(history.ends for history in histories)} ends",
        )
    for finding in findings[:10]:
        _tell(f"FOUND {finding}")
    return not findings


def _tell(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
