"""The options of commands that are for a node on this machine: where it is, and its settings."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

DataDir = Annotated[
    Path | None, typer.Option(metavar="DIR", help="The node's data directory.", show_default="as for fairlog serve")
]
Config = Annotated[Path | None, typer.Option(metavar="FILE.toml", help="The node's file with settings.")]
