"""Messages between shards as CBOR, and back. The page docs/formats/interbroker.md has the table of all of them.

A message is an array: its type, its numbers, and for commands and replies the *kind* of the body and the body.
`_COMMANDS` and `_ANSWERS` are the kinds: a new one is a line there, or in `cut_bodies` if it is about cuts. What bodies
are made of is in `fields`. What is not exactly as the page says is Malformed.

Does no I/O.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

import cbor2

from coordinator.answers import Refusal
from coordinator.messages import (
    Applied,
    ApplyCommit,
    Begin,
    Begun,
    DiscardTransaction,
    Prepare,
    Prepared,
    Resume,
    Resumed,
    Undecided,
)
from fairlog.edge.malformed import Malformed
from fairlog.interbroker.cut_bodies import CUT_ANSWERS, CUT_COMMANDS
from fairlog.interbroker.fields import (
    INT16_MAX,
    INT32_MAX,
    Kind,
    of_epochs,
    of_expected,
    of_log,
    of_logs,
    of_nothing,
    of_reason,
    of_reasons,
    of_txid,
    read_untrusted,
    shown,
    to_bool,
    to_by_log,
    to_by_txid,
    to_epoch,
    to_epochs,
    to_expected,
    to_fields,
    to_int64,
    to_list,
    to_log,
    to_logs,
    to_nothing,
    to_number,
    to_offset,
    to_reasons,
    to_text,
    to_txid,
)
from fairlog_types import Offset, Placement, ProducerEpoch, ProducerId
from shard.adding import AddLog, LogAdded
from shard.commands import ApplyAll, Failed, PrepareAll, SaidAll
from shard.conversation import NOT_HEARD_OF, Command, Hello, Message, Reply, Welcome
from shard.high_watermarks import FindHighWatermarks, HighWatermarks
from shard.offset_messages import OffsetsRefused, WhyNotWritten, WriteOffsets

MESSAGE_BYTES_MAX = 16 << 20
"""A command about 300,000 logs. What is larger is neither sent nor read."""

_HELLO, _WELCOME, _COMMAND, _REPLY = range(4)

_TOPIC_ID = re.compile(r"[0-9a-f]{32}", re.ASCII)


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
    match to_list(read_untrusted(data)):
        case [type_, epoch, listener_epoch, number, answered, kind, body] if _is(type_, _COMMAND):
            return Command(
                to_epoch(epoch),
                to_epoch(listener_epoch),
                to_int64(number),
                to_int64(answered),
                _kind_untrusted(_COMMAND_OF_NUMBER, kind).decode(body),
            )
        case [type_, epoch, speaker_epoch, number, kind, body] if _is(type_, _REPLY):
            return Reply(
                to_epoch(epoch),
                to_epoch(speaker_epoch),
                to_int64(number),
                _kind_untrusted(_ANSWER_OF_NUMBER, kind).decode(body),
            )
        case [type_, epoch] if _is(type_, _HELLO):
            return Hello(to_epoch(epoch))
        case [type_, epoch, speaker_epoch] if _is(type_, _WELCOME):
            return Welcome(to_epoch(epoch), to_number(speaker_epoch, NOT_HEARD_OF, INT32_MAX))
        case items:
            raise Malformed(f"{shown(items)}, which is no message")


def _is(item: object, type_: int) -> bool:
    return type(item) is int and item == type_


def _kind_untrusted(kinds: Mapping[int, Kind], number: object) -> Kind:
    kind = kinds.get(number) if type(number) is int else None
    if kind is None:
        raise Malformed(f"{shown(number)} in place of a kind of body")
    return kind


# Bodies of commands.


def _begin(message: Begin) -> object:
    return of_txid(message.txid), of_logs(message.logs)


def _to_begin(item: object) -> Begin:
    txid, logs = to_fields(item, 2, "Begin")
    return Begin(to_txid(txid), to_logs(logs))


def _resume(command: Resume) -> object:
    return of_txid(command.txid), of_epochs(command.logs)


def _to_resume(item: object) -> Resume:
    txid, logs = to_fields(item, 2, "Resume")
    return Resume(to_txid(txid), to_epochs(logs))


def _prepare_all(command: PrepareAll) -> object:
    return [
        (
            of_txid(message.txid),
            of_epochs(message.logs),
            None if message.expected is None else of_expected(message.expected),
            message.only_closes,
        )
        for message in command.messages
    ]


def _to_prepare_all(item: object) -> PrepareAll:
    return PrepareAll(tuple([_to_prepare(message) for message in to_list(item)]))


def _to_prepare(item: object) -> Prepare:
    txid, logs, expected, only_closes = to_fields(item, 4, "Prepare")
    return Prepare(
        to_txid(txid),
        to_epochs(logs),
        None if expected is None else to_expected(expected),
        to_bool(only_closes),
    )


def _apply_all(command: ApplyAll) -> object:
    return [
        (of_txid(message.txid), of_logs(message.logs), message.timestamp_ms, message.group)
        for message in command.messages
    ]


def _to_apply_all(item: object) -> ApplyAll:
    return ApplyAll(tuple([_to_apply(message) for message in to_list(item)]))


def _to_apply(item: object) -> ApplyCommit:
    txid, logs, timestamp_ms, group = to_fields(item, 4, "ApplyCommit")
    return ApplyCommit(to_txid(txid), to_logs(logs), to_int64(timestamp_ms), to_text(group))


def _discard(message: DiscardTransaction) -> object:
    return of_txid(message.txid), of_logs(message.logs)


def _to_discard(item: object) -> DiscardTransaction:
    txid, logs = to_fields(item, 2, "DiscardTransaction")
    return DiscardTransaction(to_txid(txid), to_logs(logs))


def _said_all(command: SaidAll) -> object:
    undecided = [(of_txid(txid), (of_epochs(logs), is_closed)) for txid, (logs, is_closed) in command.undecided.items()]
    return command.listener_epoch, undecided


def _to_said_all(item: object) -> SaidAll:
    listener_epoch, undecided = to_fields(item, 2, "SaidAll")
    return SaidAll(to_epoch(listener_epoch), to_by_txid(undecided, _to_undecided))


def _to_undecided(item: object) -> Undecided:
    logs, is_closed = to_fields(item, 2, "an undecided transaction")
    return Undecided(to_epochs(logs), to_bool(is_closed))


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
    listener_epoch, group, transactional_id, producer_id, epoch, offsets = to_fields(item, 6, "WriteOffsets")
    return WriteOffsets(
        to_epoch(listener_epoch),
        to_text(group),
        to_text(transactional_id),
        ProducerId(to_int64(producer_id)),
        ProducerEpoch(to_number(epoch, 0, INT16_MAX)),
        tuple([_to_offset(each) for each in to_list(offsets)]),
    )


def _to_offset(item: object) -> tuple[str, int, int]:
    topic, partition, offset = to_fields(item, 3, "a group's offset")
    text = to_text(topic)
    if _TOPIC_ID.fullmatch(text) is None:
        raise Malformed(f"{shown(text)} in place of a topic's id")
    return text, to_number(partition, 0, INT32_MAX), to_int64(offset)


def _add_log(command: AddLog) -> object:
    return command.transactional_id, command.producer_id, command.producer_epoch, of_log(command.log)


def _to_add_log(item: object) -> AddLog:
    transactional_id, producer_id, epoch, log = to_fields(item, 4, "AddLog")
    return AddLog(
        to_text(transactional_id),
        ProducerId(to_int64(producer_id)),
        ProducerEpoch(to_number(epoch, 0, INT16_MAX)),
        to_log(log),
    )


def _find_high_watermarks(command: FindHighWatermarks) -> object:
    return of_logs(command.logs)


def _to_find_high_watermarks(item: object) -> FindHighWatermarks:
    return FindHighWatermarks(to_logs(item))


# Bodies of replies.


def _begun(begun: Begun) -> object:
    return of_epochs(begun.leader_epochs), of_reasons(begun.refused)


def _to_begun(item: object) -> Begun:
    epochs, refused = to_fields(item, 2, "Begun")
    return Begun(to_epochs(epochs), to_reasons(refused))


def _resumed(resumed: Resumed) -> object:
    return of_epochs(resumed.leader_epochs), of_reasons(resumed.lost)


def _to_resumed(item: object) -> Resumed:
    epochs, lost = to_fields(item, 2, "Resumed")
    return Resumed(to_epochs(epochs), to_reasons(lost))


def _prepared(prepared: Prepared) -> object:
    return (
        of_reasons(prepared.refused),
        of_reasons(prepared.gone),
        [(of_txid(txid), of_expected(counts)) for txid, counts in prepared.counts.items()],
    )


def _to_prepared(item: object) -> Prepared:
    refused, gone, counts = to_fields(item, 3, "Prepared")
    return Prepared(to_reasons(refused), to_reasons(gone), to_by_txid(counts, to_expected))


def _applied(applied: tuple[Applied, ...]) -> object:
    return [[(of_log(place.log), place.base_offset, place.count) for place in each.placements] for each in applied]


def _to_applied(item: object) -> tuple[Applied, ...]:
    return tuple([Applied(tuple([_to_placement(place) for place in to_list(each)])) for each in to_list(item)])


def _to_placement(item: object) -> Placement:
    log, base_offset, count = to_fields(item, 3, "a place")
    return Placement(to_log(log), Offset(to_int64(base_offset)), to_int64(count))


def _failed(failed: Failed) -> object:
    return of_reason(failed.reason)


def _to_failed(item: object) -> Failed:
    return Failed(to_text(item))


def _offsets_refused(refused: OffsetsRefused) -> object:
    return refused.why.value, of_reason(refused.reason)


def _to_offsets_refused(item: object) -> OffsetsRefused:
    why, reason = to_fields(item, 2, "OffsetsRefused")
    return OffsetsRefused(WhyNotWritten(to_number(why, 0, len(WhyNotWritten) - 1)), to_text(reason))


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
    return LogAdded(None if item is None else _REFUSALS[to_number(item, 0, len(_REFUSALS) - 1)])


def _high_watermarks(found: HighWatermarks) -> object:
    return {of_log(log): offset for log, offset in found.by_log.items()}


def _to_high_watermarks(item: object) -> HighWatermarks:
    return HighWatermarks(to_by_log(item, to_offset))


_COMMANDS = (
    Kind(1, Begin, _begin, _to_begin),
    Kind(2, Resume, _resume, _to_resume),
    Kind(3, PrepareAll, _prepare_all, _to_prepare_all),
    Kind(4, ApplyAll, _apply_all, _to_apply_all),
    Kind(5, DiscardTransaction, _discard, _to_discard),
    Kind(6, SaidAll, _said_all, _to_said_all),
    Kind(12, WriteOffsets, _write_offsets, _to_write_offsets),
    Kind(13, AddLog, _add_log, _to_add_log),
    Kind(19, FindHighWatermarks, _find_high_watermarks, _to_find_high_watermarks),
    *CUT_COMMANDS,
)

_ANSWERS = (
    Kind(0, type(None), of_nothing, to_nothing),
    Kind(1, Begun, _begun, _to_begun),
    Kind(2, Resumed, _resumed, _to_resumed),
    Kind(3, Prepared, _prepared, _to_prepared),
    Kind(4, tuple, _applied, _to_applied),
    Kind(5, Failed, _failed, _to_failed),
    Kind(9, OffsetsRefused, _offsets_refused, _to_offsets_refused),
    Kind(10, LogAdded, _log_added, _to_log_added),
    Kind(14, HighWatermarks, _high_watermarks, _to_high_watermarks),
    *CUT_ANSWERS,
)

_COMMAND_OF_TYPE = {kind.type: kind for kind in _COMMANDS}
_COMMAND_OF_NUMBER = {kind.number: kind for kind in _COMMANDS}
_ANSWER_OF_TYPE = {kind.type: kind for kind in _ANSWERS}
_ANSWER_OF_NUMBER = {kind.number: kind for kind in _ANSWERS}
