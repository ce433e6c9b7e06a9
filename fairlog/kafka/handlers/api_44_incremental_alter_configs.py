"""IncrementalAlterConfigs: set and delete single configs of topics, brokers and groups, and change lists item by item.

Behaviour
- SET needs a value. DELETE restores the default, and succeeds for an unknown name, as in Kafka: tools that copy configs
  from a newer broker delete configs that this one never had. APPEND and SUBTRACT are for lists (`cleanup.policy`), and
  start from the default if the topic has no value of its own.
- If one name, value or operation is bad, the resource as a whole is refused, with a message that names it
  (INVALID_CONFIG; INVALID_REQUEST for an unknown operation, a name that occurs twice, or one without a value).
- A config that was fixed at the topic's creation (`fairlog.transactions`) can only be set to its present value;
  anything else is INVALID_CONFIG.
- Brokers, groups, repeated resources, validate_only, and the time from which a change applies: as in AlterConfigs.

Version notes
- 1 is flexible.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from fairlog.broker_config_changes import broker_changed
from fairlog.config import Settings
from fairlog.group_configs import group_changed
from fairlog.kafka.api import Answer, Api, Context, Versions
from fairlog.kafka.config_resources import ALTER_CHECKS, Alteration, Refused, alter_all
from fairlog.kafka.errors import ErrorCode
from fairlog.kafka.wire import Reader
from fairlog.topic_config_changes import Change, Operation, changed

SERVED = Versions(0, 1)
FLEXIBLE_FROM = 1

_OPERATIONS = {0: Operation.SET, 1: Operation.DELETE, 2: Operation.APPEND, 3: Operation.SUBTRACT}


@dataclass(frozen=True, slots=True)
class ConfigChange:
    name: str
    operation: int
    value: str | None


@dataclass(frozen=True, slots=True)
class IncrementalAlterConfigsRequest:
    resources: tuple[tuple[int, str, tuple[ConfigChange, ...]], ...]
    """(type, name, changes)"""
    validate_only: bool


def decode(reader: Reader, version: int) -> IncrementalAlterConfigsRequest:  # noqa: ARG001 (both look alike)
    def config() -> ConfigChange:
        entry = ConfigChange(reader.string(), reader.int8(), reader.nullable_string())
        reader.end_of_fields()
        return entry

    def resource() -> tuple[int, str, tuple[ConfigChange, ...]]:
        entry = reader.int8(), reader.string(), reader.array(config)
        reader.end_of_fields()
        return entry

    request = IncrementalAlterConfigsRequest(reader.array(resource), reader.boolean())
    reader.end_of_fields()
    return request


async def handle(context: Context, request: IncrementalAlterConfigsRequest) -> Answer:
    settings = context.broker.settings
    alterations = [
        Alteration(
            kind,
            name,
            functools.partial(_change_topic, settings, changes),
            functools.partial(_change_broker, changes),
            functools.partial(_change_group, changes),
        )
        for kind, name, changes in request.resources
    ]
    return await alter_all(context, alterations, validate_only=request.validate_only)


def _change_topic(settings: Settings, asked: Sequence[ConfigChange], own: Mapping[str, str]) -> Mapping[str, str]:
    return changed(own, _changes(asked), settings)


def _change_broker(asked: Sequence[ConfigChange], own: Mapping[str, str]) -> Mapping[str, str]:
    return broker_changed(own, _changes(asked))


def _change_group(asked: Sequence[ConfigChange], own: Mapping[str, str]) -> Mapping[str, str]:
    return group_changed(own, _changes(asked))


def _changes(asked: Sequence[ConfigChange]) -> list[Change]:
    changes: list[Change] = []
    for each in asked:
        operation = _OPERATIONS.get(each.operation)
        if operation is None:
            raise Refused(ErrorCode.INVALID_REQUEST, f"{each.name}: there is no operation {each.operation}")
        changes.append(Change(operation, each.name, each.value))
    return changes


API = Api(44, "IncrementalAlterConfigs", SERVED, FLEXIBLE_FROM, decode, handle, tuple(ALTER_CHECKS.values()))
