"""Histories as JSON Lines: docs/formats/history.md says it exactly. Pure: takes lines, gives lines.

A history is written as it happens, by processes that may be killed at any moment. So an operation is several lines,
its *events*, each whole when it is there:

    {"history": 1, "mode": "journal"}
    {"time_us": 10, "process": "p1", "op": 0, "type": "invoke", "f": "txn", "micro": [["send", "t/0", "a"]]}
    {"time_us": 12, "process": "p1", "op": 0, "type": "commit"}
    {"time_us": 15, "process": "p1", "op": 0, "type": "ok", "micro": [["send", "t/0", "a", 17]]}

An operation without a last event (`ok`, `fail`, `info`) is one whose outcome was never known. `micro` of the last event
replaces that of the first: polls come only then, and so do offsets.

`read_history` believes nothing: whatever is not as the page says raises BadHistory with the line.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

from tests.history.operations import BadHistory, History, Isolation, Kind, Mode, Operation, Outcome, Poll, Send

VERSION = 1
FAULT = "fault"
"""`f` of lines that say what was done to node, network and clients. For people: the checker passes over them."""
_OUTCOMES = {outcome.value: outcome for outcome in Outcome}
_KINDS = {kind.value: kind for kind in Kind}


def read_history(lines: Iterable[str]) -> History:
    """The history in these lines. Raises BadHistory."""
    history: History | None = None
    running: dict[tuple[str, int], Operation] = {}
    known: set[tuple[str, int]] = set()
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            event = json.loads(line)
            if not isinstance(event, dict):
                raise BadHistory("not an object")  # noqa: TRY301
            if history is None:
                history = _head(event)
            elif event.get("f") != FAULT:
                _take(event, number, history, running, known)
        except BadHistory as error:
            raise BadHistory(f"line {number}: {error}") from None
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise BadHistory(f"line {number}: {type(error).__name__}: {error}") from error
    if history is None:
        raise BadHistory("line 1: the history is empty")
    return history


def _head(event: Mapping[str, Any]) -> History:
    if event.get("history") != VERSION:
        raise BadHistory(f"not a history of version {VERSION}: the first line has to say so")
    about = {key: value for key, value in event.items() if key not in ("history", "shards")}
    shards = {_text(partition): _number(shard) for partition, shard in event.get("shards", {}).items()}
    return History(Mode(event["mode"]), about=about, shards=shards)


def _take(
    event: Mapping[str, Any],
    line: int,
    history: History,
    running: dict[tuple[str, int], Operation],
    known: set[tuple[str, int]],
) -> None:
    key = _text(event["process"]), _number(event["op"])
    time_us, kind = _number(event["time_us"]), event["type"]
    if kind == "invoke":
        if key in known:
            raise BadHistory(f"operation {key[1]} of {key[0]} is invoked again")
        known.add(key)
        operation = Operation(line, key[0], _KINDS[event["f"]], time_us)
        if operation.kind is Kind.SEND:
            operation.commit_us = time_us
        running[key] = operation
        history.operations.append(operation)
    else:
        operation = running.get(key)
        if operation is None:
            raise BadHistory(f"operation {key[1]} of {key[0]} is not running")
        if time_us < operation.start_us:
            raise BadHistory(f"operation {key[1]} of {key[0]} goes back in time")
        if kind == "commit":
            if operation.commit_us is None:  # another instance may say it again, for one that was killed
                operation.commit_us = time_us
        else:
            operation.outcome = _OUTCOMES[kind]
            operation.end_us = time_us
            if operation.outcome is Outcome.OK and operation.kind is Kind.TXN and operation.commit_us is None:
                raise BadHistory("a transaction is ok that nobody asked to commit")
            del running[key]
    _add_details(operation, event)


def _add_details(operation: Operation, event: Mapping[str, Any]) -> None:
    if "micro" in event:
        operation.micro = [_micro(each) for each in event["micro"]]
    if "group" in event:
        operation.group = _text(event["group"])
    if "consumer_group" in event:
        operation.consumer_group = _text(event["consumer_group"])
    if "isolation" in event:
        operation.isolation = Isolation(event["isolation"])
    if "prepared" in event:
        operation.prepared = _truth(event["prepared"])
    if "positions" in event:
        operation.positions = {
            _text(partition): None if offset is None else _number(offset)
            for partition, offset in event["positions"].items()
        }
    if "from_copies" in event:
        operation.from_copies = _number(event["from_copies"])
    if "revoked" in event:
        operation.revoked = [_text(partition) for partition in event["revoked"]]
    if "ends" in event:
        operation.ends = {_text(partition): _number(end) for partition, end in event["ends"].items()}


def _micro(each: Any) -> Send | Poll:
    match each:
        case ["send", str(partition), str(value)]:
            return Send(partition, value, None)
        case ["send", str(partition), str(value), int(offset) | (None as offset)]:
            return Send(partition, value, offset)
        case ["poll", str(partition), list(records)]:
            return Poll(partition, [_record(record) for record in records])
        case _:
            raise BadHistory(f"not a micro-operation: {each!r}")


def _record(record: Any) -> tuple[int, str]:
    offset, value = record
    return _number(offset), _text(value)


def _number(value: Any) -> int:
    if type(value) is not int:
        raise BadHistory(f"not a number: {value!r}")
    return value


def _truth(value: Any) -> bool:
    if type(value) is not bool:
        raise BadHistory(f"not true or false: {value!r}")
    return value


def _text(value: Any) -> str:
    if type(value) is not str:
        raise BadHistory(f"not a string: {value!r}")
    return value


def head_line(mode: Mode, **about: object) -> str:
    """The first line of a history, with its line feed."""
    return json.dumps({"history": VERSION, "mode": mode.value, **about}) + "\n"


def event_line(event: Mapping[str, object]) -> str:
    """An event as a line, with its line feed."""
    return json.dumps(event, separators=(",", ":")) + "\n"
