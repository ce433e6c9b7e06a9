"""While the engine of several machines is away: what would have to be written is refused at once, what reads is not.

Ends and committed offsets are told once it is certain that no other node has answered more.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable
from copy import copy
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
import trio

from fairlog.broker import Broker
from fairlog.kafka.errors import APPEND_REFUSALS, ErrorCode
from fairlog.kafka.handlers import ALL
from fairlog.reading.cuts import cut_now
from fairlog_types import StorageFailure
from partition.answers import RefusedAppend
from shard.cut_messages import NoCut
from shard.ends import OWN_WAIT_S, EndRefusal
from shard.owner_at_question import CERTAIN_S
from tests.kafka.asking import Asker
from tests.kafka.example_requests import build_batch, example_fields
from tests.kafka.in_memory import LEADER_EPOCH, Memory

REFUSED = {
    0: ErrorCode.NOT_ENOUGH_REPLICAS,
    8: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    22: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    24: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    25: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    26: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    28: ErrorCode.COORDINATOR_NOT_AVAILABLE,
}
"""By API key; all clients ask again on these (docs/decisions/0072-refused-while-the-engine-is-away.md)."""

LAST = {0: 12, 8: 9, 24: 3}
"""The last versions that name topics, and one transaction."""
READING = [1, 2, 3, 9, 10]


@dataclass
class CutOff(Memory):
    is_away: bool = True

    @property
    def broker(self) -> Broker:
        return replace(super().broker, appends_wait=lambda: self.is_away)


@pytest.fixture
def cut_off() -> CutOff:
    memory = CutOff()
    memory.topics.create_now("t")
    return memory


def codes(answer: Any) -> set[int]:
    """All error codes in an answer."""
    return set(map(int, re.findall(r"error_code=(-?\d+)", str(answer))))


@pytest.mark.parametrize("key", REFUSED)
async def test_what_would_be_written_is_refused_with_a_code_on_which_clients_ask_again(
    cut_off: CutOff, key: int
) -> None:
    """In every version, and nothing is begun: neither a batch nor the coordinator is asked for anything."""
    (api,) = [api for api in ALL if api.key == key]
    for version in range(api.served.min, LAST.get(key, api.served.max) + 1):
        assert codes(await Asker(cut_off)(key, version, **example_fields(key))) - {ErrorCode.NONE} == {REFUSED[key]}
    assert cut_off.coordinator.calls == []
    assert cut_off.leaders.logs[cut_off.log("t")] == []
    cut_off.is_away = False
    answer = await Asker(cut_off)(key, api.served.min, **example_fields(key))
    assert REFUSED[key] not in codes(answer)


@pytest.mark.parametrize("key", READING)
async def test_what_reads_is_answered_as_ever(cut_off: CutOff, key: int) -> None:
    """From what was copied, and from what the node knows of the cluster."""
    cut_off.leaders.logs[cut_off.log("t")].append(build_batch(records=2))
    cut_off.leaders.release()
    (api,) = [api for api in ALL if api.key == key]
    version = min(api.served.max, 9)
    cut_off.is_away = False
    before = await Asker(cut_off)(key, version, **example_fields(key))
    cut_off.is_away = True
    assert str(await Asker(cut_off)(key, version, **example_fields(key))) == str(before)


# --- what may be out of date -----------------------------------------------------------------------

PRODUCE, FETCH, LIST_OFFSETS, OFFSET_FETCH, DELETE_RECORDS, EPOCHS = 0, 1, 2, 9, 21, 23
NOT_CERTAIN = {
    LIST_OFFSETS: (7, ErrorCode.OFFSET_NOT_AVAILABLE, ErrorCode.NOT_LEADER_OR_FOLLOWER),
    OFFSET_FETCH: (9, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS),
    DELETE_RECORDS: (2, ErrorCode.REQUEST_TIMED_OUT, ErrorCode.NOT_LEADER_OR_FOLLOWER),
    EPOCHS: (4, ErrorCode.OFFSET_NOT_AVAILABLE, ErrorCode.NOT_LEADER_OR_FOLLOWER),
}
"""By API key: a version, the code while it is not certain who owns the shard, and the one of who does not any more."""


@dataclass
class InDoubt(Memory):
    """Another node may own the shard, until it is `certain` that none does."""

    certain: trio.Event = field(default_factory=trio.Event)
    is_away: bool = False
    is_deposed: bool = False
    asked: int = 0
    before_question: Callable[[], object] = lambda: None

    @property
    def broker(self) -> Broker:
        return replace(super().broker, confirm=self._confirm, appends_wait=lambda: self.is_away)

    def _confirm(self) -> Callable[[], Awaitable[None]]:
        self.before_question()
        self.asked += 1
        return self._confirmed

    async def _confirmed(self) -> None:
        await self.certain.wait()
        if self.is_deposed:
            raise StorageFailure("another node owns the shard")


@pytest.fixture
def in_doubt() -> InDoubt:
    memory = InDoubt()
    memory.topics.create_now("t", partitions=2)
    return memory


@pytest.mark.parametrize("key", NOT_CERTAIN)
async def test_what_may_be_out_of_date_is_told_when_it_is_certain_that_it_is_not(
    in_doubt: InDoubt, key: int, autojump_clock: trio.testing.MockClock
) -> None:
    """It is certain as soon as this node is known to have owned the shard."""
    version, *_ = NOT_CERTAIN[key]
    answers: list[Any] = []
    asker = Asker(in_doubt)
    async with trio.open_nursery() as nursery:

        async def ask() -> None:
            answers.append(await asker(key, version, **_question(key)))

        nursery.start_soon(ask)
        await trio.sleep(1)
        assert (in_doubt.asked, answers) == (1, [])
        in_doubt.certain.set()
    assert codes(answers) == {ErrorCode.NONE}


@pytest.mark.parametrize("key", NOT_CERTAIN)
async def test_what_may_be_out_of_date_is_not_told(
    in_doubt: InDoubt, key: int, autojump_clock: trio.testing.MockClock
) -> None:
    """In time, by who is deposed, and while nothing is accepted, which is not waited for."""
    version, not_certain, deposed = NOT_CERTAIN[key]
    asker, fields = Asker(in_doubt), _question(key)
    assert codes(await asker(key, version, **fields)) == {not_certain}
    assert 1 < trio.current_time() <= OWN_WAIT_S
    in_doubt.certain.set()
    in_doubt.is_deposed = True
    assert codes(await asker(key, version, **fields)) - {ErrorCode.NONE} == {deposed}
    in_doubt.is_deposed, in_doubt.is_away = False, True
    before_s = trio.current_time()
    assert codes(await asker(key, version, **fields)) - {ErrorCode.NONE} == {not_certain}
    assert trio.current_time() == before_s


async def test_whether_to_wait_is_looked_at_again(in_doubt: InDoubt, autojump_clock: trio.testing.MockClock) -> None:
    """The engine went away a moment before: from the failover time on nobody waits for it."""
    async with trio.open_nursery() as nursery:

        async def ask() -> None:
            answer = await Asker(in_doubt)(LIST_OFFSETS, 7, **example_fields(LIST_OFFSETS))
            assert codes(answer) == {ErrorCode.OFFSET_NOT_AVAILABLE}

        nursery.start_soon(ask)
        await trio.sleep(1)
        in_doubt.is_away = True
    assert trio.current_time() < 2


async def test_later_epoch_is_unknown_when_it_is_certain(
    in_doubt: InDoubt, autojump_clock: trio.testing.MockClock
) -> None:
    """It may be the next owner's: a client that is told that there is none takes its log for truncated."""
    fields = _question(EPOCHS, epoch=LEADER_EPOCH + 1)
    assert codes(await Asker(in_doubt)(EPOCHS, 4, **fields)) == {ErrorCode.OFFSET_NOT_AVAILABLE}
    in_doubt.certain.set()
    assert codes(await Asker(in_doubt)(EPOCHS, 4, **fields)) == {ErrorCode.NONE}


@pytest.mark.parametrize("refusal", [RefusedAppend.OUT_OF_ORDER, RefusedAppend.FENCED, RefusedAppend.UNKNOWN_PRODUCER])
async def test_batch_is_refused_for_good_when_it_is_certain(
    in_doubt: InDoubt, refusal: RefusedAppend, autojump_clock: trio.testing.MockClock
) -> None:
    """The next owner may have what comes before it. Most producers end on these codes."""
    in_doubt.leaders.refusal = refusal
    asker, fields = Asker(in_doubt), example_fields(PRODUCE)
    assert codes(await asker(PRODUCE, 9, **fields)) == {ErrorCode.NOT_LEADER_OR_FOLLOWER}
    in_doubt.certain.set()
    assert codes(await asker(PRODUCE, 9, **fields)) == {APPEND_REFUSALS[refusal]}


@pytest.mark.parametrize("is_certain", [True, False])
async def test_refusals_of_one_request_share_one_question(
    in_doubt: InDoubt, autojump_clock: trio.testing.MockClock, is_certain: bool
) -> None:
    """It is asked after the last one, and what was appended beside them keeps its answer."""
    fields = example_fields(PRODUCE)
    (topic,) = fields["topic_data"]
    topic.partition_data = [_with_index(topic.partition_data[0], index) for index in (0, 1, 0, 1)]
    refusals = iter([RefusedAppend.OUT_OF_ORDER, None, RefusedAppend.FENCED, RefusedAppend.UNKNOWN_PRODUCER])

    async def next_refusal() -> None:
        in_doubt.leaders.refusal = next(refusals)

    in_doubt.leaders.before_append = next_refusal
    appended: list[int] = []
    in_doubt.before_question = lambda: appended.append(len(in_doubt.leaders.came_in))
    if is_certain:
        in_doubt.certain.set()
    answer = await Asker(in_doubt)(PRODUCE, 9, **fields)
    assert (in_doubt.asked, appended) == (1, [4])
    assert trio.current_time() == (0 if is_certain else CERTAIN_S)
    certain = [
        APPEND_REFUSALS[RefusedAppend.OUT_OF_ORDER],
        ErrorCode.NONE,
        APPEND_REFUSALS[RefusedAppend.FENCED],
        APPEND_REFUSALS[RefusedAppend.UNKNOWN_PRODUCER],
    ]
    in_doubt_codes = [code and ErrorCode.NOT_LEADER_OR_FOLLOWER for code in certain]
    found = [row.error_code for row in answer.responses[0].partition_responses]
    assert found == (certain if is_certain else in_doubt_codes)


async def test_native_cut_is_taken_when_it_is_certain(
    in_doubt: InDoubt, autojump_clock: trio.testing.MockClock
) -> None:
    logs = [in_doubt.log("t")]
    assert await cut_now(in_doubt.broker, logs) == NoCut(EndRefusal.NOT_YET.value)
    in_doubt.certain.set()
    assert not isinstance(await cut_now(in_doubt.broker, logs), NoCut)
    in_doubt.is_deposed = True
    assert await cut_now(in_doubt.broker, logs) == NoCut(EndRefusal.DEPOSED.value)


async def test_start_of_a_log_is_told_without_being_certain(in_doubt: InDoubt) -> None:
    """It only grows, and what lies before it is found to be gone by who reads it."""
    fields = example_fields(LIST_OFFSETS)
    (topic,) = fields["topics"]
    topic.partitions[0].timestamp = -2
    assert codes(await Asker(in_doubt)(LIST_OFFSETS, 7, **fields)) == {ErrorCode.NONE}


@pytest.mark.parametrize("version", [4, 11, 18])
async def test_position_beyond_the_end_is_out_of_range_when_it_is_certain(
    in_doubt: InDoubt, version: int, autojump_clock: trio.testing.MockClock
) -> None:
    """The next owner may have written on. A client that is told that it is out of range forgets where it was."""
    beyond, asker = _fetch_at(in_doubt, version, 1), Asker(in_doubt)
    assert codes(await asker(FETCH, version, **beyond)) - {ErrorCode.NONE} == {ErrorCode.NOT_LEADER_OR_FOLLOWER}
    assert trio.current_time() == CERTAIN_S
    in_doubt.is_away = True
    assert codes(await asker(FETCH, version, **beyond)) - {ErrorCode.NONE} == {ErrorCode.NOT_LEADER_OR_FOLLOWER}
    assert trio.current_time() == CERTAIN_S
    in_doubt.is_away = False
    in_doubt.certain.set()
    assert codes(await asker(FETCH, version, **beyond)) - {ErrorCode.NONE} == {ErrorCode.OFFSET_OUT_OF_RANGE}
    in_doubt.is_deposed = True
    assert codes(await asker(FETCH, version, **beyond)) - {ErrorCode.NONE} == {ErrorCode.NOT_LEADER_OR_FOLLOWER}


async def test_records_are_not_kept_waiting_for_a_position_beyond_the_end(
    in_doubt: InDoubt, autojump_clock: trio.testing.MockClock
) -> None:
    """Of another partition."""
    in_doubt.leaders.logs[in_doubt.log("t", 1)].append(build_batch(records=2))
    in_doubt.leaders.release()
    fields = _fetch_at(in_doubt, 11, 1)
    (topic,) = fields["topics"]
    other = copy(topic.partitions[0])
    other.partition, other.fetch_offset = 1, 0
    topic.partitions.append(other)
    answer = await Asker(in_doubt)(FETCH, 11, **fields)
    assert codes(answer) == {ErrorCode.NONE, ErrorCode.NOT_LEADER_OR_FOLLOWER}
    assert [bool(row.records) for row in answer.responses[0].partitions] == [False, True]
    assert trio.current_time() < 1


async def test_what_is_read_is_told_without_being_certain(in_doubt: InDoubt) -> None:
    """It was accepted; whoever owns the shard has it, too. So is it at its end."""
    answer = await Asker(in_doubt)(FETCH, 11, **_fetch_at(in_doubt, 11, 0))
    assert codes(answer) == {ErrorCode.NONE}
    assert in_doubt.asked == 0


def _with_index(produced: Any, index: int) -> Any:
    """The same batch, for that partition."""
    other = copy(produced)
    other.index = index
    return other


def _fetch_at(memory: Memory, version: int, offset: int) -> dict[str, Any]:
    """Of the first partition of the topic."""
    fields = example_fields(FETCH)
    (topic,) = fields["topics"]
    topic.partitions[0].partition, topic.partitions[0].fetch_offset = 0, offset
    topic.topic_id = memory.cluster.by_name["t"].topic_id
    return fields


def _question(key: int, epoch: int = LEADER_EPOCH) -> dict[str, Any]:
    """The example of the API; of OffsetForLeaderEpoch for this epoch."""
    fields = example_fields(key)
    if key == EPOCHS:
        (topic,) = fields["topics"]
        topic.partitions[0].leader_epoch = epoch
    return fields
