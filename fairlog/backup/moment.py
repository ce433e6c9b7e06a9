"""The moment of a backup: a read transaction of each shard's data logs, all as of one instant.

With one shard any read transaction is such a moment. So are those of several shards while no process serves them and
all decided commits are finished (`fairlog.backup.settling`). If they are served, the transactions must not begin while
a commit is visible in one shard and not yet in another. So the running node holds meanwhile
(docs/decisions/0056-backups-over-shards.md):

    node     ─ answered before: readable ─ all coordinators hold ─────────────────────────── have held? ─▶
    backup                                  begin, begin, begin ─ nothing committed since? ─┘

While all hold, no commit is visible in part, and what can be read is committed to LMDB. If they have not held to the
end, because one of them was started again or was too slow, the transactions are dropped, and all steps are repeated.

Plain records and plain commits of offsets are not held. So the transactions are also dropped if a shard's copier has
committed something before the last of them had begun. Those that are kept show one instant, and no commit of an offset
without the record that it is about.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path

from datalog.foreign import ForeignEnvironment
from datalog.handles import Transaction
from fairlog.data_directory import read_cluster_store_in_use
from fairlog.interbroker import secret
from fairlog.interbroker.asking_to_hold import CannotHold, HoldingNode, connected
from fairlog_types import StorageFailure
from shard.cutting import TAKER
from shard.holding import HOLD_S

Moment = Callable[[Sequence[ForeignEnvironment]], AbstractContextManager[Sequence[Transaction]]]
"""Begins a read transaction of each environment; they end with the block, if they were not ended before."""

_PATIENCE_S = 20.0
"""How long attempts are repeated. A process that was killed serves again within seconds."""
_PAUSE_S = 0.25
"""Between two attempts. Commits go on meanwhile."""
_BEGINNING_S = HOLD_S / 4
"""The part of a hold in which the transactions must begin: some microseconds each, if no copier commits just then."""


@contextmanager
def without_a_hold(environments: Sequence[ForeignEnvironment]) -> Generator[Sequence[Transaction]]:
    """See `Moment`: for one shard, or for several that are settled. Raises as `ForeignEnvironment.begin`."""
    with ExitStack() as stack:
        yield [_begun(stack, environment) for environment in environments]


def within_a_hold(data_dir: Path) -> Moment:
    """The moment of a running node's several shards."""

    @contextmanager
    def begin(environments: Sequence[ForeignEnvironment]) -> Generator[Sequence[Transaction]]:
        with ExitStack() as stack:
            yield _within_a_hold(stack, data_dir, environments)

    return begin


def _within_a_hold(
    stack: ExitStack, data_dir: Path, environments: Sequence[ForeignEnvironment]
) -> Sequence[Transaction]:
    """The transactions, which end with `stack`. Raises StorageFailure, CorruptStorage."""
    until_s = time.monotonic() + _PATIENCE_S
    while True:
        try:
            with _node_in(data_dir) as node:
                if node.hold():
                    with ExitStack() as dropped:
                        begun = _of_one_instant(dropped, environments)
                        if node.release() and begun is not None:
                            stack.push(dropped.pop_all())
                            return begun
            reason = "a transaction could not end, a process was too slow, or the data logs changed all the time"
        except CannotHold as error:
            reason = str(error)
        if time.monotonic() > until_s:
            raise StorageFailure(f"no common moment of all shards was found: {reason}; try again")
        time.sleep(_PAUSE_S)


def _of_one_instant(stack: ExitStack, environments: Sequence[ForeignEnvironment]) -> Sequence[Transaction] | None:
    """Transactions that have all begun before any shard has committed again, which end with `stack`; None: too late."""
    until_s = time.monotonic() + _BEGINNING_S
    while time.monotonic() < until_s:
        with ExitStack() as dropped:
            begun = [_begun(dropped, environment) for environment in environments]
            if all(each.is_newest(transaction) for each, transaction in zip(environments, begun, strict=True)):
                stack.push(dropped.pop_all())
                return begun
    return None


def _begun(stack: ExitStack, environment: ForeignEnvironment) -> Transaction:
    transaction = environment.begin()
    stack.callback(transaction.abort)  # does nothing if it was ended before
    return transaction


def _node_in(data_dir: Path) -> AbstractContextManager[HoldingNode]:
    """A connection to the process that can make all shards hold. Raises StorageFailure, CorruptStorage, CannotHold."""
    store = read_cluster_store_in_use(data_dir)
    address = store.addresses.get(store.node.node_id + TAKER)
    if address is None or address.internal is None:
        raise CannotHold(f"the address of shard {TAKER}'s process is not known yet")
    return connected(address.internal, store.node.cluster_id, secret.load(data_dir))
