"""A judge in a process of its own, so that compaction does not take the interpreter from the event loop.

    node: JudgeProcess.note(batches) ──▶ socket ──▶ another interpreter: KeyJudge
                          answer     ◀── socket ◀──

A message is its length and a CBOR array: the question's name and its arguments, or `[True, answer]`, or `[False, why]`
after a fault. Both ends are of one installation; `FORMAT`, which the process says first, shows if that was exchanged
while the node ran. The process opens none of the node's files and gets none of its settings. It ends when its socket is
closed, and so with its node, however that ends. If memory is short, the system is to end it before the node.

If it cannot be started, ends, or does not answer, that is JudgeFailed, and `begin` starts another one after `close`.
"""

from __future__ import annotations

import os
import signal
import socket
import struct
import subprocess
import sys
import traceback
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import cbor2

from fairlog.retention.judging import JudgeFailed, KeyJudge, Verdict
from fairlog_types import Offset

FORMAT = 1

ANSWER_S = 60.0
"""A question about a hundred thousand records takes a tenth of a second, and a few seconds if all cores are busy."""

_CODE_S = 1.0
"""How long a process that has closed its socket, or was killed, may take to end."""

_OOM_SCORE_ADJ = "500"
"""Whom the kernel ends first when memory is short: from -1000 (never) to 1000."""

_LENGTH = struct.Struct(">I")


class JudgeProcess:
    """See `judging.Judge`. `begin` starts the process. All but `cut` block, and are called one after the other."""

    def __init__(self, command: Sequence[str] | None = None) -> None:
        self._command = command or [sys.executable, "-c", _program()]
        self._process: subprocess.Popen[bytes] | None = None
        self._socket: socket.socket | None = None
        self._is_cut = False

    @property
    def runs(self) -> bool:
        """Whether there is something to close."""
        return self._socket is not None

    def begin(self, salt: bytes, keys_max: int) -> None:
        if self._socket is None:
            self._start()
        self._ask("begin", salt, keys_max)

    def note(self, batches: Sequence[bytes]) -> list[bool]:
        return self._ask("note", batches)

    def keys(self) -> int:
        return self._ask("keys")

    def judge(self, batches: Sequence[bytes], *, tombstones_before: Offset, counted_before: Offset) -> list[Verdict]:
        return [Verdict(*each) for each in self._ask("judge", batches, tombstones_before, counted_before)]

    def cut(self) -> None:
        """Let whoever waits for an answer, now or later, get JudgeFailed at once. Callable from any thread."""
        self._is_cut = True
        ours = self._socket
        if ours is not None:
            with suppress(OSError):  # it is closed, or the process has ended
                ours.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """End the process, if there is one."""
        if self._socket is not None:
            self._socket.close()
            self._socket = None
        if self._process is not None:
            self._process.kill()
            with suppress(subprocess.TimeoutExpired):  # it waits for a disk
                self._process.wait(_CODE_S)
            self._process = None

    def _start(self) -> None:
        environment = {name: value for name, value in os.environ.items() if not name.startswith("FAIRLOG_")}
        try:
            self._socket, its = socket.socketpair()
            self._socket.settimeout(ANSWER_S)
            with its:
                self._process = subprocess.Popen(
                    self._command,
                    stdin=its.fileno(),
                    stdout=subprocess.DEVNULL,
                    env=environment,
                    process_group=0,  # the terminal's Ctrl-C is for the node
                )
        except OSError as error:
            raise JudgeFailed(f"the process that compacts cannot be started: {error}") from error
        if (said := self._hear()) != FORMAT:
            raise JudgeFailed(f"the process that compacts speaks format {said}, and not {FORMAT}: restart the node")

    def _ask(self, *question: object) -> Any:
        assert self._socket is not None, "it begins with `begin`"
        try:
            _say(self._socket, question)
        except OSError as error:
            raise self._ended(error) from error
        done, answer = self._hear()
        if not done:
            raise JudgeFailed(f"the process that compacts has met a fault: {answer}")
        return answer

    def _hear(self) -> Any:
        assert self._socket is not None
        if self._is_cut:
            raise self._ended(None)
        try:
            message = _hear(self._socket)
        except OSError as error:
            raise self._ended(error) from error
        if message is None:
            raise self._ended(None)
        return message

    def _ended(self, error: OSError | None) -> JudgeFailed:
        if self._is_cut:
            return JudgeFailed("the process that compacts is not waited for any more")
        if isinstance(error, TimeoutError):
            return JudgeFailed(f"the process that compacts has not answered for {ANSWER_S:g} s")
        assert self._process is not None
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(_CODE_S)
        code = self._process.returncode
        return JudgeFailed(f"the process that compacts has ended (code {code}): {error or 'it has closed its socket'}")


def _program() -> str:
    """With this interpreter's path, and without the working directory, which `-m` would put before it."""
    return f"import sys; sys.path[:] = {sys.path!r}; from fairlog.retention import judge_process; judge_process.main()"


def _say(end: socket.socket, message: object) -> None:
    data = cbor2.dumps(message)
    end.sendall(_LENGTH.pack(len(data)))
    end.sendall(data)


def _hear(end: socket.socket) -> Any:
    """The next message; None at the end."""
    head = _receive(end, _LENGTH.size)
    if head is None:
        return None
    (size,) = _LENGTH.unpack(head)
    data = _receive(end, size)
    return None if data is None else cbor2.loads(data)


def _receive(end: socket.socket, size: int) -> bytearray | None:
    """So many bytes; None if the other end closes before."""
    data = bytearray(size)
    left = memoryview(data)
    while left:
        received = end.recv_into(left)
        if not received:
            return None
        left = left[received:]
    return data


def serve(end: socket.socket) -> None:
    """Answer questions until the other end closes."""
    judge = KeyJudge()
    _say(end, FORMAT)
    while (question := _hear(end)) is not None:
        try:
            answer = True, _answer(judge, question)
        except Exception:  # noqa: BLE001 - the node says it, and goes on
            answer = False, traceback.format_exc()
        _say(end, answer)


def _answer(judge: KeyJudge, question: Sequence[Any]) -> object:
    match question:
        case ["begin", salt, keys_max]:
            return judge.begin(salt, keys_max)
        case ["note", batches]:
            return judge.note(batches)
        case ["keys"]:
            return judge.keys()
        case ["judge", batches, tombstones_before, counted_before]:
            return judge.judge(batches, tombstones_before=tombstones_before, counted_before=counted_before)
        case _:
            raise ValueError(f"no such question: {question[0]}")


def main() -> None:
    """The process, whose standard input is the socket."""
    # A service's manager tells all its processes to end; this one ends with the node, which may still ask.
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    with suppress(OSError), open("/proc/self/oom_score_adj", "w", encoding="ascii") as file:
        file.write(_OOM_SCORE_ADJ)
    with socket.socket(fileno=sys.stdin.fileno()) as node, suppress(BrokenPipeError, ConnectionResetError):
        serve(node)  # until the node has ended
