"""What messages between shards are made of: CBOR items, and the values that they stand for.

`of_…` makes an item of a value. `to_…` takes an item that was read, and raises Malformed if it is not exactly what the
page docs/formats/interbroker.md says. A log is a text, as `str` writes it; a table with logs as keys is a CBOR map. The
texts of logs are remembered, in both directions: the same ones come all the time.

The bytes are a peer's. cbor2 reads them, with what it could be abused for turned off: all tags, indefinite lengths,
keys that are not texts, deep nesting. A frame of small items still becomes objects of eighty times its size. Only a
process that knows the secret gets a frame to be read here, so this bound is enough.

Does no I/O.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any, NamedTuple, TypeVar, cast

import cbor2

from coordinator.messages import UNCOUNTED, Expected
from fairlog.edge.malformed import Malformed
from fairlog_types import LeaderEpoch, LogId, Offset, ProducerEpoch, ProducerId, TxId

DEPTH_MAX = 8
"""Of nested arrays and maps. The deepest message has six: the counts of Prepared."""

LOGS_REMEMBERED = 4096
"""In each direction: 1 MB."""

INT16_MAX = 2**15 - 1
INT32_MAX = 2**31 - 1
INT64_MAX = 2**63 - 1

_LOG = re.compile(r"(?:t-[0-9a-f]{32}|o-offsets)-(?:0|[1-9][0-9]{0,9})", re.ASCII)

_Value = TypeVar("_Value")


class Kind(NamedTuple):
    """A type of body: the number that stands for it, and both ways."""

    number: int
    type: type
    encode: Callable[[Any], object]
    decode: Callable[[object], Any]


def read_untrusted(data: bytes) -> object:
    """The one item in `data`. Raises Malformed.

    cbor2 leaves alone what follows an item. So it reads `data` as the first of two items. The second one is a byte
    string of as many zeros as `data` has bytes: nothing within `data` can be taken for it.
    """
    end = bytes(len(data))
    try:
        items = cast(
            "list[object]",
            cbor2.loads(
                b"\x82" + data + b"\x5a" + len(data).to_bytes(4, "big") + end,
                max_depth=DEPTH_MAX + 1,
                allow_indefinite=False,
                allow_duplicate_keys=False,
                strict_hashable_types=True,
                semantic_decoders=_NO_TAGS,
            ),
        )
    except (cbor2.CBORError, ValueError) as error:
        raise Malformed(f"not the CBOR of a message: {error}") from error
    item, found = items
    if found != end:
        raise Malformed("more than one CBOR item")
    return item


def _refuse_tag(*_: object) -> object:
    raise ValueError("a tag")


class _NoTags(dict[int, Callable[..., object]]):
    """In place of the decoders of tags: one that refuses, for every tag."""

    def __missing__(self, _tag: int) -> Callable[..., object]:
        return _refuse_tag


_NO_TAGS = _NoTags()


def shown(item: object) -> str:
    """An item in a message, in bounded length: what it holds may be megabytes."""
    match item:
        case list():
            return f"an array of {len(cast('list[object]', item))}"
        case dict():
            return f"a map of {len(cast('dict[object, object]', item))}"
        case str():
            return f"the text {item[:80]!r}"
        case int():
            return f"the number {item}"
        case _:
            return type(item).__name__


def to_fields(item: object, count: int, of_what: str) -> list[object]:
    fields = to_list(item)
    if len(fields) != count:
        raise Malformed(f"{shown(item)} in place of the {count} fields of {of_what}")
    return fields


def to_list(item: object) -> list[object]:
    if type(item) is not list:
        raise Malformed(f"{shown(item)} in place of an array")
    return cast("list[object]", item)


def to_number(item: object, low: int, high: int) -> int:
    if type(item) is not int or not low <= item <= high:
        raise Malformed(f"{shown(item)} in place of a number from {low} to {high}")
    return item


def to_int64(item: object) -> int:
    return to_number(item, 0, INT64_MAX)


def to_offset(item: object) -> Offset:
    return Offset(to_int64(item))


def to_epoch(item: object) -> int:
    """Of a leader or a shard."""
    return to_number(item, 0, INT32_MAX)


def to_bool(item: object) -> bool:
    if type(item) is not bool:
        raise Malformed(f"{shown(item)} in place of true or false")
    return item


def to_text(item: object) -> str:
    if type(item) is not str:
        raise Malformed(f"{shown(item)} in place of a text")
    return item


def of_reason(reason: str) -> str:
    """A reason may name a file, and a file's name need not be UTF-8; it is for people, so it need not be exact."""
    return reason if reason.isascii() else reason.encode(errors="backslashreplace").decode()


of_log = lru_cache(LOGS_REMEMBERED)(str)


@lru_cache(LOGS_REMEMBERED)
def _to_log_of_text(text: str) -> LogId:
    if _LOG.fullmatch(text) is None:
        raise Malformed(f"{shown(text)} in place of a log")
    log = LogId.parse(text)
    to_number(log.partition, 0, INT32_MAX)
    return log


def to_log(item: object) -> LogId:
    return _to_log_of_text(to_text(item))


def of_logs(logs: tuple[LogId, ...]) -> object:
    return [of_log(log) for log in logs]


def to_logs(item: object) -> tuple[LogId, ...]:
    return tuple([to_log(log) for log in to_list(item)])


def to_by_log(item: object, to_value: Callable[[object], _Value]) -> dict[LogId, _Value]:
    if type(item) is not dict:
        raise Malformed(f"{shown(item)} in place of a map")
    return {to_log(log): to_value(value) for log, value in cast("dict[object, object]", item).items()}


def of_epochs(epochs: Mapping[LogId, LeaderEpoch]) -> object:
    return {of_log(log): epoch for log, epoch in epochs.items()}


def to_epochs(item: object) -> dict[LogId, LeaderEpoch]:
    return {log: LeaderEpoch(epoch) for log, epoch in to_by_log(item, to_epoch).items()}


def of_reasons(reasons: Mapping[LogId, str]) -> object:
    return {of_log(log): of_reason(reason) for log, reason in reasons.items()}


def to_reasons(item: object) -> dict[LogId, str]:
    return to_by_log(item, to_text)


def of_expected(expected: Mapping[LogId, Expected]) -> object:
    return {of_log(log): (each.leader_epoch, each.records) for log, each in expected.items()}


def to_expected(item: object) -> dict[LogId, Expected]:
    return to_by_log(item, _to_one_expected)


def _to_one_expected(item: object) -> Expected:
    epoch, records = to_fields(item, 2, "what a log must hold")
    return Expected(LeaderEpoch(to_epoch(epoch)), to_number(records, UNCOUNTED, INT64_MAX))


def of_txid(txid: TxId) -> object:
    return [*txid]  # cbor2 takes three times as long for a named tuple


def to_txid(item: object) -> TxId:
    producer_id, epoch, number = to_fields(item, 3, "a transaction's id")
    return TxId(ProducerId(to_int64(producer_id)), ProducerEpoch(to_number(epoch, 0, INT16_MAX)), to_int64(number))


def to_by_txid(item: object, to_value: Callable[[object], _Value]) -> dict[TxId, _Value]:
    """From an array of pairs: the keys of maps are texts."""
    pairs = [to_fields(pair, 2, "a transaction's entry") for pair in to_list(item)]
    found = {to_txid(txid): to_value(value) for txid, value in pairs}
    if len(found) < len(pairs):
        raise Malformed("a transaction that is there twice")
    return found


def of_nothing(_: None) -> object:
    return None


def to_nothing(item: object) -> None:
    if item is not None:
        raise Malformed(f"{shown(item)} in place of null")
