"""One module per API, named by its key; each says what it does and which versions it serves."""

from __future__ import annotations

from typing import Any

from fairlog.kafka.api import Api
from fairlog.kafka.handlers import (
    api_00_produce,
    api_01_fetch,
    api_02_list_offsets,
    api_03_metadata,
    api_08_offset_commit,
    api_09_offset_fetch,
    api_10_find_coordinator,
    api_18_api_versions,
    api_19_create_topics,
    api_20_delete_topics,
    api_21_delete_records,
    api_22_init_producer_id,
    api_23_offset_for_leader_epoch,
    api_24_add_partitions_to_txn,
    api_25_add_offsets_to_txn,
    api_26_end_txn,
    api_27_write_txn_markers,
    api_28_txn_offset_commit,
    api_32_describe_configs,
    api_33_alter_configs,
    api_37_create_partitions,
    api_44_incremental_alter_configs,
    api_47_offset_delete,
    api_60_describe_cluster,
    api_61_describe_producers,
    api_65_describe_transactions,
    api_66_list_transactions,
)

ALL: tuple[Api[Any], ...] = (
    api_00_produce.API,
    api_01_fetch.API,
    api_02_list_offsets.API,
    api_03_metadata.API,
    api_08_offset_commit.API,
    api_09_offset_fetch.API,
    api_10_find_coordinator.API,
    api_18_api_versions.API,
    api_19_create_topics.API,
    api_20_delete_topics.API,
    api_21_delete_records.API,
    api_22_init_producer_id.API,
    api_23_offset_for_leader_epoch.API,
    api_24_add_partitions_to_txn.API,
    api_25_add_offsets_to_txn.API,
    api_26_end_txn.API,
    api_27_write_txn_markers.API,
    api_28_txn_offset_commit.API,
    api_32_describe_configs.API,
    api_33_alter_configs.API,
    api_37_create_partitions.API,
    api_44_incremental_alter_configs.API,
    api_47_offset_delete.API,
    api_60_describe_cluster.API,
    api_61_describe_producers.API,
    api_65_describe_transactions.API,
    api_66_list_transactions.API,
)
"""Every API that the node serves."""
