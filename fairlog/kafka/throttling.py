"""What a client's quotas of bytes do to its Produce and Fetch requests (KIP-13, KIP-219).

    Produce ──▶ appended, counted ──────▶ answer with the throttle time; the connection is muted for as long
    Fetch ────▶ read ─┬─ within ────────▶ counted, answer with records
                      └─ above ─────────▶ answer without records, with the throttle time; muted likewise

A muted connection's next request is not started, and of a large one not even read. As in Kafka, a Produce above the
quota is carried out, since it is here already, and a Fetch above it is not counted, so that what was read is read
again. A Produce counts with all its bytes, a Fetch with its record batches (in Kafka with the rest of its answer, too).

Requests between brokers do not come in here, and are not counted.
"""

from __future__ import annotations

import math

import trio

from fairlog.kafka.api import Context
from fairlog.security.meters import Meters, burst
from fairlog.security.quotas import Limit

PRODUCE = "Produce"
FETCH = "Fetch"


def produced(context: Context) -> int:
    """Count a Produce; its throttle time, in ms."""
    meters = context.broker.quotas.producers
    limit = _limit(context, meters)
    if meters is None or limit is None:
        return 0
    return _mute(context, PRODUCE, meters.record(limit, context.request_bytes, trio.current_time()))


def fetch_bytes_max(context: Context, asked: int) -> int:
    """How much is read for a Fetch that asks for so many bytes: not more than could be let through."""
    limit = _limit(context, context.broker.quotas.consumers)
    return asked if limit is None else min(asked, burst(limit))


def fetched(context: Context, read_bytes: int) -> int:
    """Count a Fetch that has read so much; 0 if it may be answered with it, else the throttle time, in ms."""
    meters = context.broker.quotas.consumers
    limit = _limit(context, meters)
    if meters is None or limit is None or not read_bytes:
        return 0
    return _mute(context, FETCH, meters.admit(limit, read_bytes, trio.current_time()))


def _limit(context: Context, meters: Meters | None) -> Limit | None:
    """The quota that counts for the client."""
    client = context.client
    return None if meters is None else meters.limits.of_client(client.principal.name, client.client_id)


def _mute(context: Context, api: str, wait_s: float) -> int:
    throttle_ms = min(math.ceil(wait_s * 1000), 2**31 - 1)
    if throttle_ms:
        client, quotas = context.client, context.broker.quotas
        client.muted_until = max(client.muted_until, trio.current_time() + throttle_ms / 1000)
        client.muted_under = quotas.changes
        quotas.throttles.note(api, throttle_ms)
    return throttle_ms
