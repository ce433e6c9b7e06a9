"""`fairlog acl …` and a node with an authorizer: what is added is there, and holds, and what is removed is not."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator

import pytest

from fairlog.cli.acl_words import Resources, Who, acls_of, filters_of, operation_of
from fairlog.security.acls import Acl, BadAcl, Operation, PatternType, Permission, ResourceType
from scripts.node_process import NodeProcess

Fairlog = Callable[..., tuple[int, str, str]]

ALICE = Who(Permission.ALLOW, ["User:alice"], [])


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NodeProcess]:
    """Whoever has not signed in is the operator."""
    node = NodeProcess(
        tmp_path_factory.mktemp("locked") / "data",
        {"FAIRLOG_AUTHORIZER_ENABLE": "true", "FAIRLOG_AUTHORIZER_SUPER_USERS": "User:ANONYMOUS"},
    )
    node.start()
    yield node
    assert node.stop() == 0, node.log_tail()


@pytest.fixture
def acl(fairlog: Fairlog, node: NodeProcess) -> Callable[..., list[str]]:
    """Runs a command that succeeds: each ACL that it shows, in few words."""

    def run(command: str, *arguments: str) -> list[str]:
        code, out, err = fairlog("acl", command, "--bootstrap", node.address, "--json", *arguments)
        assert code == 0, err
        columns = ("permission", "operation", "resource", "pattern", "name", "principal", "host")
        return [" ".join(each[column] for column in columns) for each in json.loads(out)]

    return run


def test_acls_are_added_listed_and_removed(acl: Callable[..., list[str]]) -> None:
    alice = ("--allow-principal", "User:alice", "--operation", "Read", "--topic", "orders")
    shown = "allow READ topic literal orders User:alice *"
    assert acl("add", *alice) == acl("add", *alice) == acl("list") == [shown]
    prefixed = ("--resource-pattern-type", "prefixed", "--topic", "or", "--deny-principal", "User:*")
    acl("add", *prefixed, "--deny-host", "10.0.0.9", "--operation", "alterConfigs")
    denied = "deny ALTER_CONFIGS topic prefixed or User:* 10.0.0.9"
    assert acl("list", "--topic", "orders", "--resource-pattern-type", "match") == [denied, shown]
    assert acl("list", "--topic", "orders") == acl("list", "--principal", "User:alice") == [shown]
    assert acl("remove", *alice) == [shown]
    assert acl("remove", *alice) == []
    assert acl("remove", "--all", *prefixed[:4]) == [denied]
    assert acl("list") == []


def test_convenience_gives_what_kafka_acls_gives(acl: Callable[..., list[str]]) -> None:
    producer = ("--producer", "--topic", "t", "--transactional-id", "tx", "--allow-principal", "User:p", "--idempotent")
    consumer = ("--consumer", "--topic", "t", "--group", "g", "--allow-principal", "User:c")
    acl("add", *producer)
    acl("add", *consumer)
    assert acl("list", "--principal", "User:p") == _OF_PRODUCER
    assert acl("list", "--principal", "User:c") == [
        "allow READ topic literal t User:c *",
        "allow DESCRIBE topic literal t User:c *",
        "allow READ group literal g User:c *",
    ]
    assert len(acl("remove", *producer)) == 6
    assert len(acl("remove", *consumer)) == 3


_OF_PRODUCER = [
    "allow WRITE topic literal t User:p *",
    "allow CREATE topic literal t User:p *",
    "allow DESCRIBE topic literal t User:p *",
    "allow IDEMPOTENT_WRITE cluster literal kafka-cluster User:p *",
    "allow WRITE transactional_id literal tx User:p *",
    "allow DESCRIBE transactional_id literal tx User:p *",
]


def test_table_is_for_people(fairlog: Fairlog, node: NodeProcess) -> None:
    code, out, _ = fairlog("acl", "list", "--bootstrap", node.address)
    assert (code, out.strip()) == (0, "there are no such ACLs")
    one = ("--allow-principal", "User:alice", "--operation", "READ", "--topic", "orders", "--bootstrap", node.address)
    fairlog("acl", "add", *one)
    said, _, row = fairlog("acl", "remove", *one)[1].splitlines()
    assert (said, row.split()[:2]) == ("removed:", ["topic", "orders"])
    assert fairlog("acl", "remove", *one)[1] == "nothing was removed\n"


def test_node_without_an_authorizer_says_so(fairlog: Fairlog, fake_broker: Callable[..., object]) -> None:
    """A broker that does not serve it, too."""
    code, _, err = fairlog("acl", "list", "--bootstrap", fake_broker({}).address)  # type: ignore[attr-defined]
    assert code == 1
    assert "does not serve it" in err


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (["--topic", "t"], "name somebody"),
        (["--allow-principal", "User:a"], "name a resource"),
        (["--allow-principal", "alice", "--topic", "t"], "KIND:NAME"),
        (["--allow-principal", "User:a", "--topic", "t", "--operation", "sing"], "no operation 'sing'"),
        (["--allow-principal", "User:a", "--group", "g", "--operation", "WRITE"], "WRITE is no operation on a GROUP"),
        (["--allow-principal", "User:a", "--producer", "--group", "g"], "--producer needs --topic"),
        (["--allow-principal", "User:a", "--consumer", "--topic", "t"], "--consumer needs --topic and --group"),
        (["--allow-principal", "User:a", "--consumer", "--topic", "t", "--operation", "READ"], "leave --operation out"),
    ],
)
def test_wrong_options_are_refused(fairlog: Fairlog, arguments: list[str], why: str) -> None:
    code, _, err = fairlog("acl", "add", *arguments)
    assert code == 2
    assert why in " ".join(err.replace("│", " ").split())


def test_all_removes_by_resource_alone(fairlog: Fairlog) -> None:
    for arguments in (["--all"], ["--all", "--topic", "t", "--operation", "READ"]):
        assert fairlog("acl", "remove", *arguments)[0] == 2


def test_words_are_read_as_kafka_acls_reads_them() -> None:
    for word in ("DescribeConfigs", "describe_configs", "DESCRIBE-CONFIGS"):
        assert operation_of(word) is Operation.DESCRIBE_CONFIGS
    with pytest.raises(BadAcl):
        operation_of("any")
    cluster = acls_of(Resources(cluster=True), PatternType.PREFIXED, [ALICE], [Operation.ALTER])
    assert cluster == [
        Acl(
            ResourceType.CLUSTER,
            "kafka-cluster",
            PatternType.LITERAL,
            "User:alice",
            "*",
            Operation.ALTER,
            Permission.ALLOW,
        )
    ]
    (of_cluster,) = filters_of(Resources(cluster=True), PatternType.PREFIXED)
    assert of_cluster.matches(cluster[0])
