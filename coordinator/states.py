"""The one table of a transactional id's states: which event may lead from where to where.

A transactional id is in exactly one `IdState`. What happens to it is an `EventKind`: a client's request,
a participant's answer, time, or a restart. `TABLE` lists every pair that can occur, with all that may come
of it; a pair that is not listed is our bug, and `machine.step` stops there. The machine's rules stand in
`machine.py`, one function for each pair or for several that act alike; each step is checked against this
table, and the diagram in docs/transactions.md is made from it.

A transaction that is committed but not yet copied has left this table: it stands in `Producer.decided`
until `COPIED`, while the id is EMPTY or OPEN again. So nobody waits for the copy in order to begin.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import NamedTuple


class IdState(Enum):
    """Where a transactional id stands. The value is its line in the documentation."""

    UNKNOWN = "never seen, or expired"
    EMPTY = "no transaction is open"
    OPEN = "BEGIN is in the group journal; its logs take batches"
    PREPARING = "PREPARE_COMMIT is in the group journal; the participants are being asked"
    MUST_ABORT = "the coordinator aborted what the client may believe to be open; the client must say so too"

    __hash__ = object.__hash__  # a member equals only itself; Enum's own hash is a function in Python


class EventKind(Enum):
    """What happens to a transactional id. The value is its line in the documentation."""

    INIT = "InitProducerId"
    ADD = "partitions are to be added"
    BEGUN = "the leaders answered *begin*"
    END_COMMIT = "EndTxn(commit)"
    END_ABORT = "EndTxn(abort)"
    SEALED = "the participants closed the transaction and counted its records"
    PREPARED = "all participants hold everything, and PREPARE_COMMIT is durable"
    REFUSED = "a participant cannot prepare"
    COPIED = "a committed transaction is visible in all its logs"
    TIMED_OUT = "the open transaction is older than its time-out"
    FORCED = "an operator aborts the open transaction"
    IDLE = "nothing was asked of the id for the expiration time"
    RESTARTED = "the group journal was replayed after a restart"
    RESUMED = "the leaders were told that the transaction is still open"
    WITHDRAWN = "a transaction that the restart found undecided cannot be prepared again"
    SINK_DECIDED = "the sink commit to which the transaction belongs is decided"
    DROPPED = "the lane is not to be committed: others have won, or its run was replaced"

    __hash__ = object.__hash__


class Row(NamedTuple):
    """`event` in `state` may lead to `then`; `why` says in which case, or what it means."""

    state: IdState
    event: EventKind
    then: IdState
    why: str


_S = IdState
_E = EventKind

TABLE: tuple[Row, ...] = (
    Row(_S.UNKNOWN, _E.INIT, _S.EMPTY, "a producer id is allotted, epoch 0"),
    Row(_S.UNKNOWN, _E.INIT, _S.UNKNOWN, "refused, or waits for a producer id"),
    Row(_S.UNKNOWN, _E.ADD, _S.UNKNOWN, "refused"),
    Row(_S.UNKNOWN, _E.END_COMMIT, _S.UNKNOWN, "refused"),
    Row(_S.UNKNOWN, _E.END_ABORT, _S.UNKNOWN, "refused"),
    Row(_S.UNKNOWN, _E.FORCED, _S.UNKNOWN, "refused"),
    #
    Row(_S.EMPTY, _E.INIT, _S.EMPTY, "the epoch is bumped, or a retry is answered"),
    Row(_S.EMPTY, _E.ADD, _S.EMPTY, "the leaders are asked"),
    Row(_S.EMPTY, _E.BEGUN, _S.OPEN, "BEGIN"),
    Row(_S.EMPTY, _E.BEGUN, _S.EMPTY, "no leader could begin"),
    Row(
        _S.EMPTY,
        _E.END_COMMIT,
        _S.EMPTY,
        "said again: answered alike; refused after an abort, and where nothing has begun",
    ),
    Row(
        _S.EMPTY,
        _E.END_ABORT,
        _S.EMPTY,
        "said again: answered alike; an epoch is granted (version 2); partitions were asked for in vain; else refused",
    ),
    Row(_S.EMPTY, _E.COPIED, _S.EMPTY, "COMMITTED"),
    Row(_S.EMPTY, _E.FORCED, _S.EMPTY, "nothing to abort"),
    Row(_S.EMPTY, _E.IDLE, _S.UNKNOWN, "EXPIRED"),
    Row(_S.EMPTY, _E.RESTARTED, _S.EMPTY, "the journal is whole"),
    Row(_S.EMPTY, _E.RESTARTED, _S.MUST_ABORT, "a BEGIN may be lost"),
    Row(_S.EMPTY, _E.WITHDRAWN, _S.MUST_ABORT, "PREPARE_ABORT"),
    #
    Row(_S.OPEN, _E.INIT, _S.EMPTY, "aborted, and the epoch is bumped"),
    Row(
        _S.OPEN,
        _E.INIT,
        _S.OPEN,
        "the epoch is bumped, and what is open is kept for its end; refused; or waits for a producer id",
    ),
    Row(_S.OPEN, _E.ADD, _S.OPEN, "the leaders are asked"),
    Row(_S.OPEN, _E.BEGUN, _S.OPEN, "BEGIN of further logs"),
    Row(_S.OPEN, _E.END_COMMIT, _S.PREPARING, "PREPARE_COMMIT"),
    Row(_S.OPEN, _E.END_COMMIT, _S.OPEN, "refused, or too many are being copied"),
    Row(_S.OPEN, _E.END_ABORT, _S.EMPTY, "PREPARE_ABORT, ABORTED"),
    Row(_S.OPEN, _E.END_ABORT, _S.OPEN, "refused"),
    Row(_S.OPEN, _E.COPIED, _S.OPEN, "COMMITTED, of an earlier one"),
    Row(_S.OPEN, _E.TIMED_OUT, _S.EMPTY, "aborted, and the epoch is bumped: the client is fenced"),
    Row(_S.OPEN, _E.TIMED_OUT, _S.MUST_ABORT, "aborted without a fence"),
    Row(_S.OPEN, _E.FORCED, _S.EMPTY, "aborted, and the epoch is bumped: the client is fenced"),
    Row(_S.OPEN, _E.FORCED, _S.MUST_ABORT, "aborted without a fence"),
    Row(_S.OPEN, _E.FORCED, _S.OPEN, "refused: another one was meant"),
    Row(_S.OPEN, _E.RESTARTED, _S.OPEN, "nothing is lost: the leaders are told"),
    Row(_S.OPEN, _E.RESTARTED, _S.MUST_ABORT, "aborted: its batches may be lost"),
    Row(_S.OPEN, _E.RESUMED, _S.OPEN, "it goes on"),
    Row(_S.OPEN, _E.RESUMED, _S.MUST_ABORT, "aborted: a leader has lost its part"),
    Row(_S.OPEN, _E.SINK_DECIDED, _S.EMPTY, "SINK_PREPARE_COMMIT names it"),
    Row(_S.OPEN, _E.DROPPED, _S.EMPTY, "aborted, and the epoch is bumped: the lane is fenced"),
    Row(_S.OPEN, _E.DROPPED, _S.MUST_ABORT, "aborted without a fence: it has the last epoch"),
    #
    Row(_S.PREPARING, _E.INIT, _S.PREPARING, "waits for the decision"),
    Row(_S.PREPARING, _E.ADD, _S.PREPARING, "refused: concurrent"),
    Row(_S.PREPARING, _E.END_COMMIT, _S.PREPARING, "waits for the same answer"),
    Row(_S.PREPARING, _E.END_ABORT, _S.PREPARING, "refused"),
    Row(_S.PREPARING, _E.SEALED, _S.PREPARING, "PREPARE_COMMIT is written, the disks are waited for"),
    Row(_S.PREPARING, _E.PREPARED, _S.EMPTY, "committed: the producer is answered"),
    Row(_S.PREPARING, _E.REFUSED, _S.MUST_ABORT, "PREPARE_ABORT"),
    Row(_S.PREPARING, _E.COPIED, _S.PREPARING, "COMMITTED, of an earlier one"),
    Row(_S.PREPARING, _E.FORCED, _S.PREPARING, "refused: concurrent"),
    #
    Row(_S.MUST_ABORT, _E.INIT, _S.EMPTY, "the epoch is bumped"),
    Row(_S.MUST_ABORT, _E.INIT, _S.MUST_ABORT, "refused, or waits for a producer id"),
    Row(_S.MUST_ABORT, _E.ADD, _S.MUST_ABORT, "refused"),
    Row(_S.MUST_ABORT, _E.END_COMMIT, _S.MUST_ABORT, "refused; or said again, and answered alike"),
    Row(_S.MUST_ABORT, _E.END_COMMIT, _S.EMPTY, "said again, when the epochs have run out: a fresh producer id"),
    Row(_S.MUST_ABORT, _E.END_ABORT, _S.EMPTY, "the client knows"),
    Row(_S.MUST_ABORT, _E.END_ABORT, _S.MUST_ABORT, "refused"),
    Row(_S.MUST_ABORT, _E.COPIED, _S.MUST_ABORT, "COMMITTED, of an earlier one"),
    Row(_S.MUST_ABORT, _E.FORCED, _S.MUST_ABORT, "aborted already"),
    Row(_S.MUST_ABORT, _E.IDLE, _S.UNKNOWN, "EXPIRED"),
    Row(_S.MUST_ABORT, _E.RESTARTED, _S.MUST_ABORT, "remembered"),
    Row(_S.MUST_ABORT, _E.WITHDRAWN, _S.MUST_ABORT, "PREPARE_ABORT"),
)


def _next_states() -> Mapping[tuple[IdState, EventKind], frozenset[IdState]]:
    found: dict[tuple[IdState, EventKind], frozenset[IdState]] = {}
    for row in TABLE:
        pair = (row.state, row.event)
        assert row.then not in found.get(pair, frozenset()), f"{pair} leads to {row.then} twice"
        found[pair] = found.get(pair, frozenset()) | {row.then}
    return found


NEXT_STATES = _next_states()
"""For each pair that can occur, the states that may follow."""


def diagram() -> str:
    """The table as a Mermaid state diagram; what leaves the state as it is is left out."""
    lines = ["stateDiagram-v2", "    [*] --> UNKNOWN"]
    lines += [
        f"    {row.state.name} --> {row.then.name}: {row.event.name} ({row.why})"
        for row in TABLE
        if row.state is not row.then
    ]
    return "\n".join(lines) + "\n"


def matrix() -> str:
    """The whole table in Markdown: a line for each row."""
    lines = ["| state | event | next state | why |", "|---|---|---|---|"]
    lines += [f"| {row.state.name} | {row.event.name} | {row.then.name} | {row.why} |" for row in TABLE]
    return "\n".join(lines) + "\n"
