"""`fairlog verify DIR`: checks a stopped node's directory, or a backup, against docs/invariants.md.

Violations are printed to stdout as they are found, and the exit code is 1. Without violations a summary says what was
checked and what could not be. If the check could not be made at all, a sentence on stderr says why.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fairlog.cli.byte_bar import byte_bar
from fairlog.cli.errors import ClientError
from fairlog.cli.output import say, show_fields

EXAMPLES = """
\b
Examples:
  fairlog verify fairlog-data
  fairlog verify /backups/monday --all
"""


def verify(
    directory: Annotated[Path, typer.Argument(metavar="DIR", help="The data directory, or a backup.")],
    all_: Annotated[bool, typer.Option("--all", help="Show all violations, not only the first.")] = False,
) -> None:
    """Check the data of a stopped node, or a backup. The data is not changed.

    Exit code 0: all invariants hold, as far as the stored data shows. 1: at least one is violated.
    """
    from fairlog.backup.taking_over import check_files, read_manifest
    from fairlog.data_directory import (
        CLUSTER_STORE,
        MANIFEST,
        RESTORING,
        UNFINISHED,
        bytes_below,
        is_of_several_machines,
    )
    from fairlog.directory import DirectoryInUse, DirectoryUnusable, unused_directory
    from fairlog.verify.verification import Verification
    from fairlog_types import CorruptStorage

    if (directory / UNFINISHED).exists() and not (directory / MANIFEST).exists():
        raise ClientError(f"{directory} contains an unfinished backup, from which no node can be started")
    if not (directory / CLUSTER_STORE).exists() and not is_of_several_machines(directory):
        raise ClientError(f"{directory} is not a data directory: it does not contain {CLUSTER_STORE}")
    found = False
    try:
        with unused_directory(directory), byte_bar() as bar:
            task = bar.add_task("verifying", total=bytes_below(directory))
            is_backup = (directory / MANIFEST).exists()
            manifest = read_manifest(directory / MANIFEST) if is_backup else None
            if manifest is not None:
                check_files(directory, manifest)
            checked = Verification(
                directory,
                has_journals=not is_backup and not (directory / RESTORING).exists(),
                fences=(manifest.sinks or ()) if manifest is not None else (),
                told=lambda count: bar.advance(task, count),
            )
            for violation in checked.violations():
                found = True
                say(str(violation))
                if not all_:
                    break
    except DirectoryInUse as error:
        raise ClientError(f"{error}: stop the node first (fairlog inspect reads the files of a running one)") from error
    except (DirectoryUnusable, OSError) as error:
        raise ClientError(str(error)) from error
    except CorruptStorage as error:
        say(str(error))
        raise typer.Exit(1) from error
    if found:
        raise typer.Exit(1)
    say(f"{directory}: no violation found. Checked:")
    show_fields({name: f"{count:,}" for name, count in checked.summary.counts.items()})
    for sentence in checked.summary.unchecked:
        say(f"not checked: {sentence}")
