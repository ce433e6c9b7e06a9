"""`fairlog serve` as a process: the ready line, signals, and one sentence for whatever keeps it from serving."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from fairlog.cli.serve import console_url
from fairlog.config import AdminSettings
from fairlog.config_values import Address
from fairlog.stop_requests import ONE_REQUEST_S

pytestmark = pytest.mark.slow

# A node of a few lines stands in for the real one, which these tests are not about.
PROGRAM = """
import os, sys, types
import trio
from fairlog.config import Ready
from fairlog.config_values import Address, ListenerAddresses
from fairlog_types import CorruptStorage, StorageFailure

async def serve(settings, *, task_status):
    async with trio.open_nursery():
        {start}
    task_status.started(Ready(ListenerAddresses.plain(Address("127.0.0.1", 4711)), settings.admin.listen))
    try:
        await trio.sleep_forever()
    finally:
        with trio.CancelScope(shield=True):
            {stop}

sys.modules["fairlog.node"] = types.SimpleNamespace(serve=serve)
from fairlog.cli import main
main()
"""

Start = Callable[..., "subprocess.Popen[str]"]


def start_node(
    tmp_path: Path, start: str = "pass", stop: str = "pass", *, arguments: tuple[str, ...] = ()
) -> subprocess.Popen[str]:
    """`fairlog serve` on a stand-in node that does `start` before it is ready, and `stop` when it is told to."""
    program = textwrap.dedent(PROGRAM).format(start=start, stop=stop)
    environment = {name: value for name, value in os.environ.items() if not name.startswith("FAIRLOG_")}
    return subprocess.Popen(
        [sys.executable, "-c", program, "serve", "--data-dir", str(tmp_path / "data"), *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment,
    )


def outcome(process: subprocess.Popen[str]) -> tuple[int, str, str]:
    out, err = process.communicate(timeout=120)
    return process.returncode, out, err


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_serve_told_to_stop_lets_the_node_finish_and_exits_with_zero(tmp_path: Path, number: signal.Signals) -> None:
    """Two lines on stdout say where; a signal ends it after the node has finished what was in flight."""
    process = start_node(tmp_path, stop="print('finished', flush=True)")
    assert process.stdout is not None
    assert process.stdout.readline() == "fairlog ready on 127.0.0.1:4711\n"
    assert process.stdout.readline() == "fairlog console on http://127.0.0.1:9644/\n"
    process.send_signal(number)
    assert outcome(process) == (0, "finished\n", "")


@pytest.mark.parametrize(
    ("hosts", "listens", "url"),
    [
        ((), "0.0.0.0", "http://0.0.0.0:9644/"),
        (("broker.example", "other"), "0.0.0.0", "http://broker.example:9644/"),
        (("broker.example",), "10.0.0.1", "http://10.0.0.1:9644/"),
    ],
)
def test_console_on_every_interface_is_shown_by_its_name(hosts: tuple[str, ...], listens: str, url: str) -> None:
    """A browser cannot take 0.0.0.0, and a certificate is not for it."""
    assert console_url(AdminSettings(hosts=hosts), Address(listens, 9644)) == url


def test_serve_told_to_stop_twice_does_not_wait(tmp_path: Path) -> None:
    """A second signal ends a node that takes too long."""
    stop = "print('stopping', flush=True); await trio.sleep_forever()"
    process = start_node(tmp_path, stop=stop, arguments=("--admin", "off"))
    assert process.stdout is not None
    process.stdout.readline()
    process.send_signal(signal.SIGTERM)
    assert process.stdout.readline() == "stopping\n"
    time.sleep(2 * ONE_REQUEST_S)
    process.send_signal(signal.SIGTERM)
    assert outcome(process)[0] == 1


def test_serve_takes_signals_that_come_together_for_one_request(tmp_path: Path) -> None:
    """`timeout` sends two. The node finishes all the same."""
    process = start_node(tmp_path, stop="await trio.sleep(0.1)", arguments=("--admin", "off"))
    assert process.stdout is not None
    process.stdout.readline()
    for _ in range(3):
        process.send_signal(signal.SIGTERM)
        time.sleep(0.02)
    assert outcome(process)[0] == 0


def test_serve_told_to_stop_while_it_recovers_exits_with_zero(tmp_path: Path) -> None:
    """A long recovery can be interrupted; nothing says ready."""
    process = start_node(tmp_path, start="print('recovering', flush=True); await trio.sleep_forever()")
    assert process.stdout is not None
    assert process.stdout.readline() == "recovering\n"
    process.send_signal(signal.SIGTERM)
    assert outcome(process) == (0, "", "")


def test_serve_in_a_directory_in_use_is_one_sentence(tmp_path: Path) -> None:
    """The second node names the first, which goes on."""
    first = start_node(tmp_path)
    assert first.stdout is not None
    first.stdout.readline()
    assert outcome(start_node(tmp_path)) == (
        1,
        "",
        f"fairlog: data directory {tmp_path / 'data'} is in use by process {first.pid}\n",
    )
    first.send_signal(signal.SIGTERM)
    assert outcome(first)[0] == 0


@pytest.mark.parametrize(
    ("start", "sentence"),
    [
        (
            "await trio.open_tcp_listeners(1, host='192.0.2.1')",
            "cannot listen on 127.0.0.1:9092: Cannot assign requested",
        ),
        ("open('/nonexistent/file')", "cannot use /nonexistent/file: No such file or directory"),
        ("raise CorruptStorage('journal x is corrupt at byte 5')", "journal x is corrupt at byte 5"),
        ("raise StorageFailure('no space on x')", "no space on x"),
    ],
)
def test_serve_that_cannot_start_is_one_sentence(tmp_path: Path, start: str, sentence: str) -> None:
    """What keeps a node from starting is said once, without a traceback, and the exit code is not zero."""
    code, out, err = outcome(start_node(tmp_path, start=start))
    assert (code, out) == (1, "")
    assert err.startswith(f"fairlog: {sentence}")
    assert err.count("\n") == 1


def test_serve_with_an_unknown_key_is_one_sentence(tmp_path: Path) -> None:
    """A misspelt key in the config file keeps the node from starting."""
    file = tmp_path / "fairlog.toml"
    file.write_text("[journal]\nfsnyc = 'commit'\n")
    assert outcome(start_node(tmp_path, arguments=("--config", str(file)))) == (
        1,
        "",
        f"fairlog: unknown key journal.fsnyc in the config file {file} (is journal.fsync meant?)\n",
    )
    assert not (tmp_path / "data").exists()


def test_serve_that_stumbles_over_a_mistake_of_ours_shows_the_traceback(tmp_path: Path) -> None:
    """A bug is not dressed up as a user's mistake."""
    code, _, err = outcome(start_node(tmp_path, start="raise ZeroDivisionError"))
    assert code == 1
    assert "Traceback" in err
    assert "ZeroDivisionError" in err
