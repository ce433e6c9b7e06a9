"""The options that all client commands share."""

from __future__ import annotations

from typing import Annotated

import typer

from fairlog.config_values import Address


def _address(text: str) -> Address:
    try:
        return Address.parse(text)
    except ValueError as error:
        raise typer.BadParameter(f"{text!r}: {error}") from error


Bootstrap = Annotated[
    Address,
    typer.Option(
        parser=_address,
        metavar="HOST:PORT",
        envvar="FAIRLOG_BOOTSTRAP",
        help="The broker to ask.",
        default_factory=lambda: "127.0.0.1:9092",
        show_default="127.0.0.1:9092",
    ),
]
OptionalBootstrap = Annotated[
    Address | None,
    typer.Option(
        "--bootstrap",
        parser=_address,
        metavar="HOST:PORT",
        help="A broker to ask, instead of the node on this machine.",
        show_default="the node that has the data directory",
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON document instead of a table.")]
