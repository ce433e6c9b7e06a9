"""ListTransactions: the transactional ids that this broker coordinates, filtered. Clients ask every broker.

Behaviour
- Filters by state, producer id, duration and pattern are combined by "and"; an empty filter matches everything. A state
  that Kafka does not have is listed among the unknown filters, and matches nothing.
- The duration filter matches open transactions that began more than this number of milliseconds ago.
- A pattern is a regular expression for whole ids, in the syntax of `fairlog.patterns`. A pattern that is invalid, or
  too expensive, is INVALID_REGULAR_EXPRESSION; null, or the empty pattern, matches everything.
- Other clients are served while a long list is searched and written.

Version notes
- 1 adds the duration filter; 2 the pattern (KIP-1152).
"""

from __future__ import annotations

import time
from dataclasses import dataclass

import trio

from coordinator.answers import Description
from fairlog.kafka.api import Answer, Api, Context, Versions
from fairlog.kafka.checks import DESCRIBE_TRANSACTIONAL_ID, may
from fairlog.kafka.errors import ErrorCode
from fairlog.kafka.transaction_states import KAFKA_STATES, kafka_state
from fairlog.kafka.wire import Reader
from fairlog.patterns import BadPattern, Pattern

SERVED = Versions(0, 2)
FLEXIBLE_FROM = 0
_PATTERN_FROM = 2

_IDS_PER_TURN = 500
"""Ids that are checked, or written, before other tasks run."""
_MATCHED_PER_TURN = 8
"""A hostile pattern may take some milliseconds for each id."""


@dataclass(frozen=True, slots=True)
class ListTransactionsRequest:
    states: tuple[str, ...]
    producer_ids: tuple[int, ...]
    longer_than_ms: int
    """-1: any duration."""
    pattern: str | None


def decode(reader: Reader, version: int) -> ListTransactionsRequest:
    request = ListTransactionsRequest(
        reader.array(reader.string),
        reader.array(reader.int64),
        reader.int64() if version >= 1 else -1,
        reader.nullable_string() if version >= _PATTERN_FROM else None,
    )
    reader.end_of_fields()
    return request


async def handle(context: Context, request: ListTransactionsRequest) -> Answer:
    writer = context.writer()
    error = ErrorCode.NONE
    unknown = [state for state in request.states if state not in KAFKA_STATES]
    passing: list[Description] = []
    try:
        passing = await _passing(context, request)
    except BadPattern:
        error, unknown = ErrorCode.INVALID_REGULAR_EXPRESSION, []
    writer.int32(0)  # throttle time
    writer.int16(error)
    writer.array(unknown, writer.string)
    writer.array_length(len(passing))
    for count, description in enumerate(passing, 1):
        writer.string(description.transactional_id)
        writer.int64(description.producer_id)
        writer.string(kafka_state(description))
        writer.end_of_fields()
        if count % _IDS_PER_TURN == 0:
            await trio.lowlevel.checkpoint()
    writer.end_of_fields()
    return writer.parts()


async def _passing(context: Context, request: ListTransactionsRequest) -> list[Description]:
    """Those that match all filters, and that the client may describe. Raises BadPattern."""
    now_ms = time.time_ns() // 1_000_000
    pattern = Pattern(request.pattern) if request.pattern else None
    passing: list[Description] = []
    for count, description in enumerate(context.broker.coordinator.describe_all(), 1):
        if (
            _passes(description, request, now_ms)
            and may(context, DESCRIBE_TRANSACTIONAL_ID, description.transactional_id)
            and (pattern is None or pattern.matches(description.transactional_id))
        ):
            passing.append(description)
        if count % (_IDS_PER_TURN if pattern is None else _MATCHED_PER_TURN) == 0:
            await trio.lowlevel.checkpoint()
    return passing


def _passes(description: Description, request: ListTransactionsRequest, now_ms: int) -> bool:
    if request.states and kafka_state(description) not in request.states:
        return False
    if request.producer_ids and description.producer_id not in request.producer_ids:
        return False
    if request.longer_than_ms < 0:
        return True
    return description.started_ms is not None and now_ms - description.started_ms > request.longer_than_ms


API = Api(66, "ListTransactions", SERVED, FLEXIBLE_FROM, decode, handle, (DESCRIBE_TRANSACTIONAL_ID,))
