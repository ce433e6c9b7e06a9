"""`fairlog txn …`: what is asked, what is shown, and what is refused."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from datetime import timedelta
from typing import Any

import cbor2
import pytest
from hypothesis import given
from hypothesis import strategies as st
from kio.schema.describe_transactions.v0.response import TopicData
from kio.schema.errors import ErrorCode
from kio.schema.find_coordinator.v4.response import Coordinator, FindCoordinatorResponse
from kio.schema.init_producer_id.v4.response import InitProducerIdResponse
from kio.schema.list_transactions.v0.response import ListTransactionsResponse
from kio.schema.list_transactions.v0.response import TransactionState as ListedState
from kio.schema.types import BrokerId, ProducerId, TopicName, TransactionalId
from kio.static.primitive import i16, i32, i32Timedelta, i64

from fairlog.cli import transactions_admin
from fairlog.cli.describe_transactions import DescribeTransactionsResponse, TransactionState
from fairlog.cli.placements import CommittedTransaction, PlacedPart, decode_placements_untrusted

FIND_COORDINATOR, INIT_PRODUCER_ID, DESCRIBE_TRANSACTIONS, LIST_TRANSACTIONS = 10, 22, 65, 66
NO_THROTTLE = i32Timedelta.parse(timedelta(0))

Fairlog = Callable[..., tuple[int, str, str]]
StartBroker = Callable[..., Any]


def state(error: ErrorCode = ErrorCode.none, **changes: Any) -> Callable[[Any], DescribeTransactionsResponse]:
    """Answers an id with an open transaction, or what `changes` make of it."""
    fields: dict[str, Any] = {
        "transaction_state": "Ongoing",
        "transaction_timeout_ms": i32(60_000),
        "transaction_start_time_ms": i64(1_760_000_000_000),
        "producer_id": ProducerId(7),
        "producer_epoch": i16(2),
        "topics": (TopicData(topic=TopicName("orders"), partitions=(i32(0), i32(2))),),
        **changes,
    }
    return lambda request: DescribeTransactionsResponse(
        throttle_time_ms=i32(0),
        transaction_states=(
            TransactionState(error_code=error, transactional_id=request.transactional_ids[0], **fields),
        ),
    )


@pytest.fixture
def start(fake_broker: StartBroker) -> StartBroker:
    """Starts a broker that coordinates all ids itself."""

    def started(answers: Mapping[int, Callable[[Any], Any]]) -> Any:
        def coordinator(request: Any) -> FindCoordinatorResponse:
            assert request.key_type == 1
            found = Coordinator(
                key=request.coordinator_keys[0],
                node_id=BrokerId(1),
                host=broker.host,
                port=i32(broker.port),
                error_code=ErrorCode.none,
                error_message=None,
            )
            return FindCoordinatorResponse(throttle_time=NO_THROTTLE, coordinators=(found,))

        broker = fake_broker({FIND_COORDINATOR: coordinator, **answers})
        return broker

    return started


def test_txn_list_shows_ids_and_passes_the_states_on(start: StartBroker, fairlog: Fairlog) -> None:
    """The states are the broker's to filter by; ids come sorted."""
    listed = ListTransactionsResponse(
        throttle_time=NO_THROTTLE,
        error_code=ErrorCode.none,
        unknown_state_filters=(),
        transaction_states=tuple(
            ListedState(
                transactional_id=TransactionalId(name), producer_id=ProducerId(number), transaction_state="Ongoing"
            )
            for name, number in (("b", 1), ("a", 2))
        ),
    )
    broker = start({LIST_TRANSACTIONS: lambda _request: listed})
    code, out, _ = fairlog("txn", "list", "--state", "Ongoing", "--json", "--bootstrap", broker.address)
    assert (code, json.loads(out)) == (
        0,
        [
            {"transactional_id": "a", "producer_id": 2, "state": "Ongoing"},
            {"transactional_id": "b", "producer_id": 1, "state": "Ongoing"},
        ],
    )
    assert broker.requests[-1].state_filters == ("Ongoing",)


def test_txn_list_with_a_state_that_the_broker_does_not_know_is_refused(start: StartBroker, fairlog: Fairlog) -> None:
    """A misspelt state is not taken for one without transactions."""
    answer = ListTransactionsResponse(
        throttle_time=NO_THROTTLE,
        error_code=ErrorCode.none,
        unknown_state_filters=("Onging",),
        transaction_states=(),
    )
    broker = start({LIST_TRANSACTIONS: lambda _request: answer})
    code, _, err = fairlog("txn", "list", "--state", "Onging", "--bootstrap", broker.address)
    assert (code, err) == (1, "fairlog: the broker knows no transaction state Onging\n")


def test_txn_describe_shows_producer_and_open_transaction(start: StartBroker, fairlog: Fairlog) -> None:
    """Everything that the broker says of the id is shown."""
    broker = start({DESCRIBE_TRANSACTIONS: state()})
    code, out, _ = fairlog("txn", "describe", "billing", "--json", "--bootstrap", broker.address)
    assert (code, json.loads(out)) == (
        0,
        {
            "transactional_id": "billing",
            "producer_id": 7,
            "epoch": 2,
            "state": "Ongoing",
            "timeout_ms": 60_000,
            "started_ms": 1_760_000_000_000,
            "partitions": [{"topic": "orders", "partition": 0}, {"topic": "orders", "partition": 2}],
        },
    )
    out = fairlog("txn", "describe", "billing", "--bootstrap", broker.address)[1]
    assert "2025-10-09 08:53:20 UTC" in out
    assert "orders-0, orders-2" in out


def test_txn_describe_of_an_id_without_a_transaction_shows_no_start(start: StartBroker, fairlog: Fairlog) -> None:
    """-1 is Kafka's "never", not a second before 1970."""
    broker = start(
        {DESCRIBE_TRANSACTIONS: state(transaction_state="Empty", transaction_start_time_ms=i64(-1), topics=())}
    )
    out = fairlog("txn", "describe", "billing", "--json", "--bootstrap", broker.address)[1]
    assert json.loads(out)["started_ms"] is None


def test_txn_describe_asks_the_coordinator_that_it_is_told(
    fake_broker: StartBroker, start: StartBroker, fairlog: Fairlog
) -> None:
    """In a cluster another broker may coordinate the id."""
    coordinator = start({DESCRIBE_TRANSACTIONS: state()})
    first = fake_broker(
        {
            FIND_COORDINATOR: lambda request: FindCoordinatorResponse(
                throttle_time=NO_THROTTLE,
                coordinators=(
                    Coordinator(
                        key=request.coordinator_keys[0],
                        node_id=BrokerId(2),
                        host=coordinator.host,
                        port=i32(coordinator.port),
                        error_code=ErrorCode.none,
                        error_message=None,
                    ),
                ),
            )
        }
    )
    assert fairlog("txn", "describe", "billing", "--bootstrap", first.address)[0] == 0
    assert coordinator.requests[-1].transactional_ids == ("billing",)


def test_txn_abort_takes_the_id_over_with_its_own_timeout(start: StartBroker, fairlog: Fairlog) -> None:
    """Aborting is what a new instance would do first; a transaction being decided is waited for."""
    outcomes = iter([ErrorCode.concurrent_transactions, ErrorCode.none])
    broker = start(
        {
            DESCRIBE_TRANSACTIONS: state(),
            INIT_PRODUCER_ID: lambda _request: InitProducerIdResponse(
                throttle_time=NO_THROTTLE,
                error_code=next(outcomes),
                producer_id=ProducerId(7),
                producer_epoch=i16(3),
            ),
        }
    )
    code, out, _ = fairlog("txn", "abort", "billing", "--json", "--bootstrap", broker.address)
    assert (code, json.loads(out)) == (0, {"transactional_id": "billing", "epoch": 3})
    asked = broker.requests[-1]
    assert (asked.transactional_id, asked.transaction_timeout) == ("billing", timedelta(seconds=60))
    assert (asked.producer_id, asked.producer_epoch) == (-1, -1)


@pytest.mark.parametrize("command", ["abort", "describe", "show"])
def test_txn_command_on_an_unknown_id_is_refused(start: StartBroker, fairlog: Fairlog, command: str) -> None:
    """Aborting a misspelt id must not make that id: InitProducerId is not sent."""
    broker = start({DESCRIBE_TRANSACTIONS: state(ErrorCode.transactional_id_not_found)})
    code, out, err = fairlog("txn", command, "bilin", "--bootstrap", broker.address)
    assert (code, out, err) == (1, "", "fairlog: there is no transactional id bilin\n")


def test_txn_abort_of_a_transaction_that_stays_undecided_gives_up(
    start: StartBroker, fairlog: Fairlog, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The command ends with the broker's reason rather than never."""
    monkeypatch.setattr(transactions_admin, "TIMEOUT_S", -1.0)
    broker = start(
        {
            DESCRIBE_TRANSACTIONS: state(),
            INIT_PRODUCER_ID: lambda _request: InitProducerIdResponse(
                throttle_time=NO_THROTTLE, error_code=ErrorCode.concurrent_transactions, producer_epoch=i16(-1)
            ),
        }
    )
    code, _, err = fairlog("txn", "abort", "billing", "--bootstrap", broker.address)
    assert (code, err) == (1, "fairlog: fencing transactional id billing: CONCURRENT_TRANSACTIONS\n")


def test_txn_show_lists_where_committed_records_are(start: StartBroker, fairlog: Fairlog) -> None:
    """Each partition of each committed transaction is a row with its first and last offset."""
    placements = cbor2.dumps(
        [["7.2.0", 1_760_000_000_000, [["orders", 0, 10, 5], ["bills", 1, 0, 1]]], ["7.2.1", None, []]]
    )
    broker = start({DESCRIBE_TRANSACTIONS: state(placements=placements)})
    code, out, _ = fairlog("txn", "show", "billing", "--json", "--bootstrap", broker.address)
    assert (code, json.loads(out)[0]) == (
        0,
        {
            "transaction": "7.2.0",
            "committed_ms": 1_760_000_000_000,
            "parts": [
                {"topic": "orders", "partition": 0, "base_offset": 10, "record_count": 5},
                {"topic": "bills", "partition": 1, "base_offset": 0, "record_count": 1},
            ],
        },
    )
    rows = fairlog("txn", "show", "billing", "--bootstrap", broker.address)[1].splitlines()
    assert rows[1].split() == ["7.2.0", "2025-10-09", "08:53:20", "UTC", "orders", "0", "10", "14", "5"]


def test_txn_show_of_a_broker_that_tells_no_places_says_so(start: StartBroker, fairlog: Fairlog) -> None:
    """Any other broker has no such field, and that is no error."""
    broker = start({DESCRIBE_TRANSACTIONS: state()})
    assert fairlog("txn", "show", "billing", "--bootstrap", broker.address)[:2] == (
        0,
        "no committed transaction of billing is remembered\n",
    )


def test_txn_show_of_places_that_make_no_sense_is_refused(start: StartBroker, fairlog: Fairlog) -> None:
    """A field that cannot be read is an error with the broker's address, not a traceback."""
    broker = start({DESCRIBE_TRANSACTIONS: state(placements=cbor2.dumps([["7.2.0", 1, [["orders", "zero"]]]]))})
    code, _, err = fairlog("txn", "show", "billing", "--bootstrap", broker.address)
    assert code == 1
    assert "['orders', 'zero'] is not a placement" in err


@given(st.binary(max_size=50))
def test_placements_of_arbitrary_bytes_are_read_or_refused(encoded: bytes) -> None:
    """Whatever a broker sends, the reader answers or raises ValueError."""
    try:
        decoded = decode_placements_untrusted(encoded)
    except ValueError:
        return
    assert all(isinstance(each, CommittedTransaction) for each in decoded)


def test_placed_part_knows_its_last_offset() -> None:
    """Offsets are dense (invariant 2), so count and base give the last one."""
    assert PlacedPart("orders", 0, base_offset=10, record_count=5).last_offset == 14
