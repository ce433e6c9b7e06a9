"""The copy itself: one chunk of groups goes into the data logs in one LMDB transaction.

Runs in a worker thread, from start to end. Inside one write transaction of the data logs it reads the
marks, plans what they have not passed yet, reads each batch back from its journal (its CRC is checked
there), patches base offset and leader epoch, appends, and writes windows and marks. On any exception the
transaction is aborted and nothing has happened.

The marks are read and written in the transaction that writes the data: that is why copying again what was
copied changes nothing (invariant 4), and why a reader sees a group whole or not at all (invariant 7).

Offsets logs go the same way; their payloads are lists of entries for the table of committed offsets
instead of batches, and their offsets are running numbers that nobody reads.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Mapping
from dataclasses import dataclass
from typing import Protocol

import cbor2

from copier.plan import Group, LogPlan, batches_at, plan
from datalog.batch import patch
from datalog.interface import DataLogs, DataLogWriter, Mark
from fairlog_types import CorruptStorage, JournalPosition, LogId, LogKind, Offset


class PayloadSource(Protocol):
    """The part of a local journal that the copy needs."""

    def read_payload(self, position: JournalPosition, frame_bytes: int) -> bytearray:
        """The payload of the frame at `position`. Callable from any thread; raises CorruptStorage, OSError."""
        ...


@dataclass(frozen=True, slots=True)
class Copied:
    """What one LMDB transaction has changed."""

    marks: Mapping[LogId, Mark]
    """The new mark of every log that was touched."""
    high_watermarks: Mapping[LogId, Offset]
    """Of the logs that got records."""
    records: int
    payload_bytes: int


def apply(
    groups: Iterable[Group],
    data_logs: DataLogs,
    journal_of: Callable[[LogId], PayloadSource],
    dropped: Container[LogId],
) -> Copied:
    """Copy the groups; all of it becomes visible at once, or nothing.

    `dropped` names logs that are being deleted; it may grow while this runs. A log is entered there before
    its data log is dropped, so that looking it up behind the lock of the write transaction is enough.

    Raises StorageFailure (LMDB refused), CorruptStorage (a frame does not read back), OSError. The same
    groups may be applied again after any of them.
    """
    reach("copier.copy.before")
    with data_logs.write() as writer:
        marks: dict[LogId, Mark] = {}
        ...
