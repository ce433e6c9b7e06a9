"""The addresses of several shards follow from the settings that all have in common."""

from __future__ import annotations

import dataclasses

import pytest

from fairlog.config import AdminSettings, ConfigError, Settings
from fairlog.config_sources import load
from fairlog.config_values import Address, ListenerAddresses
from fairlog.supervisor.addresses import settings_of_all, settings_of_shard
from fairlog.supervisor.assignment import (
    Assignment,
    Halt,
    Halted,
    Ready,
    Serve,
    environment_of,
    from_line,
    process_in,
    to_line,
)


def settings_with(**flags: object) -> Settings:
    return load(flags={name.replace("admin_", "admin."): value for name, value in flags.items()}, environment={})


def plain(host: str, port: int) -> ListenerAddresses:
    return ListenerAddresses.plain(Address(host, port))


def addresses(settings: Settings, shards: int) -> list[tuple[str, str, str]]:
    """Of each shard: listen, advertised, admin.listen."""
    of_all = settings_of_all(settings, shards)
    return [(str(each.listen), str(each.advertised), str(each.admin.listen)) for each in of_all]


def test_settings_of_the_only_shard_are_those_that_were_given() -> None:
    """With one shard nothing changes."""
    assert settings_of_shard(Settings(), 0, 1) == Settings()


def test_settings_of_a_shard_have_its_number_and_addresses_and_all_else_in_common() -> None:
    """The node id stays the first one's: the cluster store adds the number."""
    settings = settings_with(node_id=7)
    expected = dataclasses.replace(
        settings,
        shard=2,
        shards=3,
        listen=plain("127.0.0.1", 9094),
        admin=AdminSettings(listen=Address("127.0.0.1", 9646)),
    )
    assert settings_of_shard(settings, 2, 3) == expected


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        ({}, [("127.0.0.1:9092", "None", "127.0.0.1:9644"), ("127.0.0.1:9093", "None", "127.0.0.1:9645")]),
        (
            {"listen": "[::]:0", "advertised": "b:0", "admin_listen": "a:0"},
            [("[::]:0", "b:0", "a:0"), ("[::]:0", "b:0", "a:0")],
        ),
        (
            {"listen": "a:5,b:5", "advertised": "c:1,d:9", "admin_listen": "off"},
            [("a:5", "c:1", "None"), ("b:5", "d:9", "None")],
        ),
        (
            {"listen": "0.0.0.0:1", "advertised": "b:7", "admin_listen": "a:65534"},
            [("0.0.0.0:1", "b:7", "a:65534"), ("0.0.0.0:2", "b:8", "a:65535")],
        ),
        (
            {"listen": "a:5,b:5", "advertised": "c:0,d:0", "admin_listen": "off"},
            [("a:5", "c:0", "None"), ("b:5", "d:0", "None")],
        ),
    ],
)
def test_addresses_of_two_shards_are_listed_or_follow(flags: dict[str, str], expected: list[tuple[str, ...]]) -> None:
    """From the first one, or from a list; port 0 and off stay what they are."""
    assert addresses(settings_with(**flags), 2) == expected


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (
            {"listen": "a:9642", "admin_listen": "a:9644"},
            "listen of shard 2 (a:9644) and admin.listen of shard 0 (a:9644) are the same",
        ),
        (
            {"listen": "0.0.0.0:9646", "admin_listen": "127.0.0.1:9644"},
            "admin.listen of shard 2 (127.0.0.1:9646) and listen of shard 0 (0.0.0.0:9646) are the same",
        ),
        (
            {"listen": "a:9646", "admin_listen": "0.0.0.0:9644"},
            "admin.listen of shard 2 (0.0.0.0:9646) and listen of shard 0 (a:9646) are the same",
        ),
        ({"listen": "a:1,a:2,a:1"}, "listen of shard 2 (a:1) and listen of shard 0 (a:1) are the same"),
        (
            {"listen": "a:1,b:1,c:2", "advertised": "d:0"},
            "advertised of shard 1 (d:1) and advertised of shard 0 (d:1) are the same",
        ),
        ({"listen": "a:65534"}, "listen = a:65534 leaves no port for shard 2: choose a lower one"),
        (
            {"listen": "a:1,b:2"},
            "listen has 2 addresses, and the node has 3 shards: one HOST:PORT is needed, or one for each shard",
        ),
        ({"advertised": "a:1,b:2,c:3,d:4"}, "advertised has 4 addresses, and the node has 3 shards: one HOST:PORT is"),
        ({"admin_listen": "a:65535"}, "admin.listen = a:65535 leaves no port for shard 1: choose a lower one"),
    ],
)
def test_addresses_that_overlap_or_do_not_suffice_are_refused(flags: dict[str, str], words: str) -> None:
    """Clients would reach another broker than the one that they were told of."""
    with pytest.raises(ConfigError) as raised:
        settings_of_all(settings_with(**flags), 3)
    assert str(raised.value).startswith(words)


def test_only_shard_takes_no_list_of_addresses() -> None:
    """The second one would not be listened on."""
    with pytest.raises(ConfigError, match="listen has 2 addresses, and the node has 1 shard: one HOST:PORT is needed"):
        settings_of_shard(settings_with(listen="a:1,b:2"), 0, 1)


@pytest.mark.parametrize("admins", [(), (Address("::1", 3), Address("::1", 4))])
def test_assignment_overrides_the_addresses(admins: tuple[Address, ...]) -> None:
    """The ports that the supervisor has picked are those of the shard, which is told the others' as well."""
    assignment = Assignment(1, 2, plain("h", 3), admins)
    admin = admins[1] if admins else None
    settings = assignment.apply(settings_with(listen="h:0", advertised="b:5"))
    assert (settings.shard, settings.shards) == (1, 2)
    assert (settings.listen, settings.admin.listen) == (plain("h", 3), admin)
    assert settings.admin_listeners == admins
    assert settings.advertised == plain("b", 6)


def test_only_shard_of_a_supervisor_answers_for_no_others() -> None:
    """Its admin listener is the node's."""
    settings = Assignment(0, 1, plain("h", 3), (Address("h", 4),)).apply(settings_with())
    assert (settings.admin.listen, settings.admin_listeners) == (Address("h", 4), ())


@pytest.mark.parametrize(
    "said",
    [
        Serve(Assignment(1, 2, plain("h", 3), (Address("::1", 3), Address("::1", 4)))),
        Serve(Assignment(0, 1, plain("h", 3), ())),
        Halt(7),
        Ready(2, "fairlog ready on h:3\nfairlog console on http://h:4/\n"),
        Halted(0),
    ],
)
def test_line_reads_back_as_it_is_written(said: Serve | Halt | Ready | Halted) -> None:
    """Each is one line."""
    line = to_line(said)
    assert line.endswith(b"\n")
    assert line.count(b"\n") == 1
    assert from_line(line) == said


@pytest.mark.parametrize("line", [b"", b"halt 1", b'["halt"]', b'["halt", "1"]', b'["serve", 0, 1, "h:1", 2]', b"{}"])
def test_line_that_is_none_is_refused(line: bytes) -> None:
    """Something else writes to the standard output of a process."""
    with pytest.raises(ValueError, match=r"no line between a supervisor and its processes|Expecting"):
        from_line(line)


def test_number_of_a_process_reads_back_as_it_is_written() -> None:
    """Without one, no supervisor has started the process."""
    assert process_in(environment_of(12)) == 12
    assert process_in({}) is None


@pytest.mark.parametrize("text", ["", "-1", "x", "1.0", "[1]", "\u0661"])
def test_number_of_a_process_set_by_hand_is_refused(text: str) -> None:
    """The variable is no setting."""
    with pytest.raises(ConfigError, match="FAIRLOG_PROCESS is no setting: fairlog serve sets it for the processes"):
        process_in({"FAIRLOG_PROCESS": text})
