from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coordinator.messages import ApplyCommit
from coordinator.order import CommitOrder
from fairlog_types import LogId, ProducerEpoch, ProducerId, TxId

LOGS = [LogId.of_offsets(number) for number in range(3)]


def txid(number: int) -> TxId:
    return TxId(ProducerId(1), ProducerEpoch(0), number)


@given(
    groups=st.lists(st.sampled_from("ab"), min_size=1, max_size=12),
    data=st.data(),
)
def test_order_of_placing_is_the_order_of_entering_whatever_the_order_of_decisions(groups, data):
    """Invariant 6: what commits is placed in each group in the order of PREPARE_COMMITs, and nothing is left.

    Between its decision and its place it is named for each of its logs, and for no other one.
    """
    order = CommitOrder()
    for number, group in enumerate(groups):
        order.enter(group, txid(number))
    commits = data.draw(st.lists(st.booleans(), min_size=len(groups), max_size=len(groups)))
    placed = {"a": [], "b": []}
    undecided = set(range(len(groups)))
    logs = [data.draw(st.lists(st.sampled_from(LOGS), unique=True).map(tuple)) for _ in groups]
    for number in data.draw(st.permutations(range(len(groups)))):
        undecided.discard(number)
        group = groups[number]
        if commits[number]:
            order.decide(ApplyCommit(txid(number), logs[number], 0, group))
        else:
            order.leave(group, txid(number))
        due = [n for n in range(len(groups)) if commits[n] and n not in undecided and n not in placed[groups[n]]]
        for log in LOGS:
            assert set(order.not_placed(log)) == {txid(n) for n in due if log in logs[n]}
        while (message := order.next_due()) is not None:
            assert not order.has(message.group, message.txid)
            placed[message.group].append(message.txid.number)
        ahead = [n for n in range(len(groups)) if groups[n] == group and commits[n] and n not in undecided]
        first_open = min((n for n in undecided if groups[n] == group), default=len(groups))
        assert placed[group] == [n for n in ahead if n < first_open], "placed as early as may be, and no earlier"
        wait = {n for n in range(len(groups)) if commits[n] and n not in undecided} - {*placed["a"], *placed["b"]}
        for log in LOGS:
            assert set(order.not_placed(log)) == {txid(n) for n in wait if log in logs[n]}
    for group, numbers in placed.items():
        assert numbers == [n for n in range(len(groups)) if groups[n] == group and commits[n]]


def test_order_refuses_a_transaction_that_enters_or_is_decided_twice():
    """Both would be a bug of the machine."""
    order = CommitOrder()
    order.enter("g", txid(0))
    order.enter("g", txid(1))
    with pytest.raises(AssertionError):
        order.enter("g", txid(1))
    order.decide(ApplyCommit(txid(1), (), 0, "g"))
    with pytest.raises(AssertionError):
        order.decide(ApplyCommit(txid(1), (), 0, "g"))
