"""What `--help`, docs/command-line.md and shell completion say of the commands is what the commands are."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import typer.main

from fairlog import __version__
from fairlog.cli import app
from tests.cli.processes import FAIRLOG

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "command-line.md").read_text(encoding="utf-8")

_SECTION = re.compile(r"^### (.+)\n((?:(?!^##).*\n)*)", re.MULTILINE)
_SHELL = re.compile(r"^```sh\n(.*?)^```", re.MULTILINE | re.DOTALL)
_OPTION_ROW = re.compile(r"^\| `(--[\w-]+)` \|", re.MULTILINE)


def all_commands(command: Any, name: str) -> Iterator[tuple[str, Any]]:
    """Every command and group below `command`, with its name as it is typed."""
    yield name, command
    for child in getattr(command, "commands", {}).values():
        yield from all_commands(child, f"{name} {child.name}")


COMMANDS = dict(all_commands(typer.main.get_command(app), "fairlog"))
LEAVES = {name: command for name, command in COMMANDS.items() if not hasattr(command, "commands")}
SECTIONS = dict(_SECTION.findall(PAGE))


def options_of(command: Any) -> set[str]:
    """The long options of a command, without --help."""
    return {
        option
        for parameter in command.params
        for option in (*parameter.opts, *parameter.secondary_opts)
        if option.startswith("--")
    } - {"--help"}


def commands_in(text: str) -> Iterator[list[str]]:
    """Every call of `fairlog` in lines of shell: the words behind its name, without pipes and redirections."""
    for line in text.splitlines():
        words = shlex.shlex(line, posix=True, punctuation_chars="|<>")
        words.whitespace_split = True
        call: list[str] | None = None
        for word in words:
            if word in ("|", "<", ">"):
                if call is not None:
                    yield call
                call = None
            elif call is not None:
                call.append(word)
            elif word == "fairlog":
                call = []
        if call is not None:
            yield call


def parse(call: list[str]) -> str:
    """Have the command read its command line, without running it; answers the command's name."""
    command, name = COMMANDS["fairlog"], "fairlog"
    while call and call[0] in getattr(command, "commands", {}):
        name = f"{name} {call[0]}"
        command, call = command.commands[call[0]], call[1:]
    if not hasattr(command, "commands"):
        command.make_context(name, list(call))
    return name


def test_command_loads_no_other_one() -> None:
    """All of them, with the node's modules, take longer to load than most commands to answer."""
    program = "import sys; from fairlog.cli import app; import typer.main; group = typer.main.get_command(app); "
    program += "assert group.commands['topic'].commands; print(*sys.modules)"
    loaded = subprocess.run(
        [sys.executable, "-c", program], stdout=subprocess.PIPE, text=True, check=True
    ).stdout.split()
    assert "fairlog.cli.topic" in loaded
    assert not {"fairlog.cli.serve", "fairlog.cli.txn", "fairlog.config", "trio", "lmdb"}.intersection(loaded)


@pytest.mark.parametrize("name", COMMANDS)
def test_help_of_a_command_has_an_example_that_it_takes(name: str) -> None:
    """Each --help ends with examples: command lines that the program reads, one at least of this very command."""
    calls = list(commands_in(COMMANDS[name].epilog or ""))
    assert any(parse(call).startswith(name) for call in calls), f"{name} has no example"


def test_page_has_a_section_for_each_command_and_no_other() -> None:
    """docs/command-line.md grows and shrinks with the commands."""
    assert sorted(SECTIONS) == sorted(LEAVES)


@pytest.mark.parametrize("name", LEAVES)
def test_section_of_a_command_names_its_options_and_no_other(name: str) -> None:
    """An option that is new, gone or renamed is so on the page, too."""
    assert sorted(_OPTION_ROW.findall(SECTIONS[name])) == sorted(options_of(LEAVES[name]))


@pytest.mark.parametrize("name", LEAVES)
def test_section_of_a_command_has_examples_that_it_takes(name: str) -> None:
    """Every example on the page is a command line that the program reads; each command has one of its own."""
    calls = [call for block in _SHELL.findall(SECTIONS[name]) for call in commands_in(block)]
    assert name in {parse(call) for call in calls}


def test_version_of_the_program_is_told(fairlog: Callable[..., tuple[int, str, str]]) -> None:
    """`fairlog --version` needs no command."""
    assert fairlog("--version") == (0, f"fairlog {__version__}\n", "")


def test_examples_that_are_wrong_are_found() -> None:
    """The check of the examples itself can fail."""
    with pytest.raises(Exception, match="No such option"):
        parse(["consume", "orders", "--from-begining"])
    with pytest.raises(Exception, match="Missing"):
        parse(["consume"])


@pytest.mark.slow
@pytest.mark.parametrize(
    ("typed", "completed"),
    [
        ("fairlog ", {"serve", "produce", "consume", "topic", "group", "txn"}),
        ("fairlog group ", {"list", "describe", "reset"}),
        ("fairlog consume --from", {"--from-beginning"}),
    ],
)
def test_completion_knows_commands_and_options(typed: str, completed: set[str]) -> None:
    """What `--install-completion` installs asks the program itself, so it cannot fall behind."""
    words = typed.split(" ")
    done = subprocess.run(
        FAIRLOG,
        check=True,
        capture_output=True,
        text=True,
        cwd=ROOT,
        env={"_FAIRLOG_COMPLETE": "complete_bash", "COMP_WORDS": typed, "COMP_CWORD": str(len(words) - 1)},
    )
    assert completed <= set(done.stdout.split())
