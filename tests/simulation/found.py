"""What a reader of committed records finds in a log (`isolation.level=read_committed`), and what is behind that.

In a log of journal mode: everything. In one of marker mode (docs/marker-mode.md):

    batches   up to the last stable offset, without control batches and aborted ranges: what clients get
    behind    what is committed behind the last stable offset, where older transactions are open: nobody gets it yet

A commit's markers are copied together with its parts in other logs, so `behind` tells that they are all there, also
where no reader gets yet. It is found by the markers alone: the first one of a producer behind a batch decides on it.
What the node says, its list of aborted ranges and its last stable offset, is held against that.

Pure.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from datalog.aborted import AbortedRanges
from datalog.batch import parse_stored_header
from datalog.control_batch import decode_control_batch
from datalog.interface import ReadResult
from fairlog_types import Offset


@dataclass(frozen=True, slots=True)
class Found:
    """A part of a log."""

    batches: Sequence[bytes]
    behind: Sequence[bytes] = ()
    markers: dict[bytes, Offset] = field(default_factory=dict)
    """Of each batch of a transaction in marker mode, committed, where its marker stands."""
    read_from: Offset = Offset(0)  # noqa: RUF009
    """What was asked for, or where the log began, if that is later."""
    log_start: Offset = Offset(0)  # noqa: RUF009


def found_by_markers(all_of_it: ReadResult, committed: ReadResult, violate: Callable[[int, str], None]) -> Found:
    """The same part of a log in marker mode, read as by who wants everything, and as by who wants what is committed."""
    markers: dict[bytes, Offset] = {}
    aborted: set[bytes] = set()
    undecided: dict[int, list[bytes]] = {}
    headers = {data: parse_stored_header(data) for data in all_of_it.batches}
    for data, header in headers.items():
        if header.control:
            ended = undecided.pop(header.producer_id, [])
            if decode_control_batch(data).committed:
                markers |= dict.fromkeys(ended, Offset(header.base_offset))
            else:
                aborted.update(ended)
        elif header.transactional:
            undecided.setdefault(header.producer_id, []).append(data)
    still_open = {data for of in undecided.values() for data in of}
    stable = min((headers[data].base_offset for data in still_open), default=all_of_it.next_offset)
    if stable != all_of_it.last_stable_offset:
        what = f"its last stable offset is {all_of_it.last_stable_offset}"
        violate(1 if stable < all_of_it.last_stable_offset else 8, f"{what}, and by its markers {stable}")
    kept = [data for data in headers if not headers[data].control and data not in aborted and data not in still_open]
    batches = [data for data in kept if headers[data].base_offset < stable]
    ranges = AbortedRanges(committed.aborted)
    answered = [data for data in committed.batches if not _is_left_out(ranges, data)]
    if answered != batches:
        where = [headers[data].base_offset for data in batches]
        said = [parse_stored_header(data).base_offset for data in answered]
        violate(1, f"readers of committed records get what is at {said}, and by its markers {where} is committed")
    return Found(batches, [data for data in kept if headers[data].base_offset >= stable], markers)


def _is_left_out(ranges: AbortedRanges, data: bytes) -> bool:
    header = parse_stored_header(data)
    return header.control or ranges.contain(header)
