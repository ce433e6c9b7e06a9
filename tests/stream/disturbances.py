"""What happens to an engine during a trial. Cancelled, whatever was done stays done: the trial heals it."""

from __future__ import annotations

import random
import sys
from collections.abc import Callable, Sequence

import trio
from peers.kafka_cluster import KafkaCluster
from peers.links import CLIENT

from tests.stream.model_engine import ModelCluster

LASTS_S = 6.0
RESTS_S_MAX = 5.0


async def disturb_model(cluster: ModelCluster, chosen: random.Random, nodes: Sequence[str]) -> None:
    """The engine goes away for a while, or one node is cut off."""
    while True:
        await trio.sleep(chosen.uniform(0, 2))
        node = chosen.choice([None, *nodes])
        cluster.go_away() if node is None else cluster.cut(node)
        await trio.sleep(chosen.uniform(0, 5))
        cluster.come_back() if node is None else cluster.join(node)


async def disturb_kafka(
    cluster: KafkaCluster, chosen: random.Random, *, tell: Callable[[str], object] = sys.stderr.write
) -> None:
    """All kinds of trouble in turns, at a broker that is chosen each time. The first: no broker answers clients.

    One begins when the one before has ended, whether or not the cluster has recovered from it.
    """
    assert cluster.links is not None
    links = cluster.links

    def cut_clients_off() -> None:
        for broker in cluster.brokers:
            links.cut(CLIENT, broker)

    await _for_a_while("no broker answers clients", cut_clients_off, links.join_all, tell)
    while True:
        troubles = list(_TROUBLES)
        chosen.shuffle(troubles)
        for trouble in troubles:
            broker = chosen.choice(cluster.brokers)
            begin, end = _TROUBLES[trouble]
            await _for_a_while(
                f"broker {broker} {trouble}",
                lambda begin=begin, broker=broker: begin(cluster, broker),
                lambda end=end, broker=broker: end(cluster, broker),
                tell,
            )
            await trio.sleep(chosen.uniform(0, RESTS_S_MAX))


async def _for_a_while(
    what: str, begin: Callable[[], None], end: Callable[[], None], tell: Callable[[str], object]
) -> None:
    tell(f"{trio.current_time():.1f} {what}\n")
    await trio.to_thread.run_sync(begin)
    await trio.sleep(LASTS_S)
    await trio.to_thread.run_sync(end)
    tell(f"{trio.current_time():.1f} … no more\n")


def _isolate(cluster: KafkaCluster, broker: int) -> None:
    assert cluster.links is not None
    cluster.links.isolate(broker)


def _isolate_from_all(cluster: KafkaCluster, broker: int) -> None:
    assert cluster.links is not None
    cluster.links.isolate(broker, also="clients")


def _cut_clients(cluster: KafkaCluster, broker: int) -> None:
    assert cluster.links is not None
    cluster.links.cut(CLIENT, broker)


def _join(cluster: KafkaCluster, broker: int) -> None:
    assert cluster.links is not None
    cluster.links.join_all()


_TROUBLES: dict[str, tuple[Callable[[KafkaCluster, int], None], Callable[[KafkaCluster, int], None]]] = {
    "is killed": (KafkaCluster.kill, KafkaCluster.restart),
    "stands still": (KafkaCluster.pause, KafkaCluster.resume),
    "is cut off from the other brokers": (_isolate, _join),
    "is cut off from all": (_isolate_from_all, _join),
    "is cut off from clients": (_cut_clients, _join),
}
