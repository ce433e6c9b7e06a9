"""`fairlog group …`: look at consumer groups and their lag, and set the offsets at which a group continues.

The client is imported when a command runs: kio takes longer to load than all the rest, and `fairlog serve`, which
passes through here, has no use for it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated

import typer

from fairlog.cli.bootstrap import Bootstrap, Json
from fairlog.cli.errors import ClientError
from fairlog.cli.output import say, show_fields, show_json, show_table

if TYPE_CHECKING:
    from fairlog.cli.brokers import Brokers
    from fairlog.cli.group_offsets import Standing, Target
    from fairlog.cli.groups_admin import Place

app = typer.Typer(
    name="group",
    help="Show consumer groups and their lag, or reset a group's offsets.",
    epilog="\b\nExample:\n  fairlog group describe billing",
    no_args_is_help=True,
)

Name = Annotated[str, typer.Argument(metavar="GROUP", help="The group's name.")]


@app.command("list", epilog="\b\nExamples:\n  fairlog group list\n  fairlog group list --state Stable --json")
def list_all(
    bootstrap: Bootstrap,
    state: Annotated[
        list[str] | None,
        typer.Option(
            metavar="STATE", help="Only groups in this state, as in Kafka (Stable, Empty, …); may be repeated."
        ),
    ] = None,
    json: Json = False,
) -> None:
    """List the consumer groups of all brokers, and their states."""
    from fairlog.cli.brokers import connect_to_all
    from fairlog.cli.groups_admin import list_groups

    with connect_to_all(bootstrap) as brokers:
        found = list_groups(brokers, state or ())
    if json:
        show_json([asdict(each) for each in found])
    else:
        rows = [(each.group, each.state, each.protocol_type) for each in found]
        show_table(("group", "state", "protocol type"), rows, empty="there are no groups")
    brokers.require_all("the groups that it coordinates are not shown")


@app.command(
    "describe", epilog="\b\nExamples:\n  fairlog group describe billing\n  fairlog group describe billing --json"
)
def describe(name: Name, bootstrap: Bootstrap, json: Json = False) -> None:
    """Show a group: its state, and for each partition the committed offset, the lag, and the member that reads it."""
    from fairlog.cli.brokers import connect_to_all
    from fairlog.cli.coordinators import group_coordinator
    from fairlog.cli.group_offsets import standings
    from fairlog.cli.groups_admin import Group, committed_offsets, describe_group

    with connect_to_all(bootstrap) as brokers:
        connection = group_coordinator(brokers, name)
        group = describe_group(connection, name)
        committed = committed_offsets(connection, name)
        if group is None and not committed:
            raise ClientError(f"there is no group {name}")
        lines = standings(brokers, group, committed)
    group = group or Group("Empty", "", "", ())
    if json:
        show_json(
            {
                "group": name,
                "state": group.state,
                "protocol_type": group.protocol_type,
                "protocol": group.protocol,
                "members": [
                    asdict(each) | {"partitions": [{"topic": topic, "partition": n} for topic, n in each.partitions]}
                    for each in group.members
                ],
                "partitions": [asdict(each) for each in lines],
            }
        )
        brokers.require_all(_NO_LAG)
        return
    show_fields(
        {
            "group": name,
            "state": group.state,
            "assigned by": group.protocol or None,
            "members": ", ".join(f"{each.client_id} at {each.host}" for each in group.members) or None,
            "lag": _total_lag(lines),
        }
    )
    rows = [(o.topic, o.partition, o.committed, o.end, o.lag, o.client_id, o.member_id) for o in lines]
    columns = ("topic", "partition", "committed", "end", "lag", "client id", "member id")
    show_table(columns, rows, empty=f"group {name} has no committed offsets")
    brokers.require_all(_NO_LAG)


_NO_LAG = "the lag in partitions that it leads is not known"


def _total_lag(lines: Sequence[Standing]) -> str | None:
    """The sum. It names the partitions without a committed offset, so that it does not look too small."""
    lags = [each.lag for each in lines if each.lag is not None]
    untouched = sum(each.committed is None for each in lines)
    if not untouched:
        return str(sum(lags)) if lags else None
    return f"{sum(lags)}, without {untouched} of {len(lines)} partitions, which have no committed offset"


RESET_EXAMPLES = """
\b
Examples:
  fairlog group reset billing --to-earliest                          # shows what it would do
  fairlog group reset billing --to-earliest --execute
  fairlog group reset billing --topic orders:0,2 --to-offset 1200 --execute
  fairlog group reset billing --to-timestamp 2026-11-20T08:00:00Z --execute
"""


@app.command("reset", epilog=RESET_EXAMPLES)
def reset(
    name: Name,
    bootstrap: Bootstrap,
    topic: Annotated[
        list[str] | None,
        typer.Option(
            metavar="TOPIC[:NUMBER,…]",
            help="Only this topic, or these partitions of it; may be repeated.",
            show_default="all that the group has offsets for",
        ),
    ] = None,
    to_earliest: Annotated[
        bool, typer.Option("--to-earliest", help="Continue at each partition's first record.")
    ] = False,
    to_latest: Annotated[bool, typer.Option("--to-latest", help="Continue at each partition's end.")] = False,
    to_offset: Annotated[
        int | None,
        typer.Option(
            min=0, metavar="OFFSET", help="Continue at this offset, or at the nearest one that a partition has."
        ),
    ] = None,
    to_timestamp: Annotated[
        str | None,
        typer.Option(
            metavar="TIME", help="Continue at the first record of this time: 2026-11-20T08:00:00Z, or ms since 1970."
        ),
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run/--execute", help="Only show what would be done, or do it.")
    ] = True,
    json: Json = False,
) -> None:
    """Set the offsets at which a group continues. The group must have no members. Nothing changes without --execute."""
    from fairlog.cli.brokers import connect_to_all
    from fairlog.cli.coordinators import group_coordinator
    from fairlog.cli.group_offsets import offsets_of
    from fairlog.cli.groups_admin import commit_offsets, committed_offsets, describe_group, refuse_members

    target = _target(to_earliest, to_latest, to_offset, to_timestamp)
    with connect_to_all(bootstrap) as brokers:
        connection = group_coordinator(brokers, name)
        refuse_members(name, describe_group(connection, name))
        committed = committed_offsets(connection, name)
        places = _chosen(brokers, topic) if topic else list(committed)
        if not places:
            raise ClientError(f"group {name} has no committed offsets; name the topic with --topic")
        planned = offsets_of(brokers, places, target)
        brokers.require_all("no offset is set")
        if not dry_run:
            commit_offsets(connection, name, planned)
    lines = [
        (of_topic, partition, before.offset if (before := committed.get((of_topic, partition))) else None, new)
        for (of_topic, partition), new in planned.items()
    ]
    if json:
        names = ("topic", "partition", "committed", "new")
        partitions = [dict(zip(names, line, strict=True)) for line in lines]
        show_json({"group": name, "executed": not dry_run, "partitions": partitions})
        return
    show_table(("topic", "partition", "committed", "new"), lines, empty="there is nothing to set")
    say(
        "nothing was changed; use --execute to set these offsets"
        if dry_run
        else f"group {name} continues at these offsets"
    )


def _target(to_earliest: bool, to_latest: bool, to_offset: int | None, to_timestamp: str | None) -> Target:
    from fairlog.cli.group_offsets import Target, TargetKind

    given: list[Target] = []
    if to_earliest:
        given.append(Target(TargetKind.EARLIEST))
    if to_latest:
        given.append(Target(TargetKind.LATEST))
    if to_offset is not None:
        given.append(Target(TargetKind.OFFSET, to_offset))
    if to_timestamp is not None:
        given.append(Target(TargetKind.TIMESTAMP, _unix_ms(to_timestamp)))
    if len(given) != 1:
        raise typer.BadParameter("exactly one of --to-earliest, --to-latest, --to-offset, --to-timestamp is needed")
    return given[0]


def _unix_ms(text: str) -> int:
    if text.isascii() and text.isdigit():
        return int(text)
    try:
        moment = datetime.fromisoformat(text)
    except ValueError as error:
        raise typer.BadParameter(
            f"{text!r} is neither a time like 2026-11-20T08:00:00Z nor ms since 1970", param_hint="--to-timestamp"
        ) from error
    in_utc = moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment
    return round(in_utc.timestamp() * 1000)


def _chosen(brokers: Brokers, topics: Iterable[str]) -> list[Place]:
    """The partitions that --topic names."""
    from fairlog.cli.topics_admin import partition_count

    places: list[Place] = []
    for text in topics:
        name, separator, numbers = text.partition(":")
        count = partition_count(brokers, name)
        if count is None:
            raise ClientError(f"there is no topic {name}")
        wanted = numbers.split(",") if separator else map(str, range(count))
        for number in wanted:
            if not number.isascii() or not number.isdigit():
                raise typer.BadParameter(f"{text!r} is not TOPIC or TOPIC:NUMBER,NUMBER", param_hint="--topic")
            if int(number) >= count:
                raise ClientError(f"topic {name} has no partition {number}; it has {count}, from 0")
            places.append((name, int(number)))
    return sorted(set(places))
