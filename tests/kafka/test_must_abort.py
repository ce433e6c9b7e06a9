"""Which code tells which client that the broker has aborted its transaction."""

from __future__ import annotations

import pytest

from fairlog.kafka.api import Client
from fairlog.kafka.must_abort import must_abort_code

APIS = (0, 24, 25, 28, 26)
"""Produce, AddPartitionsToTxn, AddOffsetsToTxn, TxnOffsetCommit, EndTxn: the order of the columns below."""


@pytest.mark.parametrize(
    ("name", "version", "codes"),
    [
        ("librdkafka", "2.16.0", (59, 120, 120, 120, 120)),
        ("confluent-kafka-python", "2.16.1-rdkafka-2.16.0", (59, 120, 120, 120, 120)),
        ("apache-kafka-java", "4.4.0", (120, 59, 59, 120, 120)),
        ("apache-kafka-java", "3.8.0", (120, 59, 59, 120, 120)),
        ("apache-kafka-java", "3.10.0-cp", (120, 59, 59, 120, 120)),
        ("apache-kafka-java", "3.7.2", (120, 59, 59, 120, 59)),
        ("apache-kafka-java", "2.8.2", (120, 59, 59, 120, 59)),
        ("apache-kafka-java", "unknown", (120, 59, 59, 120, 59)),
        ("kgo", "v1.22.2", (59, 59, 59, 120, 59)),
        ("sarama", "v1.61.1", (47, 59, 59, 120, 59)),
        ("kafka-python", "3.0.12", (48, 48, 59, 120, 59)),
        ("", "", (47, 59, 59, 120, 59)),
    ],
)
def test_must_abort_code_is_the_one_that_the_client_was_tried_with(name: str, version: str, codes: tuple[int]) -> None:
    """docs/compatibility.md says what each client does with it; one that gives no name gets the safest."""
    client = Client(1, "peer", software_name=name, software_version=version)
    assert tuple(must_abort_code(api, client) for api in APIS) == codes
