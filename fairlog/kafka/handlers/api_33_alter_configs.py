"""AlterConfigs: replace all configs that a topic, a broker or a consumer group has of its own.

Behaviour
- A config that the request does not name returns to its default, except one that was fixed at the topic's creation
  (`fairlog.transactions`): it stays, and naming another value is INVALID_CONFIG. IncrementalAlterConfigs is the better
  request.
- If one name or value is bad, the resource as a whole is refused (INVALID_CONFIG), with a message that names it. A name
  that occurs twice, or without a value, is INVALID_REQUEST.
- A resource that is named more than once is INVALID_REQUEST, and is not altered.
- For one broker or for all, some configs can be set (`fairlog.live_settings`); any other is INVALID_REQUEST, with a
  message that names the setting to use instead. Configs that are not named return to the node's setting.
- For a consumer group the configs of `fairlog.group_configs` can be set, whether the group exists or not.
- validate_only checks all this and changes nothing.
- The new configs are durable when the request is answered, and apply from the next request on.

Version notes
- 2 is flexible.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass

from fairlog.broker_config_changes import broker_replaced
from fairlog.group_configs import group_replaced
from fairlog.kafka.api import Answer, Api, Context, Versions
from fairlog.kafka.config_resources import ALTER_CHECKS, Alteration, alter_all
from fairlog.kafka.wire import Reader
from fairlog.topic_config_changes import replaced

SERVED = Versions(0, 2)
FLEXIBLE_FROM = 2

_Configs = tuple[tuple[str, str | None], ...]


@dataclass(frozen=True, slots=True)
class AlterConfigsRequest:
    resources: tuple[tuple[int, str, _Configs], ...]
    """(type, name, ((config, value), …))"""
    validate_only: bool


def decode(reader: Reader, version: int) -> AlterConfigsRequest:  # noqa: ARG001 (all versions look alike)
    def config() -> tuple[str, str | None]:
        entry = reader.string(), reader.nullable_string()
        reader.end_of_fields()
        return entry

    def resource() -> tuple[int, str, _Configs]:
        entry = reader.int8(), reader.string(), reader.array(config)
        reader.end_of_fields()
        return entry

    request = AlterConfigsRequest(reader.array(resource), reader.boolean())
    reader.end_of_fields()
    return request


async def handle(context: Context, request: AlterConfigsRequest) -> Answer:
    alterations = [
        Alteration(
            kind,
            name,
            functools.partial(_replace_topic, configs),
            functools.partial(_replace_broker, configs),
            functools.partial(_replace_group, configs),
        )
        for kind, name, configs in request.resources
    ]
    return await alter_all(context, alterations, validate_only=request.validate_only)


def _replace_topic(configs: _Configs, own: Mapping[str, str]) -> Mapping[str, str]:
    return replaced(own, configs)


def _replace_broker(configs: _Configs, own: Mapping[str, str]) -> Mapping[str, str]:  # noqa: ARG001 (all configs are replaced)
    return broker_replaced(configs)


def _replace_group(configs: _Configs, own: Mapping[str, str]) -> Mapping[str, str]:  # noqa: ARG001 (all configs are replaced)
    return group_replaced(configs)


API = Api(33, "AlterConfigs", SERVED, FLEXIBLE_FROM, decode, handle, tuple(ALTER_CHECKS.values()))
