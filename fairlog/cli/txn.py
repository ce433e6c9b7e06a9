"""`fairlog txn …`: show transactions, abort a hung one, find the records of a committed one.

The client is imported when a command runs: kio takes longer to load than all the rest, and `fairlog serve`, which
passes through here, has no use for it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from fairlog.cli.bootstrap import Bootstrap, Json
from fairlog.cli.output import say, show_fields, show_json, show_table, time_text

if TYPE_CHECKING:
    from fairlog.cli.describe_transactions import TransactionState

app = typer.Typer(
    name="txn",
    help="Show transactions, and abort a hung one.",
    epilog="\b\nExample:\n  fairlog txn list --state Ongoing",
    no_args_is_help=True,
)

Id = Annotated[str, typer.Argument(metavar="ID", help="The transactional id.")]


@app.command("list", epilog="\b\nExamples:\n  fairlog txn list --state Ongoing\n  fairlog txn list --prepared")
def list_all(
    bootstrap: Bootstrap,
    state: Annotated[
        list[str] | None,
        typer.Option(
            metavar="STATE",
            help="Only ids in this state: Ongoing, Empty, CompleteCommit, … as in Kafka; may be repeated.",
        ),
    ] = None,
    prepared: Annotated[
        bool,
        typer.Option(
            "--prepared",
            help="Only open transactions without a time-out, which may wait for another system's decision.",
        ),
    ] = False,
    json: Json = False,
) -> None:
    """List the transactional ids of all brokers, their states, and their groups if there are any.

    With --prepared, list the open transactions of two-phase commits with another system. The note in that system names
    the same producer id and epoch.
    """
    from fairlog.cli.brokers import connect_to_all
    from fairlog.cli.transactions_admin import list_prepared, list_transactions

    if prepared:
        if state:
            raise typer.BadParameter(
                "--prepared and --state cannot be used together: prepared transactions are Ongoing"
            )
        with connect_to_all(bootstrap) as brokers:
            waiting = list_prepared(brokers)
        _show_prepared(waiting, json=json)
        brokers.require_all(_NOT_SHOWN)
        return
    with connect_to_all(bootstrap) as brokers:
        found = list_transactions(brokers, state or ())
    if json:
        show_json([asdict(each) for each in found])
    else:
        columns = ["transactional id", "producer id", "state"]
        rows = [[each.transactional_id, each.producer_id, each.state] for each in found]
        if any(each.group != each.transactional_id for each in found):
            columns.append("group")
            rows = [[*row, each.group] for row, each in zip(rows, found, strict=True)]
        show_table(columns, rows, empty="there are no transactional ids")
    brokers.require_all(_NOT_SHOWN)


_NOT_SHOWN = "the transactional ids that it coordinates are not shown"


def _show_prepared(found: Sequence[TransactionState], *, json: bool) -> None:
    if json:
        show_json(
            [
                {
                    "transactional_id": each.transactional_id,
                    "producer_id": each.producer_id,
                    "producer_epoch": each.producer_epoch,
                    "started_ms": _started_ms(each),
                    "partitions": _partitions(each),
                }
                for each in found
            ]
        )
        return
    rows = [
        (
            each.transactional_id,
            each.producer_id,
            each.producer_epoch,
            time_text(_started_ms(each)),
            _partitions_text(each),
        )
        for each in found
    ]
    columns = ("transactional id", "producer id", "epoch", "open since", "partitions")
    show_table(columns, rows, empty="there is no open transaction without a time-out")


@app.command("describe", epilog="\b\nExample:\n  fairlog txn describe billing-7")
def describe(transactional_id: Id, bootstrap: Bootstrap, json: Json = False) -> None:
    """Show an id's producer, and its open transaction if there is one."""
    from fairlog.cli.brokers import connect_to_all
    from fairlog.cli.coordinators import transaction_coordinator
    from fairlog.cli.transactions_admin import NO_TIMEOUT_MS, describe_transaction

    with connect_to_all(bootstrap) as brokers:
        found = describe_transaction(transaction_coordinator(brokers, transactional_id), transactional_id)
    if json:
        show_json(
            {
                "transactional_id": transactional_id,
                "state": found.state,
                "producer_id": found.producer_id,
                "producer_epoch": found.producer_epoch,
                "timeout_ms": found.timeout_ms,
                "started_ms": _started_ms(found),
                "partitions": _partitions(found),
            }
        )
        return
    show_fields(
        {
            "transactional id": transactional_id,
            "state": found.state,
            "producer id": found.producer_id,
            "producer epoch": found.producer_epoch,
            "time-out": "none" if found.timeout_ms == NO_TIMEOUT_MS else f"{found.timeout_ms} ms",
            "open since": time_text(_started_ms(found)),
            "partitions": _partitions_text(found),
        }
    )


def _started_ms(state: TransactionState) -> int | None:
    return None if state.started_ms < 0 else state.started_ms


def _partitions(state: TransactionState) -> list[dict[str, object]]:
    return [{"topic": topic, "partition": each} for topic, each in sorted(state.partitions)]


def _partitions_text(state: TransactionState) -> str | None:
    return ", ".join(f"{topic}-{each}" for topic, each in sorted(state.partitions)) or None


@app.command("abort", epilog="\b\nExample:\n  fairlog txn abort billing-7")
def abort(transactional_id: Id, bootstrap: Bootstrap, json: Json = False) -> None:
    """Abort an id's open transaction, and fence its producer.

    The producer gets an error and must start anew; its committed records stay. It is fenced even if no transaction is
    open. A transaction without a time-out waits for another system (`txn list --prepared`): first ask that system what
    it has committed.
    """
    from fairlog.cli.brokers import connect_to_all
    from fairlog.cli.coordinators import transaction_coordinator
    from fairlog.cli.transactions_admin import fence

    with connect_to_all(bootstrap) as brokers:
        epoch, was_open = fence(transaction_coordinator(brokers, transactional_id), transactional_id)
    if json:
        show_json({"transactional_id": transactional_id, "producer_epoch": epoch})
    elif was_open:
        say(f"aborted the open transaction of {transactional_id}, and fenced its producer: the epoch is now {epoch}")
    else:
        say(f"{transactional_id} had no open transaction; its producer is fenced: the epoch is now {epoch}")


@app.command("show", epilog="\b\nExample:\n  fairlog txn show billing-7 --json")
def show(transactional_id: Id, bootstrap: Bootstrap, json: Json = False) -> None:
    """Show where the records of an id's last committed transactions are.

    The broker remembers the last five committed transactions, each from when it has been copied; they are shown oldest
    first. Only Fairlog brokers do this. A transaction is written as producer id, producer epoch and its number in that
    epoch.
    """
    from fairlog.cli.brokers import connect_to_all
    from fairlog.cli.coordinators import transaction_coordinator
    from fairlog.cli.transactions_admin import describe_transaction

    with connect_to_all(bootstrap) as brokers:
        coordinator = transaction_coordinator(brokers, transactional_id)
        committed = describe_transaction(coordinator, transactional_id).committed
    if json:
        show_json([asdict(each) for each in committed])
        return
    rows = [
        (
            f"{each.producer_id}.{each.producer_epoch}.{each.number}",
            part.topic,
            part.partition,
            part.base_offset,
            part.base_offset + part.count - 1,
            part.count,
        )
        for each in committed
        for part in sorted(each.records, key=lambda part: (part.topic, part.partition))
    ]
    columns = ("transaction", "topic", "partition", "first offset", "last offset", "records")
    show_table(columns, rows, empty=f"the broker remembers no committed transaction of {transactional_id}")
