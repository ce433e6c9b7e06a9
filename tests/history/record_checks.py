"""Checks of single records and single transactions: was it committed, is it there, is it whole. Pure.

Each check is a generator of anomalies over a history and its versions. A record is named once under each kind, with the
first operation that shows it.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator
from itertools import accumulate

from tests.history.anomalies import (
    ABORTED_READ,
    CONSUMED_NEVER,
    CONSUMED_TWICE,
    EARLY_READ,
    LOST_PLACE,
    LOST_WRITE,
    PHANTOM,
    PLAIN_ABORTED_READ,
    PLAIN_EARLY_READ,
    PRECOMMITTED_READ,
    REFUSED_COMMIT,
    STALE_END,
    TORN_TRANSACTION,
    Anomaly,
    AnomalyKind,
)
from tests.history.operations import Isolation, Kind, Mode, Operation, Outcome
from tests.history.versions import Versions


def reads(versions: Versions) -> Iterator[Anomaly]:
    """Aborted, precommitted and early reads, and phantoms."""
    named: set[tuple[AnomalyKind, str]] = set()
    for reader in versions.history.operations:
        plain = reader.isolation is Isolation.PLAIN
        for poll in reader.polls():
            for offset, value in poll.records:
                writer = versions.sender_of(value, poll.partition)
                if writer is None:
                    kind = PHANTOM
                elif writer is reader:
                    kind = PRECOMMITTED_READ
                elif not writer.may_commit:
                    kind = PLAIN_ABORTED_READ if plain else ABORTED_READ
                elif reader.end_us is not None and writer.commit_us is not None and reader.end_us < writer.commit_us:
                    kind = PLAIN_EARLY_READ if plain else EARLY_READ
                else:
                    continue
                if (kind, value) not in named:
                    named.add((kind, value))
                    of = f"; sent by {writer}" if writer is not None else ""
                    lines = (reader.line,) if writer is None or writer is reader else (writer.line, reader.line)
                    yield Anomaly(
                        kind, f"{value!r} at {poll.partition} offset {offset} was read by {reader}{of}", lines
                    )


def losses(versions: Versions) -> Iterator[Anomaly]:
    """Lost writes and torn transactions: what final readings do not have."""
    named: set[str] = set()
    torn: set[int] = set()
    last_seen = _seen_before_the_end(versions)
    for final in versions.history.operations:
        if final.kind is not Kind.FINAL or final.outcome is not Outcome.OK:
            continue
        there = {value for poll in final.polls() for _offset, value in poll.records}
        uncommitted_too = final.isolation is Isolation.PLAIN and versions.history.mode is Mode.MARKERS
        for operation in versions.history.operations:
            if not versions.took_effect(operation):
                continue
            sends = [send for send in operation.sends() if send.partition in final.ends]
            missing = [send for send in sends if send.value not in there and send.value not in named]
            answered = operation.outcome is Outcome.OK and _before(operation, final)
            for send in missing:
                if answered or last_seen.get(send.value, final.start_us) < final.start_us:
                    named.add(send.value)
                    why = "was acknowledged" if answered else "was read before"
                    yield Anomaly(
                        LOST_WRITE,
                        f"{send.value!r} for {send.partition} {why}, and {final} does not have it; {operation}",
                        (operation.line, final.line),
                    )
            if operation.kind is Kind.TXN and operation.outcome is Outcome.INFO and not uncommitted_too:
                absent = [send.value for send in sends if send.value not in there]
                if absent and len(absent) < len(sends) and operation.line not in torn:
                    torn.add(operation.line)
                    yield Anomaly(
                        TORN_TRANSACTION,
                        f"{operation}: {len(sends) - len(absent)} of {len(sends)} records are there, not {absent[0]!r}",
                        (operation.line, final.line),
                    )


def _before(operation: Operation, final: Operation) -> bool:
    return operation.end_us is not None and operation.end_us <= final.start_us


def _seen_before_the_end(versions: Versions) -> dict[str, int]:
    """When each value was first read by a consumer that is to see only what was committed."""
    journal = versions.history.mode is Mode.JOURNAL
    first: dict[str, int] = {}
    for reader in versions.history.operations:
        if reader.end_us is not None and (journal or reader.isolation is Isolation.COMMITTED):
            for poll in reader.polls():
                for _offset, value in poll.records:
                    if first.get(value, reader.end_us) >= reader.end_us:
                        first[value] = reader.end_us
    return first


def commits(versions: Versions) -> Iterator[Anomaly]:
    """Refused commits of prepared transactions."""
    for operation in versions.history.operations:
        if operation.prepared and operation.outcome is Outcome.FAIL:
            yield Anomaly(REFUSED_COMMIT, f"{operation} was prepared, and its commit was refused", (operation.line,))


def places(versions: Versions) -> Iterator[Anomaly]:
    """Lost places: polls that were refused because of where the consumer was."""
    for operation in versions.history.operations:
        if operation.kind is Kind.POLL and operation.outcome is Outcome.FAIL:
            yield Anomaly(LOST_PLACE, f"{operation} was told that its offset is out of range", (operation.line,))


def ends(versions: Versions) -> Iterator[Anomaly]:
    """Stale ends: a record was answered before the question, and the end that was told is not after it.

    With markers the end for readers of committed records is where an open transaction begins, and nobody knows which
    were open; so there only the ends that plain consumers are told are judged.
    """
    answered: dict[str, list[tuple[int, int, str, Operation]]] = {}
    for operation in versions.history.operations:
        if operation.outcome is Outcome.OK and operation.end_us is not None:
            for send in operation.sends():
                partition, offset = versions.places.get(send.value, (None, 0))
                if partition == send.partition:
                    answered.setdefault(partition, []).append((operation.end_us, offset, send.value, operation))
    for partition, records in answered.items():
        records.sort(key=lambda each: each[:2])
        latest = list(accumulate(records, lambda last, each: max(last, each, key=lambda it: it[1])))
        times = [end_us for end_us, *_ in records]
        for asker in versions.history.operations:
            if asker.kind is not Kind.END or partition not in asker.ends:
                continue
            if versions.history.mode is Mode.MARKERS and asker.isolation is Isolation.COMMITTED:
                continue
            before = bisect_left(times, asker.start_us)
            if before and latest[before - 1][1] >= asker.ends[partition]:
                _, offset, value, writer = latest[before - 1]
                told = f"{asker} was told that {partition} ends at {asker.ends[partition]}"
                yield Anomaly(
                    STALE_END, f"{told}; {value!r} at offset {offset} was answered: {writer}", (writer.line, asker.line)
                )


def consumption(versions: Versions) -> Iterator[Anomaly]:
    """Exactly once: a consumer group's committed transactions process each record, from the first on, once.

    What a transaction of unknown outcome polled may have been processed; so it is not missing, and not doubled.
    """
    done: dict[tuple[str, str], dict[int, Operation]] = {}
    perhaps: dict[tuple[str, str], set[int]] = {}
    for operation in versions.history.operations:
        if operation.consumer_group is None or not operation.may_commit:
            continue
        surely = versions.took_effect(operation)
        for poll in operation.polls():
            key = operation.consumer_group, poll.partition
            processed = done.setdefault(key, {})
            for offset, value in poll.records:
                if not surely:
                    perhaps.setdefault(key, set()).add(offset)
                elif processed.setdefault(offset, operation) is not operation:
                    first = processed[offset]
                    yield Anomaly(
                        CONSUMED_TWICE,
                        f"group {key[0]} processed {value!r} at {poll.partition} offset {offset} in {first}, and again"
                        f" in {operation}",
                        (first.line, operation.line),
                    )
    for (group, partition), processed in done.items():
        if not processed:
            continue
        last = max(processed)
        order = versions.order(partition, Isolation.COMMITTED)
        for offset, value in zip(order.offsets, order.values, strict=True):
            if offset >= last:
                break
            if offset not in processed and offset not in perhaps.get((group, partition), ()):
                yield Anomaly(
                    CONSUMED_NEVER,
                    f"group {group} went on to {partition} offset {last} without {value!r} at offset {offset}",
                    (processed[last].line,),
                )
