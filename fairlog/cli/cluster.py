"""`fairlog cluster`: the nodes, shards and copies of a cluster of several machines, as one of its nodes sees them."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from fairlog.cli.admin_client import at, of_settings
from fairlog.cli.cluster_shards import seen
from fairlog.cli.errors import ClientError
from fairlog.cli.node_options import Config
from fairlog.cli.output import say, show_json, show_table

EXAMPLES = """
\b
Examples:
  fairlog cluster
  fairlog cluster --admin node2.example:9644 --json
"""


def cluster(
    admin: Annotated[
        str | None,
        typer.Option(
            metavar="[https://]HOST:PORT",
            help="The admin listener of any node (admin.listen).",
            show_default="as for fairlog serve",
        ),
    ] = None,
    data_dir: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            help="The data directory of the node that is asked: its admin token is there, if it asks for one.",
            show_default="as for fairlog serve",
        ),
    ] = None,
    config: Config = None,
    json_: Annotated[bool, typer.Option("--json", help="Print one JSON document.")] = False,
) -> None:
    """Show a cluster of several machines: its nodes, and who owns and copies which shard."""
    from fairlog.config_sources import load

    settings = load(flags={"data_dir": data_dir}, file=config)
    asked = of_settings(settings) if admin is None else at(admin)
    if asked is None:
        raise ClientError("this node has no admin listener (admin.listen): name that of another one with --admin")
    document = seen(asked, settings, is_own=admin is None or data_dir is not None)
    if json_:
        show_json(document)
        return
    engine = document["engine"]
    state = "answers" if engine["answers"] else f"does not answer: {engine['said']}"
    say(f"cluster {document['name']} ({document['cluster_id']}), seen by node {document['node']}; the engine {state}")
    nodes = [
        (node["number"], node["address"], node["rack"] or "", "up" if node["is_up"] else "not heard")
        for node in document["nodes"]
    ]
    show_table(("node", "host", "rack", "state"), nodes, empty="there are no nodes")
    rows = [_row(shard, copy) for shard in document["shards"] for copy in shard["copies"]]
    show_table(("shard", "epoch", "node", "role", "in sync", "lag"), rows, empty="no node keeps a shard yet")


def _row(shard: dict[str, Any], copy: dict[str, Any]) -> tuple[object, ...]:
    in_sync, lag = "yes" if copy["in_sync"] else "no", "?" if copy["lag"] is None else copy["lag"]
    return shard["number"], shard["epoch"], copy["node"], copy["role"], in_sync, lag
