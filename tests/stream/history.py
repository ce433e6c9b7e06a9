"""What several nodes did to one stream and saw of it, checked against the contract as it happens and at the end.

A finding is a sentence. The properties are those of `stream.engine`:

1. one order: what two readers saw at one position is the same, and a reader's positions follow one another
2. durable: at the end each entry that was answered lies at the answered position
3. a prefix: follows from 1, and from each reader beginning where it was told to
4. the end: `end` is behind each entry that was answered before the question, by whichever node

And: what lies in the stream was appended by somebody; of what one node began one after the other, with no Unknown in
between, the order is kept.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from stream.engine import StoredEntry, StreamPosition, Unknown

START = StreamPosition(0)


@dataclass(eq=False, slots=True)
class Begun:
    """One append."""

    node: str
    data: bytes
    outcome: StreamPosition | Unknown | None = None


@dataclass(eq=False, slots=True)
class StreamHistory:
    """Of one stream."""

    name: str
    appends: list[Begun] = field(default_factory=list[Begun])
    seen: dict[StreamPosition, bytes] = field(default_factory=dict[StreamPosition, bytes])
    findings: list[str] = field(default_factory=list[str])
    answered_max: int = -1
    ends: int = 0
    trimmed: StreamPosition = START

    def begin(self, node: str, data: bytes) -> Begun:
        begun = Begun(node, data)
        self.appends.append(begun)
        return begun

    def told(self, begun: Begun, outcome: StreamPosition | Unknown) -> None:
        if begun.outcome is not None:
            self._found(f"{begun.data[:16]!r} was told {begun.outcome}, and then {outcome}")
        begun.outcome = outcome
        if not isinstance(outcome, Unknown):
            self.answered_max = max(self.answered_max, outcome)

    def read(self, reader: str, due: StreamPosition, entries: Sequence[StoredEntry]) -> StreamPosition:
        """What a reader returned that is to go on at `due`; returns where it goes on next."""
        for position, data in entries:
            if position != due:
                self._found(f"{reader} read position {position} where {due} was due")
            known = self.seen.setdefault(position, data)
            if known != data:
                self._found(f"{reader} read {data[:16]!r} at {position}, where {known[:16]!r} was read before")
            due = StreamPosition(position + 1)
        return due

    def end_told(self, node: str, answered_before: int, end: StreamPosition) -> None:
        self.ends += 1
        if end <= answered_before:
            self._found(f"{node} was told that the stream ends at {end}, after position {answered_before} was answered")

    def unknown(self) -> int:
        return sum(isinstance(begun.outcome, Unknown) for begun in self.appends)

    def answered(self) -> int:
        return len(self.appends) - self.unknown()

    def landed_unknown(self) -> int:
        """Unknown appends that are in the stream."""
        present = set(self.seen.values())
        return sum(isinstance(begun.outcome, Unknown) and begun.data in present for begun in self.appends)

    def twice(self) -> int:
        """Entries that are in the stream more than once."""
        return sum(count > 1 for data, count in Counter(self.seen.values()).items() if data)

    def finish(self) -> None:
        """When all outcomes were told, and everything from `trimmed` to the end was read."""
        begun_data = {begun.data for begun in self.appends} | {b""}
        for position, data in self.seen.items():
            if data not in begun_data:
                self._found(f"{data[:16]!r} at {position} was never appended")
        for begun in self.appends:
            if begun.outcome is None:
                self._found(f"{begun.data[:16]!r} has no outcome")
            elif not isinstance(begun.outcome, Unknown):
                at = self.seen.get(begun.outcome)
                if at is None and begun.outcome >= self.trimmed:
                    self._found(f"{begun.data[:16]!r} was answered at {begun.outcome}, where nothing is")
                elif at is not None and at != begun.data:
                    self._found(f"{begun.data[:16]!r} was answered at {begun.outcome}, where {at[:16]!r} is")
        for node in {begun.node for begun in self.appends}:
            self._check_order(node, (begun.outcome for begun in self.appends if begun.node == node))

    def _check_order(self, node: str, outcomes: Iterable[StreamPosition | Unknown | None]) -> None:
        last = -1
        for outcome in outcomes:
            if outcome is None or isinstance(outcome, Unknown):
                last = -1
            elif outcome <= last:
                self._found(f"{node} appended what lies at {last} before what lies at {outcome}")
            else:
                last = outcome

    def _found(self, finding: str) -> None:
        self.findings.append(f"{self.name}: {finding}")
