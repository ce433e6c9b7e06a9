"""A judge in a process of its own, so that compaction does not take the interpreter from the event loop.

    node: JudgeProcess.note(batches) ──▶ socket ──▶ python -m fairlog.retention.judge_process: KeyJudge
                          answer     ◀── socket ◀──

A message is its length and a CBOR array: the question's name and its arguments, or the answer. Both ends are of one
installation; `FORMAT`, which the process says first, shows if it was exchanged while the node ran. The process has
nothing but this socket: it opens no file of the node's, and ends when the node does, or when its socket is closed.

If it cannot be started, ends, or does not answer, that is an OSError: the cleaning ends, and the next one has another
process.
"""

from __future__ import annotations

import signal
import socket
import struct
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import cbor2

from fairlog.retention.judging import KeyJudge, Verdict
from fairlog_types import Offset

FORMAT = 1

ANSWER_S = 60.0
"""A batch of a hundred thousand records takes a fraction of a second, on a busy machine some."""

_CODE_S = 1.0
"""How long a process that has closed its socket may take to end."""

_LENGTH = struct.Struct(">I")


class JudgeProcess:
    """See `judging.Judge`. Its methods block; all are called one after the other. `begin` starts the process."""

    def __init__(self, command: Sequence[str] = (sys.executable, "-m", "fairlog.retention.judge_process")) -> None:
        self._command = command
        self._process: subprocess.Popen[bytes] | None = None
        self._socket: socket.socket | None = None

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

    def close(self) -> None:
        """End the process, if there is one."""
        if self._socket is not None:
            self._socket.close()
            self._socket = None
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def _start(self) -> None:
        ours, its = socket.socketpair()
        self._socket = ours
        ours.settimeout(ANSWER_S)
        with its:
            self._process = subprocess.Popen(self._command, stdin=its.fileno(), stdout=subprocess.DEVNULL)
        if (said := self._hear()) != FORMAT:
            raise OSError(f"the process that compacts speaks format {said}, and not {FORMAT}: restart the node")

    def _ask(self, *question: object) -> Any:
        assert self._socket is not None, "it begins with `begin`"
        try:
            _say(self._socket, question)
        except OSError as error:
            raise self._ended(error) from error
        return self._hear()

    def _hear(self) -> Any:
        assert self._socket is not None
        try:
            answer = _hear(self._socket)
        except OSError as error:
            raise self._ended(error) from error
        if answer is None:
            raise self._ended(None)
        return answer

    def _ended(self, error: OSError | None) -> OSError:
        if isinstance(error, TimeoutError):
            return OSError(f"the process that compacts has not answered for {ANSWER_S:g} s")
        assert self._process is not None
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(_CODE_S)
        code = self._process.returncode
        return OSError(f"the process that compacts has ended (code {code}): {error or 'it has closed its socket'}")


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
        match question:
            case ["begin", salt, keys_max]:
                answer: object = judge.begin(salt, keys_max) or True
            case ["note", batches]:
                answer = judge.note(batches)
            case ["keys"]:
                answer = judge.keys()
            case ["judge", batches, tombstones_before, counted_before]:
                answer = judge.judge(batches, tombstones_before=tombstones_before, counted_before=counted_before)
            case _:
                raise ValueError(f"no such question: {question[0]}")
        _say(end, answer)


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the terminal's goes to the node, too, which ends this process
    with socket.socket(fileno=sys.stdin.fileno()) as node, suppress(BrokenPipeError, ConnectionResetError):
        serve(node)  # until the node has ended
