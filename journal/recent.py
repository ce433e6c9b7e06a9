"""Payloads that were appended a moment ago, kept in memory for whoever reads them next: the copier.

It reads each payload once, soon after it was appended. From the file this takes a system call, a fresh buffer and the
checksums of a frame that this very process has written. So what was appended last stays here as well, within one bound
for all journals of a shard; the oldest goes first. What is not here any more, and what an earlier run has written, is
read from the file.

Who takes a payload owns it, and may change it; the next one reads the file. Who peeks changes nothing.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable, Sequence
from threading import Lock

from fairlog_types import JournalPosition
from journal.frame import Buffer

BYTES_MAX = 8 << 20
"""Of all payloads together. The copier is a MiB behind when producers begin to wait for it; the rest is for
transactions, whose batches are read when they are decided."""

PAYLOAD_BYTES_MAX = 1 << 20
"""A larger one is not kept: it would push out many, and take longer to copy than the system calls that it saves."""

_ENTRY_BYTES = 512
"""What an entry takes beside its payload, with a reserve for the allocator."""


class RecentPayloads:
    """Of several journals, each under a key of its own. For any thread."""

    def __init__(self) -> None:
        self._payloads: OrderedDict[tuple[Hashable, JournalPosition], bytearray] = OrderedDict()
        self._bytes = 0
        self._lock = Lock()

    def keep(self, journal: Hashable, position: JournalPosition, payload: Sequence[Buffer]) -> None:
        """A copy of the payload that was appended to the journal in the frame at `position`, unless it is large."""
        if sum(map(len, payload)) > PAYLOAD_BYTES_MAX:
            return
        whole = bytearray(payload[0]) if len(payload) == 1 else bytearray().join(payload)
        with self._lock:
            self._payloads[journal, position] = whole
            self._bytes += len(whole) + _ENTRY_BYTES
            while self._bytes > BYTES_MAX:
                _, oldest = self._payloads.popitem(last=False)
                self._bytes -= len(oldest) + _ENTRY_BYTES

    def peek(self, journal: Hashable, position: JournalPosition) -> bytearray | None:
        """As `take`, but it stays here, and is not to be changed."""
        with self._lock:
            return self._payloads.get((journal, position))

    def take(self, journal: Hashable, position: JournalPosition) -> bytearray | None:
        """The payload of that frame, which is not here afterwards; None if it is not here now."""
        with self._lock:
            payload = self._payloads.pop((journal, position), None)
            if payload is not None:
                self._bytes -= len(payload) + _ENTRY_BYTES
        return payload
