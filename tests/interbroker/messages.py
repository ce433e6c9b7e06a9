"""Messages between shards: one of each kind for the golden file, and any for properties.

python -m tests.interbroker.messages      writes the golden file anew, for what is added to the protocol only
"""

from __future__ import annotations

from pathlib import Path
from uuid import UUID

from hypothesis import strategies as st

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
from fairlog.interbroker.codec import encode
from fairlog.interbroker.handshake import Accepting, Connecting, Identity
from fairlog.interbroker.sealing import Sealer
from fairlog_types import LeaderEpoch, LogId, Offset, Placement, ProducerEpoch, ProducerId, ShardNumber, TxId
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
from shard.high_watermarks import FindHighWatermarks, HighWatermarks
from shard.offset_messages import OffsetsRefused, WhyNotWritten, WriteOffsets

GOLDEN = Path(__file__).resolve().parents[1] / "golden" / "interbroker-2.txt"

LOG = LogId.of_topic(UUID("00112233-4455-6677-8899-aabbccddeeff"), 1)
OFFSETS = LogId.of_offsets(0)
TXID = TxId(ProducerId(7), ProducerEpoch(2), 3)
EPOCH = LeaderEpoch(4)

COMMANDS = (
    Begin(TXID, (LOG, OFFSETS)),
    Resume(TXID, {LOG: EPOCH}),
    PrepareAll((Prepare(TXID, {LOG: EPOCH}), Prepare(TXID, {LOG: EPOCH}, {LOG: Expected(EPOCH, UNCOUNTED)}, True))),
    ApplyAll((ApplyCommit(TXID, (LOG,), 1_763_632_800_000, "orders"),)),
    DiscardTransaction(TXID, (LOG,)),
    SaidAll(4, {TXID: Undecided({LOG: EPOCH}, is_closed=True)}),
    AwaitEnds((LOG, OFFSETS)),
    Hold(9),
    CutLogs((LOG,)),
    Release(9),
    TakeCut((LOG, OFFSETS)),
    WriteOffsets(4, "billing", "fairlog.lane.0.totals", TXID.producer_id, TXID.epoch, ((LOG.topic, 1, 500),)),
    AwaitEnds(None),
    AddLog("transfers", TXID.producer_id, TXID.epoch, LOG),
    KeepCut(),
    NoteEnds(9),
    KeepEnds(9, 40),
    FindCuts({LOG: Offset(100)}),
    FindEnds(20, (LOG,), common=True),
    FindHighWatermarks((LOG, OFFSETS)),
)
ANSWERS = (
    None,
    Begun({LOG: EPOCH}, {OFFSETS: "deleted"}),
    Resumed({LOG: EPOCH}, {OFFSETS: "unknown"}),
    Prepared({LOG: "gone"}, {LOG: "journals/local/x"}, {TXID: {OFFSETS: Expected(EPOCH, 2)}}),
    (Applied((Placement(LOG, Offset(500), 3),)),),
    Failed("the disk is full"),
    Held(True),
    Cuts({LOG: LogCut(Offset(1), Offset(500), Offset(500))}),
    NoCut("not copied yet"),
    OffsetsRefused(WhyNotWritten.GROUP_IN_USE, "the group has members"),
    LogAdded(Refusal.CONCURRENT),
    Noted(39),
    CutsOf(
        KnownCuts(
            8,
            40,
            7,
            {LOG: LogCuts(Offset(100), Offset(500), Cut(0, Offset(0)), Cut(40, Offset(480)))},
            {LOG: Offset(9)},
        ),
        {LOG: LogCut(Offset(1), Offset(500), Offset(500))},
    ),
    EndsAtCut(19, {LOG: Offset(210)}),
    HighWatermarks({LOG: Offset(500)}),
)
EXAMPLES: tuple[Message, ...] = (
    Hello(4),
    Welcome(6, 4),
    *(Command(4, 6, number, number - 1, body) for number, body in enumerate(COMMANDS, start=1)),
    *(Reply(6, 4, number, body) for number, body in enumerate(ANSWERS, start=1)),
)


def golden() -> str:
    """A handshake and a frame of each kind, in hex; what it is stands above it. Last, an answer under the other key."""
    secret = bytes(range(32))
    connecting = Connecting(Identity(ShardNumber(0), "MkU3OEVBNTcwNTJENDM2Qg", secret), ShardNumber(1), b"\x11" * 32)
    accepting = Accepting(Identity(ShardNumber(1), "MkU3OEVBNTcwNTJENDM2Qg", secret), {ShardNumber(0)}, b"\x22" * 32)
    opening = connecting.begin()
    accepting.hear(opening[:6])
    answer = accepting.hear(opening[6:])
    connecting.hear(answer[:6])
    connecting.hear(answer[6:110])
    proof = connecting.hear(answer[110:])
    accepting.hear(proof)
    assert connecting.session_key is not None
    told = [
        *_lines("preamble and introduction of shard 0, which has connected", ">", opening),
        *_lines("preamble, introduction and proof of shard 1", "<", answer),
        *_lines("proof of shard 0", ">", proof),
    ]
    sealer = Sealer(connecting.session_key)
    for message in EXAMPLES:
        told += _lines(repr(message), ">", sealer.seal(encode(message)))
    assert accepting.answer_key is not None
    held = Reply(0, 0, 1, Held(True))
    told += _lines(f"as a tool is answered: {held!r}", "<", Sealer(accepting.answer_key).seal(encode(held)))
    return "\n".join(told) + "\n"


def _lines(what: str, direction: str, data: bytes) -> list[str]:
    rows = [data[at : at + 32].hex(" ") for at in range(0, len(data), 32)]
    return [f"# {what}", *(f"{direction} {row}" for row in rows)]


INT64 = st.integers(0, 2**63 - 1)
EPOCHS = st.integers(0, 2**31 - 1)
PARTITIONS = st.integers(0, 2**31 - 1)
LOGS = st.builds(LogId.of_topic, st.uuids(), PARTITIONS) | st.builds(LogId.of_offsets, PARTITIONS)
TXIDS = st.builds(TxId, INT64, st.integers(0, 2**15 - 1), INT64)
TEXTS = st.text(max_size=20)
LOG_TUPLES = st.lists(LOGS, max_size=3).map(tuple)
EXPECTED = st.dictionaries(LOGS, st.builds(Expected, EPOCHS, st.integers(UNCOUNTED, 2**63 - 1)), max_size=3)
LOG_EPOCHS = st.dictionaries(LOGS, EPOCHS, max_size=3)
REASONS = st.dictionaries(LOGS, TEXTS, max_size=3)
BEGINS = st.builds(Begin, TXIDS, LOG_TUPLES)
PREPARES = st.builds(Prepare, TXIDS, LOG_EPOCHS, st.none() | EXPECTED, st.booleans())
APPLIES = st.builds(ApplyCommit, TXIDS, LOG_TUPLES, INT64, TEXTS)
PLACES = st.builds(Placement, LOGS, INT64, INT64)
OFFSETS_TUPLES = st.lists(st.tuples(st.uuids().map(lambda it: it.hex), PARTITIONS, INT64), max_size=3).map(tuple)
ROWS = st.none() | st.builds(Cut, INT64, INT64)
LOG_OFFSETS = st.dictionaries(LOGS, INT64, max_size=3)


@st.composite
def cuts_of(draw: st.DrawFn) -> CutsOf:
    """What a shard knows, of the same logs in both tables."""
    logs = draw(st.lists(LOGS, max_size=3, unique=True))
    known = {log: draw(st.builds(LogCuts, INT64, INT64, ROWS, ROWS)) for log in logs}
    now = {log: draw(st.builds(LogCut, INT64, INT64, INT64)) for log in logs}
    at_oldest = {log: draw(INT64) for log in logs if draw(st.booleans())}
    return CutsOf(KnownCuts(draw(INT64), draw(INT64), draw(INT64), known, at_oldest), now)


COMMAND_BODIES = st.one_of(
    BEGINS,
    st.builds(Resume, TXIDS, LOG_EPOCHS),
    st.builds(PrepareAll, st.lists(PREPARES, max_size=3).map(tuple)),
    st.builds(ApplyAll, st.lists(APPLIES, max_size=3).map(tuple)),
    st.builds(DiscardTransaction, TXIDS, LOG_TUPLES),
    st.builds(SaidAll, EPOCHS, st.dictionaries(TXIDS, st.builds(Undecided, LOG_EPOCHS, st.booleans()), max_size=3)),
    st.builds(AwaitEnds, st.none() | LOG_TUPLES),
    st.builds(Hold, INT64),
    st.builds(CutLogs, LOG_TUPLES),
    st.builds(Release, INT64),
    st.builds(TakeCut, LOG_TUPLES),
    st.builds(KeepCut),
    st.builds(NoteEnds, INT64),
    st.builds(KeepEnds, INT64, INT64),
    st.builds(FindCuts, LOG_OFFSETS),
    st.builds(FindEnds, INT64, LOG_TUPLES, st.booleans()),
    st.builds(FindHighWatermarks, LOG_TUPLES),
    st.builds(AddLog, TEXTS, INT64, st.integers(0, 2**15 - 1), LOGS),
    st.builds(WriteOffsets, EPOCHS, TEXTS, TEXTS, INT64, st.integers(0, 2**15 - 1), OFFSETS_TUPLES),
)
ANSWER_BODIES = st.one_of(
    st.none(),
    st.builds(Begun, LOG_EPOCHS, REASONS),
    st.builds(Resumed, LOG_EPOCHS, REASONS),
    st.builds(Prepared, REASONS, REASONS, st.dictionaries(TXIDS, EXPECTED, max_size=3)),
    st.lists(st.builds(Applied, st.lists(PLACES, max_size=3).map(tuple)), max_size=3).map(tuple),
    st.builds(Failed, TEXTS),
    st.builds(Held, st.booleans()),
    st.builds(Cuts, st.dictionaries(LOGS, st.builds(LogCut, INT64, INT64, INT64), max_size=3)),
    st.builds(NoCut, TEXTS),
    st.builds(Noted, INT64),
    cuts_of(),
    st.builds(EndsAtCut, INT64, LOG_OFFSETS),
    st.builds(HighWatermarks, LOG_OFFSETS),
    st.builds(LogAdded, st.none() | st.sampled_from(Refusal)),
    st.builds(OffsetsRefused, st.sampled_from(WhyNotWritten), TEXTS),
)
MESSAGES = st.one_of(
    st.builds(Hello, EPOCHS),
    st.builds(Welcome, EPOCHS, st.just(NOT_HEARD_OF) | EPOCHS),
    st.builds(Command, EPOCHS, EPOCHS, INT64, INT64, COMMAND_BODIES),
    st.builds(Reply, EPOCHS, EPOCHS, INT64, ANSWER_BODIES),
)

if __name__ == "__main__":
    GOLDEN.write_text(golden(), encoding="utf-8")
