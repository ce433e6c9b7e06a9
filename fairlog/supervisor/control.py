"""How `fairlog shard` and a running supervisor speak: a line of JSON each way, on a Unix socket in the data directory.

    {"ask": "list"}                              ─▶  {"shards": [{"shard": 0, "process": 0, …}, …]}
    {"ask": "move", "shard": 1, "process": 0}    ─▶  {} when it is done
    {"ask": "add", "process": null}              ─▶  {} when it is done
    what cannot be done, or is not known         ─▶  {"refused": "a sentence"}

Only the user whose node it is can connect: the socket's mode is 0600. It is there as long as the supervisor is. One
that was killed leaves it behind, and nobody listens. Where there can be none, the supervisor does without: some file
systems have no sockets, and a service may be forbidden to make them.

The socket is named through the directory's descriptor: a path longer than 107 bytes would not fit into its address.
"""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Awaitable, Callable, Generator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import structlog
import trio

NAME = "supervisor.sock"
LINE_BYTES_MAX = 1 << 20

log = structlog.get_logger()


class NoSupervisor(Exception):
    """Nobody listens in the data directory."""


class ControlFailed(Exception):
    """There is somebody, who cannot be asked, or has gone before the answer. The message is one sentence."""


def ask(data_dir: Path, question: Mapping[str, object]) -> Mapping[str, Any]:
    """The supervisor's answer, for as long as it takes. Blocks. Raises NoSupervisor, ControlFailed."""
    with _place(data_dir) as place, socket.socket(socket.AF_UNIX) as connection:
        try:
            connection.connect(place)
        except (FileNotFoundError, ConnectionRefusedError) as error:
            raise NoSupervisor from error
        except OSError as error:
            raise ControlFailed(f"cannot connect to {data_dir / NAME}: {error.strerror}") from error
        try:
            connection.sendall(json.dumps(question).encode() + b"\n")
            with connection.makefile("rb") as answers:
                answer = answers.readline(LINE_BYTES_MAX)
        except OSError as error:
            raise ControlFailed(f"the node has not answered: {error.strerror}") from error
    if not answer.endswith(b"\n"):
        raise ControlFailed(
            "the node has ended before it has answered: see its log; a change may be made or not (fairlog shard list)"
        )
    return json.loads(answer)


Handle = Callable[[Mapping[str, Any]], Awaitable[Mapping[str, object]]]
"""What answers a question."""


@contextmanager
def control_socket(data_dir: Path) -> Generator[socket.socket | None]:
    """Listen in a data directory that the caller holds. None, and a warning in the log, if that is not possible."""
    with _place(data_dir) as place:
        try:
            listening = _listening(place)
        except OSError as error:
            log.warning("fairlog shard cannot reach this node", socket=str(data_dir / NAME), reason=error.strerror)
            listening = None
        if listening is None:
            yield None
            return
        with listening:
            try:
                yield listening
            finally:
                Path(place).unlink(missing_ok=True)


def _listening(place: str) -> socket.socket:
    """A socket for this user alone. Raises OSError."""
    listening = socket.socket(socket.AF_UNIX)
    before = os.umask(0o177)
    try:
        Path(place).unlink(missing_ok=True)
        listening.bind(place)
        listening.listen()
    except OSError:
        listening.close()
        raise
    finally:
        os.umask(before)
    return listening


async def serve_control(listening: socket.socket, handle: Handle) -> None:
    """Answer until cancelled. One question on each connection; what is none is not answered."""

    async def serve(stream: trio.SocketStream) -> None:
        async with stream:
            try:
                await stream.send_all(json.dumps(await handle(_read(await _line(stream)))).encode() + b"\n")
            except (ValueError, RecursionError) as error:
                log.warning("a question on the control socket cannot be read", reason=str(error))
            except (trio.BrokenResourceError, trio.ClosedResourceError):
                pass  # who has asked has gone; what it has asked for is done all the same

    listener = trio.SocketListener(trio.socket.from_stdlib_socket(listening))
    await trio.serve_listeners(serve, [listener])


async def _line(stream: trio.SocketStream) -> bytes:
    received = b""
    async for part in stream:
        received += part
        if part.endswith(b"\n") or len(received) > LINE_BYTES_MAX:
            break
    return received


def _read(line: bytes) -> Mapping[str, Any]:
    """Raises ValueError."""
    match json.loads(line):
        case {"ask": _} as question:
            return question
        case _:
            raise ValueError("no question")


@contextmanager
def _place(data_dir: Path) -> Generator[str]:
    descriptor = os.open(data_dir, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield f"/proc/self/fd/{descriptor}/{NAME}"
    finally:
        os.close(descriptor)
