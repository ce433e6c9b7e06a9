"""The command `fairlog`: serve a node, write and read records, look at topics, groups and transactions of any broker,
inspect, verify, audit and back up a node's files, give its shards to processes, add users, and say who may do what,
and how much.

One module per command or group of commands (COMMANDS); each is thin: options in, a call, a table or JSON out. It is
imported when its command is asked for: all of them take a quarter of a second, and most commands much less. `main` is
where errors end: what a user can have caused, or the disk, becomes one sentence on stderr and exit code 1 (wrong usage:
2; interrupted: 130). Anything else is a mistake of ours and keeps its traceback.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any

import typer
import typer.core
import typer.main

from fairlog import __version__
from fairlog.cli.errors import ClientError

COMMANDS = (
    "serve", "cluster", "produce", "consume", "pipeline", "inspect", "verify", "audit", "backup",
    "topic", "group", "txn", "sink", "shard", "acl", "user", "quota",
)  # fmt: skip
"""In the order of `--help`. Each is a module here, with a function of the same name and its EXAMPLES, or with an `app`
of several commands.
"""

EXAMPLES = """
\b
Examples:
  fairlog serve --data-dir data
  fairlog topic create orders --partitions 3
  fairlog produce orders < orders.txt
  fairlog consume orders --until-end
  fairlog --install-completion                # for the shell that you are in
\b
docs/command-line.md describes all commands.
"""

_TYPER: dict[str, Any] = {
    "pretty_exceptions_enable": False,
    "rich_markup_mode": None,
    "context_settings": {"help_option_names": ["-h", "--help"]},
}
"""Of the program and, alike, of each command."""


class _Commands(Mapping[str, Any]):
    """The commands by name, each made when it is asked for."""

    def __getitem__(self, name: str) -> Any:
        if name not in COMMANDS:
            raise KeyError(name)
        module = importlib.import_module(f"fairlog.cli.{name}")
        parent = typer.Typer(**_TYPER)
        if hasattr(module, "app"):
            parent.add_typer(module.app)
        else:
            parent.command(name, epilog=module.EXAMPLES)(getattr(module, name))
        return typer.main.get_group(parent).commands[name]

    def __iter__(self) -> Iterator[str]:
        return iter(COMMANDS)

    def __len__(self) -> int:
        return len(COMMANDS)


class _Program(typer.core.TyperGroup):
    """The program, with its commands."""

    def __init__(self, **settings: Any) -> None:
        settings["commands"] = _Commands()
        super().__init__(**settings)


app = typer.Typer(
    name="fairlog",
    cls=_Program,
    help="Fairlog: a broker that speaks Kafka's protocol. Plain consumers see committed records only.",
    epilog=EXAMPLES,
    no_args_is_help=True,
    **_TYPER,
)


def _say_version(asked: bool) -> None:
    if asked:
        from fairlog.cli.output import say

        say(f"fairlog {__version__}")
        raise typer.Exit


@app.callback()
def about(
    client_properties: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            envvar="FAIRLOG_CLIENT_PROPERTIES",
            help="How clients of a broker show who they are: security.protocol, sasl.… and ssl.…, as librdkafka has "
            "them.",
        ),
    ] = None,
    version: Annotated[  # noqa: ARG001 (its callback answers)
        bool, typer.Option("--version", callback=_say_version, is_eager=True, help="Say which version this is.")
    ] = False,
) -> None:
    """What the program itself can be asked, and what is common to the commands that ask a broker."""
    from fairlog.cli.client_properties import use

    use(client_properties)


def main() -> None:
    """Run the command line; exits the process."""
    try:
        app(prog_name="fairlog")
    except ClientError as error:
        sys.stderr.write(f"fairlog: {error}\n")
        sys.exit(error.exit_code)
    except BrokenPipeError:
        # Whoever read our output (`| head`) has seen enough. Nothing may be written to stdout any more, not even
        # by the interpreter's last flush.
        sys.stdout = sys.stderr
        sys.exit(1)
    except Exception as error:
        from fairlog.config import ConfigError

        if not isinstance(error, ConfigError):
            raise
        sys.stderr.write(f"fairlog: {error}\n")
        sys.exit(1)
