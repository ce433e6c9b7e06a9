"""The data logs' file in readable form: its format, every log with its mark, its producers, its batches. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from datalog import layout
from datalog.interface import AbortedTransaction, OpenInLog
from datalog.layout import DamagedValue, LogRecord
from datalog.lmdb_pages import DamagedPage, LmdbFile
from datalog.offset_entries import MalformedEntries, decode_offset_entry
from datalog.stored import StoredLogs, parse_log_untrusted
from fairlog.inspection.batches import show_batch
from fairlog.inspection.lines import Line
from fairlog.inspection.persisted_groups import show_group
from fairlog.inspection.segments import Selection
from fairlog_types import CorruptStorage, LogId, LogKind
from partition.producer_window import ProducerWindow


def show_data_logs(file: LmdbFile, selection: Selection) -> Iterator[Line]:
    """All that is in the environment; where a tree is damaged, what can be read of it."""
    try:
        logs = StoredLogs(file)
    except DamagedPage as error:
        yield Line("data logs", {}, str(error))
        return
    except DamagedValue as error:
        yield Line("data logs", {}, f"byte 0: {error}")
        return
    yield Line(
        "data logs",
        {
            "format": logs.version,
            "pages": file.meta.last_page + 1,
            "page_bytes": file.meta.page_bytes,
            "map_bytes": file.meta.map_bytes,
            "transaction": file.meta.transaction,
            "next_log_number": logs.numbers,
        },
    )
    numbers: dict[int, LogId] = {}
    found: list[tuple[LogId, LogRecord]] = []
    try:
        for item in logs.table(layout.LOGS):
            log = parse_log_untrusted(item.key)
            if log is None:
                yield Line("log", {"name": item.key}, f"byte {item.at}: this is no name of a log")
                continue
            try:
                record = layout.decode_log_record(item.value)
            except DamagedValue as error:
                yield Line("log", {"log": log}, f"byte {item.at}: {error}")
                continue
            numbers[record.number] = log
            found.append((log, record))
    except DamagedPage as error:
        yield Line("table of logs", {}, str(error))
    yield from _show_producers(logs, numbers)
    yield from _show_time_index(logs, numbers)
    yield from _show_cuts(logs, numbers)
    yield from _show_transactions(logs, numbers)
    yield from _show_offsets(logs, numbers, selection)
    yield from _show_groups(logs, numbers, selection)
    for log, record in found:
        yield Line("log", {"log": log, **{name: getattr(record, name) for name in record.__slots__}})
        if log.kind == LogKind.TOPIC.value:
            yield from _show_batches(logs, log, record, selection)


def _show_batches(logs: StoredLogs, log: LogId, record: LogRecord, selection: Selection) -> Iterator[Line]:
    end, told = layout.batch_key(record.next_offset), False
    try:
        for count, stored in enumerate(logs.batches(log, start=selection.start)):
            if count == selection.count:
                return
            if stored.key >= end and not told:
                told = True
                yield Line("staged batches", {"log": log, "from": record.next_offset}, depth=1)
            yield from show_batch(stored.data, stored.at, records=selection.records, depth=1)
    except DamagedPage as error:
        yield Line("batches", {"log": log}, str(error), 1)


def _show_producers(logs: StoredLogs, numbers: dict[int, LogId]) -> Iterator[Line]:
    try:
        for item in logs.table(layout.PRODUCERS):
            log = numbers.get(int.from_bytes(item.key[:4], "big"))
            if log is None or len(item.key) != layout.PRODUCER_KEY_BYTES:
                yield Line("producer", {"key": item.key}, f"byte {item.at}: its key belongs to no log")
                continue
            fields: dict[str, object] = {"log": log, "producer_id": layout.decode_producer_key(item.key)}
            try:
                yield Line("producer", {**fields, "window": ProducerWindow.decode(bytes(item.value))})
            except CorruptStorage as error:
                yield Line("producer", fields, f"byte {item.at}: {error}")
    except DamagedPage as error:
        yield Line("table of producers", {}, str(error))


def _show_time_index(logs: StoredLogs, numbers: dict[int, LogId]) -> Iterator[Line]:
    try:
        for item in logs.table(layout.TIME_INDEX):
            log = numbers.get(int.from_bytes(item.key[:4], "big"))
            if log is None or (len(item.key), len(item.value)) != (layout.TIME_KEY_BYTES, layout.BATCH_KEY_BYTES):
                yield Line("time index", {"key": item.key}, f"byte {item.at}: its key belongs to no log")
                continue
            timestamp_ms = int.from_bytes(item.key[4:], "big") - (1 << 63)
            at = layout.decode_batch_key(item.value)
            yield Line("time index", {"log": log, "timestamps_up_to_ms": timestamp_ms, "before": at})
    except DamagedPage as error:
        yield Line("time index", {}, str(error))


def _show_cuts(logs: StoredLogs, numbers: dict[int, LogId]) -> Iterator[Line]:
    try:
        for item in logs.table(layout.CUTS):
            log = numbers.get(int.from_bytes(item.key[:4], "big"))
            if log is None:
                yield Line("cut", {"key": item.key}, f"byte {item.at}: its key belongs to no log")
                continue
            try:
                yield Line("cut", {"log": log, **layout.decode_cut(item.key, item.value)._asdict()})
            except DamagedValue as error:
                yield Line("cut", {"log": log}, f"byte {item.at}: {error}")
        for item in logs.table(layout.COMMON_CUTS):
            try:
                number, before = layout.decode_cut_number(item.key), layout.decode_cut_number(item.value)
                yield Line("cut over all shards", {"number": number, "newest_before": before})
            except DamagedValue as error:
                yield Line("cut over all shards", {"key": item.key}, f"byte {item.at}: {error}")
    except DamagedPage as error:
        yield Line("table of cuts", {}, str(error))


def _show_transactions(logs: StoredLogs, numbers: dict[int, LogId]) -> Iterator[Line]:
    """What logs with markers say of open and aborted transactions."""
    tables: tuple[tuple[bytes, str, Callable[[bytes, memoryview], OpenInLog | AbortedTransaction]], ...] = (
        (layout.OPEN, "open transaction", layout.decode_open),
        (layout.ABORTED, "aborted transaction", layout.decode_aborted),
    )
    for table, what, decode in tables:
        try:
            for item in logs.table(table):
                log = numbers.get(int.from_bytes(item.key[:4], "big"))
                if log is None:
                    yield Line(what, {"key": item.key}, f"byte {item.at}: its key belongs to no log")
                    continue
                try:
                    found = decode(item.key, item.value)
                except DamagedValue as error:
                    yield Line(what, {"log": log}, f"byte {item.at}: {error}")
                    continue
                yield Line(what, {"log": log, **{name: getattr(found, name) for name in found.__slots__}})
        except DamagedPage as error:
            yield Line(f"table of {what}s", {}, str(error))


def _show_offsets(logs: StoredLogs, numbers: dict[int, LogId], selection: Selection) -> Iterator[Line]:
    try:
        for count, item in enumerate(logs.table(layout.OFFSETS)):
            if count == selection.count:
                return
            log = numbers.get(int.from_bytes(item.key[:4], "big"))
            try:
                entry = decode_offset_entry(item.value)
            except MalformedEntries as error:
                yield Line("committed offset", {"log": log}, f"byte {item.at}: {error}")
                continue
            yield Line("committed offset", {"log": log, "key": entry.key, "value": entry.value})
    except DamagedPage as error:
        yield Line("table of committed offsets", {}, str(error))


def _show_groups(logs: StoredLogs, numbers: dict[int, LogId], selection: Selection) -> Iterator[Line]:
    try:
        for count, item in enumerate(logs.table(layout.GROUPS)):
            if count == selection.count:
                return
            log = numbers.get(int.from_bytes(item.key[:4], "big"))
            try:
                digest = layout.decode_group_key(item.key)
            except DamagedValue as error:
                yield Line("group", {"log": log}, f"byte {item.at}: {error}")
                continue
            yield show_group(log, digest, bytes(item.value), item.at)
    except DamagedPage as error:
        yield Line("table of groups", {}, str(error))
