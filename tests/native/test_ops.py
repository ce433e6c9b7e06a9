"""What each op does with the broker's words, and how it refuses: over a socket, with a broker in memory."""

from __future__ import annotations

import pytest
import structlog.testing
import trio
import trio.testing

from coordinator.answers import Refusal
from coordinator.lane_ids import is_lane
from coordinator.sinks.messages import CommitBatch, Lane, SinkRefusal, SinkRefused, Winner
from fairlog import trail
from fairlog.groups.messages import Joining
from fairlog.groups.offset_values import NewOffset, OffsetRefusal, Sender
from fairlog.native import batches
from fairlog.native.batches import kind_of
from fairlog.native.messages import NUMBER_MAX, PARTITION_MAX, Request, encode_result
from fairlog.trail import Trail
from fairlog_types import Offset, StorageFailure
from partition.answers import RefusedAppend

BATCH = {"sink": "totals", "query": "query-1", "run": "run-1", "batch": 7}
LANE = BATCH | {"partition": 3, "attempt": 1}
COMMIT = BATCH | {"winners": [[3, 1, 5]]}
OFFSETS = {"group": "spark", "partitions": [["orders", 0, 17], ["orders", 1, 4]]}


def calls(memory, name):
    return [call for call in memory.coordinator.calls if call[0] == name]


# --- batches ---------------------------------------------------------------------------------------------


async def test_join_answers_a_transactional_id(talker, memory):
    """The coordinator hears of the lane as the client has named it; joined again, it gets the same."""
    joined = await talker.ask("join", **LANE)
    assert is_lane(joined["transactional_id"])
    assert await talker.ask("join", **LANE) == joined
    assert calls(memory, "join")[0][1] == Lane("totals", "query-1", "run-1", 7, 3, 1)


async def test_commit_answers_where_the_records_are(talker, memory):
    """Sorted, with the topics' names; the second time it is `already` so. A join hears that there is nothing to do."""
    await talker.ask("join", **LANE)
    await talker.ask("join", **LANE | {"partition": 4})
    winners = [[4, 1, 6], [3, 1, 5]]
    placements = [["orders", 0, 0, 6], ["totals", 0, 10, 5]]
    assert await talker.ask("commit", **BATCH, winners=winners) == {"already": False, "placements": placements}
    assert await talker.ask("commit", **BATCH, winners=winners) == {"already": True, "placements": placements}
    assert await talker.ask("join", **LANE) == {"committed": True}
    assert calls(memory, "commit")[0][1] == CommitBatch(
        "totals", "query-1", "run-1", 7, (Winner(4, 1, 6), Winner(3, 1, 5))
    )


@pytest.mark.parametrize("planned", [{}, {"planned_ms": 1_763_632_800_000}], ids=["not told", "told"])
async def test_commit_tells_the_coordinator_when_the_batch_was_planned(talker, memory, planned):
    """If the client does."""
    await talker.ask("commit", **COMMIT, **planned)
    assert calls(memory, "commit")[-1][1].planned_ms == planned.get("planned_ms")
    assert (await talker.ask("commit", **COMMIT, planned_ms=-1))[0] == "bad-request"


async def test_commit_leaves_out_places_that_nobody_can_read(talker, memory):
    """The offsets' own, and those in a topic that was deleted since."""
    memory.coordinator.logs = [memory.log("orders", 0), memory.offsets.log_of("spark"), memory.log("totals", 0)]
    for partition in range(3):
        await talker.ask("join", **LANE | {"partition": partition})
    await memory.topics.delete(memory.cluster.by_name["totals"].topic_id)
    committed = await talker.ask("commit", **BATCH, winners=[[0, 1, 1], [1, 1, 1], [2, 1, 1]])
    assert committed == {"already": False, "placements": [["orders", 0, 0, 1]]}


async def test_commit_into_very_many_places_is_answered_without_them(talker, memory, monkeypatch):
    """It is no refusal: the batch is committed. What is told fits into a frame, whatever the topics are called."""
    row = ["t" * 249, PARTITION_MAX, NUMBER_MAX, NUMBER_MAX]
    request = Request(NUMBER_MAX, "commit", {})
    encode_result(request, {"already": False, "placements": [row] * batches.PLACEMENTS_MAX})
    monkeypatch.setattr(batches, "PLACEMENTS_MAX", 1)
    for partition in (3, 4):
        await talker.ask("join", **LANE | {"partition": partition})
    assert await talker.ask("commit", **BATCH, winners=[[3, 1, 5], [4, 1, 6]]) == {"already": False, "placements": []}


async def test_abort_is_passed_on(talker, memory):
    """Without an answer but that it is so."""
    assert await talker.ask("abort", **BATCH) == {}
    assert calls(memory, "abort") == [("abort", "totals", "query-1", "run-1", 7)]


async def test_sinks_are_shown_and_forgotten(talker, monkeypatch):
    """What the coordinator knows of each, in order. The trail says what was forgotten."""
    monkeypatch.setattr(trail, "_trail", Trail())  # no other test has spent lines of it
    await talker.ask("join", **LANE)
    await talker.ask("commit", **COMMIT)
    await talker.ask("join", **LANE | {"sink": "audit", "batch": 0})
    audit, totals = (await talker.ask("sinks"))["sinks"]
    assert (audit["sink"], audit["batch"], audit["placements"], audit["run"]) == ("audit", None, [], "run-1")
    assert len(audit["open_lanes"]) == 1
    assert totals == {
        "sink": "totals",
        "query": "query-1",
        "run": None,
        "batch": 7,
        "placements": [["orders", 0, 0, 5]],
        "open_lanes": [],
        "used_ms": 1_763_632_800_000,
    }
    with structlog.testing.capture_logs() as lines:
        assert await talker.ask("forget", sink="totals") == {}
    assert [each["sink"] for each in (await talker.ask("sinks"))["sinks"]] == ["audit"]
    with structlog.testing.capture_logs() as more:
        assert await talker.ask("forget", sink="totals") == ("unknown-sink", "there is no sink totals")
    noted = [line for line in lines + more if line["event"] == "trail"]
    assert [(line["action"], line["on"], line["by"]) for line in noted] == [("forget sink", "totals", "native")] * 2
    assert [line["outcome"] for line in noted] == ["done", "unknown-sink"]


@pytest.mark.parametrize("why", SinkRefusal)
@pytest.mark.parametrize("op", ["join", "commit", "abort"])
async def test_refusal_of_the_coordinator_keeps_its_sentence(talker, memory, why, op):
    """Each has a kind of its own, which stands on the protocol's page."""
    memory.coordinator.sink_refusal = SinkRefused(why, "what, where, and what to do")
    arguments = {"join": LANE, "commit": COMMIT, "abort": BATCH}[op]
    assert await talker.ask(op, **arguments) == (kind_of(why), "what, where, and what to do")


async def test_storage_failure_is_a_refusal(talker, memory):
    """Nothing was done, and the sentence says which file."""
    memory.coordinator.failure = StorageFailure("journal 3: no space left")
    assert await talker.ask("join", **LANE) == ("storage", "journal 3: no space left")


# --- a consumer group's offsets -----------------------------------------------------------------------------


async def test_offsets_are_written_in_a_lane_of_their_own(talker, memory):
    """By a producer like others, into the group's log; one record, named among the winners."""
    await talker.ask("join", **LANE)
    committed = await talker.ask("commit", **COMMIT, offsets=OFFSETS)
    assert committed["already"] is False
    (joined, *_), (_, message) = reversed(calls(memory, "join")), calls(memory, "commit")[0]
    lane = joined[1]
    assert (lane.batch, lane.partition) == (7, -1)
    assert message.winners == (Winner(3, 1, 5), Winner(-1, lane.attempt, 1))
    ((_, name, timeout_ms, _, _, connection),) = calls(memory, "init")
    assert is_lane(name)
    assert timeout_ms == 60_000
    assert calls(memory, "add")[0][1:] == (name, 41, 0, (memory.offsets.log_of("spark"),), connection)
    ((_, group, sender, producer, new),) = memory.offsets.calls
    assert (group, sender, producer.transactional_id, producer.producer_id) == ("spark", Sender(), name, 41)
    topic = memory.cluster.by_name["orders"].topic_id.hex
    assert new == (NewOffset((topic, 0), 17, -1, ""), NewOffset((topic, 1), 4, -1, ""))


async def test_each_try_writes_its_offsets_in_another_lane(talker, memory):
    """What a try that was given up has left in its lane is not committed with the next one's."""
    await talker.ask("join", **LANE)
    memory.coordinator.sink_refusal = None
    memory.offsets.refusal = OffsetRefusal.TIMED_OUT
    assert (await talker.ask("commit", **COMMIT, offsets=OFFSETS))[0] == "offsets-refused"
    memory.offsets.refusal = None
    assert (await talker.ask("commit", **COMMIT, offsets=OFFSETS))["already"] is False
    lanes = [lane for _, lane in calls(memory, "join") if lane.partition == -1]
    assert len({lane.attempt for lane in lanes}) == 2
    assert calls(memory, "commit")[-1][1].winners[-1].attempt == lanes[-1].attempt


async def test_offsets_of_a_batch_that_is_committed_are_not_written_again(talker, memory):
    """The first commit has brought them."""
    await talker.ask("join", **LANE)
    first = await talker.ask("commit", **COMMIT, offsets=OFFSETS)
    again = await talker.ask("commit", **COMMIT, offsets=OFFSETS)
    assert again == first | {"already": True}
    assert len(memory.offsets.calls) == 1


@pytest.mark.parametrize(
    ("refusal", "kind"),
    [
        (OffsetRefusal.TOO_LARGE, "offsets-refused"),
        (RefusedAppend.MUST_ABORT, "offsets-refused"),
        (RefusedAppend.STORAGE, "storage"),
    ],
)
async def test_offsets_that_are_refused_leave_the_batch_uncommitted(talker, memory, refusal, kind):
    """With the reason; what was written in their lane is discarded, and the batch can be committed later."""
    await talker.ask("join", **LANE)
    memory.offsets.refusal = refusal
    answered, sentence = await talker.ask("commit", **COMMIT, offsets=OFFSETS)
    assert (answered, refusal.value in sentence, "spark" in sentence) == (kind, True, True)
    assert calls(memory, "commit") == []
    assert [call[4] for call in calls(memory, "end")] == [False]


async def test_offsets_whose_producer_is_refused_leave_the_batch_uncommitted(talker, memory):
    """It is the coordinator that refuses here, before there is anything to discard."""
    await talker.ask("join", **LANE)
    memory.coordinator.refusal = Refusal.STORAGE
    assert (await talker.ask("commit", **COMMIT, offsets=OFFSETS))[0] == "storage"
    assert calls(memory, "commit") == []


async def test_batch_that_is_refused_takes_its_offsets_back(talker, memory):
    """They would hold the group's stable offsets up until their time-out."""
    refused = await talker.ask("commit", **COMMIT, offsets=OFFSETS)
    assert refused == ("unknown-lane", "no lane 3, 1")
    assert [call[4] for call in calls(memory, "end")] == [False]


async def test_offsets_of_a_group_with_members_are_refused(talker, memory):
    """Its members commit their own, and would undo each other's."""
    joining = Joining("", None, "c-1", False, False, "c", "/h", 10_000, 10_000, "consumer", (("range", b""),))
    memory.groups.join("spark", joining)
    answered, sentence = await talker.ask("commit", **COMMIT, offsets=OFFSETS)
    assert (answered, "the consumer group spark has members" in sentence) == ("group-in-use", True)
    assert calls(memory, "init") == []


async def test_batch_that_is_committed_is_committed_whoever_has_joined_the_group_since(talker, memory):
    """The answer was lost; the offsets are committed, and the group's new members are not asked."""
    await talker.ask("join", **LANE)
    assert (await talker.ask("commit", **COMMIT, offsets=OFFSETS))["already"] is False
    joining = Joining("", None, "c-1", False, False, "c", "/h", 10_000, 10_000, "consumer", (("range", b""),))
    memory.groups.join("spark", joining)
    assert (await talker.ask("commit", **COMMIT, offsets=OFFSETS))["already"] is True


@pytest.mark.parametrize(
    ("partitions", "kind", "why"),
    [
        ([["nowhere", 0, 1]], "unknown-topic", "there is no topic nowhere"),
        ([["orders", 2, 1]], "unknown-partition", "topic orders has 2 partitions, not orders-2"),
        ([], "bad-request", "commit: offsets.partitions is empty"),
        ([["orders", 0]], "bad-request", "commit: offsets.partitions[0] is an array of 2, not an array of 3"),
        ([["orders", 0, -1]], "bad-request", "commit: offsets.partitions[0][2] is -1"),
    ],
)
async def test_offsets_that_cannot_be_are_refused_before_anything_is_written(talker, memory, partitions, kind, why):
    """Named by place."""
    answered, sentence = await talker.ask("commit", **COMMIT, offsets={"group": "spark", "partitions": partitions})
    assert (answered, sentence.startswith(why)) == (kind, True), sentence
    assert {call[0] for call in memory.coordinator.calls} <= {"join"}


async def test_batch_that_is_committed_is_committed_though_a_topic_of_its_offsets_is_gone(talker, memory):
    """The answer was lost, and the topic deleted meanwhile: what is done is done."""
    await talker.ask("join", **LANE)
    first = await talker.ask("commit", **COMMIT, offsets=OFFSETS)
    gone = {"group": "spark", "partitions": [["nowhere", 0, 1]]}
    assert await talker.ask("commit", **COMMIT, offsets=gone) == first | {"already": True}


# --- cuts ---------------------------------------------------------------------------------------------------


@pytest.fixture
def written(memory, batch):
    """orders-0 has 3 records and begins at 1, orders-1 has 2 of which one is stable, totals-0 has none."""
    for partition, records in enumerate((3, 2)):
        memory.leaders.logs[memory.log("orders", partition)].append(batch(records=records))
    memory.leaders.starts[memory.log("orders", 0)] = Offset(1)
    memory.leaders.undecided[memory.log("orders", 1)] = Offset(1)
    return memory


ORDERS = [["orders", 0, 1, 3, 3], ["orders", 1, 0, 1, 1]]
TOTALS = [["totals", 0, 0, 0, 0]]


@pytest.mark.parametrize(
    ("asked", "rows"),
    [
        ({"topics": ["orders"]}, ORDERS),
        ({"topics": ["totals", "orders"]}, TOTALS + ORDERS),
        ({"topics": ["orders", "orders"]}, ORDERS),
        ({"partitions": [["orders", 1], ["totals", 0]]}, ORDERS[1:] + TOTALS),
        ({"topics": []}, []),
        ({"partitions": []}, []),
    ],
)
async def test_cut_says_what_can_be_read(talker, written, asked, rows):
    """From the first offset to the last stable one, each partition once; and which topics these are."""
    ids = {row[0]: written.log(row[0], 0).topic for row in rows}
    assert await talker.ask("cut", **asked) == {"partitions": rows, "topic_ids": ids}


async def test_cut_waits_for_what_was_answered_before_it(talker, written, nursery):
    """Whoever asks for the end gets the end of all that was answered; a cut with a limit lies in the past."""
    log = written.log("orders", 0)
    written.leaders.visible_before_hold[log] = Offset(2)
    limited = await talker.ask("cut", topics=["orders"], limit=10)
    assert limited["partitions"] == [["orders", 0, 1, 2, 2], ORDERS[1]]
    told = []

    async def ask():
        told.append((await talker.ask("cut", topics=["orders"]))["partitions"])

    nursery.start_soon(ask)
    await trio.testing.wait_all_tasks_blocked(0.02)
    assert told == []
    written.leaders.release()
    while not told:
        await trio.testing.wait_all_tasks_blocked()
    assert told == [ORDERS]


async def test_cut_after_copying_has_stopped_is_refused(talker, written):
    """What was answered cannot be read before the node's restart."""
    written.leaders.visible_before_hold[written.log("orders", 0)] = Offset(2)
    written.leaders.failure = StorageFailure("the disk has failed")
    kind, sentence = await talker.ask("cut", topics=["orders"])
    assert (kind, sentence.partition(":")[0]) == ("not-copied", "cut")


async def test_cut_with_a_limit_asks_from_the_starts(talker, written, monkeypatch):
    """Where none is told, 0 is one: the log's start. The end is the limited one, `high` what can be read."""
    asked = []

    async def cut_within(starts, *, records_max):
        asked.append((dict(starts), records_max))
        return {log: it._replace(end=it.log_start) for log, it in written.leaders.cut(starts).items()}

    monkeypatch.setattr(written.leaders, "cut_within", cut_within)
    found = await talker.ask("cut", topics=["orders"], starts=[["orders", 1, 1]], limit=10)
    assert found["partitions"] == [["orders", 0, 1, 1, 3], ["orders", 1, 0, 0, 1]]
    assert asked == [({written.log("orders", 0): 0, written.log("orders", 1): 1}, 10)]


@pytest.mark.parametrize(
    ("asked", "kind", "why"),
    [
        ({"topics": ["orders", "nowhere"]}, "unknown-topic", "there is no topic nowhere"),
        ({"partitions": [["totals", 1]]}, "unknown-partition", "topic totals has 1 partitions, not totals-1"),
        ({}, "bad-request", "cut: either topics or partitions"),
        ({"topics": [], "partitions": []}, "bad-request", "cut: either topics or partitions"),
        ({"pattern": ".*"}, "bad-request", "cut: either topics or partitions"),
        ({"topics": ["orders"], "pattern": ".*"}, "bad-request", "cut has no argument pattern"),
        ({"topics": ["orders"], "limit": 0}, "bad-request", "cut: limit is 0, not between 1"),
        ({"topics": ["orders"], "starts": [["totals", 0, 0]]}, "bad-request", "cut: starts has totals-0, which is not"),
        ({"topics": "orders"}, "bad-request", "cut: topics is 'orders', not an array"),
        ({"topics": [1]}, "bad-request", "cut: topics[0] is 1, not a text"),
        ({"topics": [""]}, "bad-request", "cut: topics[0] has 0 characters"),
        ({"partitions": [["orders", "0"]]}, "bad-request", "cut: partitions[0][1] is '0', not an integer"),
        ({"partitions": [["orders", True]]}, "bad-request", "cut: partitions[0][1] is true, not an integer"),
        ({"partitions": [None]}, "bad-request", "cut: partitions[0] is null, not an array of 2"),
    ],
)
async def test_cut_of_what_is_not_there_is_refused(talker, asked, kind, why):
    """The sentence names it."""
    answered, sentence = await talker.ask("cut", **asked)
    assert (answered, sentence.startswith(why)) == (kind, True), sentence


async def test_topic_that_is_not_led_yet_is_refused(talker, memory):
    """It is being created or deleted: half a topic is no cut."""
    del memory.leaders.logs[memory.log("orders", 1)]
    answered, sentence = await talker.ask("cut", topics=["orders"])
    assert (answered, "orders is being created or deleted" in sentence) == ("unknown-topic", True)


async def test_answer_that_is_too_large_is_a_refusal(talker, memory, monkeypatch):
    """And not a broken frame."""
    monkeypatch.setattr("fairlog.native.messages.FRAME_BYTES_MAX", 20)
    answered, sentence = await talker.ask("topics")
    assert (answered, "at most 20 are sent" in sentence) == ("too-large", True)


# --- arguments ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"sink": ""}, "join: sink has 0 characters; it must have 1 to 249"),
        ({"run": "r" * 250}, "join: run has 250 characters"),
        ({"query": 7}, "join: query is 7, not a text"),
        ({"query": {"a": 1}}, "join: query is a map of 1, not a text"),
        ({"batch": -1}, "join: batch is -1, not between 0 and 9223372036854775807"),
        ({"batch": "0"}, "join: batch is '0', not an integer"),
        ({"partition": -1}, "join: partition is -1"),
        ({"partition": 2**31}, "join: partition is 2147483648"),
        ({"attempt": None}, "join: attempt is null, not an integer"),
        ({"atempt": 1}, "join has no argument atempt"),
        ({"sink": "x" * 1000 + "y"}, "join: sink has 1001 characters"),
    ],
)
async def test_wrong_argument_is_named(talker, memory, changes, why):
    """Type, bounds, or that there is no such one; the connection goes on."""
    answered, sentence = await talker.ask("join", **LANE | changes)
    assert (answered, sentence.startswith(why)) == ("bad-request", True), sentence
    assert memory.coordinator.calls == []
    assert "transactional_id" in await talker.ask("join", **LANE)


@pytest.mark.parametrize("missing", sorted(LANE))
async def test_missing_argument_is_named(talker, missing):
    """None has a value by default."""
    arguments = {name: value for name, value in LANE.items() if name != missing}
    assert await talker.ask("join", **arguments) == ("bad-request", f"join: {missing} is missing")


async def test_winner_of_the_offsets_partition_is_refused(talker):
    """A client does not write into the node's own lane."""
    assert (await talker.ask("commit", **BATCH, winners=[[-1, 0, 1]]))[0] == "bad-request"


async def test_unknown_op_hears_which_there_are(talker):
    """A client that is newer than the node can say so to its user."""
    answered, sentence = await talker.ask("merge")
    assert (answered, "join, commit, abort, topics, cut, sinks, forget" in sentence) == ("unknown-op", True)


def test_every_refusal_of_the_coordinator_stands_on_the_page(page):
    """And every op, and every kind of ours."""
    ours = ["unknown-op", "unknown-topic", "unknown-partition", "group-in-use", "offsets-refused", "too-large"]
    for kind in [*map(kind_of, SinkRefusal), *ours]:
        assert f"| `{kind}` |" in page, kind
    for op in ("join", "commit", "abort", "topics", "cut", "sinks", "forget"):
        assert f"| `{op}` |" in page, op
