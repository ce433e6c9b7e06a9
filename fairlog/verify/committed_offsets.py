"""The table of committed offsets of one offsets log. Pure. An entry's key is made from what its value names.

Which offset a group commits is its own business: the node takes any, be it -1 or one behind the end.
"""

from __future__ import annotations

from collections.abc import Iterator

from datalog import layout
from datalog.lmdb_pages import Item
from datalog.offset_entries import MalformedEntries, decode_offset_entry
from fairlog.verify.findings import Summary, Violation


def check_committed_offset(log_name: str, number: int, item: Item, summary: Summary) -> Iterator[Violation]:
    """One entry of the log with that number."""
    where = f"{log_name}, byte {item.at} of the file"
    try:
        entry = decode_offset_entry(item.value)
    except MalformedEntries as error:
        yield Violation(where, str(error))
        return
    summary.counts["committed offsets"] += 1
    if entry.value is None:
        yield Violation(where, f"the entry of {entry.key} is a deletion, which is not kept")
    if layout.offset_key(number, entry.key) != item.key:
        yield Violation(where, f"the entry of {entry.key} stands under another's key")
