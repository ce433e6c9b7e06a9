"""`fairlog produce`: lines from stdin become records of a topic, plain or all of them in one transaction."""

from __future__ import annotations

import os
import stat
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated

import typer

from fairlog.cli.bootstrap import Bootstrap
from fairlog.cli.errors import ClientError, Interrupted
from fairlog.cli.output import say, show_json

if TYPE_CHECKING:
    from fairlog.cli.progress import Advance
    from fairlog.cli.record_forms import NewRecord
    from fairlog.cli.write_node import RecordProducer
    from fairlog.config_values import Address

EXAMPLES = """
\b
Examples:
  echo 'hello' | fairlog produce orders
  fairlog produce orders --key-separator : < orders.txt
  fairlog produce orders --header source=import --partition 0 < orders.txt
  fairlog produce orders --transaction < orders.txt       # all lines, or none
  fairlog consume old --until-end --json | fairlog produce new --json
"""

ReadLine = Callable[[bytes], "NewRecord"]


def produce(
    topic: Annotated[str, typer.Argument(metavar="TOPIC", help="The topic to write to.")],
    bootstrap: Bootstrap,
    key_separator: Annotated[
        str | None,
        typer.Option(
            metavar="TEXT",
            help="Each line is a key, this text, and the value. Without this option a line is only a value.",
        ),
    ] = None,
    header: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME=VALUE", help="A header for every record; may be repeated."),
    ] = None,
    partition: Annotated[
        int | None, typer.Option(min=0, metavar="NUMBER", help="Write to this partition.", show_default="by the key")
    ] = None,
    transaction: Annotated[
        bool, typer.Option("--transaction", help="Write all records in one transaction: all become visible, or none.")
    ] = False,
    json: Annotated[
        bool,
        typer.Option(
            "--json", help="Lines are records as `fairlog consume --json` prints them; print the result as JSON, too."
        ),
    ] = False,
) -> None:
    """Write lines from standard input to a topic, one record a line.

    A JSON line may have partition, timestamp, key, value and headers; only value is required. topic and offset
    say where the record was read and are ignored.
    """
    from fairlog.cli.record_forms import from_json_line, from_text_line

    if json and key_separator is not None:
        raise typer.BadParameter("not allowed with --json: JSON lines contain their keys", param_hint="--key-separator")
    if key_separator == "":
        raise typer.BadParameter("the separator is empty", param_hint="--key-separator")
    separator = None if key_separator is None else os.fsencode(key_separator)
    more = tuple(_header(each) for each in header or ())
    read_line: ReadLine = from_json_line if json else lambda line: from_text_line(line, separator)
    partitions = _partitions(bootstrap, topic)

    def read_record(line: bytes) -> NewRecord:
        record = read_line(line)
        chosen = record.partition if partition is None else partition
        if chosen is not None and chosen >= partitions:
            raise ClientError(f"topic {topic} has no partition {chosen}; it has {partitions}, from 0")
        return record._replace(headers=record.headers + more, partition=chosen)

    producer = _produce_lines(bootstrap, topic, read_record, transaction=transaction)
    if json:
        show_json({"topic": topic, "records": producer.delivered, "transactional_id": producer.transactional_id})
        return
    within = f" in the transaction of {producer.transactional_id}" if transaction else ""
    say(f"{_counted(producer.delivered)} produced to {topic}{within}")


def _produce_lines(bootstrap: Address, topic: str, read_record: ReadLine, *, transaction: bool) -> RecordProducer:
    from fairlog.cli.interrupts import interrupted_by_signals
    from fairlog.cli.progress import progress
    from fairlog.cli.write_node import Outcome, RecordProducer

    size_bytes = _input_bytes()
    doing, hidden = ("bytes" if size_bytes else "records"), sys.stdin.isatty()
    with interrupted_by_signals():
        producer = RecordProducer(bootstrap, topic, transaction=transaction)
        try:
            producer.begin()
            with progress(doing, size_bytes, hidden=hidden) as advance:
                _put_lines(producer, read_record, advance, by_bytes=size_bytes is not None)
                producer.finish()
        except Outcome as error:
            raise ClientError(str(error)) from error
        except ClientError as error:
            producer.give_up()
            raise ClientError(f"{error}; {_left_behind(producer)}") from error
        except KeyboardInterrupt:
            if producer.committing:
                raise Interrupted(f"interrupted; {producer.unknown}") from None
            producer.give_up()
            raise Interrupted(f"interrupted; {_left_behind(producer)}") from None
    return producer


def _put_lines(producer: RecordProducer, read_record: ReadLine, advance: Advance, *, by_bytes: bool) -> None:
    from fairlog.cli.record_forms import MalformedLine

    for number, line in enumerate(sys.stdin.buffer, start=1):
        try:
            producer.put(read_record(line.removesuffix(b"\n")))
        except (MalformedLine, ClientError) as error:
            raise ClientError(f"line {number}: {error}") from error
        advance(len(line) if by_bytes else 1)


def _left_behind(producer: RecordProducer) -> str:
    if producer.transactional_id is not None:
        return "the transaction was not committed; none of its records is visible"
    return f"{_counted(producer.delivered)} produced before that"


def _counted(records: int) -> str:
    return "1 record was" if records == 1 else f"{records:,} records were"


def _partitions(bootstrap: Address, topic: str) -> int:
    from fairlog.cli import stock_client
    from fairlog.cli.brokers import connect_to_all
    from fairlog.cli.topics_admin import partition_count

    stock_client.load("produce")
    with connect_to_all(bootstrap) as brokers:
        found = partition_count(brokers, topic)
    if found is None:
        raise ClientError(f"there is no topic {topic}; create it with: fairlog topic create {topic}")
    return found


def _header(text: str) -> tuple[str, bytes]:
    name, separator, value = text.partition("=")
    if not name or not separator:
        raise typer.BadParameter(f"{text!r} is not NAME=VALUE", param_hint="--header")
    return name, os.fsencode(value)


def _input_bytes() -> int | None:
    """How long stdin is, if it is a file."""
    status = os.fstat(sys.stdin.fileno())
    return status.st_size if stat.S_ISREG(status.st_mode) else None
