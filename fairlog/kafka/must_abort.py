"""Which code tells a client that the broker has aborted its transaction, and that it has to do the same.

Until the client calls EndTxn(abort) or InitProducerId, every request of its epoch is refused. KIP-1050 made
TRANSACTION_ABORTABLE for this. But no code means *abort and continue* to every client in every request:

- *Clients abort silently.* Java, kafka-python, sarama and franz-go send no EndTxn if no partition was ever added. With
  TRANSACTION_ABORTABLE in AddPartitionsToTxn, Java and kafka-python would be refused for ever. On UNKNOWN_PRODUCER_ID
  all but kafka-python ask for a new epoch (KIP-360), which ends the open transaction as well.
- *Sequences get a gap.* In librdkafka, kafka-python and aiokafka a refused batch has used up its sequence numbers. So
  Produce has to make them take a new epoch, or stop.
- *Unknown codes are fatal* to most in EndTxn: Java before 3.8, sarama, franz-go, kafka-python, aiokafka.

A client that has no way to continue gets a code that is fatal to it: a new producer with the same transactional id
starts from the beginning. docs/compatibility.md ("You must abort") has the table of how each client reacts to which
code, and decision 44 the reasons.

Pure. Clients are told apart by the software name of ApiVersions 3 and above. The name is not proven, and need not be:
each code refuses the request.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from fairlog.kafka.api import Client
from fairlog.kafka.errors import ErrorCode

PRODUCE = 0
ADD_PARTITIONS = 24
ADD_OFFSETS = 25
END = 26
COMMIT_OFFSETS = 28
"""The keys of the APIs that take part in transactions: Produce, AddPartitionsToTxn, AddOffsetsToTxn, EndTxn and
TxnOffsetCommit."""

_ANY_CLIENT: Mapping[int, ErrorCode] = {
    PRODUCE: ErrorCode.INVALID_PRODUCER_EPOCH,
    ADD_PARTITIONS: ErrorCode.UNKNOWN_PRODUCER_ID,
    ADD_OFFSETS: ErrorCode.UNKNOWN_PRODUCER_ID,
    END: ErrorCode.UNKNOWN_PRODUCER_ID,
    COMMIT_OFFSETS: ErrorCode.TRANSACTION_ABORTABLE,
}
"""For sarama, aiokafka (which gives no name), and any client that is not named below."""

# INVALID_PRODUCER_EPOCH is fatal to it. It sends EndTxn also if nothing was added, and keeps its epoch where it can.
_LIBRDKAFKA: Mapping[int, ErrorCode] = {
    PRODUCE: ErrorCode.UNKNOWN_PRODUCER_ID,
    ADD_PARTITIONS: ErrorCode.TRANSACTION_ABORTABLE,
    ADD_OFFSETS: ErrorCode.TRANSACTION_ABORTABLE,
    END: ErrorCode.TRANSACTION_ABORTABLE,
}

# It takes a new epoch after any failed batch. Since 3.8 it has an exception that says what the code says.
_JAVA: Mapping[int, ErrorCode] = {PRODUCE: ErrorCode.TRANSACTION_ABORTABLE}
_JAVA_SINCE_3_8: Mapping[int, ErrorCode] = {**_JAVA, END: ErrorCode.TRANSACTION_ABORTABLE}

# With transaction version 2, INVALID_PRODUCER_EPOCH is fatal to it.
_FRANZ_GO: Mapping[int, ErrorCode] = {PRODUCE: ErrorCode.UNKNOWN_PRODUCER_ID}

# Where it takes a new epoch (after INVALID_PRODUCER_EPOCH and UNKNOWN_PRODUCER_ID in Produce), it answers a commit that
# waits with success, and sends nothing. So it has to stop.
_KAFKA_PYTHON: Mapping[int, ErrorCode] = {
    PRODUCE: ErrorCode.INVALID_TXN_STATE,
    ADD_PARTITIONS: ErrorCode.INVALID_TXN_STATE,
}

_VERSION = re.compile(r"(\d{1,9})\.(\d{1,9})")


def must_abort_code(api_key: int, client: Client) -> ErrorCode:
    """The code for `client` from one of the APIs above; from EndTxn if it asks to commit.

    Always an error. No client interprets it as success, or repeats the request without end because of it.
    """
    return _codes_of(client).get(api_key) or _ANY_CLIENT[api_key]


def _codes_of(client: Client) -> Mapping[int, ErrorCode]:
    name, version = client.software_name, client.software_version
    if "rdkafka" in name or "rdkafka" in version:  # bindings have a name of their own, and keep it in the version
        return _LIBRDKAFKA
    match name:
        case "apache-kafka-java":
            return _JAVA_SINCE_3_8 if _is_at_least(version, (3, 8)) else _JAVA
        case "kgo":
            return _FRANZ_GO
        case "kafka-python":
            return _KAFKA_PYTHON
        case _:
            return {}


def _is_at_least(version: str, wanted: tuple[int, int]) -> bool:
    found = _VERSION.match(version)
    return found is not None and (int(found[1]), int(found[2])) >= wanted
