"""Features and their levels: the rules of an update, and what the store keeps of them."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairlog.cluster import records
from fairlog.cluster.embedded import EmbeddedStore, StoreMismatch
from fairlog.cluster.features import (
    FEATURES,
    Feature,
    FeatureLevels,
    FeatureUpdate,
    InvalidFeatureUpdate,
    UpgradeType,
    updated_untrusted,
)
from fairlog_types import CorruptStorage

UP, SAFE, UNSAFE = UpgradeType
SPEED = Feature("speed.version", 0, 2, 1)
BASE = Feature("base.version", 1, 3, 3)
TABLE = {feature.name: feature for feature in (SPEED, BASE)}
OpenStore = Callable[..., EmbeddedStore]


def levels(**chosen: int) -> FeatureLevels:
    return FeatureLevels(TABLE, {f"{name}.version": level for name, level in chosen.items()}, 7)


def test_table_names_each_feature_by_its_key() -> None:
    """A row is found by the name that it has."""
    assert all(name == feature.name for name, feature in FEATURES.items())


def test_level_that_was_never_set_is_the_default() -> None:
    """What was set counts, be it 0; a feature that does not exist is off."""
    assert (levels().level("speed.version"), levels(speed=0).level("speed.version")) == (1, 0)
    assert levels().level("no.version") == 0
    assert levels(speed=0).finalized() == {"base.version": 3}


@pytest.mark.parametrize(
    ("update", "level"),
    [
        (FeatureUpdate("speed.version", 2, UP), 2),
        (FeatureUpdate("speed.version", 1, UP), 1),
        (FeatureUpdate("speed.version", 1, SAFE), 1),
        (FeatureUpdate("speed.version", 0, SAFE), 0),
        (FeatureUpdate("base.version", 1, UNSAFE), 1),
    ],
)
def test_update_within_the_rules_sets_the_level(update: FeatureUpdate, level: int) -> None:
    """Up, down if the request says so, or where it stands already."""
    assert updated_untrusted(levels(), [update]) == {update.name: level}


@pytest.mark.parametrize(
    ("update", "reason"),
    [
        (FeatureUpdate("speed.version", 3, UP), "supports levels 0 to 2"),
        (FeatureUpdate("base.version", 0, SAFE), "supports levels 1 to 3"),
        (FeatureUpdate("no.version", 1, UP), "does not support the feature"),
        (FeatureUpdate("speed.version", -1, SAFE), "0 or more"),
        (FeatureUpdate("speed.version", 0, UP), "takes a safe or an unsafe downgrade"),
        (FeatureUpdate("speed.version", 2, SAFE), "a downgrade cannot go up"),
        (FeatureUpdate("speed.version", 1, None), "no such upgrade type"),
    ],
)
def test_update_against_the_rules_is_refused_with_its_reason(update: FeatureUpdate, reason: str) -> None:
    """Kafka's rules; one bad update refuses all."""
    with pytest.raises(InvalidFeatureUpdate, match=reason):
        updated_untrusted(levels(), [FeatureUpdate("base.version", 3, UP), update])


def test_update_of_a_feature_named_twice_counts_the_last() -> None:
    """As in Kafka, which puts them into a map."""
    twice = [FeatureUpdate("speed.version", 9, UP), FeatureUpdate("speed.version", 2, UP)]
    assert updated_untrusted(levels(), twice) == {"speed.version": 2}


@given(
    st.lists(
        st.builds(
            FeatureUpdate,
            st.sampled_from([*TABLE, "no.version"]),
            st.integers(-(2**15), 2**15 - 1),
            st.sampled_from([*UpgradeType, None]),
        )
    )
)
def test_levels_after_any_updates_are_supported(updates: list[FeatureUpdate]) -> None:
    """Whatever a request says, no feature ends at a level that the node lacks."""
    try:
        chosen = updated_untrusted(levels(), updates)
    except InvalidFeatureUpdate:
        return
    assert all(TABLE[name].level_min <= level <= TABLE[name].level_max for name, level in chosen.items())


async def test_level_updated_is_kept_over_a_restart(open_store: OpenStore) -> None:
    """It was answered, so it holds; also level 0 where the default is another."""
    store = open_store(features=TABLE)
    await store.update_features([FeatureUpdate("speed.version", 0, SAFE)], validate_only=False)
    assert store.features.level("speed.version") == 0
    assert open_store(features=TABLE).features.finalized() == {"base.version": 3}


async def test_epoch_grows_with_every_change_and_every_start(open_store: OpenStore) -> None:
    """Of two answers a client believes the one with the larger epoch; what changes nothing leaves it as it is."""
    store = open_store(features=TABLE)
    epochs = [store.features.epoch]
    generation = store.generation
    for level, validate_only in ((2, False), (2, False), (2, True)):
        await store.update_features([FeatureUpdate("speed.version", level, UP)], validate_only=validate_only)
        epochs.append(store.features.epoch)
    assert epochs[0] < epochs[1] == epochs[2] == epochs[3]
    assert store.generation == generation + 1
    assert open_store(features=TABLE).features.epoch > epochs[-1]


async def test_update_that_is_refused_or_only_validated_changes_nothing(open_store: OpenStore) -> None:
    """Neither in memory nor on disk."""
    store = open_store(features=TABLE)
    await store.update_features([FeatureUpdate("speed.version", 2, UP)], validate_only=True)
    with pytest.raises(InvalidFeatureUpdate):
        await store.update_features(
            [FeatureUpdate("speed.version", 2, UP), FeatureUpdate("base.version", 9, UP)], validate_only=False
        )
    for each in (store, open_store(features=TABLE)):
        assert each.features.level("speed.version") == 1


async def test_store_with_a_level_that_this_program_lacks_is_refused(open_store: OpenStore) -> None:
    """An older program must not write what the cluster has left behind; a feature that is off does no harm."""
    updates = [FeatureUpdate("speed.version", 0, SAFE), FeatureUpdate("base.version", 2, SAFE)]
    await open_store(features=TABLE).update_features(updates, validate_only=False)
    with pytest.raises(StoreMismatch, match=r"base\.version is at level 2\. This node supports levels 3 to 4"):
        open_store(features={"base.version": Feature("base.version", 3, 4, 3)})
    with pytest.raises(StoreMismatch, match=r"base\.version is at level 2\. This node does not support"):
        open_store(features={})
    assert open_store(features={"base.version": BASE}).starts == 2


def test_level_record_that_is_no_count_is_corrupt() -> None:
    """It is never taken for the default."""
    assert records.decode_features({b"feature/a.version": b"\x02", b"starts": b"\x05"}) == {"a.version": 2}
    with pytest.raises(CorruptStorage, match=r"feature/a\.version"):
        records.decode_features({b"feature/a.version": b"\x20"})
