"""A right request of each API, as a plain client would ask it, and the batch that it may produce."""

from __future__ import annotations

import datetime
import struct
import warnings
from typing import Any
from uuid import UUID

import crc32c

with warnings.catch_warnings():
    # It reads its schemas with importlib.resources.read_text.
    warnings.simplefilter("ignore", DeprecationWarning)
    from kafka.protocol import admin, consumer, metadata, producer

_HEADER = struct.Struct(">qiibIhiqqqhii")


def build_batch(
    *,
    records: int = 1,
    size: int = 130,
    producer_id: int = -1,
    epoch: int = -1,
    sequence: int = -1,
    attributes: int = 0,
    timestamp: int = 1_000,
    magic: int = 2,
    count: int | None = None,
) -> bytes:
    """A record batch of `size` bytes whose records nobody will decode; the usual size has room for nine."""
    payload = bytes(index % 251 for index in range(size - _HEADER.size))
    count = records if count is None else count
    head = (
        0,
        size - 12,
        -1,
        magic,
        0,
        attributes,
        records - 1,
        timestamp,
        timestamp,
        producer_id,
        epoch,
        sequence,
        count,
    )
    batch = bytearray(_HEADER.pack(*head) + payload)
    batch[17:21] = struct.pack(">I", crc32c.crc32c(bytes(batch[21:])))
    return bytes(batch)


def example_fields(key: int) -> dict[str, Any]:
    """What a plain client would ask, for each API; fields that a version does not have are left out by the codec."""
    produce, fetch = producer.ProduceRequest.TopicProduceData, consumer.FetchRequest.FetchTopic
    offsets, add = consumer.ListOffsetsRequest.ListOffsetsTopic, producer.AddPartitionsToTxnRequest
    new, deleted = admin.CreateTopicsRequest.CreatableTopic, admin.DeleteTopicsRequest.DeleteTopicState
    partition = {"current_leader_epoch": -1, "fetch_offset": 0, "last_fetched_epoch": -1, "log_start_offset": -1}
    fetched = fetch.FetchPartition(partition=1, partition_max_bytes=1000, **partition)
    wanted = offsets.ListOffsetsPartition(partition_index=0, current_leader_epoch=-1, timestamp=-1)
    produced = produce.PartitionProduceData(index=0, records=build_batch())
    timing = {"replica_id": -1, "max_wait_ms": 0, "min_bytes": 1, "max_bytes": 10_000, "isolation_level": 0}
    session = {"session_id": 0, "session_epoch": -1, "forgotten_topics_data": [], "rack_id": ""}
    deleting, epoch = admin.DeleteRecordsRequest.DeleteRecordsTopic, consumer.OffsetForLeaderEpochRequest
    marker, more = (
        producer.WriteTxnMarkersRequest.WritableTxnMarker,
        admin.CreatePartitionsRequest.CreatePartitionsTopic,
    )
    altered, changed = admin.AlterConfigsRequest.AlterConfigsResource, admin.IncrementalAlterConfigsRequest
    described, one = admin.DescribeConfigsRequest.DescribeConfigsResource, changed.AlterConfigsResource
    topic_t = {"resource_type": 2, "resource_name": "t"}
    asked_epoch = epoch.OffsetForLeaderTopic.OffsetForLeaderPartition(
        partition=0, current_leader_epoch=-1, leader_epoch=0
    )
    written = marker(
        producer_id=1,
        producer_epoch=0,
        transaction_result=False,
        topics=[marker.WritableTxnMarkerTopic(name="t", partition_indexes=[0])],
        coordinator_epoch=0,
    )
    allowed = {"operation": 3, "permission_type": 3}
    acl = {"resource_type": 2, "resource_name": "t", "principal": "User:a", "host": "*", **allowed}
    acl_filter = {"resource_name_filter": "t", "principal_filter": None, "host_filter": None, **allowed}
    adding = {"v3_and_below_transactional_id": "tx", "v3_and_below_producer_id": 1, "v3_and_below_producer_epoch": 0}
    member = {"group_id": "g", "member_id": "", "group_instance_id": "i"}
    joining = consumer.JoinGroupRequest.JoinGroupRequestProtocol(name="range", metadata=b"m")
    assigned = consumer.SyncGroupRequest.SyncGroupRequestAssignment(member_id="", assignment=b"a")
    leaving = consumer.LeaveGroupRequest.MemberIdentity(member_id="", group_instance_id="i", reason="r")
    protocol = {"protocol_type": "consumer", "protocol_name": "range"}
    timeouts = {"session_timeout_ms": 10_000, "rebalance_timeout_ms": 10_000}
    commit = consumer.OffsetCommitRequest.OffsetCommitRequestTopic
    commit_in = producer.TxnOffsetCommitRequest.TxnOffsetCommitRequestTopic
    ask = consumer.OffsetFetchRequest.OffsetFetchRequestTopic
    ask_many = consumer.OffsetFetchRequest.OffsetFetchRequestGroup
    forget = consumer.OffsetDeleteRequest.OffsetDeleteRequestTopic
    committed = {"partition_index": 0, "committed_offset": 1, "committed_leader_epoch": -1, "committed_metadata": ""}
    moved = admin.AlterPartitionReassignmentsRequest.ReassignableTopic
    moving = admin.ListPartitionReassignmentsRequest.ListPartitionReassignmentsTopics
    elected, quorum = admin.ElectLeadersRequest.TopicPartitions, admin.DescribeQuorumRequest.TopicData
    paged = admin.DescribeTopicPartitionsRequest
    laid, weighed = admin.AlterReplicaLogDirsRequest.AlterReplicaLogDir, admin.DescribeLogDirsRequest
    return {
        0: {
            "transactional_id": None,
            "acks": 1,
            "timeout_ms": 1000,
            "topic_data": [produce(name="t", partition_data=[produced])],
        },
        1: {**timing, **session, "topics": [fetch(topic="t", topic_id=UUID(int=1), partitions=[fetched])]},
        2: {"replica_id": -1, "isolation_level": 0, "topics": [offsets(name="t", partitions=[wanted])]},
        3: {"topics": [metadata.MetadataRequest.MetadataRequestTopic(name="t", topic_id=None)]},
        8: {
            "group_id": "g",
            "generation_id_or_member_epoch": -1,
            "member_id": "",
            "group_instance_id": None,
            "retention_time_ms": -1,
            "topics": [commit(name="t", partitions=[commit.OffsetCommitRequestPartition(**committed)])],
        },
        9: {
            "group_id": "g",
            "topics": [ask(name="t", partition_indexes=[0])],
            "groups": [
                ask_many(group_id="g", topics=[ask_many.OffsetFetchRequestTopics(name="t", partition_indexes=[0])])
            ],
            "require_stable": False,
        },
        10: {"key": "k", "key_type": 1, "coordinator_keys": ["k"]},
        11: {**member, **timeouts, "protocol_type": "consumer", "protocols": [joining], "reason": "r"},
        12: {**member, "generation_id": 1},
        13: {"group_id": "g", "member_id": "", "members": [leaving]},
        14: {**member, "generation_id": 1, **protocol, "assignments": [assigned]},
        15: {"groups": ["g"], "include_authorized_operations": False},
        16: {"states_filter": ["Stable"]},
        18: {"client_software_name": "fuzz", "client_software_version": "1"},
        19: {
            "topics": [new(name="u", num_partitions=1, replication_factor=1, assignments=[], configs=[])],
            "timeout_ms": 1000,
            "validate_only": False,
        },
        20: {"topics": [deleted(name="t", topic_id=None)], "topic_names": ["t"], "timeout_ms": 1000},
        22: {"transactional_id": "tx", "transaction_timeout_ms": 1000, "producer_id": -1, "producer_epoch": -1},
        24: {**adding, "v3_and_below_topics": [add.AddPartitionsToTxnTopic(name="t", partitions=[0])]},
        25: {"transactional_id": "tx", "producer_id": 1, "producer_epoch": 0, "group_id": "g"},
        26: {"transactional_id": "tx", "producer_id": 1, "producer_epoch": 0, "committed": True},
        21: {
            "topics": [deleting(name="t", partitions=[deleting.DeleteRecordsPartition(partition_index=0, offset=-1)])],
            "timeout_ms": 1000,
        },
        23: {"replica_id": -1, "topics": [epoch.OffsetForLeaderTopic(topic="t", partitions=[asked_epoch])]},
        27: {"markers": [written]},
        29: {"resource_type_filter": 2, **acl_filter},
        30: {"creations": [admin.CreateAclsRequest.AclCreation(**acl)]},
        31: {"filters": [admin.DeleteAclsRequest.DeleteAclsFilter(resource_type_filter=2, **acl_filter)]},
        32: {
            "resources": [described(**topic_t, configuration_keys=["flush.ms"])],
            "include_synonyms": True,
            "include_documentation": True,
        },
        33: {
            "resources": [altered(**topic_t, configs=[altered.AlterableConfig(name="flush.ms", value="1")])],
            "validate_only": False,
        },
        37: {"topics": [more(name="t", count=3, assignments=None)], "timeout_ms": 1000, "validate_only": False},
        44: {
            "resources": [
                one(**topic_t, configs=[one.AlterableConfig(name="flush.ms", config_operation=0, value="1")])
            ],
            "validate_only": False,
        },
        34: {"dirs": [laid(path="/data", topics=[laid.AlterReplicaLogDirTopic(name="t", partitions=[0])])]},
        35: {"topics": [weighed.DescribableLogDirTopic(topic="t", partitions=[0])]},
        43: {"election_type": 0, "topic_partitions": [elected(topic="t", partitions=[0])], "timeout_ms": 1000},
        45: {
            "timeout_ms": 1000,
            "allow_replication_factor_change": True,
            "topics": [moved(name="t", partitions=[moved.ReassignablePartition(partition_index=0, replicas=[7])])],
        },
        46: {"timeout_ms": 1000, "topics": [moving(name="t", partition_indexes=[0])]},
        55: {"topics": [quorum(topic_name="__cluster_metadata", partitions=[quorum.PartitionData(partition_index=0)])]},
        71: {"client_instance_id": None},
        72: {
            "client_instance_id": UUID(int=1000),
            "subscription_id": 1,
            "terminating": False,
            "compression_type": 0,
            "metrics": b"m",
        },
        74: {"resource_types": [2, 4]},
        75: {
            "topics": [paged.TopicRequest(name="t")],
            "response_partition_limit": 10,
            "cursor": paged.Cursor(topic_name="t", partition_index=0),
        },
        57: {
            "timeout_ms": 1000,
            "feature_updates": [
                admin.UpdateFeaturesRequest.FeatureUpdateKey(
                    feature="f", max_version_level=1, allow_downgrade=True, upgrade_type=2
                )
            ],
            "validate_only": False,
        },
        60: {"include_cluster_authorized_operations": True, "endpoint_type": 1},
        42: {"groups_names": ["g"]},
        28: {
            "transactional_id": "tx",
            "group_id": "g",
            "producer_id": 1,
            "producer_epoch": 0,
            "generation_id": -1,
            "member_id": "",
            "group_instance_id": None,
            "topics": [commit_in(name="t", partitions=[commit_in.TxnOffsetCommitRequestPartition(**committed)])],
        },
        47: {
            "group_id": "g",
            "topics": [forget(name="t", partitions=[forget.OffsetDeleteRequestPartition(partition_index=0)])],
        },
        17: {"mechanism": "SCRAM-SHA-256"},
        36: {"auth_bytes": b"n,,n=u,r=nonce"},
        48: {
            "components": [
                admin.DescribeClientQuotasRequest.ComponentData(entity_type="user", match_type=0, match="hidden-user")
            ],
            "strict": False,
        },
        49: {
            "entries": [
                admin.AlterClientQuotasRequest.EntryData(
                    entity=[admin.AlterClientQuotasRequest.EntryData.EntityData(entity_type="user", entity_name="u")],
                    ops=[
                        admin.AlterClientQuotasRequest.EntryData.OpData(
                            key="producer_byte_rate", value=1000.0, remove=False
                        )
                    ],
                )
            ],
            "validate_only": False,
        },
        50: {"users": [admin.DescribeUserScramCredentialsRequest.UserName(name="u")]},
        51: {
            "deletions": [admin.AlterUserScramCredentialsRequest.ScramCredentialDeletion(name="gone", mechanism=1)],
            "upsertions": [
                admin.AlterUserScramCredentialsRequest.ScramCredentialUpsertion(
                    name="u", mechanism=1, iterations=4096, salt=b"s" * 32, salted_password=b"p" * 32
                )
            ],
        },
        61: {"topics": [admin.DescribeProducersRequest.TopicRequest(name="t", partition_indexes=[0])]},
        65: {"transactional_ids": ["tx"]},
        66: {
            "state_filters": ["Ongoing"],
            "producer_id_filters": [1],
            "duration_filter": -1,
            "transactional_id_pattern": "t.*",
        },
        68: {
            "group_id": "g",
            "member_id": "m",
            "member_epoch": 0,
            "rebalance_timeout": datetime.timedelta(minutes=1),
            "subscribed_topic_names": ("t",),
            "topic_partitions": (),
        },
        69: {"group_ids": ("g",), "include_authorized_operations": False},
    }[key]
