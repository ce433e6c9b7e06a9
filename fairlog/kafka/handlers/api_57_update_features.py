"""UpdateFeatures: which level of each feature of the protocol the cluster agrees on (KIP-584).

Behaviour
- All updates are made, durably, or none. The rules are those of `fairlog.cluster.features`; a feature that this node
  does not have is refused like a level that it does not have, INVALID_UPDATE_VERSION.
- Clients hear of the new levels with their next ApiVersions.
- The time-out is not looked at: nobody has to be waited for.

Version notes
- 0 allows a downgrade, or does not; 1 tells safe downgrades from unsafe ones, and can validate only; 2 says nothing of
  the single features any more. Up to 1 they are listed if all were updated, as in Kafka.
"""

from __future__ import annotations

from dataclasses import dataclass

from fairlog.cluster.features import FeatureUpdate, InvalidFeatureUpdate, UpgradeType
from fairlog.kafka.api import Answer, Api, Context, Versions
from fairlog.kafka.errors import ErrorCode
from fairlog.kafka.wire import Reader
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
    error, message = ErrorCode.NONE, None
    try:
        await context.broker.cluster.update_features(request.updates, validate_only=request.validate_only)
    except InvalidFeatureUpdate as refused:
        error, message = ErrorCode.INVALID_UPDATE_VERSION, f"no feature was updated: {refused}"
    except StorageFailure as failure:
        error, message = ErrorCode.KAFKA_STORAGE_ERROR, str(failure)
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


API = Api(57, "UpdateFeatures", SERVED, FLEXIBLE_FROM, decode, handle)
