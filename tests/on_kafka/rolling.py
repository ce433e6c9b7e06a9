"""A rolling upgrade by hand, from another version of Fairlog to this one, while clients go on:

    .venv/bin/python -m tests.on_kafka.rolling CHECKOUT

Three nodes are started from the other checkout, with this one's packages. One after the other is stopped and started
from this one, then from the other again, then from this one. Meanwhile two transactional producers and a member of a
group are at work. In the end all that was answered is there, once and in order, and no producer has met an error.
"""

from __future__ import annotations

import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "scripts"))

from peers.fairlog_cluster import FairlogCluster  # noqa: E402
from peers.kafka_artifacts import obtain  # noqa: E402

from tests.on_kafka.brokers import open_brokers  # noqa: E402
from tests.on_kafka.test_cluster import (  # noqa: E402
    Member,
    Writer,
    all_is_there,
    all_write_on,
    make_topic,
    wait_until,
    writing,
)

TOPIC = "orders"
SETTINGS = {"FAIRLOG_CLUSTER_REPLICAS": "3", "FAIRLOG_TOPICS_AUTO_CREATE": "false"}


def main(other: Path) -> None:
    """Raises AssertionError on the first thing that is not as it should be."""
    with tempfile.TemporaryDirectory() as directory, open_brokers(Path(directory) / "kafka", obtain()) as kafka:
        cluster = FairlogCluster(Path(directory), kafka.bootstrap, settings=SETTINGS)
        for node in cluster.nodes:
            cluster.install(node, other)
        try:
            cluster.start()
            make_topic(cluster.bootstrap, TOPIC)
            with writing(cluster, TOPIC) as writers:
                member = Member(cluster.bootstrap, TOPIC)
                for checkout in (ROOT, other, ROOT):
                    for node in cluster.nodes:
                        began = time.monotonic()
                        _change(cluster, node, checkout, writers, member)
                        print(f"node {node} is that of {checkout} after {time.monotonic() - began:.0f} s", flush=True)
            assert not any(writer.aborted for writer in writers), [writer.aborted for writer in writers]
            all_is_there(cluster, TOPIC, writers)
            member.end()
            assert len(set(member.read)) == len(member.read)
        finally:
            cluster.stop()
    print(f"{sum(len(writer.committed) for writer in writers)} transactions, none aborted")


def _change(cluster: FairlogCluster, node: int, checkout: Path, writers: list[Writer], member: Member) -> None:
    cluster.leave(node)
    all_write_on(writers)
    cluster.install(node, checkout)
    cluster.spawn(node)
    all_write_on(writers)
    wait_until(lambda: cluster.is_in_sync(node))
    due = len(member.read) + 50
    wait_until(lambda: len(member.read) > due)


if __name__ == "__main__":
    main(Path(sys.argv[1]).resolve())
