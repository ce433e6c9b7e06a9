"""Checks of order within partitions: as consumers read, as producers sent, as transactions were committed. Pure.

A consumer's *position* in a partition is the offset that it reads next. Rebalances and seeks set it (`assign`); between
them it reads on, and what it passes over is a skip. An offset at which nobody ever saw a record is a gap: a hole in
journal mode, and in marker mode where control records and aborted ones stand.
"""

from __future__ import annotations

from collections.abc import Iterator

from tests.history.anomalies import (
    GROUP_ORDER,
    INTERLEAVED,
    NONMONOTONIC_POLL,
    NONMONOTONIC_SEND,
    OFFSET_GAP,
    POLL_SKIP,
    Anomaly,
)
from tests.history.operations import Kind, Operation
from tests.history.versions import Order, Versions

_Positions = dict[str, tuple[int, int] | None]
"""By partition: the next offset, and the line of the operation that led there; None: wherever reading goes on."""


def reading(versions: Versions) -> Iterator[Anomaly]:
    """Poll skips, non-monotonic polls, and gaps between offsets."""
    consumers: dict[str, _Positions] = {}
    for operation in versions.history.operations:
        if operation.kind is Kind.ASSIGN:
            positions = consumers.setdefault(operation.process, {})
            for partition in operation.revoked:
                positions.pop(partition, None)
            for partition, offset in operation.positions.items():
                positions[partition] = None if offset is None else (offset, operation.line)
        elif operation.kind is Kind.FINAL:
            yield from _read(versions, operation, dict.fromkeys(operation.ends, (0, operation.line)))
        elif operation.micro:
            yield from _read(versions, operation, consumers.setdefault(operation.process, {}))


def _read(versions: Versions, reader: Operation, positions: _Positions) -> Iterator[Anomaly]:
    for poll in reader.polls():
        partition = poll.partition
        order = versions.order(partition, reader.isolation)
        for offset, value in poll.records:
            before = positions.get(partition)
            if before is not None and offset != before[0]:
                lines = (before[1], reader.line) if before[1] != reader.line else (reader.line,)
                if offset < before[0]:
                    text = f"{reader} read {value!r} at {partition} offset {offset}, being at {before[0]}"
                    yield Anomaly(NONMONOTONIC_POLL, text, lines)
                else:
                    yield from _passed_over(order, partition, before[0], offset, reader, lines)
            positions[partition] = offset + 1, reader.line
    for partition, end in reader.ends.items():
        before = positions.get(partition)
        if before is not None and before[0] < end:
            order = versions.order(partition, reader.isolation)
            yield from _passed_over(order, partition, before[0], end, reader, (before[1], reader.line))
        positions[partition] = end, reader.line


def _passed_over(
    order: Order, partition: str, start: int, end: int, reader: Operation, lines: tuple[int, ...]
) -> Iterator[Anomaly]:
    """A reader came from `start` to `end` without a record between them."""
    skipped = order.between(start, end)
    if skipped:
        shown = ", ".join(map(repr, skipped[:3])) + (f" and {len(skipped) - 3} more" if len(skipped) > 3 else "")
        yield Anomaly(POLL_SKIP, f"{reader} passed over {shown} between {partition} offsets {start} and {end}", lines)
    else:
        yield Anomaly(
            OFFSET_GAP, f"{reader} came from {partition} offset {start} to {end}, with nothing between", lines
        )


def sending(versions: Versions) -> Iterator[Anomaly]:
    """Non-monotonic sends, within an operation and between a producer's operations."""
    last: dict[tuple[str, str], tuple[int, str, int]] = {}
    for operation in versions.history.operations:
        if not versions.took_effect(operation):
            continue
        for send in operation.sends():
            place = versions.places.get(send.value)
            if place is None or place[0] != send.partition:
                continue
            key = operation.process, send.partition
            before = last.get(key)
            if before is not None and place[1] < before[0]:
                yield Anomaly(
                    NONMONOTONIC_SEND,
                    f"{operation.process} sent {before[1]!r} before {send.value!r}; they stand at offsets {before[0]}"
                    f" and {place[1]} of {send.partition}",
                    (before[2], operation.line) if before[2] != operation.line else (operation.line,),
                )
            else:
                last[key] = place[1], send.value, operation.line


def transactions(versions: Versions) -> Iterator[Anomaly]:
    """Interleaved transactions, and transactions of a group out of their commit order.

    A group has one producer at a time, and a transaction is invoked only after its producer was granted the id. So
    those of a group that take effect are committed in the order in which they are invoked.
    """
    for partition, order in versions.committed_orders():
        previous: Operation | None = None
        ended: dict[int, int] = {}
        newest: dict[str, Operation] = {}
        for offset, value in zip(order.offsets, order.values, strict=True):
            writer = versions.sender_of(value, partition)
            if writer is not previous and previous is not None:
                ended[previous.line] = offset
            if writer is not None and writer.kind is Kind.TXN and writer is not previous:
                if writer.line in ended:
                    text = f"{writer} goes on at {partition} offset {offset}, others stand since {ended[writer.line]}"
                    yield Anomaly(INTERLEAVED, text, (writer.line,))
                if writer.group is not None:
                    last = newest.setdefault(writer.group, writer)
                    if writer.line < last.line:
                        text = f"{writer} stands at {partition} offset {offset}, behind a later transaction: {last}"
                        yield Anomaly(GROUP_ORDER, text, (writer.line, last.line))
                    else:
                        newest[writer.group] = writer
            previous = writer
