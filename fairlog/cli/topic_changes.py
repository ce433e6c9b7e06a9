"""What the `topic` commands ask a broker about topics that exist: their configs, their partitions, their first records.

As in `topics_admin`, requests and answers of kio stay in here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta

from kio.schema.create_partitions.v2.request import CreatePartitionsRequest, CreatePartitionsTopic
from kio.schema.create_partitions.v2.response import CreatePartitionsResponse
from kio.schema.delete_records.v2.request import DeleteRecordsPartition, DeleteRecordsRequest, DeleteRecordsTopic
from kio.schema.delete_records.v2.response import DeleteRecordsResponse
from kio.schema.describe_configs.v4.request import DescribeConfigsRequest, DescribeConfigsResource
from kio.schema.describe_configs.v4.response import DescribeConfigsResponse
from kio.schema.errors import ErrorCode
from kio.schema.incremental_alter_configs.v1.request import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
)
from kio.schema.incremental_alter_configs.v1.response import IncrementalAlterConfigsResponse
from kio.schema.types import TopicName
from kio.static.primitive import i8, i32, i32Timedelta, i64

from fairlog.cli.brokers import Brokers
from fairlog.cli.client import TIMEOUT_S, Connection, check
from fairlog.cli.topics_admin import leader

TRANSACTIONS = "fairlog.transactions"
_TOPIC = i8(2)
_SET, _DELETE = i8(0), i8(1)
_NOT_DELETED = {
    ErrorCode.offset_out_of_range: "the partition ends before this offset",
    ErrorCode.policy_violation: "its cleanup.policy is without delete",
}
"""DeleteRecords' answer has room for a code only."""
_SOURCES = {1: "topic", 2: "broker", 3: "brokers", 4: "broker", 5: "default"}
"""Kafka's numbers of where a value comes from. 2 to 4 are how and for which brokers it was set."""


@dataclass(frozen=True, slots=True)
class Config:
    """What holds for a topic, and who says so: the topic itself, its broker, or nobody."""

    name: str
    value: str | None
    source: str


def topic_configs(connection: Connection, name: str) -> Sequence[Config]:
    """All configs of a topic, by name."""
    resource = DescribeConfigsResource(resource_type=_TOPIC, resource_name=name, configuration_keys=None)
    request = DescribeConfigsRequest(resources=(resource,), include_synonyms=False, include_documentation=False)
    (answer,) = connection.request(request, DescribeConfigsResponse).results
    check(f"asking the configs of topic {name}", answer.error_code, answer.error_message)
    found = [Config(each.name, each.value, _SOURCES.get(int(each.config_source), "unknown")) for each in answer.configs]
    return sorted(found, key=lambda config: config.name)


def transaction_modes(connection: Connection, names: Sequence[str]) -> Mapping[str, str | None]:
    """How transactions reach each of these topics; None for one that is gone, or where there is no such config."""
    if not names:
        return {}
    resources = tuple(
        DescribeConfigsResource(resource_type=_TOPIC, resource_name=name, configuration_keys=(TRANSACTIONS,))
        for name in names
    )
    request = DescribeConfigsRequest(resources=resources, include_synonyms=False, include_documentation=False)
    answer = connection.request(request, DescribeConfigsResponse)
    modes: dict[str, str | None] = dict.fromkeys(names)
    for topic in answer.results:
        for config in topic.configs:
            if config.name == TRANSACTIONS:
                modes[topic.resource_name] = config.value
    return modes


def alter_topic_configs(connection: Connection, name: str, to_set: Mapping[str, str], to_delete: Sequence[str]) -> None:
    """Set some configs of a topic, and let others go back to their defaults; all of it or nothing."""
    changes = [AlterableConfig(name=key, config_operation=_SET, value=value) for key, value in to_set.items()]
    changes += [AlterableConfig(name=key, config_operation=_DELETE, value=None) for key in to_delete]
    resource = AlterConfigsResource(resource_type=_TOPIC, resource_name=name, configs=tuple(changes))
    request = IncrementalAlterConfigsRequest(resources=(resource,), validate_only=False)
    (answer,) = connection.request(request, IncrementalAlterConfigsResponse).responses
    check(f"changing the configs of topic {name}", answer.error_code, answer.error_message)


def add_partitions(connection: Connection, name: str, total: int) -> None:
    """Give a topic partitions up to `total`."""
    topic = CreatePartitionsTopic(name=TopicName(name), count=i32(total), assignments=None)
    request = CreatePartitionsRequest(topics=(topic,), timeout=_timeout(), validate_only=False)
    (answer,) = connection.request(request, CreatePartitionsResponse).results
    check(f"adding partitions to topic {name}", answer.error_code, answer.error_message)


def delete_records(brokers: Brokers, name: str, partition: int, offset: int) -> int:
    """Delete the records before an offset (-1: all); answers where the partition begins now."""
    wanted = DeleteRecordsPartition(partition_index=i32(partition), offset=i64(offset))
    topic = DeleteRecordsTopic(name=TopicName(name), partitions=(wanted,))
    request = DeleteRecordsRequest(topics=(topic,), timeout=_timeout())
    (answer,) = leader(brokers, name, partition).request(request, DeleteRecordsResponse).topics
    (deleted,) = answer.partitions
    code = deleted.error_code
    check(f"deleting records of {name}-{partition}", code, _NOT_DELETED.get(code))
    return int(deleted.low_watermark)


def _timeout() -> i32Timedelta:
    return i32Timedelta.parse(timedelta(seconds=TIMEOUT_S))
