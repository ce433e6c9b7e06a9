"""`fairlog topic …`: create, list, describe, change and delete topics.

The client is imported when a command runs: kio takes longer to load than all the rest, and `fairlog serve`, which
passes through here, has no use for it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, astuple
from enum import Enum
from typing import TYPE_CHECKING, Annotated

import typer

from fairlog.cli.bootstrap import Bootstrap, Json
from fairlog.cli.output import say, show_json, show_table

if TYPE_CHECKING:
    from fairlog.cli.topics_admin import Partition

app = typer.Typer(
    name="topic",
    help="Create, list, describe, change and delete topics.",
    epilog="\b\nExample:\n  fairlog topic create orders --partitions 3",
    no_args_is_help=True,
)


class Mode(Enum):
    """How transactions reach a topic."""

    JOURNAL = "journal"
    MARKERS = "markers"


Name = Annotated[str, typer.Argument(metavar="TOPIC", help="The topic's name.")]

_EXTRA_ARGUMENTS = {"allow_extra_args": True}
"""Of commands that know better than the parser what is wrong with them: `_refuse_extra_arguments`."""


@app.command(
    "create",
    epilog="\b\nExample:\n  fairlog topic create orders --partitions 3 --config max.message.bytes=2000000",
    context_settings=_EXTRA_ARGUMENTS,
)
def create(
    context: typer.Context,
    name: Name,
    bootstrap: Bootstrap,
    partitions: Annotated[
        int | None, typer.Option(min=1, metavar="COUNT", help="Number of partitions.", show_default="the broker's")
    ] = None,
    config: Annotated[
        list[str] | None, typer.Option(metavar="KEY=VALUE", help="A setting of the topic; may be repeated.")
    ] = None,
    transactions: Annotated[
        Mode | None,
        typer.Option(
            help="How transactions reach the topic; short for --config fairlog.transactions=…. It cannot be changed "
            "later.",
            show_default="the broker's",
        ),
    ] = None,
    json: Json = False,
) -> None:
    """Create a topic."""
    from fairlog.cli import topic_changes, topics_admin
    from fairlog.cli.client import connect

    _refuse_extra_arguments(context)
    configs = dict(_pair(each, "--config") for each in config or ())
    if transactions is not None:
        configs[topic_changes.TRANSACTIONS] = transactions.value
    with connect(bootstrap) as connection:
        made = topics_admin.create_topic(connection, name, partitions, configs)
    if json:
        show_json({"topic": name, "partitions": made})
    else:
        say(f"created topic {name} with {made} partition{'s' if made != 1 else ''}")


@app.command("list", epilog="\b\nExample:\n  fairlog topic list --json")
def list_all(bootstrap: Bootstrap, json: Json = False) -> None:
    """List all topics."""
    from fairlog.cli import topic_changes, topics_admin
    from fairlog.cli.brokers import connect_to_all

    columns = ("topic", "partitions", "transactions")
    with connect_to_all(bootstrap) as brokers:
        partitions = topics_admin.topic_partitions(brokers)
        modes = topic_changes.transaction_modes(brokers.first, list(partitions))
    rows = [(name, count, modes[name]) for name, count in partitions.items()]
    if json:
        show_json([dict(zip(columns, row, strict=True)) for row in rows])
    else:
        show_table(columns, rows, empty="there are no topics")


@app.command("describe", epilog="\b\nExample:\n  fairlog topic describe orders")
def describe(name: Name, bootstrap: Bootstrap, json: Json = False) -> None:
    """Show a topic: how transactions reach it, its partitions, their leaders and their offsets.

    Readers of committed records can read up to stable, where a transaction is open. The number of records is end minus
    start; with markers it includes them.
    """
    from fairlog.cli import topic_changes, topics_admin
    from fairlog.cli.brokers import connect_to_all

    with connect_to_all(bootstrap) as brokers:
        partitions = topics_admin.describe_topic(brokers, name)
        mode = topic_changes.transaction_modes(brokers.first, [name])[name]
    if json:
        show_json({"topic": name, "transactions": mode, "partitions": [_document(each) for each in partitions]})
    else:
        columns = ("partition", "leader", "leader epoch", "start", "stable", "end", "records")
        if mode is not None:
            say(f"transactions: {mode}")
        show_table(columns, map(_row, partitions), empty=f"topic {name} has no partitions")
    brokers.require_all("the offsets in partitions that it leads are not known")


def _document(it: Partition) -> Mapping[str, int | None]:
    start, end, stable = (None, None, None) if it.offsets is None else astuple(it.offsets)
    place = {"partition": it.partition, "leader": it.leader, "leader_epoch": it.leader_epoch}
    return {**place, "start": start, "end": end, "stable": stable}


def _row(it: Partition) -> tuple[int | None, ...]:
    place = it.partition, it.leader, it.leader_epoch
    held = it.offsets
    return (*place, *[None] * 4) if held is None else (*place, held.start, held.stable, held.end, held.end - held.start)


@app.command(
    "config",
    epilog="\b\nExamples:\n  fairlog topic config orders\n"
    "  fairlog topic config orders --config retention.ms=3600000 --config cleanup.policy=compact\n"
    "  fairlog topic config orders --delete retention.ms",
    context_settings=_EXTRA_ARGUMENTS,
)
def config(
    context: typer.Context,
    name: Name,
    bootstrap: Bootstrap,
    to_set: Annotated[
        list[str] | None, typer.Option("--config", metavar="KEY=VALUE", help="Give a config a value; may be repeated.")
    ] = None,
    to_delete: Annotated[
        list[str] | None,
        typer.Option("--delete", metavar="KEY", help="Reset a config to its default; may be repeated."),
    ] = None,
    json: Json = False,
) -> None:
    """Show a topic's configs, or change some and show them.

    Changes take effect at once, all or none. A value's source is the topic, the broker's settings, or the default.
    """
    from fairlog.cli import topic_changes
    from fairlog.cli.client import connect

    _refuse_extra_arguments(context)
    values = dict(_pair(each, "--config") for each in to_set or ())
    with connect(bootstrap) as connection:
        if values or to_delete:
            topic_changes.alter_topic_configs(connection, name, values, to_delete or ())
        configs = topic_changes.topic_configs(connection, name)
    if json:
        show_json({"topic": name, "configs": [asdict(each) for each in configs]})
    else:
        rows = [(each.name, each.value, each.source) for each in configs]
        show_table(("config", "value", "source"), rows, empty=f"topic {name} has no configs")


@app.command("partitions", epilog="\b\nExample:\n  fairlog topic partitions orders 6")
def partitions(
    name: Name,
    total: Annotated[int, typer.Argument(min=1, metavar="TOTAL", help="New total number of partitions.")],
    bootstrap: Bootstrap,
    json: Json = False,
) -> None:
    """Give a topic more partitions. It cannot be undone.

    Records stay where they are; producers that choose the partition by key may now put the same key elsewhere.
    """
    from fairlog.cli import topic_changes
    from fairlog.cli.client import connect

    with connect(bootstrap) as connection:
        topic_changes.add_partitions(connection, name, total)
    if json:
        show_json({"topic": name, "partitions": total})
    else:
        say(f"topic {name} now has {total} partitions")


@app.command("trim", epilog="\b\nExamples:\n  fairlog topic trim orders 0 1000\n  fairlog topic trim orders 0 end")
def trim(
    name: Name,
    partition: Annotated[int, typer.Argument(min=0, metavar="PARTITION", help="The partition's number.")],
    offset: Annotated[
        str, typer.Argument(metavar="OFFSET", help="The first offset to keep; `end` deletes all existing records.")
    ],
    bootstrap: Bootstrap,
    json: Json = False,
) -> None:
    """Delete a partition's records before an offset. It cannot be undone; later records keep their offsets."""
    from fairlog.cli import topic_changes
    from fairlog.cli.brokers import connect_to_all

    first = -1 if offset == "end" else _offset(offset)
    with connect_to_all(bootstrap) as brokers:
        start = topic_changes.delete_records(brokers, name, partition, first)
    if json:
        show_json({"topic": name, "partition": partition, "start": start})
    else:
        say(f"{name}-{partition} now begins at {start}")


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


def _refuse_extra_arguments(context: typer.Context) -> None:
    """Mostly a config without its option: `topic config orders retention.ms=5`."""
    if context.args:
        extra = context.args[0]
        hint = f"; to set it, write --config {extra}" if "=" in extra else ""
        raise typer.BadParameter(f"unexpected extra argument {extra}{hint}")


def _offset(text: str) -> int:
    if not text.isascii() or not text.isdigit():
        raise typer.BadParameter(f"{text!r} is neither an offset nor end", param_hint="OFFSET")
    return int(text)


def _pair(text: str, option: str) -> tuple[str, str]:
    key, separator, value = text.partition("=")
    if not key or not separator:
        raise typer.BadParameter(f"{text!r} is not KEY=VALUE", param_hint=option)
    return key, value
