"""Brokers' data with finished transactions: made once, kept, and copied by scenarios that begin with them.

A million transactions over the protocol take a quarter of an hour with a broker, every time. So a broker of the same
kind makes them beforehand, is then stopped in order, and its data stay in the cache (peers/cache.py). A peer that
should begin with them is stopped and gets a copy instead of its own data. The first scenario that needs them makes
them; `bench.py make-finished` makes them without measuring anything.

A finished transaction is one that went through the protocol: begun by one of WIDTH ids (crowd.py) that take turns, with
one record of five bytes to one of PARTITIONS partitions, and committed. The name under which data are kept contains all
of this, the program that wrote them, and their formats. It does not contain the disk, because the broker writes the
same on each, also in memory.

The records carry a time of 1970 (plain_protocol.py), so retention deletes them at its next check, while they are made
or after a copy has started. What remains is to be measured: the state that coordinators and partitions keep about the
transactions. They forget ids that were idle for a week, so data are made again before they are that old.
"""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Sequence
from pathlib import Path

from peers import cache
from peers.catalogue import available
from peers.interface import Missing, Peer, PeerDidNotStart
from rich.console import Console

from benchmarks.client import ClientProcess
from benchmarks.crowd import WIDTH
from benchmarks.estimate import duration

TOPIC, PARTITIONS = "finished", 10
PIECE = 10_000
"""Transactions that are made by one call."""
SAID_EACH_S = 30.0
AGE_S_MAX = 6 * 86_400.0
"""A day less than the time after which brokers forget ids by default: transactional.id.expiration.ms."""
MADE_BY = {"kafka-fsync": "kafka"}
"""The peer that makes the data for a peer, if not one of its own kind: the same broker without a flush of each batch.
"""

console = Console(highlight=False, soft_wrap=True)


def begin_with(peer: Peer, count: int) -> None:
    """Let the peer run on a copy of the data with this many finished transactions, instead of its own data.

    Makes them first if they are not kept. The peer's address stays. Raises PeerDidNotStart, ClientFailed.
    """
    peer.stop()
    made = kept(peer, count)
    shutil.rmtree(peer.data, ignore_errors=True)
    shutil.copytree(made, peer.data)
    os.sync()  # what was copied is not to be written to the disk while something is measured
    peer.start()


def make(names: Sequence[str], count: int) -> int:
    """Make such data for each of these peers if necessary, and print where they are. Returns 0, or 1 if some are not
    available.

    Raises the same as `begin_with`.
    """
    missing = False
    for name in names:
        # Nothing is stored there: this peer is only asked what it would store.
        peer = available(name, cache.DIRECTORY)
        if isinstance(peer, Missing):
            missing = True
            console.print(f"there is no {name} here: {peer.reason}")
        elif not peer.durable:
            console.print(f"{name} stores nothing that could be kept")
        else:
            console.print(f"{name} begins with {kept(peer, count)}")
    return 1 if missing else 0


def kept(peer: Peer, count: int) -> Path:
    """The data with this many finished transactions for this peer, made if they do not exist. Do not change them."""
    name = MADE_BY.get(peer.name, peer.name)
    directory = cache.kept(
        f"finished-{count}-ids-{WIDTH}-partitions-{PARTITIONS}-{peer.storage}",
        lambda partial: _make(name, count, partial),
        age_s_max=AGE_S_MAX,
    )
    return directory / peer.data.name


def _make(name: str, count: int, directory: Path) -> None:
    """Let a broker finish this many transactions, and stop it in order."""
    peer = available(name, directory)
    if isinstance(peer, Missing):
        raise PeerDidNotStart(f"there is no {name} here: {peer.reason}")
    console.print(f"{name}: {count:,} finished transactions are made, once")
    peer.start()
    try:
        peer.create_topics([TOPIC], PARTITIONS)
        crowd = ClientProcess(
            "benchmarks.crowd:Crowd", address=peer.address, prefix=TOPIC, topic=TOPIC, partitions=PARTITIONS
        )
        try:
            _finish(crowd, name, count)
        finally:
            crowd.close()
        peer.stop()
    finally:
        peer.kill()


def _finish(crowd: ClientProcess, name: str, count: int) -> None:
    started = said = time.monotonic()
    for had in range(0, count, PIECE):
        now = time.monotonic()
        if had and now - said >= SAID_EACH_S:
            rate = had / (now - started)
            console.print(f"{name}: {had:,} of {count:,}, {rate:,.0f}/s, {duration((count - had) / rate)} to go")
            said = now
        crowd.call("commit_many", count=min(PIECE, count - had))
    console.print(f"{name}: {count:,} finished transactions took {duration(time.monotonic() - started)}")
