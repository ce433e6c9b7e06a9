"""The command `fairlog`: serve a node, write and read records, look at topics, groups and transactions of any broker,
inspect, verify, audit and back up a node's files, give its shards to processes, add users, and say who may do what,
and how much.

One module per command or group of commands (`serve`, `cluster`, `produce`, `consume`, `pipeline`, `inspect`, `verify`,
`audit`, `backup`, `topic`, `group`, `txn`, `sink`, `shard`, `acl`, `user`, `quota`); each is thin: options in, a call,
a table or JSON out. `main` is where errors end: what a user can have caused, or the disk, becomes one sentence on
stderr and exit code 1 (wrong usage: 2; interrupted: 130). Anything else is a mistake of ours and keeps its traceback.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from fairlog import __version__
from fairlog.cli import (
    acl,
    audit,
    backup,
    cluster,
    consume,
    group,
    inspect,
    pipeline,
    produce,
    quota,
    serve,
    shard,
    sink,
    topic,
    txn,
    user,
    verify,
)
from fairlog.cli.errors import ClientError
from fairlog.cli.output import say
from fairlog.config import ConfigError

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

app = typer.Typer(
    name="fairlog",
    help="Fairlog: a broker that speaks Kafka's protocol. Plain consumers see committed records only.",
    epilog=EXAMPLES,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command("serve", epilog=serve.EXAMPLES)(serve.serve)
app.command("cluster", epilog=cluster.EXAMPLES)(cluster.cluster)
app.command("produce", epilog=produce.EXAMPLES)(produce.produce)
app.command("consume", epilog=consume.EXAMPLES)(consume.consume)
app.command("pipeline", epilog=pipeline.EXAMPLES)(pipeline.pipeline)
app.command("inspect", epilog=inspect.EXAMPLES)(inspect.inspect)
app.command("verify", epilog=verify.EXAMPLES)(verify.verify)
app.command("audit", epilog=audit.EXAMPLES)(audit.audit)
app.command("backup", epilog=backup.EXAMPLES)(backup.backup)
app.add_typer(topic.app)
app.add_typer(group.app)
app.add_typer(txn.app)
app.add_typer(sink.app)
app.add_typer(shard.app)
app.add_typer(acl.app)
app.add_typer(user.app)
app.add_typer(quota.app)


def _say_version(asked: bool) -> None:
    if asked:
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
    except (ConfigError, serve.NodeStopped) as error:
        sys.stderr.write(f"fairlog: {error}\n")
        sys.exit(1)
    except BrokenPipeError:
        # Whoever read our output (`| head`) has seen enough. Nothing may be written to stdout any more, not even
        # by the interpreter's last flush.
        sys.stdout = sys.stderr
        sys.exit(1)
