"""A client that speaks through two codecs that are not ours: kafka-python asks, and kio checks each answer."""

from __future__ import annotations

import io
import struct
import warnings
from typing import Any

from kio.index import load_payload_module
from kio.serial import entity_reader, entity_writer
from kio.static.constants import EntityType

from fairlog.kafka.api import Client, Deferred
from fairlog.kafka.handlers import ALL
from fairlog.kafka.router import Router
from tests.kafka.in_memory import Memory

with warnings.catch_warnings():
    # It reads its schemas with importlib.resources.read_text.
    warnings.simplefilter("ignore", DeprecationWarning)
    from kafka.protocol import admin, consumer, metadata, producer, sasl

PLACEMENTS_TAG_BYTES = b"\x01\x90\x4e"
"""One tagged field, number 10,000."""


def classes_of_kio(key: int, name: str) -> tuple[Any, Any]:
    """Stand-ins for the classes of an API that kafka-python does not have, as far as they are used here."""

    def module(version: int, kind: EntityType) -> Any:
        return load_payload_module(key, version, kind)

    class Request:
        def __init__(self, *, version: int, **fields: Any) -> None:
            self._entity = getattr(module(version, EntityType.request), f"{name}Request")(**fields)
            self._header = b""

        def with_header(self, *, correlation_id: int, client_id: str) -> None:
            """Of flexible versions: those that kafka-python lacks are new."""
            text = client_id.encode()
            head = struct.pack(">hhih", key, self._entity.__version__, correlation_id, len(text))
            self._header = head + text + b"\0"

        def encode(self, *, version: int, header: bool) -> bytes:
            assert header, f"{name} v{version} is asked with its header alone"
            return self._header + write_with_kio(self._entity)

        @staticmethod
        def flexible_version_q(_version: int) -> bool:
            return True

    class Response:
        @staticmethod
        def decode(data: bytes, *, version: int) -> Any:
            entity, _ = entity_reader(getattr(module(version, EntityType.response), f"{name}Response"))(data, 0)
            return entity

    Response.__name__ = f"{name}Response"
    return Request, Response


REQUESTS: dict[int, Any] = {
    71: classes_of_kio(71, "GetTelemetrySubscriptions"),
    72: classes_of_kio(72, "PushTelemetry"),
    0: (producer.ProduceRequest, producer.ProduceResponse),
    1: (consumer.FetchRequest, consumer.FetchResponse),
    2: (consumer.ListOffsetsRequest, consumer.ListOffsetsResponse),
    3: (metadata.MetadataRequest, metadata.MetadataResponse),
    8: (consumer.OffsetCommitRequest, consumer.OffsetCommitResponse),
    9: (consumer.OffsetFetchRequest, consumer.OffsetFetchResponse),
    10: (metadata.FindCoordinatorRequest, metadata.FindCoordinatorResponse),
    11: (consumer.JoinGroupRequest, consumer.JoinGroupResponse),
    12: (consumer.HeartbeatRequest, consumer.HeartbeatResponse),
    13: (consumer.LeaveGroupRequest, consumer.LeaveGroupResponse),
    14: (consumer.SyncGroupRequest, consumer.SyncGroupResponse),
    15: (admin.DescribeGroupsRequest, admin.DescribeGroupsResponse),
    16: (admin.ListGroupsRequest, admin.ListGroupsResponse),
    18: (metadata.ApiVersionsRequest, metadata.ApiVersionsResponse),
    19: (admin.CreateTopicsRequest, admin.CreateTopicsResponse),
    20: (admin.DeleteTopicsRequest, admin.DeleteTopicsResponse),
    21: (admin.DeleteRecordsRequest, admin.DeleteRecordsResponse),
    22: (producer.InitProducerIdRequest, producer.InitProducerIdResponse),
    23: (consumer.OffsetForLeaderEpochRequest, consumer.OffsetForLeaderEpochResponse),
    24: (producer.AddPartitionsToTxnRequest, producer.AddPartitionsToTxnResponse),
    25: (producer.AddOffsetsToTxnRequest, producer.AddOffsetsToTxnResponse),
    26: (producer.EndTxnRequest, producer.EndTxnResponse),
    27: (producer.WriteTxnMarkersRequest, producer.WriteTxnMarkersResponse),
    29: (admin.DescribeAclsRequest, admin.DescribeAclsResponse),
    30: (admin.CreateAclsRequest, admin.CreateAclsResponse),
    31: (admin.DeleteAclsRequest, admin.DeleteAclsResponse),
    32: (admin.DescribeConfigsRequest, admin.DescribeConfigsResponse),
    33: (admin.AlterConfigsRequest, admin.AlterConfigsResponse),
    37: (admin.CreatePartitionsRequest, admin.CreatePartitionsResponse),
    34: (admin.AlterReplicaLogDirsRequest, admin.AlterReplicaLogDirsResponse),
    35: (admin.DescribeLogDirsRequest, admin.DescribeLogDirsResponse),
    43: (admin.ElectLeadersRequest, admin.ElectLeadersResponse),
    45: (admin.AlterPartitionReassignmentsRequest, admin.AlterPartitionReassignmentsResponse),
    46: (admin.ListPartitionReassignmentsRequest, admin.ListPartitionReassignmentsResponse),
    55: (admin.DescribeQuorumRequest, admin.DescribeQuorumResponse),
    74: (admin.ListConfigResourcesRequest, admin.ListConfigResourcesResponse),
    75: (admin.DescribeTopicPartitionsRequest, admin.DescribeTopicPartitionsResponse),
    57: (admin.UpdateFeaturesRequest, admin.UpdateFeaturesResponse),
    44: (admin.IncrementalAlterConfigsRequest, admin.IncrementalAlterConfigsResponse),
    60: (admin.DescribeClusterRequest, admin.DescribeClusterResponse),
    42: (admin.DeleteGroupsRequest, admin.DeleteGroupsResponse),
    28: (producer.TxnOffsetCommitRequest, producer.TxnOffsetCommitResponse),
    47: (consumer.OffsetDeleteRequest, consumer.OffsetDeleteResponse),
    61: (admin.DescribeProducersRequest, admin.DescribeProducersResponse),
    65: (admin.DescribeTransactionsRequest, admin.DescribeTransactionsResponse),
    66: (admin.ListTransactionsRequest, admin.ListTransactionsResponse),
    17: (sasl.SaslHandshakeRequest, sasl.SaslHandshakeResponse),
    36: (sasl.SaslAuthenticateRequest, sasl.SaslAuthenticateResponse),
    48: (admin.DescribeClientQuotasRequest, admin.DescribeClientQuotasResponse),
    49: (admin.AlterClientQuotasRequest, admin.AlterClientQuotasResponse),
    50: (admin.DescribeUserScramCredentialsRequest, admin.DescribeUserScramCredentialsResponse),
    51: (admin.AlterUserScramCredentialsRequest, admin.AlterUserScramCredentialsResponse),
    68: classes_of_kio(68, "ConsumerGroupHeartbeat"),
    69: classes_of_kio(69, "ConsumerGroupDescribe"),
}
"""kafka-python's classes by API key; kio's where it has none."""


NOT_IN_KIO = {(27, 0)}
"""Key and version."""


def _kio_class(key: int, version: int, kind: EntityType) -> Any:
    pair = REQUESTS[key]
    return getattr(load_payload_module(key, version, kind), pair[kind is EntityType.response].__name__)


def read_with_kio(key: int, version: int, body: bytes) -> Any:
    """Decode an answer with kio; it must take all bytes, and write the very same again."""
    response = _kio_class(key, version, EntityType.response)
    entity, size = entity_reader(response)(body, 0)
    assert size == len(body), f"kio leaves {len(body) - size} bytes of {response.__name__} v{version}"
    return entity


def write_with_kio(entity: Any) -> bytes:
    with io.BytesIO() as out:
        entity_writer(type(entity))(out, entity)
        return out.getvalue()


class Asker:
    """Asks the router as a client would, over kafka-python's codec, and checks each answer with kio, too."""

    def __init__(self, memory: Memory) -> None:
        self.memory = memory
        self.client = Client(connection=11, peer="test:1")

    @property
    def router(self) -> Router:
        return Router(self.memory.broker, ALL)

    async def start(self, key: int, version: int, /, **fields: object) -> Any:
        request = REQUESTS[key][0](version=version, **fields)
        request.with_header(correlation_id=5, client_id="asker")
        return await self.router.start(bytes(request.encode(version=version, header=True)), self.client)

    async def finish(self, started: Any) -> bytes:
        if isinstance(started.answer, Deferred):
            return b"".join(started.finished(await started.answer.finish()))
        return b"".join(started.answer)

    def read_answer(self, key: int, version: int, answer: bytes) -> Any:
        """kafka-python's response object, without kio's opinion, which does not take every value."""
        header_bytes = 5 if REQUESTS[key][0].flexible_version_q(version) and key != 18 else 4
        return REQUESTS[key][1].decode(answer[header_bytes:], version=version)

    def parse(self, key: int, version: int, answer: bytes) -> Any:
        header_bytes = 5 if REQUESTS[key][0].flexible_version_q(version) and key != 18 else 4
        assert answer[:header_bytes] == (b"\0\0\0\x05\0")[:header_bytes]
        body = answer[header_bytes:]
        # kio knows no tags but Kafka's, and no versions that Kafka 4 has dropped.
        if not (key == 65 and PLACEMENTS_TAG_BYTES in body) and (key, version) not in NOT_IN_KIO:
            assert write_with_kio(read_with_kio(key, version, body)) == body
        return REQUESTS[key][1].decode(body, version=version)

    async def __call__(self, key: int, version: int, /, **fields: object) -> Any:
        """Ask; answers kafka-python's response object."""
        return self.parse(key, version, await self.finish(await self.start(key, version, **fields)))
