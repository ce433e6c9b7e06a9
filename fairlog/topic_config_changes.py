"""The effect of a request to alter a topic's configs on those that it has. Pure.

There are two kinds of requests, as in Kafka: `replaced` gets all configs that the topic should have of its own
(AlterConfigs), `changed` gets operations on single ones (IncrementalAlterConfigs, KIP-339). Both return the new
configs, or raise `BadChange` and leave everything as it is: one bad name refuses the whole request.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum

from fairlog.config import Settings
from fairlog.topic_configs import TOPIC_CONFIGS, ConfigType, default_value, list_items, why_refused

_FIXED = tuple(row for row in TOPIC_CONFIGS.values() if row.fixed)


class BadChange(ValueError):
    """A name, a value or an operation that a topic cannot have; the message says which."""


class BadRequest(BadChange):
    """A name that stands twice, or without a value: no config is wrong, but what is asked for is not clear."""


class Operation(Enum):
    """What to do with one config."""

    SET = "set"
    DELETE = "delete"
    """Go back to the default. A name that does not exist has no value to take away, and is passed over."""
    APPEND = "append"
    """Add items to a list; those that it has already stay where they are."""
    SUBTRACT = "subtract"
    """Take items out of a list; those that it does not have are passed over."""


@dataclass(frozen=True, slots=True)
class Change:
    operation: Operation
    name: str
    value: str | None
    """Not looked at by DELETE; every other operation needs one."""


def replaced(own: Mapping[str, str], configs: Sequence[tuple[str, str | None]]) -> dict[str, str]:
    """The configs of a topic that has `own`, and is to have these and no others of its own. Raises BadChange.

    What is fixed stays, named or not.
    """
    check_named_once([name for name, _ in configs])
    fixed = {row.name: own[row.name] for row in _FIXED if row.name in own}
    new = fixed | {name: needed(name, value) for name, value in configs}
    _check(own, new)
    return new


def changed(own: Mapping[str, str], changes: Sequence[Change], settings: Settings) -> dict[str, str]:
    """The configs of a topic that has `own`, after the changes. Raises BadChange.

    Lists that the topic has not of its own are changed from the default.
    """
    check_named_once([change.name for change in changes])
    new = dict(own)
    for change in changes:
        if change.operation is Operation.DELETE:
            new.pop(change.name, None)
            continue
        value, row = needed(change.name, change.value), TOPIC_CONFIGS.get(change.name)
        if row is None:
            raise BadChange(f"unknown topic config {change.name}")
        match change.operation:
            case Operation.SET:
                new[change.name] = value
            case Operation.APPEND | Operation.SUBTRACT:
                if row.values.type is not ConfigType.LIST:
                    raise not_a_list(change.name)
                current = new.get(change.name, default_value(row, settings))
                new[change.name] = _with_items(current, change.operation, value)
    _check(own, new)
    return new


def _with_items(current: str, operation: Operation, value: str) -> str:
    has, items = list_items(current), list_items(value)
    if operation is Operation.APPEND:
        return ",".join(dict.fromkeys((*has, *items)))
    return ",".join(item for item in has if item not in items)


def changed_without_lists(
    own: Mapping[str, str], changes: Sequence[Change], check_name: Callable[[str], None]
) -> dict[str, str]:
    """The configs of a resource that has `own`, and no list among those that it can have, after the changes.

    `check_name` raises BadChange for a name that cannot be set. DELETE of what was not set, or does not exist, changes
    nothing. Raises BadChange.
    """
    check_named_once([change.name for change in changes])
    new = dict(own)
    for change in changes:
        if change.operation is Operation.DELETE:
            new.pop(change.name, None)
            continue
        value = needed(change.name, change.value)
        check_name(change.name)
        if change.operation is not Operation.SET:
            raise not_a_list(change.name)
        new[change.name] = value
    return new


def not_a_list(name: str) -> BadChange:
    return BadChange(f"{name} is not a list: it can be set, but not be changed item by item")


def needed(name: str, value: str | None) -> str:
    """The value that a config is to get. Raises BadRequest if there is none."""
    if value is None:
        raise BadRequest(f"{name} is given no value: leave it out, or delete it, to go back to its default")
    return value


def check_named_once(names: Sequence[str]) -> None:
    """Raise BadRequest if a name stands twice: no one knows which counts."""
    seen: set[str] = set()
    for name in names:
        if name in seen:
            raise BadRequest(f"{name} is named more than once")
        seen.add(name)


def _check(own: Mapping[str, str], new: Mapping[str, str]) -> None:
    problem = why_refused(new)
    if problem is not None:
        raise BadChange(problem)
    for row in _FIXED:
        before = own.get(row.name, row.default)
        if new.get(row.name, row.default) != before:
            raise BadChange(
                f"{row.name} is fixed when a topic is made, and this one's is {before}: make another topic, and copy "
                "the records that are to be in it"
            )
