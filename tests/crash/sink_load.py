"""A writer of the load that commits batches of a sink: lanes that write under producers of their own, and one commit.

A batch is one transaction of the history; its number is that of the batch and of the try, `batch * TRIES + try`, so a
batch that is written again is another transaction, with other records. At most one of a batch's tries may ever be seen
(`check_batches`). Its lanes share its records: in each partition the first lane has the first of them. Some lanes write
twice, as a task does that is thought too slow: what the loser wrote is a transaction that nobody commits. The number
goes with the batch as an offset of the group that is called like the writer.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import replace

from pyspark_fairlog.native import Native, NativeError, Offsets
from tests.clients.raw_client import NONE, RawClient, batch
from tests.crash.checker import Logs, Violation
from tests.crash.history import Outcome, Transaction, TransactionalTag, parse_value
from tests.crash.load import ANSWER_S, PAUSE_S, Writer

SINK = "sink"
TRIES = 1_000_000
LOSER = TRIES // 2
"""Added to the number of the transaction that a losing lane writes."""


class SinkWriter(Writer):
    """Batch after batch; a new run whenever it does not know how one has ended."""

    batch = 0
    tries = 0
    runs = 0
    dirty = False
    """Lanes may be open that nobody will end."""

    def step(self) -> None:
        self.tries += 1
        assert self.tries < LOSER, "the next number would be that of a loser"
        partitions = self.layout.partitions
        chosen = self.rng.sample(range(partitions), self.rng.randint(1, partitions))
        counts = {partition: self.rng.randint(1, 5) for partition in chosen}
        transaction = Transaction(self.label, self.batch * TRIES + self.tries, counts, Outcome.OPEN)
        self.note(transaction)
        self.dirty = True
        try:
            self.doing = f"writing batch {self.batch}"
            self.load.wait_for_the_node()
            with Native.connect(self.address, timeout_s=ANSWER_S / 4) as native:
                if self.is_written(native, transaction):
                    self.batch, self.tries = self.batch + 1, 0
                    self.dirty = False
        except NativeError as refused:
            if refused.kind != "effect-unknown" and self.outcome(transaction) is Outcome.ASKED:
                self.note(replace(transaction, outcome=Outcome.REFUSED))
            self.runs += 1
        except (OSError, _Refused):
            self.runs += 1
        time.sleep(self.rng.uniform(0, 2 * PAUSE_S))

    def is_written(self, native: Native, transaction: Transaction) -> bool:
        """Write and commit; False if that was interrupted on purpose. Raises NativeError, OSError, _Refused."""
        who = {"sink": SINK, "query": "query", "run": f"run-{self.runs}", "batch": self.batch}
        lanes = self.rng.randint(1, 3)
        winners: list[tuple[int, int, int]] = []
        for lane in range(lanes):
            attempt = 0
            if self.rng.random() < 0.2:
                loser = replace(transaction, number=transaction.number + LOSER)
                self.note(loser)
                transactional_id = native.join(**who, partition=lane, attempt=attempt)
                if transactional_id is not None:
                    self.write(transactional_id, loser, lane, lanes)
                attempt = 1
            transactional_id = native.join(**who, partition=lane, attempt=attempt)
            if transactional_id is None:
                self.note_committed_before()
                return True
            winners.append((lane, attempt, self.write(transactional_id, transaction, lane, lanes)))
        if self.rng.random() < 0.05:
            native.abort(**who)
            return False
        self.note(replace(transaction, outcome=Outcome.ASKED))
        self.doing = f"committing batch {self.batch}"
        topic, partition = self.layout.place(0)
        offsets = Offsets(SINK, ((topic, partition, transaction.number + 1),))
        committed = native.commit(**who, winners=winners, offsets=offsets)
        if committed.already:
            self.note(replace(transaction, outcome=Outcome.REFUSED))
            self.note_committed_before()
        else:
            self.note(replace(transaction, outcome=Outcome.DONE))
        return True

    def write(self, transactional_id: str, transaction: Transaction, lane: int, lanes: int) -> int:
        """The lane's share of the transaction; answers how many records it was. Raises OSError, _Refused."""
        written = 0
        with RawClient(self.address, timeout_s=ANSWER_S / 4) as client:
            granted = client.init_producer_id(transactional_id)
            if granted.error_code != NONE:
                raise _Refused(granted.error_code)
            who = (transactional_id, granted.producer_id, granted.producer_epoch)
            for partition in transaction.counts:
                values = transaction.values(partition)
                share = values[len(values) * lane // lanes : len(values) * (lane + 1) // lanes]
                if not share:
                    continue
                topic, index = self.layout.place(partition)
                added = client.add_partitions(*who, topic, [index])[index]
                data = batch(share, producer_id=who[1], epoch=who[2], sequence=0, transactional=True)
                code = added or client.produce(topic, index, data, transactional_id=transactional_id)[0]
                if code != NONE:
                    raise _Refused(code)
                written += len(share)
        return written

    def note_committed_before(self) -> None:
        """The batch is committed: by the one try of it whose answer did not come, if there is one only."""
        tries = [self.batch * TRIES + number for number in range(1, self.tries + 1)]
        noted = self.load.history.transactions
        asked = [it for number in tries if (it := noted[self.label, number]).outcome is Outcome.ASKED]
        if len(asked) == 1:
            self.note(replace(asked[0], outcome=Outcome.DONE))

    def settle(self) -> None:
        """Where there are markers, readers would wait for lanes that are open: a new run ends them."""
        while self.layout.marked and self.dirty and not self.load.stopped:
            self.doing = "ending lanes"
            self.runs += 1
            who = {"sink": SINK, "query": "query", "run": f"run-{self.runs}", "batch": self.batch}
            try:
                self.load.wait_for_the_node()
                with Native.connect(self.address, timeout_s=ANSWER_S / 4) as native:
                    if native.join(**who, partition=0, attempt=0) is not None:
                        native.abort(**who)
                self.dirty = False
            except (OSError, NativeError):
                time.sleep(PAUSE_S)

    def outcome(self, transaction: Transaction) -> Outcome:
        return self.load.history.transactions[transaction.writer, transaction.number].outcome

    def note(self, transaction: Transaction) -> None:
        self.load.history.transactions[transaction.writer, transaction.number] = transaction


class _Refused(Exception):
    """The node has answered a lane with a code: the batch is written anew, by another run."""


def check_batches(logs: Logs) -> Iterator[Violation]:
    """Invariant 5 for the sink: of each batch one try is there, at most."""
    found: dict[int, set[int]] = defaultdict(set)
    for records in logs.values():
        for record in records:
            tag = parse_value(record.value)
            if isinstance(tag, TransactionalTag) and tag.writer == SINK:
                found[tag.transaction // TRIES].add(tag.transaction)
    for number, tries in sorted(found.items()):
        if len(tries) > 1:
            yield Violation(5, f"batch {number} of the sink is there more than once: tries {sorted(tries)}")
