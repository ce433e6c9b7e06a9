"""`fairlog topic …`: make, list, describe and delete topics.

The client is imported when a command runs: kio takes longer to load than all the rest, and `fairlog serve`, which
passes through here, has no use for it.
"""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

import typer

from fairlog.cli.bootstrap import Bootstrap, Json
from fairlog.cli.output import say, show_json, show_table

app = typer.Typer(name="topic", help="Make, list, describe and delete topics.", no_args_is_help=True)

Name = Annotated[str, typer.Argument(metavar="TOPIC", help="The topic's name.")]


@app.command(
    "create", epilog="\b\nExample:\n  fairlog topic create orders --partitions 3 --config max.message.bytes=2000000"
)
def create(
    name: Name,
    bootstrap: Bootstrap,
    partitions: Annotated[
        int | None, typer.Option(min=1, metavar="COUNT", help="How many.", show_default="the broker's")
    ] = None,
    config: Annotated[
        list[str] | None, typer.Option(metavar="KEY=VALUE", help="A setting of the topic; may be repeated.")
    ] = None,
    json: Json = False,
) -> None:
    """Make a topic."""
    from fairlog.cli import topics_admin
    from fairlog.cli.client import connect

    configs = dict(_pair(each) for each in config or ())
    with connect(bootstrap) as connection:
        made = topics_admin.create_topic(connection, name, partitions, configs)
    if json:
        show_json({"topic": name, "partitions": made})
    else:
        say(f"created topic {name} with {made} partition{'s' if made != 1 else ''}")


@app.command("list", epilog="\b\nExample:\n  fairlog topic list --json")
def list_all(bootstrap: Bootstrap, json: Json = False) -> None:
    """List all topics."""
    from fairlog.cli import topics_admin
    from fairlog.cli.client import connect

    with connect(bootstrap) as connection:
        found = topics_admin.topic_partitions(connection)
    if json:
        show_json([{"topic": name, "partitions": partitions} for name, partitions in found.items()])
    else:
        show_table(("topic", "partitions"), list(found.items()), empty="there are no topics")


@app.command("describe", epilog="\b\nExample:\n  fairlog topic describe orders")
def describe(name: Name, bootstrap: Bootstrap, json: Json = False) -> None:
    """Show a topic's partitions: who leads them, and which offsets they hold."""
    from fairlog.cli import topics_admin
    from fairlog.cli.client import connect

    with connect(bootstrap) as connection:
        partitions = topics_admin.describe_topic(connection, name)
    if json:
        show_json({"topic": name, "partitions": [asdict(each) for each in partitions]})
    else:
        rows = [(p.partition, p.leader, p.leader_epoch, p.start, p.end, p.end - p.start) for p in partitions]
        columns = ("partition", "leader", "leader epoch", "start", "end", "records")
        show_table(columns, rows, empty=f"topic {name} has no partitions")


@app.command("delete", epilog="\b\nExample:\n  fairlog topic delete orders")
def delete(name: Name, bootstrap: Bootstrap, json: Json = False) -> None:
    """Delete a topic with all its records. It cannot be undone."""
    from fairlog.cli import topics_admin
    from fairlog.cli.client import connect

    with connect(bootstrap) as connection:
        topics_admin.delete_topic(connection, name)
    if json:
        show_json({"topic": name, "deleted": True})
    else:
        say(f"deleted topic {name}")


def _pair(text: str) -> tuple[str, str]:
    key, separator, value = text.partition("=")
    if not key or not separator:
        raise typer.BadParameter(f"{text!r} is not KEY=VALUE", param_hint="--config")
    return key, value
