"""What the nodes have last said of their copies, and what follows from it. Pure: clocks come in.

    entries ─▶ `Reports`: the last report of each node, and when it was read ─┬─▶ `up`, `of`, `lags`   for people, plans
                                                                              ├─▶ `in_sync`            for clients
                                                                              └─▶ `trim_to`            for the engine

*Ages* are by the reader's own clock: how long ago a report was read. They decide what is shown, who is asked to do
something, and for how long the stream waits for a copy that is behind; nothing that must not go wrong rests on them.

*Order.* A report may come late or twice. Of one process only a higher number counts. A report of another run of the
node always does: a late one of an earlier run may stand for as long as it takes the node to report again. It says what
was true, and the node may have lost a copy since, just as after any report.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple
from uuid import UUID

from fairlog.cluster.cluster_records import NodeNumber
from fairlog.cluster.report_entry import NotAReport, Report, decode_report_untrusted
from fairlog_types import LeaderEpoch, ShardNumber
from shard.progress import Role
from stream.engine import StoredEntry, StreamPosition
from stream.fold import NOTHING_READ

IN_SYNC_AGE_S = 10.0
"""A copy in sync has what the stream had so long ago, and has said so since. Kafka's replica.lag.time.max.ms is 30 s:
there a copy out of sync is one that may not lead."""

FOLLOWING_AGE_S = 5.0
"""Of the last report of a copy that the shard is handed over to. One of its reports may be late, or be lost."""

GAP_S = 5.0
"""Between two reports of a node that is heard all the time. Nodes report every two seconds, and one may be lost."""

JOINING_AGE_S = 60.0
"""For so long after its last report a copy that is joining still counts as alive."""

JOINING_S_MAX = 3600.0
"""For so long the stream waits for a copy that is joining and whose mark does not move: its node may be stuck."""


@dataclass(frozen=True, slots=True)
class HeardCopy:
    """A copy, as its node has last reported it."""

    role: Role
    epoch: LeaderEpoch
    taken: StreamPosition
    synced: StreamPosition
    age_s: float
    """Since the report was read."""
    unmoved_s: float
    """Since `synced` was first read to be where it is."""


class Strange(NamedTuple):
    """An entry that is no report."""

    position: StreamPosition
    why: NotAReport


@dataclass(frozen=True, slots=True)
class _Heard:
    report: Report
    at_s: float
    since_s: float
    """Since when it is heard without a gap."""
    moved_s: Mapping[ShardNumber, float]
    """When the mark of each copy was first read to be where it is."""


class Reports:
    """The last report of each node. A fold of the stream of reports, from any entry on."""

    def __init__(self, cluster: UUID, now_s: Callable[[], float]) -> None:
        self._cluster = cluster
        self._now_s = now_s
        self._heard: dict[NodeNumber, _Heard] = {}

    def take(self, entries: Iterable[StoredEntry]) -> Sequence[Strange]:
        """Go over the next entries; answers those that are no reports. Empty ones are the engine's."""
        strange: list[Strange] = []
        for position, data in entries:
            if data:
                report = decode_report_untrusted(self._cluster, data)
                if isinstance(report, NotAReport):
                    strange.append(Strange(position, report))
                else:
                    self._take(report)
        return strange

    def _take(self, report: Report) -> None:
        before, now_s = self._heard.get(report.node), self._now_s()
        of_same_run = before is not None and before.report.incarnation == report.incarnation
        if before is not None and of_same_run and report.number <= before.report.number:
            return
        since_s = now_s if before is None or before.at_s < now_s - GAP_S else before.since_s
        moved_s = dict.fromkeys(report.copies, now_s)
        if before is not None:
            for shard, copy in report.copies.items():
                known = before.report.copies.get(shard)
                if known is not None and known.synced == copy.synced:
                    moved_s[shard] = before.moved_s[shard]
        self._heard[report.node] = _Heard(report, now_s, since_s, moved_s)

    def up(self, max_age_s: float) -> list[NodeNumber]:
        """The nodes that have reported within so many seconds."""
        since_s = self._now_s() - max_age_s
        return sorted(node for node, heard in self._heard.items() if heard.at_s >= since_s)

    def hears(self, node: NodeNumber, for_s: float) -> bool:
        """Whether this node was heard for so many seconds, and is. If it is the one that reads, it hears others too:
        who was not heard in that time has not reported.
        """
        heard, now_s = self._heard.get(node), self._now_s()
        return heard is not None and heard.at_s >= now_s - GAP_S and heard.since_s <= now_s - for_s

    def of(self, shard: ShardNumber) -> dict[NodeNumber, HeardCopy]:
        """The copies of a shard, by node."""
        now_s = self._now_s()
        found: dict[NodeNumber, HeardCopy] = {}
        for node, heard in sorted(self._heard.items()):
            copy = heard.report.copies.get(shard)
            if copy is not None:
                found[node] = HeardCopy(*copy, now_s - heard.at_s, now_s - heard.moved_s[shard])
        return found


def lags(copies: Mapping[NodeNumber, HeardCopy]) -> dict[NodeNumber, int]:
    """How many entries each copy of a shard had not taken yet of those that the owner had, by both reports.

    Nothing if no owner has reported. The reports are not of the same moment: a replica's lag is at least 0.
    """
    owners = [copy for copy in copies.values() if copy.role in (Role.OWNER, Role.OPENING)]
    if not owners:
        return {}
    end = max(owners, key=lambda copy: copy.epoch).taken
    return {node: max(0, end - copy.taken) for node, copy in copies.items()}


class PastEnds:
    """Where the stream of a shard was, by what its owner had taken."""

    _EVERY_S = 0.5
    """Between two that are remembered."""

    def __init__(self, end: StreamPosition, now_s: float) -> None:
        """`end` is what was taken when this node had become the owner."""
        self._noted = deque([(now_s, end)])

    def note(self, end: StreamPosition, now_s: float) -> None:
        """It has taken everything through `end` now."""
        if now_s >= self._noted[-1][0] + self._EVERY_S:
            self._noted.append((now_s, end))

    def at(self, then_s: float) -> StreamPosition:
        """Where it was then, or a little before; where it began, if that is later. No earlier time is asked for."""
        while len(self._noted) > 1 and self._noted[1][0] <= then_s:
            self._noted.popleft()
        return self._noted[0][1]


def in_sync(
    owner: NodeNumber,
    members: Collection[NodeNumber],
    copies: Mapping[NodeNumber, HeardCopy],
    then: StreamPosition,
    age_s: float = IN_SYNC_AGE_S,
) -> tuple[NodeNumber, ...]:
    """Which of a shard's `members` are in sync, by the owner's view, in the order of their numbers; itself among them.

    `then` is where the stream was `age_s` ago (`PastEnds`). A copy counts that has reported since, and had all of that.
    """
    found = {owner}
    for node in members:
        copy = copies.get(node)
        if copy is not None and copy.role is not Role.JOINING and copy.age_s < age_s and copy.taken >= then:
            found.add(node)
    return tuple(sorted(found))


def is_following(copy: HeardCopy | None, within_s: float = FOLLOWING_AGE_S) -> bool:
    """Whether the node of this copy has said lately that it follows, so that the shard may be handed over to it.

    A node that stops says at once that it does not, and counts as in sync until the owner has published that. One that
    dies says nothing: who need not hand over now asks for a report within the time since it wants to.
    """
    return copy is not None and copy.role is Role.REPLICA and copy.age_s < min(within_s, FOLLOWING_AGE_S)


def trim_to(
    owner: NodeNumber,
    mark: StreamPosition,
    members: Collection[NodeNumber],
    copies: Mapping[NodeNumber, HeardCopy],
    replicas: int,
) -> StreamPosition | None:
    """Before which position the stream of a shard may be trimmed; None: nothing may go (invariant 9).

    `mark` is the owner's own, and `members` are the nodes that are to keep a copy. What goes was synced by `replicas`
    of them, the owner included. A start reads on from the entry at its mark, so that one stays.

    A member that is joining keeps what it will read, as long as it is alive and comes forward: otherwise a long copy
    would be useless when it is done. One that is merely behind, or down, keeps nothing if `replicas` others go on: it
    may have to join anew.
    """
    others = [copies[node] for node in members if node in copies and node != owner]
    marks = sorted([mark, *(copy.synced for copy in others)], reverse=True)
    if len(marks) < replicas:
        return None
    before = min(mark, marks[replicas - 1], *(_will_read(copy) for copy in others if _is_waited_for(copy)))
    return before if before > 0 else None


def _is_waited_for(copy: HeardCopy) -> bool:
    return copy.role is Role.JOINING and copy.age_s < JOINING_AGE_S and copy.unmoved_s < JOINING_S_MAX


def _will_read(copy: HeardCopy) -> StreamPosition:
    """The first entry that a copy that is joining needs: the one at its mark, or at the mark that it is getting."""
    return copy.taken if copy.synced == NOTHING_READ else copy.synced
