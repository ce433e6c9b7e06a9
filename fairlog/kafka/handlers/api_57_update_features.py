"""UpdateFeatures: set the cluster-wide level of each protocol feature (KIP-584).

Behaviour
- Either all updates are made, durably, or none. The rules are those of `fairlog.cluster.features`. An unknown feature
  is refused like an unknown level, with INVALID_UPDATE_VERSION.
- Clients learn the new levels from their next ApiVersions.
- The time-out is ignored: there are no other nodes to wait for.

Version notes
- 0 allows a downgrade, or does not; 1 distinguishes safe downgrades from unsafe ones, and can validate only; 2 no
  longer lists the single features. Up to 1 they are listed if all were updated, as in Kafka.
"""

from __future__ import annotations

from dataclasses import dataclass

from fairlog.cluster.features import FeatureUpdate, InvalidFeatureUpdate, UpgradeType
from fairlog.kafka.api import Answer, Api, Context, Versions
from fairlog.kafka.checks import ALTER_CLUSTER, denied
from fairlog.kafka.errors import ErrorCode
from fairlog.kafka.noting import note
from fairlog.kafka.wire import Reader
from fairlog.trail import Action
from fairlog_types import StorageFailure

SERVED = Versions(0, 2)
FLEXIBLE_FROM = 0
_UPGRADE_TYPE_FROM = 1
_NO_RESULTS_FROM = 2

_UPGRADE_TYPES = {kind.value: kind for kind in UpgradeType}


@dataclass(frozen=True, slots=True)
class UpdateFeaturesRequest:
    updates: tuple[FeatureUpdate, ...]
    validate_only: bool


def decode(reader: Reader, version: int) -> UpdateFeaturesRequest:
    def upgrade_type() -> UpgradeType | None:
        if version < _UPGRADE_TYPE_FROM:
            return UpgradeType.SAFE_DOWNGRADE if reader.boolean() else UpgradeType.UPGRADE
        return _UPGRADE_TYPES.get(reader.int8())

    def update() -> FeatureUpdate:
        entry = FeatureUpdate(reader.string(), reader.int16(), upgrade_type())
        reader.end_of_fields()
        return entry

    reader.int32()  # time-out
    updates = reader.array(update)
    request = UpdateFeaturesRequest(updates, reader.boolean() if version >= _UPGRADE_TYPE_FROM else False)
    reader.end_of_fields()
    return request


async def handle(context: Context, request: UpdateFeaturesRequest) -> Answer:
    error, message = denied(context, ALTER_CLUSTER) or ErrorCode.NONE, None
    try:
        if error is ErrorCode.NONE:
            await context.broker.cluster.update_features(request.updates, validate_only=request.validate_only)
    except InvalidFeatureUpdate as refused:
        error, message = ErrorCode.INVALID_UPDATE_VERSION, f"no feature was updated: {refused}"
    except StorageFailure as failure:
        error, message = ErrorCode.KAFKA_STORAGE_ERROR, str(failure)
    if not request.validate_only:
        for update in request.updates:
            note(context, Action.UPDATE_FEATURES, update.name, error, level=update.level)
    writer = context.writer()

    def result(update: FeatureUpdate) -> None:
        writer.string(update.name)
        writer.int16(ErrorCode.NONE)
        writer.nullable_string(None)
        writer.end_of_fields()

    writer.int32(0)  # throttle time
    writer.int16(error)
    writer.message(message)
    if context.version < _NO_RESULTS_FROM:
        writer.array(request.updates if error is ErrorCode.NONE else (), result)
    writer.end_of_fields()
    return writer.parts()


API = Api(57, "UpdateFeatures", SERVED, FLEXIBLE_FROM, decode, handle, (ALTER_CLUSTER,))
