"""A supervisor and its processes, as processes. A program of a few lines stands in for the node."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Generator, Sequence
from pathlib import Path
from typing import Any, TypeVar

import pytest

from fairlog.config_values import Address
from fairlog.stop_requests import ONE_REQUEST_S
from fairlog.supervisor.control import NAME, ask
from fairlog.supervisor.reserved_ports import PortTaken, reserved

pytestmark = pytest.mark.slow

DEADLINE_S = 60.0
T = TypeVar("T")

NODE = """
import os, signal, socket, sys, types
from pathlib import Path
import trio
from fairlog.config import Ready
import structlog

async def serve(settings, *, task_status):
    here = settings.data_dir / f"node-{{settings.shard}}"
    lives = len(list(settings.data_dir.glob(here.name + "-*")))
    Path(f"{{here}}-{{lives}}").write_text(str(os.getpid()))
    number = settings.shard
    {start}
    (address,) = settings.listen.one_each().values()
    listeners = await trio.open_tcp_listeners(address.port, host=address.host)
    structlog.get_logger().info("node is ready", port=address.port)
    task_status.started(Ready(settings.listen, settings.admin.listen))
    try:
        await trio.sleep_forever()
    finally:
        with trio.CancelScope(shield=True):
            {stop}
            for listener in listeners:
                await listener.aclose()

import fairlog.supervisor.supervising
fairlog.supervisor.supervising._MARGIN_S = {margin_s}
if {shards}:
    fairlog.supervisor.supervising.shards_of = lambda settings: {shards}
sys.modules["fairlog.node"] = types.SimpleNamespace(serve=serve)
sys.modules["fairlog.preparation"] = types.SimpleNamespace(prepare=lambda settings: None)
from fairlog.cli import main
main()
"""


class Supervisor:
    """`fairlog serve --processes N` on nodes that do `start` before they are ready, and `stop` when they are told."""

    def __init__(
        self,
        directory: Path,
        *arguments: str,
        start: str = "pass",
        stop: str = "pass",
        shards: str = "None",
        margin_s: float = 5.0,
    ) -> None:
        """`shards`: the data directory counts as one that has so many. `margin_s`: the time beyond stop_grace_ms."""
        self.data = directory / "data"
        self.errors = directory / f"stderr-{len(list(directory.iterdir()))}"
        environment = {name: value for name, value in os.environ.items() if not name.startswith("FAIRLOG_")}
        program = NODE.format(start=start, stop=stop, shards=shards, margin_s=margin_s)
        options = ("--listen", "127.0.0.1:0", "--admin", "off", "--processes", "3", *arguments)
        with self.errors.open("wb") as errors:
            self.process = subprocess.Popen(
                [sys.executable, "-c", program, "serve", "--data-dir", self.data, *options],
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                env=environment,
            )

    def lines(self, count: int) -> list[str]:
        assert self.process.stdout is not None
        return [self.process.stdout.readline() for _ in range(count)]

    def pid(self, number: int, life: int = 0) -> int:
        """The process id of a node, in one of its lives, as soon as there is one."""
        return int(until(lambda: read(self.data / f"node-{number}-{life}")))

    def logged(self, event: str, **fields: object) -> list[dict[str, object]]:
        found: list[dict[str, object]] = []
        for line in self.errors.read_text().splitlines():
            with contextlib.suppress(json.JSONDecodeError):
                document = json.loads(line)
                if document["event"] == event and all(document.get(name) == value for name, value in fields.items()):
                    found.append(document)
        return found

    def tell(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    def outcome(self) -> tuple[int, str]:
        out, _ = self.process.communicate(timeout=DEADLINE_S)
        return self.process.returncode, out


def until(look: Callable[[], T]) -> T:
    """What `look` answers as soon as that is true."""
    deadline_s = time.monotonic() + DEADLINE_S
    while not (found := look()):
        assert time.monotonic() < deadline_s, "it did not come to that"
        time.sleep(0.01)
    return found


def read(file: Path) -> str:
    return file.read_text() if file.exists() else ""


def is_alive(pid: int) -> bool:
    """A zombie that nobody has waited for yet is dead."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


@contextlib.contextmanager
def taken_after_a_free_one() -> Generator[int]:
    """A port of loopback that is listened on, where the one before it is free."""
    while True:
        with socket.create_server(("127.0.0.1", 0)) as taken, socket.socket() as before:
            port = taken.getsockname()[1]
            try:
                before.bind(("127.0.0.1", port - 1))
            except OSError:
                continue
            before.close()
            yield port
            return


def can_connect(port: int) -> bool:
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=DEADLINE_S):
        return True
    return False


Make = Callable[..., Supervisor]


@pytest.fixture
def make(tmp_path: Path) -> Generator[Make]:
    """Starts supervisors, all in one data directory; what is left at the end is killed."""
    made: list[Supervisor] = []

    def start(*arguments: str, **actions: Any) -> Supervisor:
        made.append(Supervisor(tmp_path, *arguments, **actions))
        return made[-1]

    yield start
    for each in made:
        each.process.kill()
        each.process.communicate()


def test_supervisor_announces_all_in_order_when_all_are_ready(make: Make) -> None:
    """Whichever of them was ready first; and a connection reaches each of them where its line says."""
    # The first waits until the last one is ready.
    start = """
    while number == 0 and not (settings.data_dir / "node-2-0").exists(): await trio.sleep(0.01)
    """
    supervisor = make("--admin", "127.0.0.1:0", start=start.strip())
    lines = supervisor.lines(6)
    assert [line.rpartition(":")[0] for line in lines] == [
        "fairlog ready on 127.0.0.1",
        "fairlog console on http://127.0.0.1",
    ] * 3
    ports = [int(line.rpartition(":")[2].rstrip("/\n")) for line in lines]
    assert len(set(ports)) == 6
    assert all(map(can_connect, ports[::2]))
    assert [supervisor.logged("node is ready", shard=k)[0]["port"] for k in range(3)] == ports[::2]
    assert (supervisor.data / "admin-token").exists()
    supervisor.tell(signal.SIGTERM)
    assert supervisor.outcome() == (0, "")


def test_what_else_a_process_prints_is_logged_and_disturbs_nobody(make: Make) -> None:
    """It might be a library's; also bytes that are no text."""
    supervisor = make(start="sys.stdout.buffer.write(b'deprecated! \\xff\\n')")
    assert all(line.startswith("fairlog ready on") for line in supervisor.lines(3))
    assert len(supervisor.logged("a process writes to its standard output", line="deprecated! ÿ")) == 3
    supervisor.tell(signal.SIGTERM)
    assert supervisor.outcome() == (0, "")


def test_process_that_is_killed_is_started_again_on_its_port(make: Make) -> None:
    """The others go on, nothing is announced again, and one line tells of it."""
    supervisor = make()
    ports = [int(line.rpartition(":")[2]) for line in supervisor.lines(3)]
    os.kill(supervisor.pid(1), signal.SIGKILL)
    supervisor.pid(1, life=1)
    until(lambda: can_connect(ports[1]))
    (line,) = supervisor.logged("a process ended, and is started again")
    assert (line["process"], line["shards"], line["signal"], line["pause_s"]) == (1, [1], "SIGKILL", 0)
    os.kill(supervisor.pid(1, life=1), signal.SIGKILL)
    supervisor.pid(1, life=2)
    until(lambda: can_connect(ports[1]))
    assert [each["pause_s"] for each in supervisor.logged("a process ended, and is started again")] == [0, 0.5]
    assert [read(supervisor.data / f"node-{k}-1") for k in (0, 2)] == ["", ""]
    supervisor.tell(signal.SIGTERM)
    assert supervisor.outcome() == (0, "")


def test_process_that_cannot_start_stops_the_whole_start(make: Make) -> None:
    """Its sentence and the supervisor's name it; nothing is left."""
    supervisor = make(start="if number == 1: open('/nonexistent/file')")
    assert supervisor.outcome() == (1, "")
    errors = supervisor.errors.read_text()
    assert "fairlog: shard 1: cannot use /nonexistent/file: No such file or directory\n" in errors
    assert "fairlog: process 1 ended with exit code 1 before all shards were ready, and the others were" in errors
    assert "Traceback" not in errors
    for k in range(3):
        assert not is_alive(int(read(supervisor.data / f"node-{k}-0") or 2**22 + 1))


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_supervisor_told_to_stop_lets_all_finish(make: Make, number: signal.Signals) -> None:
    """Each in good order, also if it is told twice, as a service manager tells all that it has started."""
    stop = """
            Path(f"{here}-stopped").touch()
            while not (settings.data_dir / "go").exists(): await trio.sleep(0.01)
    """
    supervisor = make(stop=stop.strip())
    supervisor.lines(3)
    supervisor.tell(number)
    for k in range(3):
        until((supervisor.data / f"node-{k}-stopped").exists)
        os.kill(supervisor.pid(k), signal.SIGTERM)
    (supervisor.data / "go").touch()
    assert supervisor.outcome() == (0, "")


def test_supervisor_told_to_stop_twice_does_not_wait(make: Make) -> None:
    """All are killed at once."""
    supervisor = make(stop='Path(f"{here}-stopped").touch(); await trio.sleep_forever()')
    supervisor.lines(3)
    supervisor.tell(signal.SIGTERM)
    for k in range(3):
        until((supervisor.data / f"node-{k}-stopped").exists)
    time.sleep(2 * ONE_REQUEST_S)
    supervisor.tell(signal.SIGTERM)
    assert supervisor.outcome()[0] == 1
    assert len(supervisor.logged("asked again to stop: nothing more is waited for")) == 1
    assert not any(is_alive(supervisor.pid(k)) for k in range(3))


def test_signals_that_come_together_are_one_request(make: Make) -> None:
    """`timeout` tells the supervisor, and then its whole group: each finishes all the same."""
    stop = """
            await trio.sleep(0.1)
            Path(f"{here}-finished").touch()
    """
    supervisor = make(stop=stop.strip())
    supervisor.lines(3)
    for _ in range(3):
        supervisor.tell(signal.SIGTERM)
        time.sleep(0.02)
    assert supervisor.outcome() == (0, "")
    assert all((supervisor.data / f"node-{k}-finished").exists() for k in range(3))


def test_supervisor_that_is_killed_takes_its_processes_along(make: Make) -> None:
    """It could not tell them. Then the directory is free for the next one."""
    supervisor = make()
    supervisor.lines(3)
    pids = [supervisor.pid(k) for k in range(3)]
    supervisor.tell(signal.SIGKILL)
    until(lambda: not any(map(is_alive, pids)))
    following = make()
    assert all(line.startswith("fairlog ready on") for line in following.lines(3))
    following.tell(signal.SIGTERM)
    assert following.outcome() == (0, "")


def test_supervisor_of_a_directory_in_use_is_refused(make: Make) -> None:
    """As a node of one process is: the sentence names who is there."""
    first = make()
    first.lines(3)
    second = make()
    assert second.outcome() == (1, "")
    sentence = f"fairlog: data directory {first.data} is in use by process {first.process.pid}\n"
    assert second.errors.read_text() == sentence


def test_supervisor_whose_port_is_taken_starts_nothing(make: Make) -> None:
    """One sentence names the address."""
    with socket.create_server(("127.0.0.1", 0)) as taken, socket.create_server(("127.0.0.1", 0)) as free:
        ports = [free.getsockname()[1], taken.getsockname()[1]]
        free.close()
        listen = ",".join(f"127.0.0.1:{port}" for port in ports)
        supervisor = make("--listen", listen, "--processes", "2")
        assert supervisor.outcome() == (1, "")
    sentence = f"fairlog: cannot listen on 127.0.0.1:{ports[1]} for shard 1: Address already in use\n"
    assert supervisor.errors.read_text() == sentence
    assert not list(supervisor.data.glob("node-*"))


# --- shards that move ------------------------------------------------------------------------------


def shards_of(supervisor: Supervisor) -> list[dict[str, object]]:
    return ask(supervisor.data, {"ask": "list"})["shards"]


def test_shards_are_listed_with_who_serves_them_and_where(make: Make) -> None:
    """The ids of the brokers follow from the first one's."""
    supervisor = make()
    ports = [int(line.rpartition(":")[2]) for line in supervisor.lines(3)]
    assert shards_of(supervisor) == [
        {
            "shard": k,
            "broker": 1 + k,
            "listen": f"127.0.0.1:{ports[k]}",
            "process": k,
            "pid": supervisor.pid(k),
            "state": "ready",
        }
        for k in range(3)
    ]


def test_node_without_a_control_socket_serves_and_is_stopped(make: Make) -> None:
    """Only its shards cannot be moved."""
    first = make()
    first.lines(3)
    first.tell(signal.SIGTERM)
    assert first.outcome() == (0, "")
    (first.data / NAME).mkdir()
    supervisor = make()
    assert all(line.startswith("fairlog ready on") for line in supervisor.lines(3))
    assert len(supervisor.logged("fairlog shard cannot reach this node", reason="Is a directory")) == 1
    supervisor.tell(signal.SIGTERM)
    assert supervisor.outcome() == (0, "")


def test_question_that_a_node_does_not_know_is_refused(make: Make) -> None:
    """The command may be of another version than the node."""
    supervisor = make()
    supervisor.lines(3)
    for question in (
        {"ask": "dance"},
        {"ask": "move", "shard": 1, "process": "the first"},
        {"ask": "move", "shard": 1, "process": False},
        {"ask": "add", "process": True},
    ):
        answer = ask(supervisor.data, question)
        assert answer == {"refused": "this node does not know the question: use the command of its version"}
    assert len(shards_of(supervisor)) == 3


def test_shard_that_moves_is_served_under_its_address_by_the_other_process(make: Make) -> None:
    """Nobody else is disturbed. A process without a shard ends; the supervisor's stop does not miss it."""
    supervisor = make()
    ports = [int(line.rpartition(":")[2]) for line in supervisor.lines(3)]
    before = supervisor.pid(1)
    assert ask(supervisor.data, {"ask": "move", "shard": 1, "process": 0}) == {}
    assert can_connect(ports[1])
    assert supervisor.pid(1, life=1) == supervisor.pid(0)
    until(lambda: not is_alive(before))
    assert [read(supervisor.data / f"node-{k}-1") for k in (0, 2)] == ["", ""]
    assert supervisor.logged("node is ready", shard=1)[-1]["port"] == ports[1]
    os.kill(supervisor.pid(0), signal.SIGKILL)
    assert supervisor.pid(1, life=2) == supervisor.pid(0, life=1)
    until(lambda: all(shard["state"] == "ready" for shard in shards_of(supervisor)))
    (line,) = supervisor.logged("a process ended, and is started again")
    assert (line["process"], line["shards"]) == (0, [0, 1])
    supervisor.tell(signal.SIGTERM)
    assert supervisor.outcome() == (0, "")


def test_next_supervisor_gives_each_shard_to_its_process(make: Make) -> None:
    """With fewer processes, or with more: these have no shard yet, and are not started."""
    first = make()
    first.lines(3)
    assert ask(first.data, {"ask": "move", "shard": 2, "process": 0}) == {}
    first.tell(signal.SIGTERM)
    assert first.outcome() == (0, "")
    for processes in ("2", "5"):
        following = make("--processes", processes, shards="3")
        following.lines(3)
        assert [shard["process"] for shard in shards_of(following)] == [0, 1, 0]
        assert len({shard["pid"] for shard in shards_of(following)}) == 2
        following.tell(signal.SIGTERM)
        assert following.outcome() == (0, "")
    refused = make("--processes", "1", shards="3")
    assert refused.outcome() == (1, "")
    assert refused.errors.read_text() == (
        f"fairlog: shard 1 in {refused.data} is served by process 1, but processes is 1: start the node with "
        "--processes 2, or give the shard to another process first (fairlog shard move 1 --to 0)\n"
    )


def test_more_processes_than_shards_are_told_of(make: Make) -> None:
    """A directory that was first started with one process has one shard: more processes are not used by themselves."""
    supervisor = make("--processes", "3", shards="1")
    supervisor.lines(1)
    (line,) = supervisor.logged("processes without a shard are not started")
    assert (line["processes"], line["shards"]) == (2, 1)
    supervisor.tell(signal.SIGTERM)
    assert supervisor.outcome() == (0, "")
    enough = make("--processes", "2", shards="2")
    enough.lines(2)
    assert not enough.logged("processes without a shard are not started")
    enough.tell(signal.SIGTERM)
    assert enough.outcome() == (0, "")


def test_shard_that_cannot_be_served_where_it_moved_is_told_to_who_asked(make: Make) -> None:
    """The process ends, and is started again with it; the shard can be moved away from there."""
    start = "if number == 1 and os.environ['FAIRLOG_PROCESS'] == '0': open('/nonexistent/file')"
    supervisor = make(start=start)
    supervisor.lines(3)
    answer = ask(supervisor.data, {"ask": "move", "shard": 1, "process": 0})
    assert answer == {"refused": "the change is made, but process 0 has ended meanwhile; it is started again"}
    assert ask(supervisor.data, {"ask": "move", "shard": 1, "process": 2}) == {}
    until(lambda: all(shard["state"] == "ready" for shard in shards_of(supervisor)))
    assert "fairlog: shard 1: cannot use /nonexistent/file" in supervisor.errors.read_text()
    supervisor.tell(signal.SIGTERM)
    assert supervisor.outcome() == (0, "")


@pytest.fixture
def hurried(tmp_path: Path) -> Sequence[str]:
    """The options of a node that gives no time for stopping beyond a margin."""
    file = tmp_path / "fairlog.toml"
    file.write_text("stop_grace_ms = 0\n")
    return "--config", str(file)


def test_shard_that_is_not_ready_in_time_is_told_to_who_asked(make: Make, hurried: Sequence[str]) -> None:
    """It stays where it was moved to, and can be moved away from there."""
    start = "if number == 1 and os.environ['FAIRLOG_PROCESS'] == '0': await trio.sleep_forever()"
    supervisor = make(*hurried, start=start, margin_s=0.5)
    supervisor.lines(3)
    answer = ask(supervisor.data, {"ask": "move", "shard": 1, "process": 0})
    assert answer == {"refused": "the change is made; shard 1 is not ready yet: see fairlog shard list and the log"}
    assert [(shard["process"], shard["state"]) for shard in shards_of(supervisor)][1] == (0, "starting")
    while answer != {}:  # a process that must be started may take longer than this test gives it
        answer = ask(supervisor.data, {"ask": "move", "shard": 1, "process": 1})
    until(lambda: all(shard["state"] == "ready" for shard in shards_of(supervisor)))


def test_shard_that_does_not_halt_in_time_is_killed_and_moves(make: Make, hurried: Sequence[str]) -> None:
    """The other shard of its process comes back with it."""
    stop = "if number == 1 and os.environ['FAIRLOG_PROCESS'] == '1': await trio.sleep_forever()"
    supervisor = make(*hurried, stop=stop, margin_s=2.0)
    supervisor.lines(3)
    ask(supervisor.data, {"ask": "move", "shard": 2, "process": 1})
    before = supervisor.pid(1)
    ask(supervisor.data, {"ask": "move", "shard": 1, "process": 0})
    assert not is_alive(before)
    assert len(supervisor.logged("a process has not halted its shards yet, and is killed", process=1)) == 1
    assert len(supervisor.logged("a process ended, and is started again", process=1, signal="SIGKILL")) == 1
    until(lambda: all(shard["state"] == "ready" for shard in shards_of(supervisor)))
    assert [shard["process"] for shard in shards_of(supervisor)] == [0, 0, 1]
    supervisor.tell(signal.SIGTERM)
    assert supervisor.outcome() == (0, "")


def test_shard_whose_port_is_taken_cannot_be_added(make: Make) -> None:
    """Nobody is halted for it."""
    with taken_after_a_free_one() as port:
        supervisor = make("--listen", f"127.0.0.1:{port - 1}", "--processes", "2", shards="1")
        supervisor.lines(1)
        refused = ask(supervisor.data, {"ask": "add", "process": None})["refused"]
    assert refused == f"cannot listen on 127.0.0.1:{port} for shard 1: Address already in use"
    assert read(supervisor.data / "node-0-1") == ""


def test_reserved_port_can_be_listened_on_by_its_process_and_is_nobody_elses() -> None:
    """Twice, one after the other, as when a process is started again; `localhost` may be several addresses."""
    with reserved(Address("localhost", 0), "") as address:
        for _ in range(2):
            with socket.create_server((address.host, address.port)):
                with pytest.raises(PortTaken, match=f"cannot listen on localhost:{address.port} for me: Address alr"):
                    reserved(address, " for me").__enter__()
                assert can_connect(address.port)
        with socket.socket() as other, pytest.raises(OSError, match="Address already in use"):
            other.bind(("127.0.0.1", address.port))


def test_supervisor_is_started_without_the_modules_of_a_node() -> None:
    """Each start of several processes waits for them: the node's take as long again as all others."""
    program = "import fairlog.cli, fairlog.preparation, sys; print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True).stdout.split()
    assert "fairlog.preparation" in loaded
    assert {"fairlog.node", "fairlog.kafka.router", "shard.shard", "copier.copier"}.isdisjoint(loaded)
