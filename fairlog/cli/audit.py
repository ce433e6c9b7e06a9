"""`fairlog audit DIR`: checks the data logs of a stopped node or of a backup with a Spark job, at any size.

It prints a table of findings, or one JSON document, and then what was checked. Exit code 1: there are findings; 2: the
audit could not be carried out, and a sentence on stderr says why.
"""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fairlog.cli.errors import ClientError
from fairlog.cli.output import say, show_fields, show_json, show_table
from shard.directory import shard_directories

if TYPE_CHECKING:
    from fairlog.audit.job import Report

EXAMPLES = """
\b
Examples:
  fairlog audit fairlog-data
  fairlog audit /backups/monday --master 'local[4]' --json
"""


class AuditImpossible(ClientError):
    """The audit could not be carried out. This says nothing about the data."""

    exit_code = 2


def audit(
    directory: Annotated[Path, typer.Argument(metavar="DIR", help="The data directory, or a backup.")],
    master: Annotated[str, typer.Option(metavar="URL", help="The Spark master.")] = "local[*]",
    count: Annotated[int, typer.Option(min=0, metavar="COUNT", help="Show at most this number of findings.")] = 50,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON document.")] = False,
) -> None:
    """Check with Spark that the data of a stopped node, or a backup, is dense, without duplicates, and whole.

    Exit code 0: no findings, as far as the stored data shows. 1: findings. 2: the audit could not be carried out.
    """
    report = _made(directory, master, count)
    if json:
        show_json(asdict(report) | {"total": report.total})
    elif report.total:
        _show_findings(directory, report)
    else:
        say(f"{directory}: no findings. Checked:")
        _show_numbers(report)
    if report.total:
        raise typer.Exit(1)


def _made(directory: Path, master: str, findings_max: int) -> Report:
    from fairlog.data_directory import CLUSTER_STORE, MANIFEST, RESTORING, UNFINISHED, is_of_several_machines
    from fairlog.directory import DirectoryInUse, DirectoryUnusable, unused_directory

    if (directory / UNFINISHED).exists() and not (directory / MANIFEST).exists():
        raise AuditImpossible(f"{directory} contains an unfinished backup, from which no node can be started")
    if is_of_several_machines(directory):
        raise AuditImpossible(
            f"{directory} is that of a node of several machines, which has copies of shards only, and not of one "
            "moment: fairlog verify checks each of them"
        )
    if not (directory / CLUSTER_STORE).exists():
        raise AuditImpossible(f"{directory} is not a data directory: it does not contain {CLUSTER_STORE}")
    has_journals = not (directory / MANIFEST).exists() and not (directory / RESTORING).exists()
    try:
        with unused_directory(directory):
            return _report(directory, master, findings_max, has_journals=has_journals)
    except DirectoryInUse as error:
        raise AuditImpossible(f"{error}: stop the node first, or audit a backup of it") from error
    except (DirectoryUnusable, OSError) as error:
        raise AuditImpossible(str(error)) from error


def _report(directory: Path, master: str, findings_max: int, *, has_journals: bool) -> Report:
    from fairlog.audit.session import SparkUnavailable, spark_session

    try:
        with spark_session(master) as spark:
            from fairlog.audit.directory import NotAuditable
            from fairlog.audit.job import audit as made

            try:
                return made(spark, directory, has_journals=has_journals, findings_max=findings_max)
            except NotAuditable as error:
                raise AuditImpossible(str(error)) from error
    except SparkUnavailable as error:
        raise AuditImpossible(str(error)) from error


def _show_findings(directory: Path, report: Report) -> None:
    rows = [(found.kind, found.log, found.offset, found.what, found.invariant) for found in report.findings]
    show_table(("kind", "log", "offset", "what", "invariant"), rows, empty="No finding is shown.")
    say("")
    if report.total > len(rows):
        say(f"{report.total:,} findings in all, {len(rows):,} shown. By kind:")
    else:
        say(f"{report.total:,} findings. By kind:")
    show_fields({kind: f"{count:,}" for kind, count in report.kinds.items()})
    say("Checked:")
    _show_numbers(report)
    files = [shard.data_logs_file for shard in shard_directories(directory)]
    inspections = [f"fairlog inspect {file} --from OFFSET --count 5" for file in files]
    say(f"More: {'; '.join(inspections)}; fairlog verify {directory} --all")


def _show_numbers(report: Report) -> None:
    show_fields({name: f"{count:,}" for name, count in report.proved.items()} | {"seconds": f"{report.seconds:.1f}"})
    for name, count in report.not_proved.items():
        say(f"not checked: {count:,} {name}")
