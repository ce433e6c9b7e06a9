"""`fairlog sink …`: what the node remembers of the sinks that Spark's queries write to, batch by batch."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

import typer

from fairlog.cli.bootstrap import Bootstrap, Json
from fairlog.cli.errors import ClientError
from fairlog.cli.output import say, show_fields, show_json, show_table, time_text

app = typer.Typer(
    name="sink",
    help="Show the sinks of streaming queries, or delete one.",
    epilog="\b\nExample:\n  fairlog sink list",
    no_args_is_help=True,
)

Name = Annotated[str, typer.Argument(metavar="NAME", help="The sink's name: the query's option transactionalId.")]


@app.command("list", epilog="\b\nExample:\n  fairlog sink list --json")
def list_all(bootstrap: Bootstrap, json: Json = False) -> None:
    """List the sinks: the query of each, its last batch, and its number of active writers."""
    from fairlog.cli.native_client import all_sinks

    found, missing = all_sinks(bootstrap)
    if json:
        show_json([asdict(each) for each in found])
    else:
        rows = [(it.sink, it.query, it.batch, len(it.open_lanes), time_text(it.used_ms)) for it in found]
        show_table(("sink", "query", "last batch", "open lanes", "last used"), rows, empty="there are no sinks")
    if missing:
        raise ClientError(f"{', and '.join(missing)}; the sinks that it has are not shown")


@app.command("describe", epilog="\b\nExample:\n  fairlog sink describe totals")
def describe(name: Name, bootstrap: Bootstrap, json: Json = False) -> None:
    """Show a sink: its query, its last committed batch, where that is, and its active writers."""
    from fairlog.cli.native_client import all_sinks

    sinks, missing = all_sinks(bootstrap)
    found = next((each for each in sinks if each.sink == name), None)
    if found is None and missing:
        raise ClientError(f"{', and '.join(missing)}; the others have no sink {name}")
    if found is None:
        raise ClientError(f"there is no sink {name}")
    if json:
        show_json(asdict(found))
        return
    show_fields(
        {
            "sink": found.sink,
            "query": found.query,
            "run": found.run,
            "last batch": found.batch,
            "last used": time_text(found.used_ms),
            "open lanes": ", ".join(found.open_lanes) or None,
        }
    )
    if found.batch is None:
        return
    rows = [
        (it.topic, it.partition, it.base_offset, it.base_offset + it.count - 1, it.count) for it in found.placements
    ]
    columns = ("topic", "partition", "first offset", "last offset", "records")
    show_table(columns, rows, empty="the last batch has no records that can be read")


@app.command("forget", epilog="\b\nExample:\n  fairlog sink forget totals")
def forget(name: Name, bootstrap: Bootstrap, json: Json = False) -> None:
    """Delete what the node knows about a sink, so that another query can write under its name.

    Its records stay. But a batch that the old query sends again is then written again, so stop that query first.
    """
    from fairlog.cli.native_client import connect_natively

    with connect_natively(bootstrap) as connection:
        connection.forget(name)
    if json:
        show_json({"sink": name})
    else:
        say(f"{name} is deleted: the next query that writes to it starts anew")
