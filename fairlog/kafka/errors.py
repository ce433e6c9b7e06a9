"""From the internal refusals to Kafka's error codes: the only place where the two meet.

Each refusal says whether the request had an effect (invariant 5). *No effect* refusals are answered with a code. For
*effect unknown* there is no code that every client understands, so those close the connection (`EffectUnknown`): the
client asks again and gets the true outcome, or gives up not knowing. The one exception is OUTCOME_LOST, for which
asking again does not help: it gets a code that all clients take as fatal. docs/compatibility.md has the table, and how
each client reacts to the codes.
"""

from __future__ import annotations

from enum import IntEnum

from coordinator.answers import Effect, Refusal
from datalog.batch import BadBatchReason
from fairlog.groups.interface import GroupRefusal
from fairlog.groups.offset_values import CommitRefusal, OffsetRefusal
from fairlog.kafka.api import HangUp
from fairlog.kafka.fetch_sessions import SessionRefusal
from fairlog.reading.plan import Problem
from partition.answers import AbortRefusal, RefusedAppend
from shard.ends import EndRefusal


class ErrorCode(IntEnum):
    """Kafka's error codes, as far as this node answers them."""

    UNKNOWN_SERVER_ERROR = -1
    NONE = 0
    OFFSET_OUT_OF_RANGE = 1
    CORRUPT_MESSAGE = 2
    UNKNOWN_TOPIC_OR_PARTITION = 3
    LEADER_NOT_AVAILABLE = 5
    NOT_LEADER_OR_FOLLOWER = 6
    REQUEST_TIMED_OUT = 7
    MESSAGE_TOO_LARGE = 10
    OFFSET_METADATA_TOO_LARGE = 12
    COORDINATOR_LOAD_IN_PROGRESS = 14
    COORDINATOR_NOT_AVAILABLE = 15
    NOT_COORDINATOR = 16
    INVALID_TOPIC_EXCEPTION = 17
    NOT_ENOUGH_REPLICAS = 19
    INVALID_REQUIRED_ACKS = 21
    ILLEGAL_GENERATION = 22
    INCONSISTENT_GROUP_PROTOCOL = 23
    INVALID_GROUP_ID = 24
    UNKNOWN_MEMBER_ID = 25
    INVALID_SESSION_TIMEOUT = 26
    REBALANCE_IN_PROGRESS = 27
    INVALID_COMMIT_OFFSET_SIZE = 28
    TOPIC_AUTHORIZATION_FAILED = 29
    GROUP_AUTHORIZATION_FAILED = 30
    CLUSTER_AUTHORIZATION_FAILED = 31
    UNSUPPORTED_SASL_MECHANISM = 33
    ILLEGAL_SASL_STATE = 34
    UNSUPPORTED_VERSION = 35
    TOPIC_ALREADY_EXISTS = 36
    INVALID_PARTITIONS = 37
    INVALID_REPLICATION_FACTOR = 38
    INVALID_REPLICA_ASSIGNMENT = 39
    INVALID_CONFIG = 40
    INVALID_REQUEST = 42
    POLICY_VIOLATION = 44
    OUT_OF_ORDER_SEQUENCE_NUMBER = 45
    DUPLICATE_SEQUENCE_NUMBER = 46
    INVALID_PRODUCER_EPOCH = 47
    INVALID_TXN_STATE = 48
    INVALID_PRODUCER_ID_MAPPING = 49
    INVALID_TRANSACTION_TIMEOUT = 50
    CONCURRENT_TRANSACTIONS = 51
    TRANSACTION_COORDINATOR_FENCED = 52
    TRANSACTIONAL_ID_AUTHORIZATION_FAILED = 53
    SECURITY_DISABLED = 54
    OPERATION_NOT_ATTEMPTED = 55
    KAFKA_STORAGE_ERROR = 56
    LOG_DIR_NOT_FOUND = 57
    SASL_AUTHENTICATION_FAILED = 58
    UNKNOWN_PRODUCER_ID = 59
    NON_EMPTY_GROUP = 68
    GROUP_ID_NOT_FOUND = 69
    FETCH_SESSION_ID_NOT_FOUND = 70
    INVALID_FETCH_SESSION_EPOCH = 71
    LISTENER_NOT_FOUND = 72
    FENCED_LEADER_EPOCH = 74
    UNKNOWN_LEADER_EPOCH = 75
    UNSUPPORTED_COMPRESSION_TYPE = 76
    OFFSET_NOT_AVAILABLE = 78
    MEMBER_ID_REQUIRED = 79
    GROUP_MAX_SIZE_REACHED = 81
    FENCED_INSTANCE_ID = 82
    ELECTION_NOT_NEEDED = 84
    NO_REASSIGNMENT_IN_PROGRESS = 85
    GROUP_SUBSCRIBED_TO_TOPIC = 86
    INVALID_RECORD = 87
    UNSTABLE_OFFSET_COMMIT = 88
    PRODUCER_FENCED = 90
    RESOURCE_NOT_FOUND = 91
    DUPLICATE_RESOURCE = 92
    UNACCEPTABLE_CREDENTIAL = 93
    INVALID_UPDATE_VERSION = 95
    UNKNOWN_TOPIC_ID = 100
    TRANSACTIONAL_ID_NOT_FOUND = 105
    FETCH_SESSION_TOPIC_ID_ERROR = 106
    FENCED_MEMBER_EPOCH = 110
    UNRELEASED_INSTANCE_ID = 111
    UNSUPPORTED_ASSIGNOR = 112
    STALE_MEMBER_EPOCH = 113
    MISMATCHED_ENDPOINT_TYPE = 114
    UNSUPPORTED_ENDPOINT_TYPE = 115
    UNKNOWN_SUBSCRIPTION_ID = 117
    TELEMETRY_TOO_LARGE = 118
    TRANSACTION_ABORTABLE = 120
    INVALID_REGULAR_EXPRESSION = 128


class EffectUnknown(HangUp):
    """Whether the request had an effect cannot be told now: the connection is closed instead of an answer."""


COORDINATOR_REFUSALS: dict[Refusal, ErrorCode] = {
    Refusal.UNKNOWN_PRODUCER_ID_MAPPING: ErrorCode.INVALID_PRODUCER_ID_MAPPING,
    Refusal.FENCED: ErrorCode.PRODUCER_FENCED,
    Refusal.WRONG_STATE: ErrorCode.INVALID_TXN_STATE,
    Refusal.CONCURRENT: ErrorCode.CONCURRENT_TRANSACTIONS,
    Refusal.BAD_TIMEOUT: ErrorCode.INVALID_TRANSACTION_TIMEOUT,
    Refusal.BAD_REQUEST: ErrorCode.INVALID_REQUEST,
    # KIP-1050 defines this code: abort and continue. `must_abort.py` says which clients get another one, and where.
    Refusal.MUST_ABORT: ErrorCode.TRANSACTION_ABORTABLE,
    # No client waits for the answer to a late request; one that does has to stop.
    Refusal.LATE: ErrorCode.INVALID_TXN_STATE,
    Refusal.UNKNOWN_LOG: ErrorCode.TRANSACTION_ABORTABLE,
    Refusal.STORAGE: ErrorCode.KAFKA_STORAGE_ERROR,
    # All three are fatal to every client; most other codes would have it ask again for ever.
    Refusal.NOT_JOINED: ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
    Refusal.NO_TWO_PHASE_COMMIT: ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
    Refusal.LANE: ErrorCode.INVALID_TXN_STATE,
    # Fatal to every client, where an abortable code would make it produce the same records again.
    Refusal.OUTCOME_LOST: ErrorCode.INVALID_TXN_STATE,
}
"""The codes for a coordinator's refusals. Refusals that are missing close the connection."""

APPEND_REFUSALS: dict[RefusedAppend, ErrorCode] = {
    RefusedAppend.UNKNOWN_LOG: ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    RefusedAppend.FENCED: ErrorCode.INVALID_PRODUCER_EPOCH,
    RefusedAppend.UNKNOWN_PRODUCER: ErrorCode.UNKNOWN_PRODUCER_ID,
    RefusedAppend.OUT_OF_ORDER: ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
    RefusedAppend.DUPLICATE_FORGOTTEN: ErrorCode.DUPLICATE_SEQUENCE_NUMBER,
    RefusedAppend.NOT_IN_TRANSACTION: ErrorCode.INVALID_TXN_STATE,
    RefusedAppend.IN_TRANSACTION: ErrorCode.INVALID_TXN_STATE,
    RefusedAppend.MUST_ABORT: ErrorCode.TRANSACTION_ABORTABLE,
    RefusedAppend.STORAGE: ErrorCode.KAFKA_STORAGE_ERROR,
}
"""The codes for a leader's refusals of a batch; all are without effect."""

END_REFUSALS: dict[EndRefusal, ErrorCode] = {
    # Kafka's code for a new leader's high watermark that has not caught up: clients ask again.
    EndRefusal.NOT_YET: ErrorCode.OFFSET_NOT_AVAILABLE,
    EndRefusal.STORAGE: ErrorCode.KAFKA_STORAGE_ERROR,
    EndRefusal.DEPOSED: ErrorCode.NOT_LEADER_OR_FOLLOWER,
}
"""The codes that are answered instead of the end of a log."""

ABORT_REFUSALS: dict[AbortRefusal, ErrorCode] = {
    AbortRefusal.NO_MARKERS: ErrorCode.INVALID_TXN_STATE,
    AbortRefusal.INVALID_PRODUCER_EPOCH: ErrorCode.INVALID_PRODUCER_EPOCH,
    AbortRefusal.COORDINATOR_FENCED: ErrorCode.TRANSACTION_COORDINATOR_FENCED,
}
"""The codes for an abort marker that a partition refuses; all are without effect."""

BAD_BATCHES: dict[BadBatchReason, ErrorCode] = {
    # CORRUPT_MESSAGE has clients send the same bytes again; only a batch that is whole may have suffered on its way.
    BadBatchReason.TOO_SHORT: ErrorCode.INVALID_RECORD,
    BadBatchReason.BAD_MAGIC: ErrorCode.INVALID_RECORD,
    BadBatchReason.LENGTH_MISMATCH: ErrorCode.INVALID_RECORD,
    BadBatchReason.MORE_THAN_ONE: ErrorCode.INVALID_RECORD,
    BadBatchReason.TOO_LARGE: ErrorCode.MESSAGE_TOO_LARGE,
    BadBatchReason.BAD_CRC: ErrorCode.CORRUPT_MESSAGE,
    BadBatchReason.COUNT_MISMATCH: ErrorCode.INVALID_RECORD,
    BadBatchReason.BAD_COMPRESSION: ErrorCode.UNSUPPORTED_COMPRESSION_TYPE,
    BadBatchReason.BAD_PRODUCER: ErrorCode.INVALID_RECORD,
    BadBatchReason.CONTROL: ErrorCode.INVALID_RECORD,
}
"""The codes for a batch that cannot be stored; all are without effect."""

GROUP_REFUSALS: dict[GroupRefusal, ErrorCode] = {
    GroupRefusal.UNKNOWN_MEMBER: ErrorCode.UNKNOWN_MEMBER_ID,
    GroupRefusal.ILLEGAL_GENERATION: ErrorCode.ILLEGAL_GENERATION,
    GroupRefusal.FENCED_INSTANCE: ErrorCode.FENCED_INSTANCE_ID,
    GroupRefusal.REBALANCE_IN_PROGRESS: ErrorCode.REBALANCE_IN_PROGRESS,
    GroupRefusal.INCONSISTENT_PROTOCOL: ErrorCode.INCONSISTENT_GROUP_PROTOCOL,
    GroupRefusal.INVALID_SESSION_TIMEOUT: ErrorCode.INVALID_SESSION_TIMEOUT,
    GroupRefusal.INVALID_GROUP_ID: ErrorCode.INVALID_GROUP_ID,
    GroupRefusal.MEMBER_ID_REQUIRED: ErrorCode.MEMBER_ID_REQUIRED,
    GroupRefusal.GROUP_MAX_SIZE: ErrorCode.GROUP_MAX_SIZE_REACHED,
    GroupRefusal.NON_EMPTY_GROUP: ErrorCode.NON_EMPTY_GROUP,
    GroupRefusal.UNKNOWN_GROUP: ErrorCode.GROUP_ID_NOT_FOUND,
    GroupRefusal.SUBSCRIBED: ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC,
    GroupRefusal.TOO_LARGE: ErrorCode.MESSAGE_TOO_LARGE,
    GroupRefusal.FENCED_MEMBER_EPOCH: ErrorCode.FENCED_MEMBER_EPOCH,
    GroupRefusal.STALE_MEMBER_EPOCH: ErrorCode.STALE_MEMBER_EPOCH,
    GroupRefusal.UNRELEASED_INSTANCE: ErrorCode.UNRELEASED_INSTANCE_ID,
    GroupRefusal.UNSUPPORTED_ASSIGNOR: ErrorCode.UNSUPPORTED_ASSIGNOR,
    GroupRefusal.INVALID_REGEX: ErrorCode.INVALID_REGULAR_EXPRESSION,
    GroupRefusal.NOT_ALLOWED: ErrorCode.GROUP_AUTHORIZATION_FAILED,
    GroupRefusal.LATE: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    GroupRefusal.ELSEWHERE: ErrorCode.NOT_COORDINATOR,
    GroupRefusal.LOADING: ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
    # These pass, NOT_KEPT with a restart, and every client asks for the coordinator again, and then once more.
    GroupRefusal.NO_ROOM: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    GroupRefusal.NOT_KEPT: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    GroupRefusal.STOPPING: ErrorCode.COORDINATOR_NOT_AVAILABLE,
}
"""The codes for a group's refusals; all are without effect on topics and offsets."""


OFFSET_REFUSALS: dict[OffsetRefusal | RefusedAppend, ErrorCode] = {
    OffsetRefusal.TOO_LARGE: ErrorCode.INVALID_COMMIT_OFFSET_SIZE,
    # Clients ask again for these two, within their own time; Kafka answers a failed disk and a full one so.
    OffsetRefusal.TIMED_OUT: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    RefusedAppend.STORAGE: ErrorCode.NOT_COORDINATOR,
}
"""The codes for a refused commit of offsets, where they differ from those for a batch."""

FETCH_SESSION_REFUSALS: dict[SessionRefusal, ErrorCode] = {
    SessionRefusal.NOT_FOUND: ErrorCode.FETCH_SESSION_ID_NOT_FOUND,
    SessionRefusal.WRONG_EPOCH: ErrorCode.INVALID_FETCH_SESSION_EPOCH,
    SessionRefusal.TOPIC_IDS: ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR,
}
"""The codes for an incremental fetch that is not served; clients continue with a full one."""


READ_PROBLEMS: dict[Problem, ErrorCode] = {
    Problem.UNKNOWN_LOG: ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    Problem.OUT_OF_RANGE: ErrorCode.OFFSET_OUT_OF_RANGE,
}
"""The codes for a partition that cannot be read. A refused one has the code that its handler chose."""


def code_of_commit_refusal(refusal: CommitRefusal) -> ErrorCode:
    """The answer to a refused OffsetCommit or TxnOffsetCommit. PRODUCER_FENCED is not among the codes of either."""
    match refusal:
        case GroupRefusal():
            return GROUP_REFUSALS[refusal]
        case OffsetRefusal():
            return OFFSET_REFUSALS[refusal]
        case RefusedAppend():
            return OFFSET_REFUSALS.get(refusal) or APPEND_REFUSALS[refusal]
        case Refusal():
            return code_of_refusal(refusal, knows_producer_fenced=False)


def code_of_refusal(refusal: Refusal, *, knows_producer_fenced: bool) -> ErrorCode:
    """The answer to a request that the coordinator refused.

    `knows_producer_fenced` is whether the request's version has PRODUCER_FENCED; before KIP-588 INVALID_PRODUCER_EPOCH
    had this meaning. Raises EffectUnknown if there is no honest answer.
    """
    code = COORDINATOR_REFUSALS.get(refusal)
    if code is None:
        assert refusal.effect is Effect.UNKNOWN, f"{refusal} is missing in the table of refusals"
        raise EffectUnknown(refusal.value)
    if code is ErrorCode.PRODUCER_FENCED and not knows_producer_fenced:
        return ErrorCode.INVALID_PRODUCER_EPOCH
    return code
