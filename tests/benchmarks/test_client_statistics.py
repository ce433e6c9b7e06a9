"""What the benchmark reads from the client library's statistics."""

from __future__ import annotations

import json

import pytest
from benchmarks.client_statistics import Counts, Tap, parse


def document(received_bytes: int, fetches: int) -> str:
    """A statistics document with what is read of it: two connections, one of them to the same broker."""
    return json.dumps(
        {
            "name": "rdkafka#consumer-1",
            "brokers": {
                "127.0.0.1:9092/bootstrap": {"rxbytes": 100, "req": {"Metadata": 1, "Fetch": 0}},
                "127.0.0.1:9092/0": {"rxbytes": received_bytes, "req": {"Metadata": 2, "Fetch": fetches}},
            },
        }
    )


def test_counts_of_all_connections_are_added() -> None:
    """Bytes and requests are those of the client, whichever connection they came by."""
    assert parse(document(5000, 7)) == Counts(5100, {"Metadata": 3, "Fetch": 7})


def test_counts_since_earlier_ones_are_the_difference() -> None:
    """A request that was not yet sent at the beginning counts from zero."""
    assert parse(document(5000, 7)).since(Counts(1000, {"Metadata": 3})) == Counts(4100, {"Metadata": 0, "Fetch": 7})


def test_tap_waits_for_a_document_made_after_the_call() -> None:
    """The first document may have been made before the call began, the second was not."""
    tap = Tap()
    take = tap.configuration["stats_cb"]
    assert callable(take)
    documents = [document(1, 1), document(2, 2), document(3, 3)]
    assert tap.counts(lambda timeout_s: take(documents.pop(0))).received_bytes == 102
    assert len(documents) == 1


def test_tap_of_a_silent_client_gives_up() -> None:
    """A client that sends no statistics fails the round instead of counting nothing."""
    with pytest.raises(TimeoutError, match="no statistics"):
        Tap().counts(lambda timeout_s: None)
