"""Every op, by a client that may do nothing, and by some that may do a part of it."""

from __future__ import annotations

from typing import Any

import pytest
import trio
from trio.testing import memory_stream_pair

from fairlog.edge.frame_budget import FrameBudget
from fairlog.edge.log_limiter import LogLimiter
from fairlog.native import permissions
from fairlog.native.protocol import OPS, NativeProtocol
from fairlog.security.acls import Operation, ResourceType
from fairlog.security.principal import ANONYMOUS
from tests.kafka.denying import ADMIN, allow, enforce
from tests.native.talking import Talker

BATCH = {"sink": "totals", "query": "q", "run": "r1", "batch": 0}
OFFSETS = {"group": "g", "partitions": [["t", 0, 5]]}
REQUESTS: dict[str, list[dict[str, Any]]] = {
    "join": [{**BATCH, "partition": 0, "attempt": 0}],
    "commit": [{**BATCH, "winners": []}, {**BATCH, "winners": [], "offsets": OFFSETS}],
    "abort": [BATCH],
    "topics": [{}],
    "cut": [
        {"topics": ["t"]},
        {"partitions": [["t", 0]]},
        {"topics": ["hidden"], "starts": [["t", 0, 0]]},
        {"topics": ["nosuch"]},
    ],
    "sinks": [{}],
    "forget": [{"sink": "totals"}],
}
LISTS = {"topics", "sinks"}

TOPIC, GROUP = ResourceType.TOPIC, ResourceType.GROUP
OF_SINK = allow(Operation.WRITE, ResourceType.TRANSACTIONAL_ID, "fairlog.sink.totals")


@pytest.fixture
def locked(memory):
    """Sets the ACLs, before the first connection."""
    enforce(memory)
    for name in ("t", "hidden"):
        if memory.cluster.topic(name) is None:
            memory.topics.create_now(name)
    return lambda *acls: enforce(memory, *acls)


def test_each_op_is_tried():
    assert REQUESTS.keys() == OPS.keys()


@pytest.mark.parametrize("op", [op for op in OPS if op not in LISTS])
async def test_outsider_is_refused(locked, talker, memory, op):
    """Whether what is named exists or not; and the coordinator hears nothing."""
    for arguments in REQUESTS[op]:
        kind, sentence = await talker.ask(op, **arguments)
        assert kind == "not-authorized"
        assert sentence.startswith("User:ANONYMOUS may not ")
    assert memory.coordinator.calls == []


async def test_lists_leave_out_what_may_not_be_seen(locked, talker, memory):
    await talker.ask("join", **REQUESTS["join"][0])
    assert (await talker.ask("topics"))["topics"] == []
    assert (await talker.ask("sinks"))["sinks"] == []
    locked(allow(Operation.READ, TOPIC, "t"), OF_SINK)
    assert [name for name, _ in (await talker.ask("topics"))["topics"]] == ["t"]


@pytest.mark.parametrize(
    ("op", "acls"),
    [
        ("join", [OF_SINK]),
        ("abort", [OF_SINK]),
        ("forget", [OF_SINK]),
        ("cut", [allow(Operation.DESCRIBE, TOPIC, "t")]),
        ("cut", [allow(Operation.READ, TOPIC, "t")]),
    ],
)
async def test_who_may_is_served(locked, talker, op, acls):
    locked(*acls)
    answer = await talker.ask(op, **REQUESTS[op][0])
    assert not isinstance(answer, tuple) or answer[0] != "not-authorized"


async def test_offsets_need_their_group_and_topics(locked, talker, memory):
    """As in TxnOffsetCommit. Nothing is written before all of them were asked for."""
    with_offsets = REQUESTS["commit"][1]
    needed = [OF_SINK, allow(Operation.READ, GROUP, "g"), allow(Operation.READ, TOPIC, "t")]
    for missing in needed:
        locked(*(each for each in needed if each is not missing))
        kind, _ = await talker.ask("commit", **with_offsets)
        assert kind == "not-authorized"
    assert memory.coordinator.calls == []
    locked(*needed)
    answer = await talker.ask("commit", **with_offsets)
    assert not isinstance(answer, tuple) or answer[0] != "not-authorized"


async def test_starts_of_a_cut_tell_nothing(locked, talker):
    """Neither that a topic exists, nor that it does not."""
    locked(allow(Operation.DESCRIBE, TOPIC, "hidden"))
    for name in ("t", "nosuch"):
        kind, _ = await talker.ask("cut", topics=["hidden"], starts=[[name, 0, 0]])
        assert kind == "not-authorized"


async def test_ops_make_the_checks_that_they_list(locked, talker, monkeypatch, memory):
    seen: set[Any] = set()
    asked = permissions.may

    def record(call, check, name):
        seen.add(check)
        return asked(call, check, name)

    for module in ("permissions", "batches", "cuts"):
        monkeypatch.setattr(f"fairlog.native.{module}.may", record)
    for op, entry in OPS.items():
        seen.clear()
        locked(*(allow(each.operation, each.of, "*") for each in entry.checks))
        for arguments in REQUESTS[op]:
            await talker.ask(op, **arguments)
        assert seen <= set(entry.checks), op
        if op not in ("commit", "sinks"):  # without placements, DESCRIBE on topics is not asked for
            assert seen == set(entry.checks), op


async def test_principal_of_the_connection_counts(memory, nursery):
    """A listener says who a client is, and the native protocol hears it."""
    enforce(memory)
    native = NativeProtocol(memory.broker)
    for principal, expected in [(ANONYMOUS, "not-authorized"), (ADMIN, "unknown-topic")]:
        ours, theirs = memory_stream_pair()
        connection = native.connection(
            ours,
            b"FLG1",
            ordinal=1,
            peer="10.0.0.1:5",
            budget=FrameBudget(),
            lines=LogLimiter(trio.current_time),
            principal=principal,
        )
        nursery.start_soon(connection.serve)
        talker = Talker(theirs)
        assert await talker.receive(4) == b"FLG1"
        assert (await talker.ask("cut", topics=["nosuch"]))[0] == expected
        connection.stop()
