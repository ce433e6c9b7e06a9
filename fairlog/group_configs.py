"""The configs that a consumer group of the new protocol (KIP-848) can have of its own, and how requests change them.

One table, `GROUP_CONFIGS`: Kafka's names, and the settings of the node that give a group's default and the bounds. A
name that is not in it is refused; Kafka's configs of share groups and of Streams' groups are not in it, since there are
no such groups here.

`group_replaced` and `group_changed` do for groups what `fairlog.topic_config_changes` does for topics; `why_refused`
checks the values. A value that was within the bounds when it was set may be outside of them after a start with other
settings: then the nearest bound applies (`value_of`), as in Kafka.

Source: Kafka's `GroupConfig`. Pure.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from fairlog.config import KEYS, GroupSettings
from fairlog.topic_config_changes import BadChange, Change, Operation, changed_without_lists

_WHOLE = re.compile(r"[0-9]{1,10}")
_PREFIX = "groups."


@dataclass(frozen=True, slots=True)
class GroupConfig:
    """A row of the table. All of them are whole numbers of 32 bits."""

    name: str
    setting: str
    """The full name of the node's setting that gives the default."""
    least: str
    """The same of the least value."""
    most: str
    """The same of the greatest."""

    @property
    def doc(self) -> str:
        """For people, in a sentence or two."""
        return KEYS[self.setting].doc

    @property
    def broker_name(self) -> str:
        """What Kafka calls the broker's config that gives the default."""
        return f"group.{self.name}"


SESSION_TIMEOUT_MS = "consumer.session.timeout.ms"
HEARTBEAT_INTERVAL_MS = "consumer.heartbeat.interval.ms"

GROUP_CONFIGS: Mapping[str, GroupConfig] = {
    row.name: row
    for row in (
        GroupConfig(
            HEARTBEAT_INTERVAL_MS,
            "groups.consumer_heartbeat_interval_ms",
            "groups.consumer_min_heartbeat_interval_ms",
            "groups.consumer_max_heartbeat_interval_ms",
        ),
        GroupConfig(
            SESSION_TIMEOUT_MS,
            "groups.consumer_session_timeout_ms",
            "groups.consumer_min_session_timeout_ms",
            "groups.consumer_max_session_timeout_ms",
        ),
    )
}
"""The table, by name."""


def group_replaced(configs: Sequence[tuple[str, str | None]]) -> dict[str, str]:
    """The configs of a group that is to have these and no others. Raises BadChange."""
    return group_changed({}, [Change(Operation.SET, name, value) for name, value in configs])


def group_changed(own: Mapping[str, str], changes: Sequence[Change]) -> dict[str, str]:
    """The configs of a group that has `own`, after the changes. Raises BadChange."""
    return changed_without_lists(own, changes, _check_name)


def _check_name(name: str) -> None:
    if name not in GROUP_CONFIGS:
        raise BadChange(f"unknown group config {name}")


def why_refused(configs: Mapping[str, str], own: Mapping[str, str], settings: GroupSettings) -> str | None:
    """What is wrong with all configs that a group would have, after those that it has, as a sentence; None: nothing.

    Their names are in the table. What it has already may be out of the bounds of today.
    """
    for name, text in configs.items():
        if own.get(name) == text:
            continue
        row = GROUP_CONFIGS[name]
        least, most = bounds(row, settings)
        if _WHOLE.fullmatch(text) is None or not least <= int(text) <= most:
            return (
                f"{name}={text} is not a value of this config: a whole number from {least} to {most} is needed, by the "
                f"node's {row.least} and {row.most}"
            )
    session_ms = _within_bounds(SESSION_TIMEOUT_MS, configs, settings)
    interval_ms = _within_bounds(HEARTBEAT_INTERVAL_MS, configs, settings)
    if configs and session_ms <= interval_ms:
        return f"{SESSION_TIMEOUT_MS} ({session_ms}) is not above {HEARTBEAT_INTERVAL_MS} ({interval_ms})"
    return None


def value_of(name: str, configs: Mapping[str, str], settings: GroupSettings) -> int:
    """What holds for a group that has `configs` of its own. The interval is below the session time-out in any case."""
    value = _within_bounds(name, configs, settings)
    if name == HEARTBEAT_INTERVAL_MS:
        return min(value, _within_bounds(SESSION_TIMEOUT_MS, configs, settings) - 1)
    return value


def _within_bounds(name: str, configs: Mapping[str, str], settings: GroupSettings) -> int:
    row, own = GROUP_CONFIGS[name], configs.get(name)
    if own is None:
        return _setting(settings, row.setting)
    least, most = bounds(row, settings)
    return min(max(int(own), least), most)


def bounds(row: GroupConfig, settings: GroupSettings) -> tuple[int, int]:
    """The least and the greatest value of a config."""
    return _setting(settings, row.least), _setting(settings, row.most)


def _setting(settings: GroupSettings, full_name: str) -> int:
    value = getattr(settings, full_name.removeprefix(_PREFIX))
    assert isinstance(value, int), f"{full_name} is no whole number"
    return value
