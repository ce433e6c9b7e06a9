"""GetTelemetrySubscriptions and PushTelemetry, which no client should send: a node that wants nobody's metrics."""

from __future__ import annotations

from uuid import UUID

import pytest

from fairlog.kafka.errors import ErrorCode

SUBSCRIPTIONS, PUSH = 71, 72
CLIENT = UUID("00112233-4455-6677-8899-aabbccddeeff")


async def test_subscription_is_to_no_metrics(ask):
    """With an id of the client's own if it has none yet; the same subscription each time."""
    first = await ask(SUBSCRIPTIONS, 0, client_instance_id=None)
    again = await ask(SUBSCRIPTIONS, 0, client_instance_id=first.client_instance_id)
    assert first == again
    assert (first.error_code.value, first.requested_metrics, first.push_interval.total_seconds()) == (0, (), 300)
    assert (first.accepted_compression_types, first.telemetry_max_bytes) == ((4, 3, 1, 2), 1 << 20)
    other = await ask(SUBSCRIPTIONS, 0, client_instance_id=None)
    assert other.client_instance_id != first.client_instance_id
    assert other.subscription_id != first.subscription_id


@pytest.mark.parametrize(
    ("changes", "error"),
    [
        ({}, ErrorCode.NONE),
        ({"metrics": bytes(1 << 20), "compression_type": 4, "terminating": True}, ErrorCode.NONE),
        ({"client_instance_id": None}, ErrorCode.INVALID_REQUEST),
        ({"client_instance_id": UUID(int=1)}, ErrorCode.INVALID_REQUEST),
        ({"subscription_id": 7}, ErrorCode.UNKNOWN_SUBSCRIPTION_ID),
        ({"compression_type": 5}, ErrorCode.UNSUPPORTED_COMPRESSION_TYPE),
        ({"compression_type": -1}, ErrorCode.UNSUPPORTED_COMPRESSION_TYPE),
        ({"metrics": bytes((1 << 20) + 1)}, ErrorCode.TELEMETRY_TOO_LARGE),
    ],
    ids=[
        "right",
        "as large as can be",
        "no id",
        "reserved id",
        "other",
        "compression 5",
        "compression -1",
        "too large",
    ],
)
async def test_metrics_are_checked_and_dropped(ask, changes, error):
    """As Kafka checks them, whose receivers are none by default."""
    subscription = (await ask(SUBSCRIPTIONS, 0, client_instance_id=CLIENT)).subscription_id
    pushed = {"client_instance_id": CLIENT, "subscription_id": subscription, "terminating": False, "metrics": b"m"}
    answer = await ask(PUSH, 0, **pushed | {"compression_type": 0} | changes)
    assert answer.error_code.value == error


async def test_telemetry_is_not_advertised(ask):
    """So that clients do not ask, as with a Kafka without a receiver."""
    answer = await ask(18, 4, client_software_name="test", client_software_version="1")
    assert not {SUBSCRIPTIONS, PUSH} & {api.api_key for api in answer.api_keys}
