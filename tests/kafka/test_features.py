"""ApiVersions' features, and UpdateFeatures."""

from __future__ import annotations

from dataclasses import replace

import pytest
from kafka.protocol.admin import UpdateFeaturesRequest

from fairlog.cluster.features import Feature
from fairlog.kafka.errors import ErrorCode
from fairlog.kafka.handlers import api_18_api_versions, api_57_update_features
from fairlog_types import StorageFailure

API_VERSIONS, UPDATE = 18, 57
UPGRADE, SAFE, UNSAFE = 1, 2, 3
UPDATE_VERSIONS = range(api_57_update_features.SERVED.min, api_57_update_features.SERVED.max + 1)


@pytest.fixture(autouse=True)
def features(memory):
    rows = (Feature("speed.version", 0, 2, 0), Feature("base.version", 1, 3, 2))
    memory.cluster.features = replace(memory.cluster.features, supported={row.name: row for row in rows})


def update(name, level, upgrade_type=UPGRADE, *, validate_only=False):
    key = UpdateFeaturesRequest.FeatureUpdateKey(
        feature=name, max_version_level=level, allow_downgrade=upgrade_type != UPGRADE, upgrade_type=upgrade_type
    )
    return {"timeout_ms": 1000, "feature_updates": [key], "validate_only": validate_only}


@pytest.mark.parametrize("version", range(api_18_api_versions.SERVED.min, api_18_api_versions.SERVED.max + 1))
async def test_api_versions_tell_the_features_that_a_version_can_hold(ask, memory, version):
    """From 3 on; those that can be off only from 4 on. What is off is not among the finalized ones."""
    answer = await ask(API_VERSIONS, version, client_software_name="test", client_software_version="1")
    supported = [(row.name, row.min_version, row.max_version) for row in answer.supported_features]
    finalized = [(row.name, row.min_version_level, row.max_version_level) for row in answer.finalized_features]
    base, speed = ("base.version", 1, 3), ("speed.version", 0, 2)
    assert supported == ([] if version < 3 else [base] if version == 3 else [speed, base])
    assert finalized == ([("base.version", 2, 2)] if version >= 3 else [])
    assert answer.finalized_features_epoch == (memory.cluster.features.epoch if version >= 3 else -1)


@pytest.mark.parametrize("version", UPDATE_VERSIONS)
async def test_feature_level_is_changed_and_told(ask, version):
    """Up and down, in every version; the next ApiVersions says so, with a larger epoch."""
    before = await ask(API_VERSIONS, 4, client_software_name="test", client_software_version="1")
    for asked in (update("speed.version", 2), update("base.version", 1, SAFE)):
        answer = await ask(UPDATE, version, **asked)
        assert (answer.error_code, answer.error_message) == (0, None)
        named = [(each.feature, each.error_code) for each in answer.results or ()]
        assert named == ([] if version == 2 else [(asked["feature_updates"][0].feature, 0)])
    after = await ask(API_VERSIONS, 4, client_software_name="test", client_software_version="1")
    levels = {row.name: row.max_version_level for row in after.finalized_features}
    assert levels == {"speed.version": 2, "base.version": 1}
    assert after.finalized_features_epoch > before.finalized_features_epoch


@pytest.mark.parametrize("version", UPDATE_VERSIONS)
@pytest.mark.parametrize(
    "asked",
    [update("speed.version", 3), update("base.version", 1), update("no.version", 1), update("base.version", 3, SAFE)],
    ids=["a level that the node lacks", "down without saying so", "no such feature", "up by a downgrade"],
)
async def test_feature_level_that_cannot_be_is_refused(ask, memory, version, asked):
    """Nothing is changed, and the message names the feature."""
    answer = await ask(UPDATE, version, **asked)
    assert (answer.error_code, list(answer.results or ())) == (ErrorCode.INVALID_UPDATE_VERSION, [])
    assert asked["feature_updates"][0].feature in answer.error_message
    assert memory.cluster.features.chosen == {}


async def test_feature_level_with_an_unknown_upgrade_type_is_refused(ask):
    """Also where the level would stay as it is."""
    answer = await ask(UPDATE, 1, **update("base.version", 2, 4))
    assert answer.error_code == ErrorCode.INVALID_UPDATE_VERSION


async def test_feature_level_is_validated_only(ask, memory):
    """The answer is what it would be; the level stays."""
    assert (await ask(UPDATE, 2, **update("speed.version", 2, validate_only=True))).error_code == 0
    refused = await ask(UPDATE, 2, **update("speed.version", 3, validate_only=True))
    assert refused.error_code == ErrorCode.INVALID_UPDATE_VERSION
    assert memory.cluster.features.chosen == {}


async def test_feature_level_on_a_failed_disk_is_not_changed(ask, memory):
    """A storage failure is told as such."""
    memory.cluster.failure = StorageFailure("no space left on device")
    answer = await ask(UPDATE, 2, **update("speed.version", 2))
    assert (answer.error_code, answer.error_message) == (ErrorCode.KAFKA_STORAGE_ERROR, "no space left on device")
