"""What is sent after a commit was answered has its place behind it: a commit is answered before it is placed.

The next request comes in one piece with EndTxn, so it begins in the very turn of the loop in which the transaction
would be placed. If requests began without `place_due`, each of these tests would fail within a few of its tries.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from scripts.node_process import NodeProcess
from tests.clients import raw_client as raw
from tests.clients.modes import BOTH_MODES, Mode
from tests.clients.raw_client import RawClient, batch, produce_request
from tests.clients.raw_transaction import RawTransaction
from tests.processes import one_process_only

pytestmark = [pytest.mark.slow, one_process_only("the decision comes to another shard when it can")]

COMMITS = 20


@BOTH_MODES
def test_plain_record_stands_behind_the_records_of_the_commit_before_it(
    node: NodeProcess, mode: Mode, new_topic: Callable[..., str], new_id: Callable[[], str]
) -> None:
    """Its offset says so: the transaction has one record, and a marker in marker mode."""
    topic = new_topic()
    taken = 3 if mode is Mode.MARKERS else 2
    with RawClient(node.address) as client:
        transaction = RawTransaction(client, new_id(), topic)
        for count in range(COMMITS):
            transaction.write(b"in the transaction")
            client.send(_end(transaction), produce_request(topic, 0, bytes(batch([b"behind it"]))))
            assert client.receive_end() == raw.NONE
            assert client.receive_produce() == (raw.NONE, taken * (count + 1) - 1)


def test_offset_that_is_committed_after_a_transactions_offset_replaces_it(
    node: NodeProcess, new_topic: Callable[..., str], new_id: Callable[[], str]
) -> None:
    """As an operator's reset does, once the application has said that it is done."""
    topic, group = new_topic(), new_id()
    with RawClient(node.address) as client:
        transaction = RawTransaction(client, new_id(), topic)
        who = transaction.transactional_id, transaction.producer_id, transaction.epoch
        for count in range(COMMITS):
            assert client.add_offsets(*who, group) == raw.NONE
            assert client.commit_offset_in_transaction(*who, group, topic, 0, 1000 + count) == raw.NONE
            client.send(_end(transaction), raw.commit_offset_request(group, topic, 0, count))
            assert client.receive_end() == raw.NONE
            assert client.receive_commit_offset() == raw.NONE
            assert client.settled_offset(group, topic, 0) == (raw.NONE, count)


def _end(transaction: RawTransaction) -> object:
    return raw.end_request(transaction.transactional_id, transaction.producer_id, transaction.epoch, commit=True)
