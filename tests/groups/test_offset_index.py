"""The index of what is committed and pending: driven through all orders of events, beside a plain model."""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from fairlog.groups.offset_index import OffsetIndex
from fairlog_types import LogId, Offset, ProducerEpoch, ProducerId, TxId

GROUPS = ("a", "b", "c")
LOG_OF = {"a": LogId.of_offsets(0), "b": LogId.of_offsets(0), "c": LogId.of_offsets(1)}
"""Two groups share a log, so a transaction's decision there concerns both."""

groups = st.sampled_from(GROUPS)
txids = st.integers(0, 3).map(lambda number: TxId(ProducerId(number), ProducerEpoch(0), 0))
partitions = st.sets(st.tuples(st.sampled_from(["t", "u"]), st.integers(0, 1)), max_size=3)


class IndexMachine(RuleBasedStateMachine):
    """The model keeps what happened; the index must say the same of it."""

    def __init__(self) -> None:
        super().__init__()
        self.index = OffsetIndex(lambda: self.clock)
        self.pending: dict[tuple[str, TxId], set[tuple[str, int]]] = {}
        self.through = dict.fromkeys(GROUPS, 0)
        self.last_ms: dict[str, int] = {}
        self.left_ms: dict[str, int] = {}
        self.clock = 0
        self.ends = dict.fromkeys(LOG_OF.values(), 0)

    def next_end(self, log: LogId) -> Offset:
        self.ends[log] += 1
        self.clock += 1
        return Offset(self.ends[log])

    @rule(group=groups)
    def commit(self, group: str) -> None:
        end = self.next_end(LOG_OF[group])
        self.index.committed(group, end, self.clock)
        self.through[group], self.last_ms[group] = end, self.clock

    @rule(group=groups, txid=txids, some=partitions)
    def pend(self, group: str, txid: TxId, some: set[tuple[str, int]]) -> None:
        self.index.pend(LOG_OF[group], txid, group, some)
        self.pending.setdefault((group, txid), set()).update(some)

    @rule(txid=txids, log=st.sampled_from(sorted(set(LOG_OF.values()))), commits=st.booleans())
    def decide(self, txid: TxId, log: LogId, commits: bool) -> None:
        end = self.next_end(log)
        self.index.decided(log, txid, end if commits else None)
        for group in GROUPS:
            if LOG_OF[group] == log and self.pending.pop((group, txid), None) is not None and commits:
                self.through[group], self.last_ms[group] = end, self.clock

    @rule(group=groups, all_of_them=st.booleans())
    def delete(self, group: str, all_of_them: bool) -> None:
        end = self.next_end(LOG_OF[group])
        self.index.deleted(group, end, all_of_them=all_of_them)
        self.through[group] = end
        if all_of_them:
            self.last_ms.pop(group, None)
            self.left_ms.pop(group, None)

    @rule(group=groups)
    def leave(self, group: str) -> None:
        """Nothing is kept of a group that has no offsets to be kept."""
        self.index.members_left(group, self.clock)
        if group in self.last_ms:
            self.left_ms[group] = self.clock

    @rule(group=groups, behind=st.integers(0, 2))
    def forget(self, group: str, behind: int) -> None:
        """What is visible may be forgotten; a group that committed since is not."""
        at = self.index.decided_through(group) - behind
        self.index.forget(group, Offset(at))

    @precondition(lambda self: self.clock == 0 and not self.pending)
    @rule(loaded=st.dictionaries(groups, st.integers(1, 9)))
    def load(self, loaded: dict[str, int]) -> None:
        self.index.load(loaded)
        self.last_ms.update(loaded)

    @invariant()
    def says_what_happened(self) -> None:
        assert set(self.index.groups()) == set(self.last_ms)
        for group in GROUPS:
            assert self.index.last_commit_ms(group) == self.last_ms.get(group)
            assert self.index.left_ms(group) == self.left_ms.get(group)
            expected = set().union(*(some for (whose, _), some in self.pending.items() if whose == group))
            assert self.index.pending(group) == expected
            # Only a group of which nothing is left may be forgotten, and with it how far to wait.
            if group in self.last_ms:
                assert self.index.decided_through(group) == self.through[group]


TestIndex = IndexMachine.TestCase
TestIndex.settings = settings(max_examples=40, stateful_step_count=30, deadline=None)
