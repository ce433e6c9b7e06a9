"""Features and their levels: which optional parts of the protocol this program has, and which are switched on. Pure.

A feature (KIP-584) is a part of the protocol that clients may use only when the whole cluster agrees on it, such as
Kafka's `transaction.version`. This program *supports* a range of levels of each; the cluster has *finalized* one of
them, and level 0 is off. ApiVersions tells clients both, UpdateFeatures changes the finalized level, and the cluster
store keeps it.

To add a feature, add a row to `FEATURES` and call `ClusterStore.features.level(name)` where the behaviour differs. A
store in which no level was ever set has the row's default: both a new store and one that an older program has written.

`updated_untrusted` has the rules of an update, which are Kafka's (`FeatureControlManager`): all updates of a request
are made or none, and a level goes down only if the request says so.
"""

from __future__ import annotations

import types
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import IntEnum


@dataclass(frozen=True, slots=True)
class Feature:
    """A row of the table."""

    name: str
    """Kafka's."""
    level_min: int
    """The lowest level that this program supports; 0 if it can do without the feature."""
    level_max: int
    """The highest level that this program supports; at least 1."""
    level_default: int
    """The level as long as none was set."""

    def __post_init__(self) -> None:
        assert 0 <= self.level_min <= self.level_default <= self.level_max, self


_ROWS = (
    # Level 2: an epoch for each transaction, and partitions added on the way to them (KIP-890). Clients look at
    # it before they use it; a request of such a version is served at any level, as in Kafka.
    Feature("transaction.version", 0, 2, 2),
    # Level 1: consumer groups of the new protocol (KIP-848), beside the classic ones. It cannot be switched off.
    Feature("group.version", 1, 1, 1),
)

FEATURES: Mapping[str, Feature] = types.MappingProxyType({row.name: row for row in _ROWS})
"""All features of this program, by name."""


@dataclass(frozen=True, slots=True)
class FeatureLevels:
    """The features as they are at one moment."""

    supported: Mapping[str, Feature]
    """By name."""
    chosen: Mapping[str, int]
    """The levels that were set, by the features' names; others have their default."""
    epoch: int
    """Grows with every change, and with every start of the node: of two answers the one with the larger is newer."""

    def level(self, name: str) -> int:
        """The finalized level; 0, which means off, if there is no such feature."""
        if name not in self.supported:
            return 0
        return self.chosen.get(name, self.supported[name].level_default)

    def finalized(self) -> dict[str, int]:
        """The levels of all features that are on."""
        return {name: level for name in self.supported if (level := self.level(name))}


def first_epoch(starts: int) -> int:
    """The epoch at the beginning of the node's n-th start: above those of all starts before it."""
    return starts << 24


class UpgradeType(IntEnum):
    """Which way a level may go; Kafka's numbers. What a safe downgrade keeps, an unsafe one may lose."""

    UPGRADE = 1
    SAFE_DOWNGRADE = 2
    UNSAFE_DOWNGRADE = 3


@dataclass(frozen=True, slots=True)
class FeatureUpdate:
    """A level that somebody wants to set."""

    name: str
    level: int
    upgrade_type: UpgradeType | None
    """None if it is a number that Kafka has not given out."""


class InvalidFeatureUpdate(ValueError):
    """A level cannot be set; the message names the feature, and says why."""


def updated_untrusted(current: FeatureLevels, updates: Iterable[FeatureUpdate]) -> dict[str, int]:
    """What `chosen` is after these updates, of which the last counts if there are several of a feature.

    Raises InvalidFeatureUpdate for the first one that is not allowed.
    """
    chosen = dict(current.chosen)
    for update in {update.name: update for update in updates}.values():
        problem = _problem_of(current, update)
        if problem is not None:
            raise InvalidFeatureUpdate(f"Invalid update version {update.level} for feature {update.name}. {problem}")
        chosen[update.name] = update.level
    return chosen


def unsupported(supported: Mapping[str, Feature], chosen: Mapping[str, int]) -> str | None:
    """Why a program that supports these features cannot go on with levels that another one set; None if it can."""
    for name, level in chosen.items():
        if level and (problem := _problem_of_support(supported, name, level)) is not None:
            return f"the feature {name} is at level {level}. {problem}"
    return None


def _problem_of(current: FeatureLevels, update: FeatureUpdate) -> str | None:
    if update.upgrade_type is None:
        return "There is no such upgrade type."
    if update.level < 0:
        return "A level is 0 or more."
    if (problem := _problem_of_support(current.supported, update.name, update.level)) is not None:
        return problem
    level = current.level(update.name)
    if update.level < level and update.upgrade_type is UpgradeType.UPGRADE:
        return f"It is at level {level}: going down takes a safe or an unsafe downgrade."
    if update.level > level and update.upgrade_type is not UpgradeType.UPGRADE:
        return f"It is at level {level}: a downgrade cannot go up."
    return None


def _problem_of_support(supported: Mapping[str, Feature], name: str, level: int) -> str | None:
    feature = supported.get(name)
    if feature is None:
        return "This node does not support the feature."
    if not feature.level_min <= level <= feature.level_max:
        return f"This node supports levels {feature.level_min} to {feature.level_max}."
    return None
