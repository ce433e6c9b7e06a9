"""Which items a replica has to make visible together: those that the owner placed as one.

The owner writes the decisions of all logs of a transaction in one step, and so are those of several transactions that
were committed as one: in the stream they follow each other, under one apply number. Everything else was placed by
itself. Pure.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from fairlog_types import ApplyNumber
from partition.placed import Placed, PlacedMarker, PlacedTransaction


def placed_together(items: Iterable[Placed]) -> Iterator[tuple[Placed, ...]]:
    """Cut the items of an entry, in their order, into groups that become visible together."""
    group: list[Placed] = []
    number: ApplyNumber | None = None
    for item in items:
        own = _number_of(item)
        if group and own != number:
            yield tuple(group)
            group = []
        if own is None:
            yield (item,)
            continue
        number = own
        group.append(item)
    if group:
        yield tuple(group)


def _number_of(item: Placed) -> ApplyNumber | None:
    """None if the item becomes visible by itself."""
    if isinstance(item, PlacedTransaction) or (isinstance(item, PlacedMarker) and item.committed):
        return item.apply_number
    return None
