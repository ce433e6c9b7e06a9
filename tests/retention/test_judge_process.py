"""The judge in its process: it answers as the judge itself, and whatever goes wrong with it is JudgeFailed."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from fairlog.retention import judge_process
from fairlog.retention.judge_process import JudgeProcess
from fairlog.retention.judging import Judge, JudgeFailed, KeyJudge, Verdict
from fairlog_types import Offset
from tests.datalog.batches import keyed_batch

SALT = b"salt of 16 bytes"
PATIENCE_S = 20.0


@pytest.fixture
def process() -> Iterator[JudgeProcess]:
    """Not started."""
    process = JudgeProcess()
    yield process
    process.close()


def _batches(seed: int, count: int) -> list[bytes]:
    """Batches that follow each other, of up to 20 records; some of them cannot be read."""
    chance = random.Random(seed)
    batches: list[bytes] = []
    end = 0
    for _ in range(count):
        pairs = [
            (b"%0*d" % (chance.choice([2, 20]), chance.randrange(30)), chance.choice([None, b"v", b"v" * 200]))
            for _ in range(chance.randrange(1, 20))
        ]
        batches.append(bytes(keyed_batch(end, pairs, attributes=chance.choice([0] * 9 + [4]))))
        end += len(pairs)
    return batches


def _pass(judge: Judge, batches: list[bytes], *, keys_max: int) -> tuple[list[bool], int, list[Verdict]]:
    judge.begin(SALT, keys_max)
    noted = judge.note(batches[:10]) + judge.note(batches[10:])
    return noted, judge.keys(), judge.judge(batches, tombstones_before=Offset(40), counted_before=Offset(60))


@pytest.mark.parametrize("keys_max", [1_000, 12])
def test_process_answers_as_the_judge_itself(process: JudgeProcess, keys_max: int) -> None:
    """Pass after pass, with enough memory and with too little; every kind of verdict is among them."""
    verdicts: list[Verdict] = []
    for seed in range(10):
        batches = _batches(seed, 20)
        noted, keys, judged = told = _pass(process, batches, keys_max=keys_max)
        assert told == _pass(KeyJudge(), batches, keys_max=keys_max)
        assert keys <= keys_max
        assert all(noted) == (keys_max == 1_000)
        verdicts += judged
    kinds = {(bool(it.left), it.changed is not None, bool(it.tombstones), it.unreadable is not None) for it in verdicts}
    whole, some, with_tombstones = (True, False, False, False), (True, True, False, False), (True, True, True, False)
    none, unreadable = (False, False, False, False), (False, False, False, True)
    assert {whole, some, unreadable} <= kinds
    assert ({none, with_tombstones} <= kinds) == (keys_max == 1_000), "with so little memory few go"


def test_large_batches_pass(process: JudgeProcess) -> None:
    """Larger than what a socket holds, in both directions."""
    value = b"v" * 1_000
    batches = [bytes(keyed_batch(at, [(b"same", value), (b"key-%d" % at, value)] * 4_000)) for at in (0, 8_000)]
    process.begin(SALT, 10)
    assert process.note(batches) == [True, True]
    verdicts = process.judge(batches, tombstones_before=Offset(0), counted_before=Offset(0))
    assert [verdict.left for verdict in verdicts] == [1, 2]
    assert all(verdict.changed is not None for verdict in verdicts)


def test_process_that_is_killed_is_told(process: JudgeProcess) -> None:
    """With its code. Closing and beginning again has another one."""
    process.begin(SALT, 10)
    assert process._process is not None
    os.kill(process._process.pid, signal.SIGKILL)
    process._process.wait()
    with pytest.raises(JudgeFailed, match=r"has ended \(code -9\)"):
        process.keys()
    process.close()
    process.begin(SALT, 10)
    assert process.keys() == 0


def test_process_that_does_not_answer_is_told(process: JudgeProcess) -> None:
    """It is not waited for for ever."""
    process.begin(SALT, 10)
    assert process._process is not None
    assert process._socket is not None
    os.kill(process._process.pid, signal.SIGSTOP)
    process._socket.settimeout(0.1)
    with pytest.raises(JudgeFailed, match="has not answered"):
        process.keys()


def test_who_waits_for_an_answer_is_let_go(process: JudgeProcess) -> None:
    """A node that stops does not wait for it, nor for one that has just been started."""
    process.begin(SALT, 10)
    assert process._process is not None
    os.kill(process._process.pid, signal.SIGSTOP)
    timer = threading.Timer(0.1, process.cut)
    timer.start()
    began = time.monotonic()
    with pytest.raises(JudgeFailed, match="not waited for"):
        process.keys()
    process.close()
    with pytest.raises(JudgeFailed, match="not waited for"):
        process.begin(SALT, 10)
    assert time.monotonic() - began < PATIENCE_S
    timer.join()


def test_fault_of_the_judge_is_told_and_it_goes_on(process: JudgeProcess) -> None:
    """With its traceback: a batch that is none was never to be asked about."""
    process.begin(SALT, 10)
    with pytest.raises(JudgeFailed, match=r"(?s)met a fault: Traceback.*BadBatch"):
        process.note([b"no batch"])
    assert process.keys() == 0


def test_process_gets_nothing_of_the_node(
    process: JudgeProcess, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """None of its settings, no module of the directory that it works in, and no file but the socket."""
    monkeypatch.setenv("FAIRLOG_SECRET", "of the node")
    (tmp_path / "cbor2.py").write_text("raise SystemExit('another module was loaded')")
    monkeypatch.chdir(tmp_path)
    with (tmp_path / "file").open("w") as file:
        os.set_inheritable(file.fileno(), False)  # as all that Python opens
        process.begin(SALT, 10)
        assert process._process is not None
        of_process = Path(f"/proc/{process._process.pid}")
        assert b"FAIRLOG_SECRET" not in (of_process / "environ").read_bytes()
        opened = [os.readlink(each) for each in (of_process / "fd").iterdir()]
    assert sum(name.startswith("socket:") for name in opened) == 1
    assert str(tmp_path / "file") not in opened
    assert (of_process / "oom_score_adj").read_text().strip() == "500"


@pytest.mark.parametrize(
    ("program", "said"),
    [
        (
            "import fairlog.retention.judge_process as it, socket; it._say(socket.socket(fileno=0), 99)",
            "format 99.*restart",
        ),
        ("raise SystemExit(3)", r"has ended \(code (3|None)\)"),
    ],
)
def test_process_that_is_another_one_is_told(program: str, said: str) -> None:
    """As of an installation that was exchanged under the node."""
    process = JudgeProcess([sys.executable, "-c", program])
    try:
        with pytest.raises(JudgeFailed, match=said):
            process.begin(SALT, 10)
    finally:
        process.close()


def test_process_that_cannot_be_started_is_told() -> None:
    """As for want of memory."""
    process = JudgeProcess(["/there/is/no/such/program"])
    try:
        with pytest.raises(JudgeFailed, match="no/such/program"):
            process.begin(SALT, 10)
        assert process.runs, "its socket is to be closed"
    finally:
        process.close()
    assert not process.runs


_NODE = """
import signal, sys, time
from fairlog.retention.judge_process import JudgeProcess
signal.signal(signal.SIGINT, signal.SIG_DFL)  # tests that run in the background ignore it, and so do their children
judge = JudgeProcess()
judge.begin(bytes(16), 10)
print(judge._process.pid, flush=True)
time.sleep(1000)
"""


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT])
def test_process_ends_with_its_node(number: signal.Signals) -> None:
    """However that ends. A terminal's interrupt is for the node alone."""
    node: Any = subprocess.Popen(
        [sys.executable, "-c", _NODE], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, process_group=0
    )
    with node:
        pid = int(node.stdout.readline())
        assert os.getpgid(pid) != os.getpgid(node.pid)
        try:
            os.killpg(node.pid, number)
            node.wait(PATIENCE_S)
        finally:
            node.kill()
    deadline = time.monotonic() + PATIENCE_S
    while _runs(pid):
        assert time.monotonic() < deadline, "it goes on without its node"
        time.sleep(0.02)


def test_process_outlives_a_managers_request_to_end(process: JudgeProcess) -> None:
    """Which comes to all processes of a service: the node stops in its own time, and may still ask."""
    process.begin(SALT, 10)
    assert process._process is not None
    os.kill(process._process.pid, signal.SIGTERM)
    assert process.keys() == 0


def _runs(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/stat", encoding="ascii") as file:
            return file.read().rpartition(")")[2].split()[0] not in "ZX"
    except FileNotFoundError:
        return False


def test_format_is_said_first() -> None:
    """A message is its length and CBOR."""
    ours, its = judge_process.socket.socketpair()
    with ours, its:
        judge_process._say(its, judge_process.FORMAT)
        assert ours.recv(100) == b"\0\0\0\x01\x01"
