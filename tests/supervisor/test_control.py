"""Questions of operators to a supervisor, over its socket."""

from __future__ import annotations

import errno
import json
import os
import socket
import stat
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import trio
from structlog.testing import capture_logs

from fairlog.supervisor.control import NAME, ControlFailed, NoSupervisor, ask, control_socket, serve_control


async def echo(question: Mapping[str, Any]) -> Mapping[str, object]:
    await trio.lowlevel.checkpoint()
    if question["ask"] == "nonsense":
        raise ValueError("nonsense")
    return {"asked": question}


@pytest.mark.parametrize("depth", [0, 4])
async def test_question_is_answered_also_where_paths_are_long(tmp_path: Path, depth: int) -> None:
    """Each connection has one question. The socket is the user's alone, and goes with the supervisor."""
    data = tmp_path.joinpath(*["long" * 15] * depth)
    data.mkdir(parents=True, exist_ok=True)
    (data / NAME).touch()  # as a supervisor that was killed leaves it
    with control_socket(data) as listening:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(serve_control, listening, echo)
            for number in range(3):
                question = {"ask": "move", "shard": number}
                assert await trio.to_thread.run_sync(ask, data, question) == {"asked": question}
            mode = stat.S_IMODE((data / NAME).stat().st_mode)
            nursery.cancel_scope.cancel()
    assert mode == 0o600
    assert not (data / NAME).exists()


async def test_what_is_no_question_is_not_answered_and_disturbs_nobody(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is logged. Who has gone before the answer disturbs nobody either."""
    monkeypatch.chdir(tmp_path)  # a whole path may be too long for a socket
    with capture_logs() as lines, control_socket(tmp_path) as listening:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(serve_control, listening, echo)
            for sent in (b"x\n", b"[]\n", b"\xff\n", b"", b'{"ask": "nonsense"}\n', b"[" * 5000 + b"\n"):
                assert await trio.to_thread.run_sync(partial(raw, sent)) == b""
            await trio.to_thread.run_sync(partial(raw, b'{"ask": "list"}\n', wait=False))
            with pytest.raises(ControlFailed, match=r"has ended before .* may be made or not"):
                await trio.to_thread.run_sync(ask, tmp_path, {"ask": "nonsense"})
            assert await trio.to_thread.run_sync(ask, tmp_path, {"ask": "list"}) == {"asked": {"ask": "list"}}
            nursery.cancel_scope.cancel()
    assert len([line for line in lines if "cannot be read" in line["event"]]) == 7


def raw(sent: bytes, *, wait: bool = True) -> bytes:
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(NAME)
        connection.sendall(sent)
        connection.shutdown(socket.SHUT_WR)
        return connection.recv(100) if wait else b""


def test_socket_that_cannot_be_made_is_missing_and_logged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """There may be file systems without sockets, and services that may not make them."""
    (tmp_path / NAME).mkdir()
    with capture_logs() as lines, control_socket(tmp_path) as listening:
        assert listening is None
    monkeypatch.setattr(socket, "socket", _forbidden)
    with capture_logs() as more, control_socket(tmp_path) as listening:
        assert listening is None
    assert [line["event"] for line in lines + more] == ["fairlog shard cannot reach this node"] * 2
    assert [line["reason"] for line in lines + more] == ["Is a directory", "Address family not supported by protocol"]


def _forbidden(family: int) -> None:
    raise OSError(errno.EAFNOSUPPORT, os.strerror(errno.EAFNOSUPPORT))


def test_nobody_to_ask_is_told_apart_from_somebody_who_cannot_be_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A supervisor that was killed leaves its socket behind."""
    monkeypatch.chdir(tmp_path)
    with pytest.raises(NoSupervisor):
        ask(tmp_path, {"ask": "list"})
    with socket.socket(socket.AF_UNIX) as gone:
        gone.bind(NAME)
    with pytest.raises(NoSupervisor):
        ask(tmp_path, {"ask": "list"})
    (tmp_path / NAME).unlink()
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as other:
        other.bind(NAME)
        with pytest.raises(ControlFailed, match=f"cannot connect to .*{NAME}: Protocol wrong type"):
            ask(tmp_path, json.loads("{}"))
