"""The addresses of several processes follow from the settings that all have in common."""

from __future__ import annotations

import dataclasses

import pytest

from fairlog.config import AdminSettings, ConfigError, Settings
from fairlog.config_sources import load
from fairlog.config_values import Address
from fairlog.supervisor.addresses import settings_of_all, settings_of_process
from fairlog.supervisor.assignment import Assignment, assignment_in


def settings_with(processes: int, **flags: object) -> Settings:
    flags = {name.replace("admin_", "admin."): value for name, value in flags.items()}
    return load(flags={"processes": processes, **flags}, environment={})


def addresses(settings: Settings) -> list[tuple[str, str, str]]:
    """Of each process: listen, advertised, admin.listen."""
    return [(str(each.listen), str(each.advertised), str(each.admin.listen)) for each in settings_of_all(settings)]


def test_settings_of_the_only_process_are_those_that_were_given() -> None:
    """With one process nothing changes."""
    assert settings_of_process(Settings(), 0) == Settings()


def test_settings_of_a_process_have_its_number_and_addresses_and_all_else_in_common() -> None:
    """The node id stays the first one's: the cluster store adds the number."""
    settings = dataclasses.replace(settings_with(3), node_id=7)
    expected = dataclasses.replace(
        settings, process=2, listen=Address("127.0.0.1", 9094), admin=AdminSettings(listen=Address("127.0.0.1", 9646))
    )
    assert settings_of_process(settings, 2) == expected


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
def test_addresses_of_two_processes_are_listed_or_follow(
    flags: dict[str, str], expected: list[tuple[str, ...]]
) -> None:
    """From the first one, or from a list; port 0 and off stay what they are."""
    assert addresses(settings_with(2, **flags)) == expected


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (
            {"listen": "a:9642", "admin_listen": "a:9644"},
            "listen of process 2 (a:9644) and admin.listen of process 0 (a:9644) are the same",
        ),
        (
            {"listen": "0.0.0.0:9646", "admin_listen": "127.0.0.1:9644"},
            "admin.listen of process 2 (127.0.0.1:9646) and listen of process 0 (0.0.0.0:9646) are the same",
        ),
        (
            {"listen": "a:9646", "admin_listen": "0.0.0.0:9644"},
            "admin.listen of process 2 (0.0.0.0:9646) and listen of process 0 (a:9646) are the same",
        ),
        ({"listen": "a:1,a:2,a:1"}, "listen of process 2 (a:1) and listen of process 0 (a:1) are the same"),
        (
            {"listen": "a:1,b:1,c:2", "advertised": "d:0"},
            "advertised of process 1 (d:1) and advertised of process 0 (d:1) are the same",
        ),
        ({"listen": "a:65534"}, "listen = a:65534 leaves no port for process 2: choose a lower one"),
        ({"admin_listen": "a:65535"}, "admin.listen = a:65535 leaves no port for process 1: choose a lower one"),
    ],
)
def test_addresses_that_overlap_or_do_not_suffice_are_refused(flags: dict[str, str], words: str) -> None:
    """Clients would reach another broker than the one that they were told of."""
    with pytest.raises(ConfigError) as raised:
        settings_of_all(settings_with(3, **flags))
    assert str(raised.value).startswith(words)


@pytest.mark.parametrize("admins", [(), (Address("::1", 3), Address("::1", 4))])
def test_assignment_reads_back_as_it_is_written_and_overrides_the_addresses(admins: tuple[Address, ...]) -> None:
    """The ports that the supervisor has picked are those of the process, which is told the others' as well."""
    assignment = Assignment(1, Address("h", 3), admins, 7)
    admin = admins[1] if admins else None
    assert assignment_in(assignment.to_environment()) == assignment
    settings = assignment.apply(settings_with(2, listen="h:0", advertised="b:5"))
    assert (settings.process, settings.listen, settings.admin.listen) == (1, Address("h", 3), admin)
    assert settings.admin_listeners == admins
    assert settings.advertised == Address("b", 6)


@pytest.mark.parametrize(
    "text", ["1", "", "[1,2]", '[0,"h","h:1",3]', "[0,1,2,3]", '["x","h:1",[],3]', '[1,"h:1",["h:2"],3]']
)
def test_assignment_set_by_hand_is_refused(text: str) -> None:
    """The variable is no setting."""
    with pytest.raises(ConfigError, match="FAIRLOG_PROCESS is no setting: fairlog serve sets it for the processes"):
        assignment_in({"FAIRLOG_PROCESS": text})
    assert assignment_in({}) is None
