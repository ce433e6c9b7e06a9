"""Consumer groups of the three stock clients: sharing, rebalances, static and cooperative members, deaths, restarts."""

from __future__ import annotations

import itertools
import subprocess
import sys
import time
import warnings
from collections.abc import Callable, Iterable, Iterator

import confluent_kafka
import pytest
from confluent_kafka.admin import AdminClient

from scripts.node_process import ROOT, NodeProcess
from tests.clients.conftest import make_topic
from tests.clients.group_members import (
    MEMBERS,
    WAIT_S,
    ConfluentMember,
    GroupMember,
    KafkaPythonMember,
    wait_until,
)
from tests.clients.raw_member import REBALANCE_IN_PROGRESS, RawMember
from tests.processes import ALSO_ON_THREE

with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)
    import kafka

pytestmark = [
    pytest.mark.slow,
    ALSO_ON_THREE,
    # kafka-python's own: a socket of a closed client is left to the garbage collector.
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]

MakeMember = Callable[..., GroupMember]
PARTITIONS = 6
LONG_SESSION_MS = 10_000
"""Where it is said that nothing was taken from a member: for one that gets no processor for a while stays one."""
VICTIMS_SESSION_MS = 6_000
"""Of one that is killed: its last heartbeat was less than half of it before, though it may wait for a processor."""
_groups = itertools.count()


@pytest.fixture(params=MEMBERS.values(), ids=MEMBERS)
def kind(request: pytest.FixtureRequest) -> type[GroupMember]:
    """Each of the three stock clients in turn."""
    return request.param


@pytest.fixture
def group() -> str:
    """A group that no other test uses."""
    return f"group-{next(_groups)}"


@pytest.fixture
def topic(new_topic: Callable[..., str], node: NodeProcess) -> str:
    """A topic with ten records in each partition."""
    name = new_topic(PARTITIONS)
    fill(node.address, name)
    return name


@pytest.fixture
def member(node: NodeProcess, topic: str, group: str) -> Iterator[MakeMember]:
    """Makes members of the group; those that are left are closed in the end."""
    made: list[GroupMember] = []

    def make(kind: type[GroupMember], *, address: str = node.address, of: str = topic, **more: object) -> GroupMember:
        made.append(kind(address, of, group, **more))  # type: ignore[arg-type]
        return made[-1]

    yield make
    for each in made:
        each._closing.set()
    for each in made:
        each._thread.join(WAIT_S)
    made.clear()


def fill(address: str, topic: str, partitions: int = PARTITIONS) -> None:
    producer = confluent_kafka.Producer({"bootstrap.servers": address, "log_level": 2})
    for partition in range(partitions):
        for number in range(10):
            producer.produce(topic, f"{partition}:{number}".encode(), partition=partition)
    assert producer.flush(WAIT_S) == 0


def shared(members: Iterable[GroupMember], partitions: int = PARTITIONS) -> bool:
    """Whether each partition has exactly one reader, nobody has none, and all was read."""
    members = list(members)
    for each in members:
        if each.failure is not None:
            raise each.failure
    held = sorted(partition for each in members for partition in each.assigned)
    everybody = all(each.assigned for each in members)
    return (
        held == list(range(partitions))
        and everybody
        and all(len(each.seen[partition]) >= 10 for each in members for partition in each.assigned)
    )


def test_members_of_one_client_share_a_topic(member: MakeMember, kind: type[GroupMember]) -> None:
    """Who comes gets a part, who leaves gives it to the others, and no record is missed."""
    first = member(kind)
    wait_until(lambda: shared([first]), "the first has all")
    second, third = member(kind), member(kind)
    wait_until(lambda: shared([first, second, third]), "all three have a part")
    for each in (first, second, third):
        for partition in each.assigned:
            assert each.seen[partition] == [f"{partition}:{number}".encode() for number in range(10)]
    first.close()
    wait_until(lambda: shared([second, third]), "two have all")
    third.close()
    wait_until(lambda: shared([second]), "the last has all")


def test_members_of_different_clients_share_a_topic(member: MakeMember) -> None:
    """Whichever of them leads: the strategy has one name, and metadata one form."""
    members = [member(each) for each in MEMBERS.values()]
    wait_until(lambda: shared(members), "all three have a part")
    while len(members) > 1:
        members.pop(0).close()
        wait_until(lambda: shared(members), f"{len(members)} have all")


def test_members_that_start_together_are_in_the_first_generation(
    fresh_node: Callable[..., NodeProcess], member: MakeMember
) -> None:
    """Nobody reads what is taken away again at once: that is what the delay is for."""
    node = fresh_node(FAIRLOG_GROUPS_INITIAL_REBALANCE_DELAY_MS="4000")
    topic = make_topic(node.address, PARTITIONS)
    fill(node.address, topic)
    with RawMember(node.address) as raw:
        assert raw.api_versions()[11] == (0, 9)
    members = [member(ConfluentMember, address=node.address, of=topic, session_ms=LONG_SESSION_MS) for _ in range(3)]
    wait_until(lambda: shared(members), "all have a part")
    assert [len(each.changes) for each in members] == [1, 1, 1]


def test_member_that_is_killed_is_replaced(
    member: MakeMember, kind: type[GroupMember], node: NodeProcess, topic: str, group: str
) -> None:
    """At the end of its session the others read what it read."""
    name = next(name for name, each in MEMBERS.items() if each is kind)
    command = [sys.executable, "-m", "tests.clients.group_members", name, node.address, topic, group]
    command.append(str(VICTIMS_SESSION_MS))
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as victim:
        try:
            assert victim.stdout is not None
            while victim.stdout.readline().strip() != "given 0 1 2 3 4 5":
                assert victim.poll() is None
            survivor = member(kind)
            wait_until(lambda: len(survivor.assigned) == PARTITIONS // 2, "each has a half")
        finally:
            victim.kill()
    killed = time.monotonic()
    wait_until(lambda: shared([survivor]), "the survivor has all")
    assert time.monotonic() - killed > VICTIMS_SESSION_MS / 1000 / 2


def test_client_that_hangs_up_while_it_joins_does_not_hold_the_group(
    member: MakeMember, node: NodeProcess, group: str
) -> None:
    """Its JoinGroup is parked; with the connection it is forgotten, long before any time-out."""
    first = member(ConfluentMember)
    wait_until(lambda: shared([first]), "the first has all")
    with RawMember(node.address) as raw:
        raw.send_join(group, session_ms=60_000)
        wait_until(lambda: ("taken", frozenset(range(PARTITIONS))) in first.changes, "a rebalance begins")
    wait_until(lambda: shared([first]), "the first has all again")  # at its session's end would be too late


# --- static members --------------------------------------------------------------------------------


def test_static_member_that_restarts_causes_no_rebalance(member: MakeMember, kind: type[GroupMember]) -> None:
    """It goes on with what it had; the other does not notice."""
    first, second = (member(kind, instance=name, session_ms=LONG_SESSION_MS) for name in ("one", "two"))
    wait_until(lambda: shared([first, second]), "both have a part")
    had, noticed = second.assigned, list(first.changes)
    second.close()
    again = member(kind, instance="two", session_ms=LONG_SESSION_MS)
    wait_until(lambda: shared([first, again]), "it is back")
    assert again.assigned == had
    assert first.changes == noticed


def test_static_member_that_is_gone_for_long_is_replaced(member: MakeMember, kind: type[GroupMember]) -> None:
    """At the end of its session it is a member no more."""
    first, second = member(kind, instance="one"), member(kind, instance="two")
    wait_until(lambda: shared([first, second]), "both have a part")
    second.close()
    wait_until(lambda: shared([first]), "the first has all")


@pytest.mark.parametrize("kind", [ConfluentMember, KafkaPythonMember], ids=["confluent-kafka", "kafka-python"])
def test_static_member_whose_place_is_taken_is_fenced(
    member: MakeMember, kind: type[GroupMember], caplog: pytest.LogCaptureFixture
) -> None:
    """Of two processes with one instance id the later one goes on. The earlier one is told, and keeps to it: aiokafka
    is not, since its heartbeats do not say the instance id, and takes the place back."""
    first = member(kind, instance="one", session_ms=LONG_SESSION_MS)
    wait_until(lambda: shared([first]), "it has all")
    second = member(kind, instance="one", session_ms=LONG_SESSION_MS)
    wait_until(lambda: shared([second]), "the second has all")
    if kind is ConfluentMember:
        wait_until(lambda: first.failure is not None, "the first is told")
        assert "Static consumer fenced" in repr(first.failure)
    else:
        wait_until(lambda: "fenced group_instance_id" in caplog.text, "the first is told, and logs it")
    assert shared([second])


# --- cooperative members ---------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [ConfluentMember, KafkaPythonMember], ids=["confluent-kafka", "kafka-python"])
def test_cooperative_members_keep_what_they_keep(member: MakeMember, kind: type[GroupMember]) -> None:
    """Through the rebalances that a newcomer causes a member reads on what stays with it."""
    first = member(kind, cooperative=True, session_ms=LONG_SESSION_MS)
    wait_until(lambda: shared([first]), "the first has all")
    second = member(kind, cooperative=True, session_ms=LONG_SESSION_MS)
    wait_until(lambda: shared([first, second]), "both have a part")
    taken = [partitions for change, partitions in first.changes if change == "taken"]
    given = [partitions for change, partitions in first.changes if change == "given"]
    assert frozenset().union(*taken) == second.assigned
    assert sum(map(len, given)) == PARTITIONS, "nothing was given twice"
    second.close()
    wait_until(lambda: shared([first]), "the first has all again")


def test_cooperative_members_of_different_clients_share_a_topic(member: MakeMember) -> None:
    """They understand each other's metadata."""
    first = member(ConfluentMember, cooperative=True)
    wait_until(lambda: shared([first]), "the first has all")
    second = member(KafkaPythonMember, cooperative=True)
    wait_until(lambda: shared([first, second]), "both have a part")
    first.close()
    wait_until(lambda: shared([second]), "the second has all")


def test_eager_and_cooperative_members_do_not_mix(member: MakeMember, node: NodeProcess) -> None:
    """They have no strategy in common: the later one is refused, and the first reads on."""
    first = member(ConfluentMember)
    wait_until(lambda: shared([first]), "the first has all")
    second = member(KafkaPythonMember, cooperative=True)
    wait_until(lambda: second.failure is not None, "the second is told")
    assert "InconsistentGroupProtocol" in repr(second.failure)
    assert shared([first])


# --- restarts --------------------------------------------------------------------------------------


def test_members_go_on_when_the_node_is_killed(
    fresh_node: Callable[..., NodeProcess], member: MakeMember, kind: type[GroupMember]
) -> None:
    """Nobody joins anew, nothing is taken from anybody, and no record comes twice."""
    node = fresh_node()
    topic = make_topic(node.address, PARTITIONS)
    fill(node.address, topic)
    members = [member(kind, address=node.address, of=topic, session_ms=30_000) for _ in range(2)]
    wait_until(lambda: shared(members), "both have a part")
    changes = [list(each.changes) for each in members]
    node.kill()
    node.start()
    fill(node.address, topic)

    def has_all() -> bool:
        return all(len(each.seen[partition]) >= 20 for each in members for partition in each.assigned)

    wait_until(has_all, "what came after the restart is read, too", timeout_s=2 * WAIT_S)
    assert [each.changes for each in members] == changes
    # Of what a member reads now: what it had before the other one came is in `seen` as well.
    assert sum(len(each.seen[partition]) for each in members for partition in each.assigned) == 20 * PARTITIONS
    assert "groups go on" in node.log_tail()
    assert "group is stable" not in node.log_tail().split("groups go on")[-1], "they rebalanced all the same"


@pytest.mark.parametrize("kill", [True, False], ids=["killed", "stopped"])
def test_members_find_together_again_after_a_restart_in_mid_rebalance(
    fresh_node: Callable[..., NodeProcess], member: MakeMember, group: str, kill: bool
) -> None:
    """Some wait in JoinGroup when the node goes: it starts with the generation before, whose only member then falls
    silent, and they join anew."""
    node = fresh_node(FAIRLOG_STOP_GRACE_MS="60000")
    topic = make_topic(node.address, PARTITIONS)
    fill(node.address, topic)
    with RawMember(node.address, timeout_s=2 * WAIT_S) as raw:
        raw.join(group)
        raw.sync(group, {})
        first, second = (member(each, address=node.address, of=topic) for each in (ConfluentMember, KafkaPythonMember))
        wait_until(lambda: raw.heartbeat(group) != 0, "a rebalance begins")
        raw.heartbeat(group)
        stopped = time.monotonic()
        if kill:
            node.kill()
        else:
            assert node.stop() == 0
            assert time.monotonic() - stopped < 30, "parked requests are answered, not waited for"
    node.start()
    with RawMember(node.address) as late:
        late.member_id, late.generation = raw.member_id, raw.generation
        assert late.heartbeat(group) in (0, REBALANCE_IN_PROGRESS), "it is a member as it was"
    wait_until(lambda: shared([first, second]), "both have a part", timeout_s=2 * WAIT_S)


# --- tools -----------------------------------------------------------------------------------------


def test_admin_of_confluent_kafka_sees_and_deletes_groups(member: MakeMember, node: NodeProcess, group: str) -> None:
    """Listed, described with members and assignments, refused while in use, then deleted."""
    admin = AdminClient({"bootstrap.servers": node.address})
    first = member(ConfluentMember, session_ms=LONG_SESSION_MS)
    wait_until(lambda: shared([first]), "the first has all")
    listed = {each.group_id: each for each in admin.list_consumer_groups(request_timeout=WAIT_S).result().valid}
    assert listed[group].state is confluent_kafka.ConsumerGroupState.STABLE
    described = admin.describe_consumer_groups([group], request_timeout=WAIT_S)[group].result()
    assert described.partition_assignor == "range"
    assert described.coordinator.id in range(1, node.processes + 1)
    (only,) = described.members
    assert {each.partition for each in only.assignment.topic_partitions} == set(range(PARTITIONS))
    assert only.host == "/127.0.0.1"
    with pytest.raises(confluent_kafka.KafkaException, match="NON_EMPTY_GROUP"):
        admin.delete_consumer_groups([group], request_timeout=WAIT_S)[group].result()
    first.close()
    described = admin.describe_consumer_groups([group], request_timeout=WAIT_S)[group].result()
    assert described.state is confluent_kafka.ConsumerGroupState.EMPTY
    admin.delete_consumer_groups([group], request_timeout=WAIT_S)[group].result()
    with pytest.raises(confluent_kafka.KafkaException, match="GROUP_ID_NOT_FOUND"):
        admin.delete_consumer_groups([group], request_timeout=WAIT_S)[group].result()


def test_admin_of_kafka_python_sees_and_deletes_groups(member: MakeMember, node: NodeProcess, group: str) -> None:
    """Listed, described, and a static member sent away."""
    first = member(KafkaPythonMember, instance="one", session_ms=VICTIMS_SESSION_MS)
    wait_until(lambda: shared([first]), "the first has all")
    admin = kafka.KafkaAdminClient(bootstrap_servers=node.address)
    try:
        assert group in str(admin.list_groups())
        described = admin.describe_groups([group])
        assert "Stable" in str(described)
        assert "one" in str(described)
        first.close()
        assert "NON_EMPTY" in str(admin.delete_groups([group])).upper().replace("NONEMPTY", "NON_EMPTY")
        wait_until(lambda: "Empty" in str(admin.describe_groups([group])), "its session ends")
        admin.delete_groups([group])
        assert "Dead" in str(admin.describe_groups([group]))
    finally:
        admin.close()
