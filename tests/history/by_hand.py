"""Two known weaknesses of transactions, request by request: what does a broker make of them, and what says the checker?

    python -m tests.history.by_hand renumbered --peer journal|markers|kafka --out history.jsonl
    python -m tests.history.by_hand late-end --peer journal|markers|kafka --out history.jsonl

renumbered   At an abort librdkafka drops the records that it was about to repeat, and gives their numbers to the next
             ones, though the dropped ones may have arrived: produce "dropped" as number 0, EndTxn(abort); produce "new"
             as number 0, EndTxn(commit) if that was answered well. A broker that takes "new" for a repetition of
             "dropped" answers both requests, and the record is nowhere.
late-end     KAFKA-17754: EndTxn(commit) is repeated on the connection on which it was sent, late, when the client has
             gone on to its next transaction on another one: produce "first", EndTxn(commit); on a new connection
             produce "second"; on the old one EndTxn(commit) once more; on the new one EndTxn(abort). A broker that
             takes the repetition for the second transaction's end commits what its client aborts.

All on one producer epoch, as by a client that does not know transaction version 2. What was answered, and what a
consumer of committed records then reads, becomes a history.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from tests.clients.raw_client import NONE, RawClient, batch
from tests.clients.reading import Reader
from tests.history.brokers import HOST, Peer, broker
from tests.history.checker import check
from tests.history.history_file import head_line, read_history
from tests.history.layout import OUT, TOPICS, place
from tests.history.proxy import Proxy
from tests.history.recorder import Recorder, joined
from tests.history.report import as_text

ID = "by-hand"
CONCURRENT_TRANSACTIONS = 51
WAIT_S = 30.0


class _Producer:
    """One producer epoch: each request on the connection that is given."""

    def __init__(self, client: RawClient) -> None:
        granted = client.init_producer_id(ID)
        assert granted.error_code == NONE, granted
        self._who = (ID, granted.producer_id, granted.producer_epoch)

    def produce(self, client: RawClient, value: str, number: int) -> int:
        """Begin a transaction with one record; the error code."""
        deadline = time.monotonic() + WAIT_S
        while (code := client.add_partitions(*self._who, OUT, [0])[0]) == CONCURRENT_TRANSACTIONS:
            assert time.monotonic() < deadline, "the transaction before does not end"
            time.sleep(0.02)
        assert code == NONE, code
        _, producer_id, epoch = self._who
        data = batch([value.encode()], producer_id=producer_id, epoch=epoch, sequence=number, transactional=True)
        code, offset = client.produce(OUT, 0, bytes(data), transactional_id=ID)
        _say(f"produce {value!r} as number {number}: error code {code}, offset {offset}")
        return code

    def end(self, client: RawClient, *, commit: bool, how: str = "") -> int:
        code = client.end(*self._who, commit=commit)
        _say(f"EndTxn({'commit' if commit else 'abort'}){how}: error code {code}")
        return code


def _begin(recorder: Recorder, value: str) -> int:
    return recorder.invoke("txn", group=ID, micro=[["send", place(OUT, 0), value]])


def renumbered(address: str, recorder: Recorder) -> None:
    with RawClient(address) as client:
        producer = _Producer(client)
        op = _begin(recorder, "dropped")
        assert producer.produce(client, "dropped", 0) == NONE
        assert producer.end(client, commit=False) == NONE
        recorder.end(op, "fail")
        op = _begin(recorder, "new")
        taken = producer.produce(client, "new", 0) == NONE
        if taken:
            recorder.commit(op)
        assert producer.end(client, commit=taken) == NONE
        recorder.end(op, "ok" if taken else "fail")


def late_end(address: str, recorder: Recorder) -> None:
    with RawClient(address) as old, RawClient(address) as new:
        producer = _Producer(old)
        op = _begin(recorder, "first")
        assert producer.produce(old, "first", 0) == NONE
        recorder.commit(op)
        assert producer.end(old, commit=True) == NONE
        recorder.end(op, "ok")
        op = _begin(recorder, "second")
        assert producer.produce(new, "second", 1) == NONE
        producer.end(old, commit=True, how=" once more, on the old connection")
        aborted = producer.end(new, commit=False) == NONE
        recorder.end(op, "fail" if aborted else "info")


SCENARIOS: Mapping[str, Callable[[str, Recorder], None]] = {"renumbered": renumbered, "late-end": late_end}


def _read(address: str, recorder: Recorder) -> None:
    with Reader(address, OUT, TOPICS[OUT], isolation="read_committed") as reader:
        op = recorder.invoke("final")
        found = [[each.offset, (each.value or b"").decode()] for each in reader.read_to_end(timeout_s=WAIT_S)]
        _say(f"a consumer of committed records reads {found}")
        ends = {place(OUT, 0): reader.high_watermark(0)}
        recorder.end(op, "ok", micro=[["poll", place(OUT, 0), found]], ends=ends)


def main(arguments: list[str]) -> int:
    """Exit status: 0 if the checker finds no violation, else 1."""
    parser = argparse.ArgumentParser(prog="python -m tests.history.by_hand")
    parser.add_argument("what", choices=list(SCENARIOS))
    parser.add_argument("--peer", type=Peer, required=True, metavar="journal|markers|kafka")
    parser.add_argument("--out", type=Path, required=True, help="where the history goes")
    options = parser.parse_args(arguments)
    proxy = Proxy(0, share=0.0)
    proxy.start()
    with tempfile.TemporaryDirectory(prefix="fairlog-by-hand-") as directory:
        part = Path(directory) / "part"
        node = broker(options.peer, Path(directory) / "node", f"{HOST}:{proxy.port}", {})
        try:
            node.start()
            proxy.upstream = HOST, int(node.address.rpartition(":")[2])
            node.create_topics()
            with Recorder(part, "by-hand") as recorder:
                SCENARIOS[options.what](node.address, recorder)
                _read(node.address, recorder)
            node.stop()
        finally:
            node.kill()
            proxy.stop()
        with options.out.open("w", encoding="utf-8") as file:
            file.write(head_line(options.peer.mode, broker=node.description, what=options.what))
            file.writelines(joined([part]))
    with options.out.open(encoding="utf-8") as lines:
        verdict = check(read_history(lines))
    _say(as_text(verdict))
    return 0 if verdict.valid else 1


def _say(text: str) -> None:
    sys.stdout.write(text + "\n")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
