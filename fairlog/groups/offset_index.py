"""What a node knows of its groups' offsets without reading them: who has some, since when, and what is pending.

The offsets themselves are in the data log environment. In memory there is, per group, little: when it last
committed, up to where its offsets log has to be visible for all its decided commits to be seen, and which
partitions have offsets in transactions that are still open::

    commit                ──▶ committed ─────────────────────────▶ decided_through, last commit
    TxnOffsetCommit       ──▶ pend ──▶ open ──▶ decided(visible at) ▲
                                         └───▶ decided(None): gone without a trace

It is right after a restart without being kept: what was decided is copied before anything is served, and what is still
open stands in the journals. So `load` names groups and times, and `pend` is called again for what is open.

Keeps invariant 8 for offsets: a pending one changes nothing but the answer to those who asked for stable offsets.
Pure; used on the event loop only.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from itertools import chain

from fairlog_types import LogId, Offset, TxId

Partition = tuple[str, int]
"""A topic's id as 32 hex digits, and the partition's number."""


class _Group:
    """What happened to a group's offsets in this run."""

    __slots__ = ("decided_through", "open")

    def __init__(self) -> None:
        self.decided_through = Offset(0)
        self.open: dict[TxId, set[Partition]] = {}


class OffsetIndex:
    """All groups of a node."""

    def __init__(self, now_ms: Callable[[], int]) -> None:
        """`now_ms` is the wall clock, for the time of a commit that is decided."""
        self._now_ms = now_ms
        self._last_commits_ms: dict[str, int] = {}
        """Of each group that has offsets."""
        self._left_ms: dict[str, int] = {}
        """Of groups among these, when their last member left, if that was in this run and nobody else knows it."""
        self._groups: dict[str, _Group] = {}
        """Those of which something was decided, or is pending, in this run."""
        self._open: dict[tuple[LogId, TxId], set[str]] = {}
        """Which groups an open transaction has offsets of, per offsets log."""

    def load(self, last_commits_ms: Mapping[str, int]) -> None:
        """Start from what the data logs hold: each group that has offsets, with the time of its newest."""
        self._last_commits_ms.update(last_commits_ms)

    def committed(self, group: str, visible_at: Offset, now_ms: int) -> None:
        """A commit outside any transaction stands in the journal."""
        self._group(group).decided_through = visible_at
        self._last_commits_ms[group] = now_ms

    def pend(self, log: LogId, txid: TxId, group: str, partitions: Collection[Partition]) -> None:
        """An open transaction has committed offsets of these partitions of the group, whose log is `log`."""
        self._group(group).open.setdefault(txid, set()).update(partitions)
        self._open.setdefault((log, txid), set()).add(group)

    def decided(self, log: LogId, txid: TxId, visible_at: Offset | None) -> None:
        """The transaction is committed, and its offsets are visible with `visible_at` of `log`; or (None) aborted."""
        for group in self._open.pop((log, txid), ()):
            del self._groups[group].open[txid]
            if visible_at is not None:
                self.committed(group, visible_at, self._now_ms())
            self._drop_if_nothing_is_known(group)

    def deleted(self, group: str, visible_at: Offset, *, all_of_them: bool) -> None:
        """Offsets of the group are deleted by an entry that is visible with `visible_at`."""
        self._group(group).decided_through = visible_at
        if all_of_them:
            self._last_commits_ms.pop(group, None)
            self._left_ms.pop(group, None)

    def members_left(self, group: str, at_ms: int) -> None:
        """See `interface.GroupsWithOffsets`: from that moment on the group's offsets are kept for the retention time.

        Not kept of a group without offsets.
        """
        if group in self._last_commits_ms:
            self._left_ms[group] = at_ms

    def forget(self, group: str, decided_through: Offset) -> None:
        """What was decided before `decided_through` is visible: a group that has no offsets need not be known."""
        known = self._groups.get(group)
        if known is not None and known.decided_through <= decided_through:
            self._drop_if_nothing_is_known(group)

    def pending(self, group: str) -> frozenset[Partition]:
        """Partitions with offsets in a transaction that is not decided."""
        known = self._groups.get(group)
        return frozenset() if known is None else frozenset(chain.from_iterable(known.open.values()))

    def undecided(self, group: str) -> Collection[TxId]:
        """The transactions with offsets of the group that are not decided, as far as this shard knows."""
        known = self._groups.get(group)
        return () if known is None else known.open.keys()

    def decided_through(self, group: str) -> Offset:
        """How far the group's log has to be visible to show all that is decided of the group; grows with each."""
        known = self._groups.get(group)
        return Offset(0) if known is None else known.decided_through

    def groups(self) -> Collection[str]:
        """The groups that have committed offsets: a live view, in which looking one up costs nothing."""
        return self._last_commits_ms.keys()

    def last_commit_ms(self, group: str) -> int | None:
        """When the newest offset was committed; None if there is none."""
        return self._last_commits_ms.get(group)

    def left_ms(self, group: str) -> int | None:
        """What `members_left` was told last; None if nothing."""
        return self._left_ms.get(group)

    def _group(self, group: str) -> _Group:
        known = self._groups.get(group)
        if known is None:
            known = self._groups[group] = _Group()
        return known

    def _drop_if_nothing_is_known(self, group: str) -> None:
        if group not in self._last_commits_ms and not self._groups[group].open:
            del self._groups[group]
