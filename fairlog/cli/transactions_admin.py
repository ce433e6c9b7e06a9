"""What the `txn` commands ask a broker, in their own words: requests and answers of kio stay in here."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta

from kio.schema.describe_configs.v4.request import DescribeConfigsRequest, DescribeConfigsResource
from kio.schema.describe_configs.v4.response import DescribeConfigsResponse
from kio.schema.describe_transactions.v0.request import DescribeTransactionsRequest
from kio.schema.errors import ErrorCode
from kio.schema.init_producer_id.v4.request import InitProducerIdRequest
from kio.schema.init_producer_id.v4.response import InitProducerIdResponse
from kio.schema.list_transactions.v0.request import ListTransactionsRequest
from kio.schema.list_transactions.v0.response import ListTransactionsResponse
from kio.schema.list_transactions.v0.response import TransactionState as ListedState
from kio.schema.response_header.v1.header import ResponseHeader
from kio.schema.types import TransactionalId
from kio.serial import entity_reader
from kio.serial.errors import SerialError
from kio.static.primitive import i8, i32Timedelta

from coordinator.transaction_groups import group_of
from fairlog.broker_configs import GROUP_SEPARATOR
from fairlog.cli.brokers import Broker, Brokers
from fairlog.cli.client import TIMEOUT_S, Connection, check
from fairlog.cli.describe_transactions import TransactionState, decode_answer_untrusted
from fairlog.cli.errors import ClientError
from fairlog.edge.malformed import Malformed
from fairlog.kafka.transaction_states import KAFKA_STATES

_OPEN = "Ongoing"
_BROKER = i8(4)
NO_TIMEOUT_MS = 2**31 - 1
"""Kafka's word for a transaction that never times out."""
_ASK_AGAIN_S = 0.1


@dataclass(frozen=True, slots=True)
class Listed:
    """A transactional id that a broker coordinates."""

    transactional_id: str
    producer_id: int
    state: str
    group: str
    """Whose transactions share one commit order; the id itself, if it is of no group."""


def list_transactions(brokers: Brokers, states: Sequence[str]) -> Sequence[Listed]:
    """All brokers' transactional ids in one of `states` (all of them without any), by id.

    The states are Kafka's, in any case; others are passed on as they are, for a broker may know more of them.
    """

    def ask(broker: Broker) -> Sequence[Listed]:
        listed = _list(broker.connection, states)
        separator = group_separator(broker) if listed else ""
        return [
            Listed(
                each.transactional_id,
                each.producer_id,
                each.transaction_state,
                group_of(each.transactional_id, separator),
            )
            for each in listed
        ]

    return sorted((each for found in brokers.each(ask) for each in found), key=lambda each: each.transactional_id)


def _list(connection: Connection, states: Sequence[str]) -> Sequence[ListedState]:
    known = {state.lower(): state for state in KAFKA_STATES}
    wanted = tuple(known.get(state.lower(), state) for state in states)
    request = ListTransactionsRequest(state_filters=wanted, producer_id_filters=())
    answer = connection.request(request, ListTransactionsResponse)
    check("listing transactions", answer.error_code)
    if answer.unknown_state_filters:
        raise ClientError(
            f"unknown transaction state {', '.join(answer.unknown_state_filters)}; Kafka's are "
            f"{', '.join(sorted(KAFKA_STATES))}"
        )
    return answer.transaction_states


def group_separator(broker: Broker) -> str:
    """What stands between group and member in a transactional id.

    Empty if the broker has no such groups, or does not tell this user: that needs DESCRIBE_CONFIGS on the cluster.
    """
    resource = DescribeConfigsResource(
        resource_type=_BROKER, resource_name=str(broker.node_id), configuration_keys=(GROUP_SEPARATOR,)
    )
    request = DescribeConfigsRequest(resources=(resource,), include_synonyms=False, include_documentation=False)
    (answer,) = broker.connection.request(request, DescribeConfigsResponse).results
    if answer.error_code is ErrorCode.cluster_authorization_failed:
        return ""
    check("asking for the broker's configs", answer.error_code, answer.error_message)
    return next((each.value or "" for each in answer.configs if each.name == GROUP_SEPARATOR), "")


def list_prepared(brokers: Brokers) -> Sequence[TransactionState]:
    """All brokers' open transactions that have no time-out, by id: only their program, or an operator, ends them
    (KIP-939).

    Brokers do not hear of a prepare, so each of them may be prepared.
    """
    found = brokers.each(lambda broker: _list_prepared(broker.connection))
    return sorted((each for of_broker in found for each in of_broker), key=lambda each: each.transactional_id)


def _list_prepared(connection: Connection) -> Sequence[TransactionState]:
    listed = _list(connection, (_OPEN,))
    if not listed:
        return ()
    found: list[TransactionState] = []
    for state, code in _describe(connection, [each.transactional_id for each in listed]):
        if code is ErrorCode.transactional_id_not_found:
            continue  # forgotten since it was listed
        check(f"describing transactional id {state.transactional_id}", code)
        if state.state == _OPEN and state.timeout_ms == NO_TIMEOUT_MS:
            found.append(state)
    return found


def describe_transaction(connection: Connection, transactional_id: str) -> TransactionState:
    """One id, asked of its coordinator. Raises ClientError, also if the id is unknown."""
    ((state, code),) = _describe(connection, [transactional_id])
    if code is ErrorCode.transactional_id_not_found:
        raise ClientError(f"there is no transactional id {transactional_id}")
    check(f"describing transactional id {transactional_id}", code)
    return state


def _describe(connection: Connection, ids: Sequence[str]) -> Sequence[tuple[TransactionState, ErrorCode]]:
    """Each of these ids, with the error code of its answer."""
    request = DescribeTransactionsRequest(transactional_ids=tuple(map(TransactionalId, ids)))
    frame = connection.request_undecoded(request)
    try:
        _, header_end = entity_reader(ResponseHeader)(frame, 0)
        states = decode_answer_untrusted(memoryview(frame)[header_end:])
        found = [(state, ErrorCode(state.error_code)) for state in states]
    except (SerialError, Malformed, ValueError) as error:
        raise ClientError(f"the answer of {connection.address} describes no transaction: {error}") from error
    if len(found) != len(ids):
        raise ClientError(f"the answer of {connection.address} describes {len(found)} transactional ids of {len(ids)}")
    return found


def fence(connection: Connection, transactional_id: str) -> tuple[int, bool]:
    """Abort the id's open transaction, if any, and fence whoever uses the id.

    Answers the new producer epoch, and whether a transaction was open right before.

    It is what a new instance with this id would do first (Kafka's `Admin.fenceProducers`, KIP-664). An id that
    the broker does not know is refused, because asking for it would make it. The id keeps its time-out;
    one that has none gets the longest.
    """
    before = describe_transaction(connection, transactional_id)
    request = InitProducerIdRequest(
        transactional_id=TransactionalId(transactional_id),
        transaction_timeout=i32Timedelta.parse(timedelta(milliseconds=before.timeout_ms)),
    )
    deadline = time.monotonic() + TIMEOUT_S
    while True:
        answer = connection.request(request, InitProducerIdResponse)
        # A transaction is just being decided, or takes long to be copied: the one answer that means "ask again".
        if answer.error_code is not ErrorCode.concurrent_transactions or time.monotonic() > deadline:
            check(f"fencing transactional id {transactional_id}", answer.error_code)
            return int(answer.producer_epoch), before.state == _OPEN
        time.sleep(_ASK_AGAIN_S)
