"""The command `fairlog`: serve a node, look at topics and transactions of any broker.

One module per group of commands (`serve`, `topic`, `txn`); each is thin: options in, a call, a table or JSON out.
`main` is where errors end: what a user can have caused, or the disk, becomes one sentence on stderr and exit
code 1. Anything else is a mistake of ours and keeps its traceback.
"""

from __future__ import annotations

import sys

import typer

from fairlog.cli import serve, topic, txn
from fairlog.cli.errors import ClientError
from fairlog.config import ConfigError

app = typer.Typer(
    name="fairlog",
    help="Fairlog: a broker that speaks Kafka's protocol. Plain consumers see committed records only.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command("serve", epilog=serve.EXAMPLES)(serve.serve)
app.add_typer(topic.app)
app.add_typer(txn.app)


def main() -> None:
    """Run the command line; exits the process."""
    try:
        app()
    except (ClientError, ConfigError, serve.NodeStopped) as error:
        sys.stderr.write(f"fairlog: {error}\n")
        sys.exit(1)
    except BrokenPipeError:
        # Whoever read our output (`| head`) has seen enough. Nothing may be written to stdout any more, not even
        # by the interpreter's last flush.
        sys.stdout = sys.stderr
        sys.exit(1)
