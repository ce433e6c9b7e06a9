"""Takes orders: each is a row in PostgreSQL and a record in a topic, both or neither.

    python examples/two_phase_commit/orders.py --bootstrap 127.0.0.1:9092 --database postgresql:///shop 10

PostgreSQL decides. A transaction of Kafka is written first and left open. The transaction of PostgreSQL that has the
row also has a note, which names the one of Kafka; when it is committed, that one is committed, too. Whoever dies in
between, the next instance finds the transaction of Kafka open and compares it with the note: if the note names it, the
row is there, so the record has to be; if not, neither is.

Only one instance may work at a time: one that is late would commit a row whose record the next instance has aborted.
The broker fences its producer, but knows nothing of its row. So each instance takes a lock in PostgreSQL for as long as
its connection lives, and the next one waits for it.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from pathlib import Path
from types import TracebackType

import psycopg
from prepared_producer import Epoch, PreparedProducer

from fairlog.cli.client_properties import read
from fairlog.cli.errors import ClientError
from fairlog_client_security import ClientSecurity

TRANSACTIONAL_ID = "orders"

TABLES = """
CREATE TABLE IF NOT EXISTS orders (number bigint PRIMARY KEY, item text NOT NULL);
CREATE TABLE IF NOT EXISTS prepared (
    transactional_id text PRIMARY KEY,
    producer_id bigint NOT NULL,
    producer_epoch smallint NOT NULL
);
"""

TRY_LOCK = "SELECT pg_try_advisory_lock(hashtextextended(%s, 0))"

LOCK = "SELECT pg_advisory_lock(hashtextextended(%s, 0))"

INSERT_ORDER = "INSERT INTO orders VALUES (%s, %s)"

LAST_ORDER = "SELECT coalesce(max(number), 0) FROM orders"

WRITE_NOTE = """
INSERT INTO prepared VALUES (%s, %s, %s)
ON CONFLICT (transactional_id)
DO UPDATE SET producer_id = EXCLUDED.producer_id, producer_epoch = EXCLUDED.producer_epoch
"""

READ_NOTE = "SELECT producer_id, producer_epoch FROM prepared WHERE transactional_id = %s"


class Orders:
    """One instance of the program. After any error it is closed, and another one begins with `recover`."""

    def __init__(
        self,
        bootstrap: str,
        database: str,
        topic: str,
        transactional_id: str = TRANSACTIONAL_ID,
        security: ClientSecurity = ClientSecurity(),
    ) -> None:
        self.topic = topic
        self.transactional_id = transactional_id
        self.database = psycopg.connect(database)
        try:
            if self.database.execute(TRY_LOCK, (transactional_id,)).fetchone() != (True,):
                sys.stderr.write("waiting for another instance to end\n")
                self.database.execute(LOCK, (transactional_id,))
            self.database.execute(TABLES)
            self.database.commit()
            self.producer = PreparedProducer(bootstrap, transactional_id, security)
        except BaseException:
            self.database.close()
            raise

    def __enter__(self) -> Orders:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.producer.close()
        self.database.close()

    # At the start

    def recover(self) -> str:
        """End what the last instance left open; in words, what that was."""
        left = self.take_over()
        if left is None:
            return "nothing was left open"
        commit = self.note() == left
        self.settle(commit=commit)
        if commit:
            return f"committed transaction {left}: PostgreSQL has its row"
        return f"aborted transaction {left}: PostgreSQL knows nothing of it"

    def take_over(self) -> Epoch | None:
        return self.producer.take_over()

    def note(self) -> Epoch | None:
        """The transaction of Kafka that belongs to the last row."""
        row = self.database.execute(READ_NOTE, (self.transactional_id,)).fetchone()
        self.database.commit()
        return None if row is None else Epoch(*row)

    def settle(self, *, commit: bool) -> None:
        self.producer.end(commit=commit)

    # For each order

    def take(self, item: str) -> int:
        """Take an order; its number."""
        number = self.next_number()
        self.write_record(number, item)
        self.write_row_and_note(number, item)
        self.commit_row()
        self.commit_record()
        return number

    def next_number(self) -> int:
        row = self.database.execute(LAST_ORDER).fetchone()
        assert row is not None
        return row[0] + 1

    def write_record(self, number: int, item: str) -> None:
        self.producer.send(self.topic, json.dumps({"number": number, "item": item}).encode())

    def write_row_and_note(self, number: int, item: str) -> None:
        self.database.execute(INSERT_ORDER, (number, item))
        epoch = self.producer.epoch
        self.database.execute(WRITE_NOTE, (self.transactional_id, epoch.producer_id, epoch.epoch))

    def commit_row(self) -> None:
        """The decision: from here on the order is taken."""
        self.database.commit()

    def commit_record(self) -> None:
        self.producer.end(commit=True)


def main() -> None:
    parser = argparse.ArgumentParser(description="Take orders, each a row in PostgreSQL and a record in a topic.")
    parser.add_argument("count", type=int, help="how many")
    parser.add_argument("--bootstrap", default=os.environ.get("FAIRLOG_BOOTSTRAP", "127.0.0.1:9092"))
    properties = os.environ.get("FAIRLOG_CLIENT_PROPERTIES")
    parser.add_argument("--client-properties", type=Path, default=properties, help="who the client is, as in `fairlog`")
    parser.add_argument("--database", default="postgresql:///shop", help="as libpq wants it")
    parser.add_argument("--topic", default="orders", help="of which partition 0 is written to")
    chosen = parser.parse_args()
    try:
        security = ClientSecurity() if chosen.client_properties is None else read(chosen.client_properties).security
    except ClientError as error:
        sys.exit(str(error))
    with Orders(chosen.bootstrap, chosen.database, chosen.topic, security=security) as orders:
        sys.stdout.write(orders.recover() + "\n")
        for _ in range(chosen.count):
            sys.stdout.write(f"took order {orders.take('tea')}\n")


if __name__ == "__main__":
    main()
