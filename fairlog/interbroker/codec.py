"""Messages between shards as CBOR, and back. The page docs/formats/interbroker.md has the table of all of them.

A message is an array: its type, its numbers, and for commands and replies the *kind* of the body and the body.
`_COMMANDS` and `_ANSWERS` are the kinds: a new one is a line there. A log is a text, as `str` writes it; a table with
logs as keys is a CBOR map. The texts of logs are remembered, in both directions: the same ones come all the time.

The bytes are a peer's: what is not exactly as the page says is Malformed. cbor2 reads them, with what it could be
abused for turned off: all tags, indefinite lengths, keys that are not texts, deep nesting. A frame of small items still
becomes objects of eighty times its size. Only a process that knows the secret gets a frame to be read here, so this
bound is enough.

Does no I/O.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any, NamedTuple, TypeVar, cast

import cbor2

from coordinator.answers import Refusal
from coordinator.messages import (
    UNCOUNTED,
    Applied,
    ApplyCommit,
    Begin,
    Begun,
    DiscardTransaction,
    Expected,
    Prepare,
    Prepared,
    Resume,
    Resumed,
    Undecided,
)
from datalog.cuts import Cut, EndsAtCut, KnownCuts, LogCuts
from fairlog.edge.malformed import Malformed
from fairlog_types import LeaderEpoch, LogId, Offset, Placement, ProducerEpoch, ProducerId, TxId
from partition.answers import LogCut
from shard.adding import AddLog, LogAdded
from shard.commands import ApplyAll, Failed, PrepareAll, SaidAll
from shard.conversation import NOT_HEARD_OF, Command, Hello, Message, Reply, Welcome
from shard.cut_messages import (
    AwaitEnds,
    CutLogs,
    Cuts,
    CutsOf,
    FindCuts,
    FindEnds,
    Held,
    Hold,
    KeepCut,
    KeepEnds,
    NoCut,
    Noted,
    NoteEnds,
    Release,
    TakeCut,
)
from shard.offset_messages import OffsetsRefused, WhyNotWritten, WriteOffsets

MESSAGE_BYTES_MAX = 16 << 20
"""A command about 300,000 logs. What is larger is neither sent nor read."""

DEPTH_MAX = 8
"""Of nested arrays and maps. The deepest message has six: the counts of Prepared."""

LOGS_REMEMBERED = 4096
"""In each direction: 1 MB."""

_HELLO, _WELCOME, _COMMAND, _REPLY = range(4)

_INT16_MAX = 2**15 - 1
_INT32_MAX = 2**31 - 1
_INT64_MAX = 2**63 - 1

_LOG = re.compile(r"(?:t-[0-9a-f]{32}|o-offsets)-(?:0|[1-9][0-9]{0,9})", re.ASCII)

_TOPIC_ID = re.compile(r"[0-9a-f]{32}", re.ASCII)

_Value = TypeVar("_Value")


class _Kind(NamedTuple):
    """A type of body: the number that stands for it, and both ways."""

    number: int
    type: type
    encode: Callable[[Any], object]
    decode: Callable[[object], Any]


def encode(message: Message) -> bytes:
    """The message's bytes. They may be more than MESSAGE_BYTES_MAX: then they must not be sent."""
    match message:
        case Command(epoch, listener_epoch, number, answered, body):
            kind = _COMMAND_OF_TYPE[type(body)]
            return cbor2.dumps((_COMMAND, epoch, listener_epoch, number, answered, kind.number, kind.encode(body)))
        case Reply(epoch, speaker_epoch, number, body):
            kind = _ANSWER_OF_TYPE[type(body)]
            return cbor2.dumps((_REPLY, epoch, speaker_epoch, number, kind.number, kind.encode(body)))
        case Hello(epoch):
            return cbor2.dumps((_HELLO, epoch))
        case Welcome(epoch, speaker_epoch):
            return cbor2.dumps((_WELCOME, epoch, speaker_epoch))


def decode_untrusted(data: bytes) -> Message:
    """The message. Raises Malformed."""
    match _to_list(_read_untrusted(data)):
        case [type_, epoch, listener_epoch, number, answered, kind, body] if _is(type_, _COMMAND):
            return Command(
                _to_epoch(epoch),
                _to_epoch(listener_epoch),
                _to_int64(number),
                _to_int64(answered),
                _kind_untrusted(_COMMAND_OF_NUMBER, kind).decode(body),
            )
        case [type_, epoch, speaker_epoch, number, kind, body] if _is(type_, _REPLY):
            return Reply(
                _to_epoch(epoch),
                _to_epoch(speaker_epoch),
                _to_int64(number),
                _kind_untrusted(_ANSWER_OF_NUMBER, kind).decode(body),
            )
        case [type_, epoch] if _is(type_, _HELLO):
            return Hello(_to_epoch(epoch))
        case [type_, epoch, speaker_epoch] if _is(type_, _WELCOME):
            return Welcome(_to_epoch(epoch), _to_number(speaker_epoch, NOT_HEARD_OF, _INT32_MAX))
        case items:
            raise Malformed(f"{_shown(items)}, which is no message")


def _read_untrusted(data: bytes) -> object:
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


def _is(item: object, type_: int) -> bool:
    return type(item) is int and item == type_


def _refuse_tag(*_: object) -> object:
    raise ValueError("a tag")


class _NoTags(dict[int, Callable[..., object]]):
    """In place of the decoders of tags: one that refuses, for every tag."""

    def __missing__(self, _tag: int) -> Callable[..., object]:
        return _refuse_tag


_NO_TAGS = _NoTags()


def _kind_untrusted(kinds: Mapping[int, _Kind], number: object) -> _Kind:
    kind = kinds.get(number) if type(number) is int else None
    if kind is None:
        raise Malformed(f"{_shown(number)} in place of a kind of body")
    return kind


# Parts of bodies. `_to_…` takes what was read, and raises Malformed.


def _shown(item: object) -> str:
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


def _to_fields(item: object, count: int, of_what: str) -> list[object]:
    fields = _to_list(item)
    if len(fields) != count:
        raise Malformed(f"{_shown(item)} in place of the {count} fields of {of_what}")
    return fields


def _to_list(item: object) -> list[object]:
    if type(item) is not list:
        raise Malformed(f"{_shown(item)} in place of an array")
    return cast("list[object]", item)


def _to_number(item: object, low: int, high: int) -> int:
    if type(item) is not int or not low <= item <= high:
        raise Malformed(f"{_shown(item)} in place of a number from {low} to {high}")
    return item


def _to_int64(item: object) -> int:
    return _to_number(item, 0, _INT64_MAX)


def _to_epoch(item: object) -> int:
    """Of a leader or a shard."""
    return _to_number(item, 0, _INT32_MAX)


def _to_bool(item: object) -> bool:
    if type(item) is not bool:
        raise Malformed(f"{_shown(item)} in place of true or false")
    return item


def _to_text(item: object) -> str:
    if type(item) is not str:
        raise Malformed(f"{_shown(item)} in place of a text")
    return item


def _reason(reason: str) -> str:
    """A reason may name a file, and a file's name need not be UTF-8; it is for people, so it need not be exact."""
    return reason if reason.isascii() else reason.encode(errors="backslashreplace").decode()


_log = lru_cache(LOGS_REMEMBERED)(str)


@lru_cache(LOGS_REMEMBERED)
def _to_log_of_text(text: str) -> LogId:
    if _LOG.fullmatch(text) is None:
        raise Malformed(f"{_shown(text)} in place of a log")
    log = LogId.parse(text)
    _to_number(log.partition, 0, _INT32_MAX)
    return log


def _to_log(item: object) -> LogId:
    return _to_log_of_text(_to_text(item))


def _logs(logs: tuple[LogId, ...]) -> object:
    return [_log(log) for log in logs]


def _to_logs(item: object) -> tuple[LogId, ...]:
    return tuple([_to_log(log) for log in _to_list(item)])


def _to_by_log(item: object, to_value: Callable[[object], _Value]) -> dict[LogId, _Value]:
    if type(item) is not dict:
        raise Malformed(f"{_shown(item)} in place of a map")
    return {_to_log(log): to_value(value) for log, value in cast("dict[object, object]", item).items()}


def _epochs(epochs: Mapping[LogId, LeaderEpoch]) -> object:
    return {_log(log): epoch for log, epoch in epochs.items()}


def _to_epochs(item: object) -> dict[LogId, LeaderEpoch]:
    return {log: LeaderEpoch(epoch) for log, epoch in _to_by_log(item, _to_epoch).items()}


def _reasons(reasons: Mapping[LogId, str]) -> object:
    return {_log(log): _reason(reason) for log, reason in reasons.items()}


def _to_reasons(item: object) -> dict[LogId, str]:
    return _to_by_log(item, _to_text)


def _expected(expected: Mapping[LogId, Expected]) -> object:
    return {_log(log): (each.leader_epoch, each.records) for log, each in expected.items()}


def _to_expected(item: object) -> dict[LogId, Expected]:
    return _to_by_log(item, _to_one_expected)


def _to_one_expected(item: object) -> Expected:
    epoch, records = _to_fields(item, 2, "what a log must hold")
    return Expected(LeaderEpoch(_to_epoch(epoch)), _to_number(records, UNCOUNTED, _INT64_MAX))


def _txid(txid: TxId) -> object:
    return [*txid]  # cbor2 takes three times as long for a named tuple


def _to_txid(item: object) -> TxId:
    producer_id, epoch, number = _to_fields(item, 3, "a transaction's id")
    return TxId(ProducerId(_to_int64(producer_id)), ProducerEpoch(_to_number(epoch, 0, _INT16_MAX)), _to_int64(number))


def _to_by_txid(item: object, to_value: Callable[[object], _Value]) -> dict[TxId, _Value]:
    """From an array of pairs: the keys of maps are texts."""
    pairs = [_to_fields(pair, 2, "a transaction's entry") for pair in _to_list(item)]
    found = {_to_txid(txid): to_value(value) for txid, value in pairs}
    if len(found) < len(pairs):
        raise Malformed("a transaction that is there twice")
    return found


# Bodies of commands.


def _begin(message: Begin) -> object:
    return _txid(message.txid), _logs(message.logs)


def _to_begin(item: object) -> Begin:
    txid, logs = _to_fields(item, 2, "Begin")
    return Begin(_to_txid(txid), _to_logs(logs))


def _resume(command: Resume) -> object:
    return _txid(command.txid), _epochs(command.logs)


def _to_resume(item: object) -> Resume:
    txid, logs = _to_fields(item, 2, "Resume")
    return Resume(_to_txid(txid), _to_epochs(logs))


def _prepare_all(command: PrepareAll) -> object:
    return [
        (
            _txid(message.txid),
            _epochs(message.logs),
            None if message.expected is None else _expected(message.expected),
            message.only_closes,
        )
        for message in command.messages
    ]


def _to_prepare_all(item: object) -> PrepareAll:
    return PrepareAll(tuple([_to_prepare(message) for message in _to_list(item)]))


def _to_prepare(item: object) -> Prepare:
    txid, logs, expected, only_closes = _to_fields(item, 4, "Prepare")
    return Prepare(
        _to_txid(txid),
        _to_epochs(logs),
        None if expected is None else _to_expected(expected),
        _to_bool(only_closes),
    )


def _apply_all(command: ApplyAll) -> object:
    return [
        (_txid(message.txid), _logs(message.logs), message.timestamp_ms, message.group) for message in command.messages
    ]


def _to_apply_all(item: object) -> ApplyAll:
    return ApplyAll(tuple([_to_apply(message) for message in _to_list(item)]))


def _to_apply(item: object) -> ApplyCommit:
    txid, logs, timestamp_ms, group = _to_fields(item, 4, "ApplyCommit")
    return ApplyCommit(_to_txid(txid), _to_logs(logs), _to_int64(timestamp_ms), _to_text(group))


def _discard(message: DiscardTransaction) -> object:
    return _txid(message.txid), _logs(message.logs)


def _to_discard(item: object) -> DiscardTransaction:
    txid, logs = _to_fields(item, 2, "DiscardTransaction")
    return DiscardTransaction(_to_txid(txid), _to_logs(logs))


def _said_all(command: SaidAll) -> object:
    undecided = [(_txid(txid), (_epochs(logs), is_closed)) for txid, (logs, is_closed) in command.undecided.items()]
    return command.listener_epoch, undecided


def _to_said_all(item: object) -> SaidAll:
    listener_epoch, undecided = _to_fields(item, 2, "SaidAll")
    return SaidAll(_to_epoch(listener_epoch), _to_by_txid(undecided, _to_undecided))


def _to_undecided(item: object) -> Undecided:
    logs, is_closed = _to_fields(item, 2, "an undecided transaction")
    return Undecided(_to_epochs(logs), _to_bool(is_closed))


def _await_ends(question: AwaitEnds) -> object:
    return None if question.logs is None else _logs(question.logs)


def _to_await_ends(item: object) -> AwaitEnds:
    return AwaitEnds(None if item is None else _to_logs(item))


def _question(question: CutLogs | TakeCut) -> object:
    return _logs(question.logs)


def _to_cut_logs(item: object) -> CutLogs:
    return CutLogs(_to_logs(item))


def _to_take_cut(item: object) -> TakeCut:
    return TakeCut(_to_logs(item))


def _hold(command: Hold | Release) -> object:
    return command.number


def _to_hold(item: object) -> Hold:
    return Hold(_to_int64(item))


def _to_release(item: object) -> Release:
    return Release(_to_int64(item))


def _keep_cut(_: KeepCut) -> object:
    return None


def _to_keep_cut(item: object) -> KeepCut:
    _to_nothing(item)
    return KeepCut()


def _note_ends(command: NoteEnds) -> object:
    return command.hold


def _to_note_ends(item: object) -> NoteEnds:
    return NoteEnds(_to_int64(item))


def _keep_ends(command: KeepEnds) -> object:
    return command.hold, command.number


def _to_keep_ends(item: object) -> KeepEnds:
    hold, number = _to_fields(item, 2, "KeepEnds")
    return KeepEnds(_to_int64(hold), _to_int64(number))


def _find_cuts(question: FindCuts) -> object:
    return {_log(log): start for log, start in question.starts.items()}


def _to_find_cuts(item: object) -> FindCuts:
    return FindCuts(_to_by_log(item, _to_one_offset))


def _to_one_offset(item: object) -> Offset:
    return Offset(_to_int64(item))


def _find_ends(question: FindEnds) -> object:
    return question.number, _logs(question.logs), question.common


def _to_find_ends(item: object) -> FindEnds:
    number, logs, common = _to_fields(item, 3, "FindEnds")
    return FindEnds(_to_int64(number), _to_logs(logs), _to_bool(common))


def _write_offsets(command: WriteOffsets) -> object:
    return (
        command.listener_epoch,
        command.group,
        command.transactional_id,
        command.producer_id,
        command.producer_epoch,
        command.offsets,
    )


def _to_write_offsets(item: object) -> WriteOffsets:
    listener_epoch, group, transactional_id, producer_id, epoch, offsets = _to_fields(item, 6, "WriteOffsets")
    return WriteOffsets(
        _to_epoch(listener_epoch),
        _to_text(group),
        _to_text(transactional_id),
        ProducerId(_to_int64(producer_id)),
        ProducerEpoch(_to_number(epoch, 0, _INT16_MAX)),
        tuple([_to_offset(each) for each in _to_list(offsets)]),
    )


def _to_offset(item: object) -> tuple[str, int, int]:
    topic, partition, offset = _to_fields(item, 3, "a group's offset")
    text = _to_text(topic)
    if _TOPIC_ID.fullmatch(text) is None:
        raise Malformed(f"{_shown(text)} in place of a topic's id")
    return text, _to_number(partition, 0, _INT32_MAX), _to_int64(offset)


def _add_log(command: AddLog) -> object:
    return command.transactional_id, command.producer_id, command.producer_epoch, _log(command.log)


def _to_add_log(item: object) -> AddLog:
    transactional_id, producer_id, epoch, log = _to_fields(item, 4, "AddLog")
    return AddLog(
        _to_text(transactional_id),
        ProducerId(_to_int64(producer_id)),
        ProducerEpoch(_to_number(epoch, 0, _INT16_MAX)),
        _to_log(log),
    )


# Bodies of replies.


def _nothing(_: None) -> object:
    return None


def _to_nothing(item: object) -> None:
    if item is not None:
        raise Malformed(f"{_shown(item)} in place of null")


def _begun(begun: Begun) -> object:
    return _epochs(begun.leader_epochs), _reasons(begun.refused)


def _to_begun(item: object) -> Begun:
    epochs, refused = _to_fields(item, 2, "Begun")
    return Begun(_to_epochs(epochs), _to_reasons(refused))


def _resumed(resumed: Resumed) -> object:
    return _epochs(resumed.leader_epochs), _reasons(resumed.lost)


def _to_resumed(item: object) -> Resumed:
    epochs, lost = _to_fields(item, 2, "Resumed")
    return Resumed(_to_epochs(epochs), _to_reasons(lost))


def _prepared(prepared: Prepared) -> object:
    return (
        _reasons(prepared.refused),
        _reasons(prepared.gone),
        [(_txid(txid), _expected(counts)) for txid, counts in prepared.counts.items()],
    )


def _to_prepared(item: object) -> Prepared:
    refused, gone, counts = _to_fields(item, 3, "Prepared")
    return Prepared(_to_reasons(refused), _to_reasons(gone), _to_by_txid(counts, _to_expected))


def _applied(applied: tuple[Applied, ...]) -> object:
    return [[(_log(place.log), place.base_offset, place.count) for place in each.placements] for each in applied]


def _to_applied(item: object) -> tuple[Applied, ...]:
    return tuple([Applied(tuple([_to_placement(place) for place in _to_list(each)])) for each in _to_list(item)])


def _to_placement(item: object) -> Placement:
    log, base_offset, count = _to_fields(item, 3, "a place")
    return Placement(_to_log(log), Offset(_to_int64(base_offset)), _to_int64(count))


def _failed(failed: Failed) -> object:
    return _reason(failed.reason)


def _to_failed(item: object) -> Failed:
    return Failed(_to_text(item))


def _held(held: Held) -> object:
    return held.is_held


def _to_held(item: object) -> Held:
    return Held(_to_bool(item))


def _cuts(cuts: Cuts) -> object:
    return {_log(log): [*cut] for log, cut in cuts.by_log.items()}


def _to_cuts(item: object) -> Cuts:
    return Cuts(_to_by_log(item, _to_cut))


def _to_cut(item: object) -> LogCut:
    log_start, end, readable_end = _to_fields(item, 3, "a log's part of a cut")
    return LogCut(Offset(_to_int64(log_start)), Offset(_to_int64(end)), Offset(_to_int64(readable_end)))


def _noted(noted: Noted) -> object:
    return noted.newest


def _to_noted(item: object) -> Noted:
    return Noted(_to_int64(item))


def _cuts_of(answer: CutsOf) -> object:
    known = answer.known
    at_oldest = known.at_oldest_common
    by_log = {_log(log): (*_log_cuts(known.by_log[log]), at_oldest.get(log), *cut) for log, cut in answer.now.items()}
    return known.oldest_common, known.newest, known.newest_own, by_log


def _log_cuts(cuts: LogCuts) -> tuple[object, ...]:
    return cuts.start, cuts.end, _row(cuts.oldest), _row(cuts.newest)


def _row(row: Cut | None) -> object:
    return None if row is None else [*row]


def _to_cuts_of(item: object) -> CutsOf:
    oldest_common, newest, newest_own, logs = _to_fields(item, 4, "what a shard knows of cuts")
    by_log = _to_by_log(logs, _to_log_cuts)
    known = KnownCuts(
        _to_int64(oldest_common),
        _to_int64(newest),
        _to_int64(newest_own),
        {log: cuts for log, (cuts, _, _) in by_log.items()},
        {log: end for log, (_, end, _) in by_log.items() if end is not None},
    )
    return CutsOf(known, {log: now for log, (_, _, now) in by_log.items()})


def _to_log_cuts(item: object) -> tuple[LogCuts, Offset | None, LogCut]:
    start, end, oldest, newest, at_oldest, *now = _to_fields(item, 8, "what a shard knows of a log's cuts")
    cuts = LogCuts(Offset(_to_int64(start)), Offset(_to_int64(end)), _to_row(oldest), _to_row(newest))
    return cuts, None if at_oldest is None else _to_one_offset(at_oldest), _to_cut(now)


def _to_row(item: object) -> Cut | None:
    if item is None:
        return None
    number, end = _to_fields(item, 2, "a row of the cut index")
    return Cut(_to_int64(number), Offset(_to_int64(end)))


def _ends_at(answer: EndsAtCut) -> object:
    return answer.number, {_log(log): end for log, end in answer.by_log.items()}


def _to_ends_at(item: object) -> EndsAtCut:
    number, by_log = _to_fields(item, 2, "where logs ended at a cut")
    return EndsAtCut(_to_int64(number), _to_by_log(by_log, _to_one_offset))


def _no_cut(none: NoCut) -> object:
    return _reason(none.reason)


def _to_no_cut(item: object) -> NoCut:
    return NoCut(_to_text(item))


def _offsets_refused(refused: OffsetsRefused) -> object:
    return refused.why.value, _reason(refused.reason)


def _to_offsets_refused(item: object) -> OffsetsRefused:
    why, reason = _to_fields(item, 2, "OffsetsRefused")
    return OffsetsRefused(WhyNotWritten(_to_number(why, 0, len(WhyNotWritten) - 1)), _to_text(reason))


_REFUSALS = (
    Refusal.UNKNOWN_PRODUCER_ID_MAPPING,
    Refusal.FENCED,
    Refusal.WRONG_STATE,
    Refusal.CONCURRENT,
    Refusal.MUST_ABORT,
    Refusal.LATE,
    Refusal.UNKNOWN_LOG,
    Refusal.STORAGE,
    Refusal.STORAGE_EFFECT_UNKNOWN,
    Refusal.NOT_JOINED,
    Refusal.LANE,
    Refusal.OUTCOME_LOST,
    Refusal.BAD_TIMEOUT,
    Refusal.BAD_REQUEST,
    Refusal.NO_TWO_PHASE_COMMIT,
    Refusal.STOPPING,
)
"""In the order of their numbers, from 0 on."""


def _log_added(added: LogAdded) -> object:
    return None if added.refusal is None else _REFUSALS.index(added.refusal)


def _to_log_added(item: object) -> LogAdded:
    return LogAdded(None if item is None else _REFUSALS[_to_number(item, 0, len(_REFUSALS) - 1)])


_COMMANDS = (
    _Kind(1, Begin, _begin, _to_begin),
    _Kind(2, Resume, _resume, _to_resume),
    _Kind(3, PrepareAll, _prepare_all, _to_prepare_all),
    _Kind(4, ApplyAll, _apply_all, _to_apply_all),
    _Kind(5, DiscardTransaction, _discard, _to_discard),
    _Kind(6, SaidAll, _said_all, _to_said_all),
    _Kind(7, AwaitEnds, _await_ends, _to_await_ends),
    _Kind(8, Hold, _hold, _to_hold),
    _Kind(9, CutLogs, _question, _to_cut_logs),
    _Kind(10, Release, _hold, _to_release),
    _Kind(11, TakeCut, _question, _to_take_cut),
    _Kind(12, WriteOffsets, _write_offsets, _to_write_offsets),
    _Kind(13, AddLog, _add_log, _to_add_log),
    _Kind(14, KeepCut, _keep_cut, _to_keep_cut),
    _Kind(15, NoteEnds, _note_ends, _to_note_ends),
    _Kind(16, KeepEnds, _keep_ends, _to_keep_ends),
    _Kind(17, FindCuts, _find_cuts, _to_find_cuts),
    _Kind(18, FindEnds, _find_ends, _to_find_ends),
)

_ANSWERS = (
    _Kind(0, type(None), _nothing, _to_nothing),
    _Kind(1, Begun, _begun, _to_begun),
    _Kind(2, Resumed, _resumed, _to_resumed),
    _Kind(3, Prepared, _prepared, _to_prepared),
    _Kind(4, tuple, _applied, _to_applied),
    _Kind(5, Failed, _failed, _to_failed),
    _Kind(6, Held, _held, _to_held),
    _Kind(7, Cuts, _cuts, _to_cuts),
    _Kind(8, NoCut, _no_cut, _to_no_cut),
    _Kind(9, OffsetsRefused, _offsets_refused, _to_offsets_refused),
    _Kind(10, LogAdded, _log_added, _to_log_added),
    _Kind(11, Noted, _noted, _to_noted),
    _Kind(12, CutsOf, _cuts_of, _to_cuts_of),
    _Kind(13, EndsAtCut, _ends_at, _to_ends_at),
)

_COMMAND_OF_TYPE = {kind.type: kind for kind in _COMMANDS}
_COMMAND_OF_NUMBER = {kind.number: kind for kind in _COMMANDS}
_ANSWER_OF_TYPE = {kind.type: kind for kind in _ANSWERS}
_ANSWER_OF_NUMBER = {kind.number: kind for kind in _ANSWERS}
