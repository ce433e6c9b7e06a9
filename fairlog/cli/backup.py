"""`fairlog backup DIR`: a consistent copy of a node's data, while it runs or when it is stopped."""

from __future__ import annotations

import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from fairlog.cli.byte_bar import byte_bar
from fairlog.cli.errors import ClientError, Interrupted
from fairlog.cli.output import say

EXAMPLES = """
\b
Examples:
  fairlog backup /backups/monday
  fairlog backup /backups/monday --data-dir /var/lib/fairlog
\b
To restore: copy the backup to a new data directory, and start a node there, with as many processes as it has shards.
"""


def backup(
    directory: Annotated[
        Path, typer.Argument(metavar="DIR", help="The directory for the backup; it must be new or empty.")
    ],
    data_dir: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="The node's data directory.", show_default="as for fairlog serve"),
    ] = None,
) -> None:
    """Back up a node's data, also while it runs: a consistent cut of everything visible.

    It contains each transaction as a whole or not at all. Run it on the node's machine. It does not contain open
    transactions, nor records that are answered but not visible yet.
    """
    from fairlog import telemetry
    from fairlog.backup.making import BackupFailed, make_backup
    from fairlog.backup.making import Progress as Done
    from fairlog.backup.source import BackupRefused
    from fairlog.config_sources import load
    from fairlog.data_directory import METADATA_COPY, UNFINISHED
    from fairlog.directory import DirectoryUnusable

    settings = load(flags={"data_dir": data_dir})
    source = settings.data_dir
    with byte_bar() as bar:
        task = bar.add_task("", total=None)

        def tell(done: Done) -> None:
            bar.update(task, description=done.doing, completed=done.done_bytes, total=done.total_bytes)

        def settling() -> None:
            telemetry.set_up(replace(settings.log, level="warning"))  # as of a start, of which this is one
            bar.update(task, description="finishing")
            sys.stderr.write(f"the node in {source} is stopped: finishing what its shards had decided\n")

        try:
            manifest = make_backup(
                source, directory, now_ms=_now_ms, node_id=settings.node_id, told=tell, settling=settling
            )
        except (BackupRefused, BackupFailed, DirectoryUnusable, OSError) as error:
            raise ClientError(str(error)) from error
        except KeyboardInterrupt:
            left = f"{directory} contains an unfinished backup: delete it"
            raise Interrupted(f"interrupted: {left if (directory / UNFINISHED).exists() else 'no backup'}") from None
    size_bytes = sum(file.size_bytes for file in manifest.files.values())
    sinks = f"the fences of {len(manifest.sinks)} sinks, " if manifest.sinks else ""
    if METADATA_COPY in manifest.files:
        sys.stderr.write(
            "fairlog: this is of a node of several machines, whose copies of shards have no moment in common: it can "
            "be read (fairlog consume --data-dir) and checked (fairlog verify), and no node can be started from it\n"
        )
    users = f"{manifest.users} users, " if manifest.users else ""
    say(f"backed up {len(manifest.logs)} logs, {sinks}{users}{size_bytes:,} bytes, into {directory}")
    if manifest.users:
        say("passwords can be tried out on what it has of its users: its files are readable by their owner only")


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
