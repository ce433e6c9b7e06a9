"""A frame's header in words: the records of both kinds of journal. Pure."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence

from coordinator.group_history import PART, SNAPSHOT_BEGIN, SNAPSHOT_END
from coordinator.group_records import decode_group
from fairlog_types import CorruptStorage
from journal.segment import JournalKind
from partition.record_codec import decode_local

_LOCAL = {
    1: "fence",
    2: "plain batch",
    3: "transactional batch",
    4: "apply",
    5: "discard",
    6: "forget",
    7: "open batch",
    8: "marker",
    9: "prepared",
    10: "start",
}
_GROUP = {
    1: "producer",
    2: "expired",
    3: "begin",
    4: "prepare commit",
    5: "committed",
    6: "prepare abort",
    7: "aborted",
    8: "sink",
    9: "sink forgotten",
    10: "sink prepare commit",
    11: "sink committed",
    12: "sink aborted",
    SNAPSHOT_BEGIN: "snapshot begins",
    SNAPSHOT_END: "snapshot ends",
}


def kind_in_words(journal: JournalKind, kind: int) -> str:
    """What a frame of that kind is."""
    if journal is JournalKind.LOCAL:
        return _LOCAL.get(kind, f"unknown kind {kind}")
    if kind & PART and kind ^ PART in _GROUP:
        return f"snapshot part: {_GROUP[kind ^ PART]}"
    return _GROUP.get(kind, f"unknown kind {kind}")


def record_fields(
    journal: JournalKind, kind: int, header: Sequence[object], payload: Callable[[], bytes]
) -> Mapping[str, object]:
    """The fields by their names. Raises CorruptStorage if the header is not what the kind has."""
    if journal is JournalKind.GROUP and kind in (SNAPSHOT_BEGIN, SNAPSHOT_END):
        names = ("as_of", "commit_number") if kind == SNAPSHOT_BEGIN else ("parts",)
        if len(header) != len(names) or not all(isinstance(field, int) for field in header):
            raise CorruptStorage(f"its header must be {len(names)} numbers ({', '.join(names)}), not {header!r}")
        return dict(zip(names, header, strict=True))
    if journal is JournalKind.LOCAL:
        record = decode_local(kind, header)
    else:
        record = decode_group(kind & ~PART, header, payload())
    return {each.name: getattr(record, each.name) for each in dataclasses.fields(record)}
