"""What the tests of Kafka's edge share: a broker in memory, and a client that asks it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any
from uuid import UUID

import pytest
from trio.testing import memory_stream_pair

from coordinator.answers import CommittedTransaction, Description
from fairlog.edge.frame_budget import FrameBudget
from fairlog.kafka.answer_budget import AnswerBudget
from fairlog.kafka.api import Client
from fairlog.kafka.connection import Connection
from fairlog_types import (
    LogId,
    Offset,
    Placement,
    ProducerEpoch,
    ProducerId,
    TxId,
)
from tests.kafka.asking import REQUESTS, Asker
from tests.kafka.example_requests import build_batch, example_fields
from tests.kafka.in_memory import Memory
from tests.kafka.serving import FRAME_BYTES_MAX, EchoRouter, Peer


@pytest.fixture
def memory() -> Memory:
    return Memory()


@pytest.fixture
def ask(memory: Memory) -> Asker:
    return Asker(memory)


@pytest.fixture
def make_memory() -> Callable[[], Memory]:
    """For property tests, which need a fresh double for each example."""
    return Memory


@pytest.fixture
def make_asker() -> Callable[[Memory], Asker]:
    return Asker


@pytest.fixture
def batch() -> Callable[..., bytes]:
    return build_batch


@pytest.fixture
def description() -> Callable[..., Description]:
    def build(transactional_id: str = "tx", state: str = "OPEN", **changes: Any) -> Description:
        log = LogId.of_topic(UUID(int=1), 0)
        made = Description(
            transactional_id=transactional_id,
            producer_id=ProducerId(41),
            epoch=ProducerEpoch(2),
            timeout_ms=60_000,
            state=state,
            txid=TxId(ProducerId(41), ProducerEpoch(2), 5),
            started_ms=1_000,
            logs=(log,),
            being_copied=(),
            committed=(
                CommittedTransaction(TxId(ProducerId(41), ProducerEpoch(2), 4), (Placement(log, Offset(17), 3),)),
            ),
        )
        return replace(made, **changes)

    return build


@pytest.fixture
def example_request() -> Callable[[int, int], bytes]:
    """A right request of an API in a version, as a frame without its length."""

    def build(key: int, version: int) -> bytes:
        request = REQUESTS[key][0](version=version, **example_fields(key))
        request.with_header(correlation_id=5, client_id="fuzz")
        return bytes(request.encode(version=version, header=True))

    return build


@pytest.fixture
async def peer(nursery, autojump_clock):
    ours, theirs = memory_stream_pair()
    router = EchoRouter()
    connection = Connection(
        ours, Client(1, "peer:1"), router, frame_bytes_max=FRAME_BYTES_MAX, budget=FrameBudget(), answers=AnswerBudget()
    )
    peer = Peer(theirs, router, connection)
    nursery.start_soon(peer.serve)
    return peer
