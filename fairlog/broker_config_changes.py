"""The effect of a request to alter a broker's configs on those that clients have set before. Pure.

It works like `fairlog.topic_config_changes` for topics, with the table of `fairlog.broker_configs`: a config that is
read-only there, or not in it, is refused by name. No config that can be changed is a list, so there is nothing to
append to. `broker_configs.settings_with` says whether the values fit each other and the settings of the start.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from fairlog.broker_configs import BROKER_CONFIGS
from fairlog.topic_config_changes import BadChange, Change, Operation, changed_without_lists


def broker_replaced(configs: Sequence[tuple[str, str | None]]) -> dict[str, str]:
    """The configs of a broker for which clients set these and no others. Raises BadChange."""
    return broker_changed({}, [Change(Operation.SET, name, value) for name, value in configs])


def broker_changed(own: Mapping[str, str], changes: Sequence[Change]) -> dict[str, str]:
    """The configs of a broker for which clients have set `own`, after the changes. Raises BadChange.

    DELETE of what was not set, or does not exist, changes nothing.
    """
    return changed_without_lists(own, changes, _check_name)


def _check_name(name: str) -> None:
    row = BROKER_CONFIGS.get(name)
    if row is None:
        raise BadChange(f"unknown broker config {name}")
    if not row.dynamic:
        raise BadChange(row.refusal())
