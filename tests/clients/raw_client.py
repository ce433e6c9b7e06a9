"""A client that says exactly what a test wants said: late, twice, with a wrong epoch, or not Kafka at all.

Stock clients are too well-behaved to be zombies on purpose. This one is a socket and kafka-python's message
codec, which is not the codec that the node uses, so that the node's is never checked against itself alone.

Given the addresses of several brokers, it asks for each request whose it is, as a stock client does, and remembers
nothing: a topic that was deleted and made again is another one. Given one address it speaks to that broker only.
"""

from __future__ import annotations

import contextlib
import select
import socket
import struct
import time
import warnings
from collections import deque
from collections.abc import Sequence
from types import TracebackType
from typing import Any, Self

import crc32c

with warnings.catch_warnings():
    # kafka-python 3.0 reads its message schemas with importlib.resources.read_text, deprecated since Python 3.11.
    warnings.simplefilter("ignore", DeprecationWarning)
    from kafka.protocol.admin import (
        DeleteGroupsRequest,
        DeleteRecordsRequest,
        DeleteRecordsResponse,
        DescribeProducersRequest,
        DescribeProducersResponse,
        DescribeTransactionsRequest,
        DescribeTransactionsResponse,
        ListTransactionsRequest,
        ListTransactionsResponse,
    )
    from kafka.protocol.consumer import (
        FetchRequest,
        FetchResponse,
        ListOffsetsRequest,
        ListOffsetsResponse,
        OffsetCommitRequest,
        OffsetCommitResponse,
        OffsetFetchRequest,
        OffsetFetchResponse,
        OffsetForLeaderEpochRequest,
        OffsetForLeaderEpochResponse,
    )
    from kafka.protocol.metadata import (
        ApiVersionsRequest,
        ApiVersionsResponse,
        FindCoordinatorRequest,
        FindCoordinatorResponse,
        MetadataRequest,
        MetadataResponse,
    )
    from kafka.protocol.producer import (
        AddOffsetsToTxnRequest,
        AddOffsetsToTxnResponse,
        AddPartitionsToTxnRequest,
        AddPartitionsToTxnResponse,
        EndTxnRequest,
        EndTxnResponse,
        InitProducerIdRequest,
        InitProducerIdResponse,
        ProduceRequest,
        ProduceResponse,
        TxnOffsetCommitRequest,
        TxnOffsetCommitResponse,
        WriteTxnMarkersRequest,
        WriteTxnMarkersResponse,
    )
    from kafka.record import MemoryRecordsBuilder
    from kafka.record.memory_records import MemoryRecords

NONE = 0
OFFSET_OUT_OF_RANGE = 1
CORRUPT_MESSAGE = 2
UNKNOWN_TOPIC_OR_PARTITION = 3
NOT_LEADER_OR_FOLLOWER = 6
MESSAGE_TOO_LARGE = 10
COORDINATOR_LOAD_IN_PROGRESS = 14
COORDINATOR_NOT_AVAILABLE = 15
NOT_COORDINATOR = 16
NOT_ENOUGH_REPLICAS = 19
UNSUPPORTED_VERSION = 35
OUT_OF_ORDER_SEQUENCE_NUMBER = 45
INVALID_PRODUCER_EPOCH = 47
INVALID_TXN_STATE = 48
INVALID_PRODUCER_ID_MAPPING = 49
INVALID_TRANSACTION_TIMEOUT = 50
TRANSACTION_COORDINATOR_FENCED = 52
UNKNOWN_PRODUCER_ID = 59
UNSTABLE_OFFSET_COMMIT = 88
PRODUCER_FENCED = 90
TRANSACTION_ABORTABLE = 120
FENCED = (INVALID_PRODUCER_EPOCH, PRODUCER_FENCED)
PRODUCE = 7
"""The version of Produce, unless another one is given."""
MUST_ABORT = UNKNOWN_PRODUCER_ID
"""AddPartitionsToTxn, AddOffsetsToTxn, EndTxn(commit): the broker has aborted. For a client that gives no name."""


def batch(
    values: Sequence[bytes],
    *,
    producer_id: int = -1,
    epoch: int = -1,
    sequence: int = -1,
    transactional: bool = False,
    timestamp_ms: int = 1,
    headers: Sequence[tuple[str, bytes]] = (),
) -> bytearray:
    """A record batch (v2, uncompressed) with these values, each with `headers`; timestamps count up."""
    builder = MemoryRecordsBuilder(
        magic=2,
        compression_type=0,
        batch_size=1 << 30,
        transactional=transactional,
        producer_id=producer_id,
        producer_epoch=epoch,
        base_sequence=sequence,
    )
    for index, value in enumerate(values):
        builder.append(timestamp=timestamp_ms + index, key=None, value=value, headers=list(headers))
    builder.close()
    return bytearray(builder.buffer())


def batch_with_header(value: bytes, name: bytes) -> bytes:
    """A batch of one record with one header, of whose name each byte is as it is given."""
    stand_in = "n" * len(name)
    written = batch([value], headers=[(stand_in, b"1")]).replace(stand_in.encode(), name)
    written[17:21] = struct.pack(">I", crc32c.crc32c(bytes(written[21:])))
    return bytes(written)


GROUP, TRANSACTION = 0, 1
"""What FindCoordinator is asked for."""


class RawClient:
    """One connection, or one to each broker that it needs. Every method sends one request and answers what the node
    said, codes as they are.
    """

    def __init__(self, address: str, *, timeout_s: float = 15.0) -> None:
        first, *others = address.split(",")
        self._timeout_s = timeout_s
        self._socket = _connected(first, timeout_s)
        """The one; the one to the first broker, for what is nobody's in particular."""
        self._router = _Router([first, *others], timeout_s) if others else None
        self._correlation = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        self._socket.close()
        if self._router is not None:
            self._router.close()

    # --- bytes ---

    def send_bytes(self, data: bytes) -> None:
        self._socket.sendall(data)

    def is_closed_by_peer(self) -> bool:
        """Whether the node closes the connection without saying anything (waits for it)."""
        with contextlib.suppress(ConnectionError):
            return self._next_socket().recv(1) == b""
        return True

    def has_answer(self, *, within_s: float) -> bool:
        """Whether something has arrived, or does so in the meantime; it is left for `receive`."""
        return bool(select.select([self._next_socket()], [], [], within_s)[0])

    def send(self, *requests: Any) -> int:
        """Send in one piece, without waiting for answers; the last correlation id, for `receive`."""
        frames: list[bytes] = []
        for request in requests:
            self._correlation += 1
            request.with_header(correlation_id=self._correlation, client_id="raw")
            frames.append(request.encode(header=True, framed=True))
        self._socket_for(requests).sendall(b"".join(frames))
        return self._correlation

    def _socket_for(self, requests: Sequence[Any]) -> socket.socket:
        """All go to the broker of the first one that is somebody's: in one piece."""
        if self._router is None:
            return self._socket
        return self._router.route(requests) or self._socket

    def _next_socket(self) -> socket.socket:
        """Where the next answer is due."""
        return self._socket if self._router is None else self._router.next_answer() or self._socket

    def receive(self, response_class: Any, version: int) -> Any:
        """The next answer on this connection, checked to be the one that is due."""
        return response_class.decode(self.receive_frame(), version=version, header=True)

    def receive_frame(self) -> bytes:
        """The next frame as it is, without its length."""
        connection = self._next_socket()
        frame = _receive_exactly(connection, struct.unpack(">i", _receive_exactly(connection, 4))[0])
        if self._router is not None:
            self._router.answered()
        return frame

    def call(self, request: Any, response_class: Any) -> Any:
        correlation = self.send(request)
        response = self.receive(response_class, request.API_VERSION)
        assert response.header.correlation_id == correlation
        return response

    # --- requests ---

    def api_versions(self) -> dict[int, tuple[int, int]]:
        response = self.call(ApiVersionsRequest[0](), ApiVersionsResponse)
        assert response.error_code == NONE
        return {row.api_key: (row.min_version, row.max_version) for row in response.api_keys}

    def metadata(self, topic: str, *, create: bool = False) -> Any:
        self.send(metadata_request(topic, create=create))
        return self.receive_metadata()

    def receive_metadata(self) -> Any:
        """The answer to a Metadata that was sent with `send`."""
        return self.receive(MetadataResponse, 7)

    def leader(self, topic: str, partition: int) -> str | None:
        """The address of the partition's leader, as this broker knows it."""
        answer = self.metadata(topic)
        leaders = {row.partition_index: row.leader_id for row in answer.topics[0].partitions}
        return {row.node_id: f"{row.host}:{row.port}" for row in answer.brokers}.get(leaders.get(partition, -1))

    def find_coordinator(self, kind: int, key: str) -> Any:
        """The whole response: error_code, node_id, host, port. `kind` is GROUP or TRANSACTION."""
        return self.call(FindCoordinatorRequest[3](key=key, key_type=kind), FindCoordinatorResponse)

    def coordinator(self, kind: int, key: str) -> str | None:
        """The address of the coordinator, as this broker knows it."""
        answer = self.find_coordinator(kind, key)
        return f"{answer.host}:{answer.port}" if answer.error_code == NONE else None

    def init_producer_id(
        self, transactional_id: str | None, *, timeout_ms: int = 60_000, producer_id: int = -1, epoch: int = -1
    ) -> Any:
        """The whole response: error_code, producer_id, producer_epoch."""
        request = InitProducerIdRequest[4](
            transactional_id=transactional_id,
            transaction_timeout_ms=timeout_ms,
            producer_id=producer_id,
            producer_epoch=epoch,
        )
        return self.call(request, InitProducerIdResponse)

    def add_partitions(
        self, transactional_id: str, producer_id: int, epoch: int, topic: str, partitions: Sequence[int]
    ) -> dict[int, int]:
        """Error code by partition."""
        self.send(add_partitions_request(transactional_id, producer_id, epoch, topic, partitions))
        return self.receive_add_partitions()

    def receive_add_partitions(self) -> dict[int, int]:
        """Error code by partition of the answer to an AddPartitionsToTxn that was sent with `send`."""
        response = self.receive(AddPartitionsToTxnResponse, 3)
        return {
            row.partition_index: row.partition_error_code
            for each in response.results_by_topic_v3_and_below
            for row in each.results_by_partition
        }

    def produce(
        self,
        topic: str,
        partition: int,
        records: bytes,
        *,
        transactional_id: str | None = None,
        version: int = PRODUCE,
    ) -> tuple[int, int]:
        """(error code, base offset)."""
        self.send(produce_request(topic, partition, records, transactional_id, version=version))
        return self.receive_produce(version)

    def receive_produce(self, version: int = PRODUCE) -> tuple[int, int]:
        """(error code, base offset) of the answer to a produce that was sent with `send`."""
        row = self.receive(ProduceResponse, version).responses[0].partition_responses[0]
        return row.error_code, row.base_offset

    def end(self, transactional_id: str, producer_id: int, epoch: int, *, commit: bool) -> int:
        """Error code of EndTxn."""
        return self.call(end_request(transactional_id, producer_id, epoch, commit=commit), EndTxnResponse).error_code

    def receive_end(self) -> int:
        """Error code of the answer to an EndTxn that was sent with `send`."""
        return self.receive(EndTxnResponse, 3).error_code

    def commit_offset(self, group: str, topic: str, partition: int, offset: int) -> int:
        """Error code of OffsetCommit, by who is no member."""
        self.send(commit_offset_request(group, topic, partition, offset))
        return self.receive_commit_offset()

    def receive_commit_offset(self) -> int:
        """Error code of the answer to an OffsetCommit that was sent with `send`."""
        return self.receive(OffsetCommitResponse, 8).topics[0].partitions[0].error_code

    def committed_offset(self, group: str, topic: str, partition: int, *, stable: bool = True) -> tuple[int, int]:
        """(error code, offset) of OffsetFetch."""
        request = OffsetFetchRequest[7](
            group_id=group,
            topics=[OffsetFetchRequest.OffsetFetchRequestTopic(name=topic, partition_indexes=[partition])],
            require_stable=stable,
        )
        answer = self.call(request, OffsetFetchResponse)
        if answer.error_code != NONE:
            return answer.error_code, -1
        row = answer.topics[0].partitions[0]
        return row.error_code, row.committed_offset

    def settled_offset(self, group: str, topic: str, partition: int) -> tuple[int, int]:
        """`committed_offset`, asked again as stock clients do while the offset is in a transaction.

        With several processes the group's may hear of a decision after who has asked for it.
        """
        deadline = time.monotonic() + self._timeout_s
        while True:
            code, offset = self.committed_offset(group, topic, partition)
            if code != UNSTABLE_OFFSET_COMMIT or time.monotonic() > deadline:
                return code, offset
            time.sleep(0.002)

    def add_offsets(self, transactional_id: str, producer_id: int, epoch: int, group: str) -> int:
        """Error code of AddOffsetsToTxn."""
        request = AddOffsetsToTxnRequest[3](
            transactional_id=transactional_id, producer_id=producer_id, producer_epoch=epoch, group_id=group
        )
        return self.call(request, AddOffsetsToTxnResponse).error_code

    def commit_offset_in_transaction(
        self,
        transactional_id: str,
        producer_id: int,
        epoch: int,
        group: str,
        topic: str,
        partition: int,
        offset: int,
    ) -> int:
        """Error code of TxnOffsetCommit, by who is no member."""
        row = TxnOffsetCommitRequest.TxnOffsetCommitRequestTopic.TxnOffsetCommitRequestPartition(
            partition_index=partition, committed_offset=offset, committed_leader_epoch=-1, committed_metadata=""
        )
        request = TxnOffsetCommitRequest[3](
            transactional_id=transactional_id,
            group_id=group,
            producer_id=producer_id,
            producer_epoch=epoch,
            generation_id=-1,
            member_id="",
            group_instance_id=None,
            topics=[TxnOffsetCommitRequest.TxnOffsetCommitRequestTopic(name=topic, partitions=[row])],
        )
        return self.call(request, TxnOffsetCommitResponse).topics[0].partitions[0].error_code

    def transaction_state(self, transactional_id: str) -> Any:
        """DescribeTransactions' row: error_code, transaction_state, transaction_timeout_ms, producer_id, …"""
        request = DescribeTransactionsRequest[0](transactional_ids=[transactional_id])
        return self.call(request, DescribeTransactionsResponse).transaction_states[0]

    def list_transactional_ids(self) -> list[str]:
        """Of all ids that the coordinators know."""
        if self._router is not None:
            return self._router.list_transactional_ids()
        request = ListTransactionsRequest[0](state_filters=[], producer_id_filters=[])
        answer = self.call(request, ListTransactionsResponse)
        assert answer.error_code == NONE
        return [row.transactional_id for row in answer.transaction_states]

    def write_marker(
        self,
        topic: str,
        partition: int,
        producer_id: int,
        epoch: int,
        *,
        commit: bool = False,
        coordinator_epoch: int = 0,
    ) -> int:
        """Error code of WriteTxnMarkers: what Kafka's coordinator tells leaders, and its tools, to end what hangs."""
        marker = WriteTxnMarkersRequest.WritableTxnMarker
        request = WriteTxnMarkersRequest[1](
            markers=[
                marker(
                    producer_id=producer_id,
                    producer_epoch=epoch,
                    transaction_result=commit,
                    topics=[marker.WritableTxnMarkerTopic(name=topic, partition_indexes=[partition])],
                    coordinator_epoch=coordinator_epoch,
                )
            ]
        )
        return self.call(request, WriteTxnMarkersResponse).markers[0].topics[0].partitions[0].error_code

    def active_producers(self, topic: str, partition: int) -> list[int]:
        """Ids of the producers that the partition remembers."""
        return [each.producer_id for each in self.describe_producers(topic, partition)]

    def describe_producers(self, topic: str, partition: int) -> Sequence[Any]:
        """DescribeProducers' rows: producer_id, producer_epoch, coordinator_epoch, current_txn_start_offset, …"""
        asked = DescribeProducersRequest.TopicRequest(name=topic, partition_indexes=[partition])
        answer = self.call(DescribeProducersRequest[0](topics=[asked]), DescribeProducersResponse)
        row = answer.topics[0].partitions[0]
        assert row.error_code == NONE
        return row.active_producers

    def fetch(self, topic: str, partition: int, offset: int, *, isolation: int = 0, wait_ms: int = 500) -> Any:
        """The partition's row: error_code, high_watermark, last_stable_offset, aborted_transactions, records."""
        self.send(fetch_request(topic, partition, offset, isolation=isolation, wait_ms=wait_ms))
        return self.receive_fetch()

    def receive_fetch(self) -> Any:
        """The partition's row of the answer to a fetch that was sent with `send`."""
        return self.receive(FetchResponse, 11).responses[0].partitions[0]

    def list_offset(self, topic: str, partition: int, timestamp_ms: int, *, isolation: int = 0) -> tuple[int, int]:
        """(error code, offset) for a timestamp; -1 asks for the latest, -2 for the earliest, -3 for the largest."""
        self.send(list_offset_request(topic, partition, timestamp_ms, isolation=isolation))
        return self.receive_list_offset()

    def receive_list_offset(self) -> tuple[int, int]:
        """(error code, offset) of the answer to a ListOffsets that was sent with `send`."""
        answer = self.receive(ListOffsetsResponse, 7).topics[0].partitions[0]
        return answer.error_code, answer.offset

    def delete_records(self, topic: str, partition: int, offset: int, *, timeout_ms: int = 10_000) -> tuple[int, int]:
        """(error code, low watermark); -1 deletes all."""
        self.send(delete_records_request(topic, partition, offset, timeout_ms=timeout_ms))
        return self.receive_delete_records()

    def receive_delete_records(self) -> tuple[int, int]:
        """(error code, low watermark) of the answer to a DeleteRecords that was sent with `send`."""
        row = self.receive(DeleteRecordsResponse, 2).topics[0].partitions[0]
        return row.error_code, row.low_watermark

    def end_of_epoch(self, topic: str, partition: int, leader_epoch: int) -> tuple[int, int]:
        """(error code, end offset) of OffsetForLeaderEpoch."""
        asked = OffsetForLeaderEpochRequest.OffsetForLeaderTopic
        row = asked.OffsetForLeaderPartition(partition=partition, current_leader_epoch=-1, leader_epoch=leader_epoch)
        request = OffsetForLeaderEpochRequest[2](topics=[asked(topic=topic, partitions=[row])])
        answer = self.call(request, OffsetForLeaderEpochResponse).topics[0].partitions[0]
        return answer.error_code, answer.end_offset


def _connected(address: str, timeout_s: float) -> socket.socket:
    host, port = address.rsplit(":", 1)
    return socket.create_connection((host, int(port)), timeout_s)


def _receive_exactly(connection: socket.socket, count: int) -> bytes:
    data = bytearray()
    while len(data) < count:
        chunk = connection.recv(count - len(data))
        if not chunk:
            raise ConnectionError("the node closed the connection")
        data += chunk
    return bytes(data)


class _Router:
    """Connections to brokers other than the one for everything, and where answers are due, in their order."""

    def __init__(self, addresses: Sequence[str], timeout_s: float) -> None:
        self._addresses = addresses
        self._guide = RawClient(addresses[0], timeout_s=timeout_s)
        self._timeout_s = timeout_s
        self._sockets: dict[str, socket.socket] = {}
        self._due: deque[socket.socket | None] = deque()

    def close(self) -> None:
        self._guide.close()
        for each in self._sockets.values():
            each.close()

    def route(self, requests: Sequence[Any]) -> socket.socket | None:
        """The connection to send them on; None for the one for everything."""
        addresses = (address for request in requests if (address := self._address_for(request)) is not None)
        address = next(addresses, None)
        connection = None if address is None else self._connection(address)
        self._due.extend(connection for request in requests if getattr(request, "acks", None) != 0)
        return connection

    def list_transactional_ids(self) -> list[str]:
        found: list[str] = []
        for address in self._addresses:
            with RawClient(address, timeout_s=self._timeout_s) as client:
                found += client.list_transactional_ids()
        return found

    def next_answer(self) -> socket.socket | None:
        return self._due[0] if self._due else None

    def answered(self) -> None:
        if self._due:  # else it was to bytes that are no request, on the connection for everything
            self._due.popleft()

    def _connection(self, address: str) -> socket.socket:
        if address not in self._sockets:
            self._sockets[address] = _connected(address, self._timeout_s)
        return self._sockets[address]

    def _address_for(self, request: Any) -> str | None:
        """Of the partition's leader or the coordinator; None if it is nobody's, or nobody is known."""
        match _subject(request):
            case (str(topic), int(partition)):
                return self._guide.leader(topic, partition)
            case (int(kind), str(key)):
                return self._guide.coordinator(kind, key)
            case _:
                return None


def _subject(request: Any) -> tuple[str, int] | tuple[int, str] | None:
    """A partition (topic, number), or what has a coordinator (kind, id); None if the request may go to any broker."""
    match request:
        case ProduceRequest(topic_data=[row, *_]):
            return row.name, row.partition_data[0].index
        case FetchRequest(topics=[row, *_]):
            return row.topic, row.partitions[0].partition
        case ListOffsetsRequest(topics=[row, *_]) | DeleteRecordsRequest(topics=[row, *_]):
            return row.name, row.partitions[0].partition_index
        case OffsetForLeaderEpochRequest(topics=[row, *_]):
            return row.topic, row.partitions[0].partition
        case DescribeProducersRequest(topics=[row, *_]):
            return row.name, row.partition_indexes[0]
        case WriteTxnMarkersRequest(markers=[marker, *_]):
            return marker.topics[0].name, marker.topics[0].partition_indexes[0]
        case AddPartitionsToTxnRequest():
            return TRANSACTION, request.v3_and_below_transactional_id
        case DescribeTransactionsRequest(transactional_ids=[transactional_id, *_]):
            return TRANSACTION, transactional_id
        case AddOffsetsToTxnRequest() | EndTxnRequest():
            return TRANSACTION, request.transactional_id
        case InitProducerIdRequest(transactional_id=str(transactional_id)):
            return TRANSACTION, transactional_id
        case DeleteGroupsRequest(groups_names=[group, *_]):
            return GROUP, group
        case _:  # requests of members, and of who commits offsets
            group = getattr(request, "group_id", None)
            return None if group is None else (GROUP, group)


def leader_of(address: str, topic: str, partition: int = 0) -> str:
    """The address of the partition's leader."""
    with RawClient(address.split(",")[0]) as client:
        leader = client.leader(topic, partition)
    assert leader is not None, f"nobody leads partition {partition} of {topic}"
    return leader


def leader_id_of(address: str, topic: str, partition: int = 0) -> int:
    """The id of the partition's leader, if `address` names all brokers: the first one is 1."""
    return 1 + address.split(",").index(leader_of(address, topic, partition))


def metadata_request(topic: str, *, create: bool = False) -> Any:
    topics = [MetadataRequest.MetadataRequestTopic(name=topic)]
    return MetadataRequest[7](topics=topics, allow_auto_topic_creation=create)


def add_partitions_request(
    transactional_id: str, producer_id: int, epoch: int, topic: str, partitions: Sequence[int]
) -> Any:
    return AddPartitionsToTxnRequest[3](
        v3_and_below_transactional_id=transactional_id,
        v3_and_below_producer_id=producer_id,
        v3_and_below_producer_epoch=epoch,
        v3_and_below_topics=[
            AddPartitionsToTxnRequest.AddPartitionsToTxnTopic(name=topic, partitions=list(partitions))
        ],
    )


def produce_request(
    topic: str,
    partition: int,
    records: bytes,
    transactional_id: str | None = None,
    *,
    acks: int = -1,
    timeout_ms: int = 10_000,
    version: int = PRODUCE,
) -> Any:
    partition_data = ProduceRequest.TopicProduceData.PartitionProduceData(index=partition, records=bytes(records))
    return ProduceRequest[version](
        transactional_id=transactional_id,
        acks=acks,
        timeout_ms=timeout_ms,
        topic_data=[ProduceRequest.TopicProduceData(name=topic, partition_data=[partition_data])],
    )


def fetch_request(
    topic: str, partition: int, offset: int, *, isolation: int = 0, wait_ms: int = 500, bytes_max: int = 1 << 20
) -> Any:
    """A Fetch of one partition, of which it takes at most `bytes_max`."""
    row = FetchRequest.FetchTopic.FetchPartition(
        partition=partition, fetch_offset=offset, partition_max_bytes=bytes_max
    )
    return FetchRequest[11](
        replica_id=-1,
        max_wait_ms=wait_ms,
        min_bytes=1,
        max_bytes=max(1 << 24, bytes_max),
        isolation_level=isolation,
        topics=[FetchRequest.FetchTopic(topic=topic, partitions=[row])],
    )


def list_offset_request(topic: str, partition: int, timestamp_ms: int, *, isolation: int = 0) -> Any:
    row = ListOffsetsRequest.ListOffsetsTopic.ListOffsetsPartition(
        partition_index=partition, current_leader_epoch=-1, timestamp=timestamp_ms
    )
    return ListOffsetsRequest[7](
        replica_id=-1,
        isolation_level=isolation,
        topics=[ListOffsetsRequest.ListOffsetsTopic(name=topic, partitions=[row])],
    )


def delete_records_request(topic: str, partition: int, offset: int, *, timeout_ms: int = 10_000) -> Any:
    asked = DeleteRecordsRequest.DeleteRecordsTopic
    row = asked.DeleteRecordsPartition(partition_index=partition, offset=offset)
    return DeleteRecordsRequest[2](topics=[asked(name=topic, partitions=[row])], timeout_ms=timeout_ms)


def end_request(transactional_id: str, producer_id: int, epoch: int, *, commit: bool) -> Any:
    return EndTxnRequest[3](
        transactional_id=transactional_id, producer_id=producer_id, producer_epoch=epoch, committed=commit
    )


def commit_offset_request(group: str, topic: str, partition: int, offset: int) -> Any:
    row = OffsetCommitRequest.OffsetCommitRequestTopic.OffsetCommitRequestPartition(
        partition_index=partition, committed_offset=offset, committed_leader_epoch=-1, committed_metadata=""
    )
    return OffsetCommitRequest[8](
        group_id=group,
        generation_id_or_member_epoch=-1,
        member_id="",
        group_instance_id=None,
        topics=[OffsetCommitRequest.OffsetCommitRequestTopic(name=topic, partitions=[row])],
    )


def records_of(fetched: bytes) -> list[tuple[int, bytes | None]]:
    """(offset, value) of each record in the bytes of a fetch, control batches included as (offset, None)."""
    found: list[tuple[int, bytes | None]] = []
    batches = MemoryRecords(fetched)
    while (each := batches.next_batch()) is not None:
        found.extend((record.offset, None if each.is_control_batch else record.value) for record in each)
    return found
