"""`fairlog quota …` on a node: what is set is listed and holds, and what is deleted is gone, also after a restart."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator

import pytest

from scripts.node_process import NodeProcess

Fairlog = Callable[..., tuple[int, str, str]]


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NodeProcess]:
    node = NodeProcess(tmp_path_factory.mktemp("node") / "data")
    node.start()
    yield node
    assert node.stop() == 0, node.log_tail()


@pytest.fixture
def quota(fairlog: Fairlog, node: NodeProcess) -> Callable[..., list[tuple[dict[str, str | None], dict[str, int]]]]:
    """Runs a command that succeeds: what it shows."""

    def run(command: str, *arguments: str) -> list[tuple[dict[str, str | None], dict[str, int]]]:
        code, out, err = fairlog("quota", command, "--bootstrap", node.address, "--json", *arguments)
        assert code == 0, err
        return [(each["entity"], each["quotas"]) for each in json.loads(out)]

    return run


def test_quotas_are_set_listed_deleted_and_kept_over_a_restart(quota, node: NodeProcess) -> None:
    alice = ({"user": "alice"}, {"producer_byte_rate": 1000, "consumer_byte_rate": 2000})
    nightly = ({"user": None, "client-id": "nightly"}, {"consumer_byte_rate": 7})
    address = ({"ip": "10.0.0.1"}, {"connection_creation_rate": 5})
    assert quota("list") == []
    quota("set", "--user", "alice", "--producer-byte-rate", "1000")
    assert quota("set", "--user", "alice", "--consumer-byte-rate", "2000") == [alice]
    assert quota("set", "--default-user", "--client-id", "nightly", "--consumer-byte-rate", "7") == [nightly]
    assert quota("set", "--ip", "::ffff:10.0.0.1", "--connection-rate", "5") == [address]
    node.stop()
    node.start()
    assert quota("list") == [address, alice, nightly]
    assert quota("list", "--user", "alice") == [alice]
    assert quota("list", "--default-user") == []
    assert quota("delete", "--user", "alice", "--producer-byte-rate") == [(alice[0], {"consumer_byte_rate": 2000})]
    assert quota("delete", "--user", "alice") == quota("list", "--user", "alice") == []
    assert quota("delete", "--ip", "10.0.0.1") == []
    assert quota("delete", "--default-user", "--client-id", "nightly") == []
    assert quota("list") == []


def test_quotas_are_shown_to_people(fairlog: Fairlog, node: NodeProcess) -> None:
    to_node = ("--bootstrap", node.address)
    assert fairlog("quota", "list", *to_node)[:2] == (0, "there are no such quotas\n")
    code, out, _ = fairlog("quota", "set", *to_node, "--default-client-id", "--producer-byte-rate", "1048576")
    assert code == 0
    assert [line.split() for line in out.splitlines()] == [
        ["user", "client-id", "ip", "quota", "a", "second"],
        ["<default>", "producer_byte_rate", "1048576"],
    ]
    fairlog("quota", "set", *to_node, "--default-client-id", "--consumer-byte-rate", "7")
    deleted = "the quotas of default client-id were deleted"
    out = fairlog("quota", "delete", *to_node, "--default-client-id", "--producer-byte-rate")[1]
    assert out.startswith(f"{deleted}; left:\n")
    assert "consumer_byte_rate" in out
    assert fairlog("quota", "delete", *to_node, "--default-client-id")[1] == f"{deleted}\n"
    assert fairlog("quota", "delete", *to_node, "--default-client-id")[1] == "there are no such quotas\n"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("set", "--user", "alice"), "say how much"),
        (("set", "--producer-byte-rate", "5"), "a user, a client-id, both, or an ip"),
        (("set", "--user", "a", "--default-user", "--producer-byte-rate", "5"), "exclude each other"),
        (("set", "--user", "a", "--ip", "10.0.0.1", "--producer-byte-rate", "5"), "for no user"),
        (("set", "--user", "a", "--connection-rate", "5"), "no quota of a user"),
        (("set", "--ip", "host.example", "--connection-rate", "5"), "no IP address"),
        (("set", "--user", "a", "--producer-byte-rate", "0"), "greater than or equal to 1"),
        (("delete",), "a user, a client-id, both, or an ip"),
        (("list", "--user", ""), "1 to 255 characters"),
    ],
)
def test_wrong_command_line_is_refused(fairlog: Fairlog, arguments: tuple[str, ...], words: str) -> None:
    code, _, err = fairlog("quota", *arguments, "--bootstrap", "127.0.0.1:1")
    assert code == 2
    assert words in " ".join(err.split())
