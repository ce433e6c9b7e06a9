"""What a client that may do nothing is answered: the codes, API by API, in what `example_fields` asks.

    (key, version) ──▶ example request ──▶ codes_in(answer) ──▶ DENIED[key]

What an answer says is what its fields named error_code have; an answer without them says it by what it leaves out.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from typing import Any

from tests.kafka.asking import NOT_IN_KIO, REQUESTS, read_with_kio

TOPIC, GROUP, CLUSTER, TRANSACTIONAL_ID = 29, 30, 31, 53
UNKNOWN_TOPIC_ID = 100
NONE = 0

DENIED: Mapping[int, frozenset[int]] = {
    key: frozenset(codes if isinstance(codes, tuple) else (codes,))
    for key, codes in {
        0: TOPIC,
        1: TOPIC,
        2: TOPIC,
        3: TOPIC,
        8: GROUP,
        9: GROUP,
        10: TRANSACTIONAL_ID,
        11: GROUP,
        12: GROUP,
        13: GROUP,
        14: GROUP,
        15: GROUP,
        16: NONE,  # an empty list
        17: 34,  # nobody signs in at such a listener
        18: NONE,  # everyone may ask
        19: TOPIC,
        20: TOPIC,
        21: TOPIC,
        22: TRANSACTIONAL_ID,
        23: TOPIC,
        24: TRANSACTIONAL_ID,
        25: TRANSACTIONAL_ID,
        26: TRANSACTIONAL_ID,
        27: CLUSTER,
        28: TRANSACTIONAL_ID,
        29: CLUSTER,
        30: CLUSTER,
        31: CLUSTER,
        32: TOPIC,
        33: TOPIC,
        34: CLUSTER,
        35: CLUSTER,
        36: 34,  # nobody signs in at such a listener
        37: TOPIC,
        42: GROUP,
        43: CLUSTER,
        44: TOPIC,
        45: CLUSTER,
        46: CLUSTER,
        47: GROUP,
        48: CLUSTER,
        49: CLUSTER,
        50: CLUSTER,
        51: CLUSTER,
        55: CLUSTER,
        57: CLUSTER,
        60: NONE,  # everyone may ask, but is told no operations
        61: TOPIC,
        65: TRANSACTIONAL_ID,
        66: NONE,  # an empty list
        68: GROUP,
        69: GROUP,
        71: NONE,  # nobody is asked for metrics
        72: 117,  # the same, for the example names no subscription
        74: CLUSTER,
        75: TOPIC,
    }.items()
}

OTHERWISE: Mapping[tuple[int, int], frozenset[int]] = {
    (0, 13): frozenset((UNKNOWN_TOPIC_ID,)),  # the example has no id
    (10, 0): frozenset((GROUP,)),  # there are only groups
    (24, 4): frozenset((CLUSTER,)),  # from brokers only
    (24, 5): frozenset((CLUSTER,)),
    (35, 1): frozenset(),  # there is no room for a code
    (35, 2): frozenset(),
}
"""Where a version differs."""


def expected(key: int, version: int) -> frozenset[int]:
    return OTHERWISE.get((key, version), DENIED[key])


def codes_in(key: int, version: int, body: bytes) -> frozenset[int]:
    """The error codes of an answer, but that of success where there are others."""
    if (key, version) in NOT_IN_KIO:
        found = set(_codes(REQUESTS[key][1].decode(body, version=version)))
    else:
        found = set(_codes(read_with_kio(key, version, body)))
    return frozenset(found - {NONE} or found)


def _codes(value: Any) -> Iterator[int]:
    if isinstance(value, list | tuple):
        for each in value:
            yield from _codes(each)
    elif dataclasses.is_dataclass(value) or hasattr(value, "_struct"):
        names = (
            [field.name for field in dataclasses.fields(value)] if dataclasses.is_dataclass(value) else _names(value)
        )
        for name in names:
            inner = getattr(value, name)
            if name.endswith("error_code"):
                yield int(getattr(inner, "value", inner))
            else:
                yield from _codes(inner)


def _names(value: Any) -> list[str]:
    """Of kafka-python's."""
    return list(value._struct.fields)
