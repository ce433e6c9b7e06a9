"""The bodies of messages about cuts (`shard.cut_messages`) as CBOR items, and back.

Does no I/O.
"""

from __future__ import annotations

from datalog.cuts import Cut, EndsAtCut, KnownCuts, LogCuts
from fairlog.interbroker.fields import (
    Kind,
    of_log,
    of_logs,
    of_reason,
    to_bool,
    to_by_log,
    to_fields,
    to_int64,
    to_logs,
    to_nothing,
    to_offset,
    to_text,
)
from fairlog_types import Offset
from partition.answers import LogCut
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


def _await_ends(question: AwaitEnds) -> object:
    return None if question.logs is None else of_logs(question.logs)


def _to_await_ends(item: object) -> AwaitEnds:
    return AwaitEnds(None if item is None else to_logs(item))


def _question(question: CutLogs | TakeCut) -> object:
    return of_logs(question.logs)


def _to_cut_logs(item: object) -> CutLogs:
    return CutLogs(to_logs(item))


def _to_take_cut(item: object) -> TakeCut:
    return TakeCut(to_logs(item))


def _hold(command: Hold | Release) -> object:
    return command.number


def _to_hold(item: object) -> Hold:
    return Hold(to_int64(item))


def _to_release(item: object) -> Release:
    return Release(to_int64(item))


def _keep_cut(_: KeepCut) -> object:
    return None


def _to_keep_cut(item: object) -> KeepCut:
    to_nothing(item)
    return KeepCut()


def _note_ends(command: NoteEnds) -> object:
    return command.hold


def _to_note_ends(item: object) -> NoteEnds:
    return NoteEnds(to_int64(item))


def _keep_ends(command: KeepEnds) -> object:
    return command.hold, command.number


def _to_keep_ends(item: object) -> KeepEnds:
    hold, number = to_fields(item, 2, "KeepEnds")
    return KeepEnds(to_int64(hold), to_int64(number))


def _find_cuts(question: FindCuts) -> object:
    return {of_log(log): start for log, start in question.starts.items()}


def _to_find_cuts(item: object) -> FindCuts:
    return FindCuts(to_by_log(item, to_offset))


def _find_ends(question: FindEnds) -> object:
    return question.number, of_logs(question.logs), question.common


def _to_find_ends(item: object) -> FindEnds:
    number, logs, common = to_fields(item, 3, "FindEnds")
    return FindEnds(to_int64(number), to_logs(logs), to_bool(common))


def _held(held: Held) -> object:
    return held.is_held


def _to_held(item: object) -> Held:
    return Held(to_bool(item))


def _cuts(cuts: Cuts) -> object:
    return {of_log(log): [*cut] for log, cut in cuts.by_log.items()}


def _to_cuts(item: object) -> Cuts:
    return Cuts(to_by_log(item, _to_cut))


def _to_cut(item: object) -> LogCut:
    log_start, end, readable_end = to_fields(item, 3, "a log's part of a cut")
    return LogCut(Offset(to_int64(log_start)), Offset(to_int64(end)), Offset(to_int64(readable_end)))


def _noted(noted: Noted) -> object:
    return noted.newest


def _to_noted(item: object) -> Noted:
    return Noted(to_int64(item))


def _cuts_of(answer: CutsOf) -> object:
    known = answer.known
    at_oldest = known.at_oldest_common
    by_log = {of_log(log): (*_log_cuts(known.by_log[log]), at_oldest.get(log), *cut) for log, cut in answer.now.items()}
    return known.oldest_common, known.newest, known.newest_own, by_log


def _log_cuts(cuts: LogCuts) -> tuple[object, ...]:
    return cuts.start, cuts.end, _row(cuts.oldest), _row(cuts.newest)


def _row(row: Cut | None) -> object:
    return None if row is None else [*row]


def _to_cuts_of(item: object) -> CutsOf:
    oldest_common, newest, newest_own, logs = to_fields(item, 4, "what a shard knows of cuts")
    by_log = to_by_log(logs, _to_log_cuts)
    known = KnownCuts(
        to_int64(oldest_common),
        to_int64(newest),
        to_int64(newest_own),
        {log: cuts for log, (cuts, _, _) in by_log.items()},
        {log: end for log, (_, end, _) in by_log.items() if end is not None},
    )
    return CutsOf(known, {log: now for log, (_, _, now) in by_log.items()})


def _to_log_cuts(item: object) -> tuple[LogCuts, Offset | None, LogCut]:
    start, end, oldest, newest, at_oldest, *now = to_fields(item, 8, "what a shard knows of a log's cuts")
    cuts = LogCuts(Offset(to_int64(start)), Offset(to_int64(end)), _to_row(oldest), _to_row(newest))
    return cuts, None if at_oldest is None else to_offset(at_oldest), _to_cut(now)


def _to_row(item: object) -> Cut | None:
    if item is None:
        return None
    number, end = to_fields(item, 2, "a row of the cut index")
    return Cut(to_int64(number), Offset(to_int64(end)))


def _ends_at(answer: EndsAtCut) -> object:
    return answer.number, {of_log(log): end for log, end in answer.by_log.items()}


def _to_ends_at(item: object) -> EndsAtCut:
    number, by_log = to_fields(item, 2, "where logs ended at a cut")
    return EndsAtCut(to_int64(number), to_by_log(by_log, to_offset))


def _no_cut(none: NoCut) -> object:
    return of_reason(none.reason)


def _to_no_cut(item: object) -> NoCut:
    return NoCut(to_text(item))


CUT_COMMANDS = (
    Kind(7, AwaitEnds, _await_ends, _to_await_ends),
    Kind(8, Hold, _hold, _to_hold),
    Kind(9, CutLogs, _question, _to_cut_logs),
    Kind(10, Release, _hold, _to_release),
    Kind(11, TakeCut, _question, _to_take_cut),
    Kind(14, KeepCut, _keep_cut, _to_keep_cut),
    Kind(15, NoteEnds, _note_ends, _to_note_ends),
    Kind(16, KeepEnds, _keep_ends, _to_keep_ends),
    Kind(17, FindCuts, _find_cuts, _to_find_cuts),
    Kind(18, FindEnds, _find_ends, _to_find_ends),
)

CUT_ANSWERS = (
    Kind(6, Held, _held, _to_held),
    Kind(7, Cuts, _cuts, _to_cuts),
    Kind(8, NoCut, _no_cut, _to_no_cut),
    Kind(11, Noted, _noted, _to_noted),
    Kind(12, CutsOf, _cuts_of, _to_cuts_of),
    Kind(13, EndsAtCut, _ends_at, _to_ends_at),
)
