"""Words of the tests of transactions: which one it is, what a journal has of it, and a moment's rest."""

from __future__ import annotations

import trio
import trio.testing

from fairlog_types import ProducerEpoch, ProducerId, TxId

SAME_PRODUCER = ProducerId(1000)


def txid(number: int, epoch: int = 0) -> TxId:
    return TxId(SAME_PRODUCER, ProducerEpoch(epoch), number)


def kinds(journal) -> list[type]:
    return [type(record) for record in journal.records]


async def settle() -> None:
    """Let what runs in the background come to rest."""
    await trio.testing.wait_all_tasks_blocked()
