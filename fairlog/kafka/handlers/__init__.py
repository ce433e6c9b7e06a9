"""One module per API, named by its key; each says what it does and which versions it serves."""

from __future__ import annotations

from typing import Any

from fairlog.kafka.api import Api
from fairlog.kafka.handlers import (
    api_00_produce,
    api_01_fetch,
    api_02_list_offsets,
    api_03_metadata,
    api_10_find_coordinator,
    api_11_join_group,
    api_12_heartbeat,
    api_13_leave_group,
    api_14_sync_group,
    api_15_describe_groups,
    api_16_list_groups,
    api_18_api_versions,
    api_19_create_topics,
    api_20_delete_topics,
    api_22_init_producer_id,
    api_24_add_partitions_to_txn,
    api_26_end_txn,
    api_42_delete_groups,
    api_61_describe_producers,
    api_65_describe_transactions,
    api_66_list_transactions,
)

ALL: tuple[Api[Any], ...] = (
    api_00_produce.API,
    api_01_fetch.API,
    api_02_list_offsets.API,
    api_03_metadata.API,
    api_10_find_coordinator.API,
    api_11_join_group.API,
    api_12_heartbeat.API,
    api_13_leave_group.API,
    api_14_sync_group.API,
    api_15_describe_groups.API,
    api_16_list_groups.API,
    api_18_api_versions.API,
    api_19_create_topics.API,
    api_20_delete_topics.API,
    api_22_init_producer_id.API,
    api_24_add_partitions_to_txn.API,
    api_26_end_txn.API,
    api_42_delete_groups.API,
    api_61_describe_producers.API,
    api_65_describe_transactions.API,
    api_66_list_transactions.API,
)
"""Every API that the node serves."""
