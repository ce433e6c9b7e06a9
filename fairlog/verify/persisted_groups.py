"""The table of groups of one offsets log: each record reads back, under the digest of the group that it names. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from datalog import layout
from datalog.layout import DamagedValue
from datalog.lmdb_pages import Item
from fairlog.groups.persisted_group import decode_group
from fairlog.verify.findings import Summary, Violation
from fairlog_types import CorruptStorage


def check_persisted_group(log_name: str, item: Item, summary: Summary) -> Iterator[Violation]:
    """One record of the log."""
    try:
        decode_group(layout.decode_group_key(item.key), bytes(item.value))
    except (CorruptStorage, DamagedValue) as error:
        yield Violation(f"{log_name}, byte {item.at} of the file", str(error))
        return
    summary.counts["groups whose members are kept"] += 1
