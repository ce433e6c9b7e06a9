"""Clients that hold connections and ask for nothing: idle, begun and not gone on with, gone without a word."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial

from scripts import iproute
from tests import lacking
from tests.limits import wire
from tests.limits.site import Site
from tests.limits.strain import MIB, Ended, Strain, connections
from tests.limits.wire import Wire

CUT_OFF_S = 45
"""The node gives a begun frame 30 s, and looks at each connection for itself."""


def _idle(site: Site, number: int) -> Ended:
    """Half of them have said who they are, as clients do; half never say anything. All are there at the end."""
    with site.strained(), connections(site.address, number) as idle:
        for each in idle[::2]:
            each.call(wire.api_versions())
        files = site.files()
        assert files >= number, f"{files} files for {number} connections"
        site.bystander.wait_for(20)
        for each in idle[::97]:
            each.call(wire.api_versions())
    return "all served to the end"


def _too_many(site: Site, most: int) -> Ended:
    """More than `requests.connections_max`: newcomers are refused, until somebody leaves."""
    with site.strained(), connections(site.address, most - 2) as idle:  # the bystander has two
        for each in idle:
            each.call(wire.api_versions())
        refused = 0
        for _ in range(200):
            with Wire(site.address) as late:
                try:
                    late.call(wire.api_versions())
                except ConnectionError:
                    refused += 1
        assert refused == 200, f"{refused} of 200 were refused"
        site.bystander.wait_for(20)
        idle.pop().close()
        _until(lambda: _is_served(site.address))
    return "200 of 200 refused; served when one had left"


def _no_files(site: Site, room: int) -> Ended:
    """The node may open `room` files more, and twice as many want to connect: they wait in the system's queue."""
    _, hard = resource.prlimit(site.node.pid, resource.RLIMIT_NOFILE)
    with site.strained():
        most = site.files() + room
        resource.prlimit(site.node.pid, resource.RLIMIT_NOFILE, (most, hard))
        cpu_s, began = site.node.cpu_s(), time.monotonic()
        with connections(site.address, 2 * room) as held:
            site.bystander.wait_for(20)
            share = (site.node.cpu_s() - cpu_s) / (time.monotonic() - began)
            assert site.files() >= most - 1, "the limit was not reached"
            for each in held[: room + room // 2]:
                each.close()
            for each in held[room + room // 2 :]:  # they had been waiting
                each.call(wire.api_versions())
        resource.prlimit(site.node.pid, resource.RLIMIT_NOFILE, (hard, hard))
        assert _is_served(site.address)
    return f"waited in the system's queue ({share:.0%} of a core meanwhile), then served"


def _half_frames(site: Site, number: int, frame_bytes: int, *, drips: bool, waits: bool) -> Ended:
    """All but the last byte of the first half of a frame; then nothing, or a byte a second."""
    begun = (frame_bytes).to_bytes(4, "big") + bytes(frame_bytes // 2)
    with site.strained(), connections(site.address, number) as half:
        for each in half:
            each.socket.settimeout(2)
            try:
                each.socket.sendall(begun)
            except (TimeoutError, ConnectionError):
                continue  # it is not read from, or cut off already
        began = time.monotonic()
        site.bystander.wait_for(20)
        if not waits:
            return "held, until they are cut off"
        alive = half
        while alive and time.monotonic() < began + CUT_OFF_S + number * 2:
            alive = [each for each in alive if not each.is_closed_by_node()]
            if drips:
                alive = [each for each in alive if _dripped(each)]
            time.sleep(1)
        assert not alive, f"{len(alive)} are still held"
        took = time.monotonic() - began
    return f"all cut off within {took:.0f} s"


def _dripped(each: Wire) -> bool:
    try:
        each.socket.send(b"\0")
    except BlockingIOError:
        return True
    except OSError:
        return False
    return True


def _vanished(site: Site, number: int, *, waits: bool) -> Ended:
    """Clients in a network of their own, whose line is cut: no FIN, no RST, and nobody answers."""
    with _Network(os.getpid() % 100_000) as network, site.strained():
        before = site.files()
        network.connect(number, int(site.address.rsplit(":", 1)[1]))
        assert site.files() >= before + number
        network.cut()
        cut_at = time.monotonic()
        site.bystander.wait_for(20)
        if not waits:
            return "held, until they are found out"
        _until(lambda: site.files() <= before + 2, timeout_s=400)
        took = time.monotonic() - cut_at
    return f"all found out within {took:.0f} s"


class _Network:
    """A network namespace behind a pair of virtual interfaces, with a process in it that holds connections."""

    def __init__(self, number: int) -> None:
        """Of two with the same `number` only one can be."""
        self._name = f"strain{number}"
        self._outside, self._inside = f"strain{number}a", f"strain{number}b"
        subnet = f"10.213.{number % 250}"
        self.here, self._there = f"{subnet}.1", f"{subnet}.2"
        self._child: subprocess.Popen[str] | None = None

    def __enter__(self) -> _Network:
        inside = ("ip", "netns", "exec", self._name)
        for command in (
            ("ip", "netns", "add", self._name),
            ("ip", "link", "add", self._outside, "type", "veth", "peer", "name", self._inside),
            ("ip", "link", "set", self._inside, "netns", self._name),
            ("ip", "addr", "add", f"{self.here}/30", "dev", self._outside),
            ("ip", "link", "set", self._outside, "up"),
            (*inside, "ip", "addr", "add", f"{self._there}/30", "dev", self._inside),
            (*inside, "ip", "link", "set", self._inside, "up"),
        ):
            try:
                subprocess.run(command, check=True)
            except subprocess.CalledProcessError:
                self.__exit__()
                raise
        return self

    def connect(self, number: int, port: int) -> None:
        """So many connections, each of which has asked something and got its answer."""
        code = (
            "import sys\n"
            "from tests.limits import strain, wire\n"
            f"with strain.connections('{self.here}:{port}', {number}) as held:\n"
            "    for each in held: each.call(wire.api_versions())\n"
            "    print('connected', flush=True)\n"
            "    sys.stdin.read()\n"
        )
        self._child = subprocess.Popen(
            ["ip", "netns", "exec", self._name, sys.executable, "-c", code],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self._child.stdout is not None
        assert self._child.stdout.readline() == "connected\n"

    def cut(self) -> None:
        """From now on nothing comes through, in either direction."""
        subprocess.run(["ip", "netns", "exec", self._name, "ip", "link", "set", self._inside, "down"], check=True)

    def __exit__(self, *_: object) -> None:
        if self._child is not None:
            self._child.kill()
            self._child.communicate()
        subprocess.run(["ip", "netns", "del", self._name], check=False)
        subprocess.run(["ip", "link", "del", self._outside], check=False, stderr=subprocess.DEVNULL)


def _no_networks() -> str | None:
    """Why there are none; asks the system for one."""
    if iproute.find() is None:
        return iproute.MISSING
    done = subprocess.run(["ip", "netns", "add", "strainprobe"], check=False, capture_output=True, text=True)
    if done.returncode:
        return lacking.refused("network namespaces", done.stderr) or f"no network namespaces: {done.stderr.strip()}"
    subprocess.run(["ip", "netns", "del", "strainprobe"], check=True)
    return None


def _is_served(address: str) -> bool:
    try:
        with Wire(address, timeout_s=10) as late:
            late.call(wire.api_versions())
    except OSError:
        return False
    return True


def _until(condition: Callable[[], bool], *, timeout_s: float = 20.0) -> None:
    """Ask again and again until it is true."""
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, f"not within {timeout_s:.0f} s"
        time.sleep(0.1)


_MANY = {"FAIRLOG_REQUESTS_CONNECTIONS_MAX": "6000"}

STRAINS = (
    Strain(
        "idle",
        "5,000 connections, half of which never say a word",
        partial(_idle, number=5000),
        partial(_idle, number=300),
        grows_bytes_max=150 * MIB,
        small_grows_bytes_max=24 * MIB,
        environment=_MANY,
    ),
    Strain(
        "too-many",
        "200 more than `requests.connections_max` (1,000)",
        partial(_too_many, most=1000),
        partial(_too_many, most=60),
        grows_bytes_max=40 * MIB,
        small_grows_bytes_max=16 * MIB,
        small_environment={"FAIRLOG_REQUESTS_CONNECTIONS_MAX": "60"},
    ),
    Strain(
        "no-files",
        "2,000 connections to a node that may open 1,000 files more",
        partial(_no_files, room=1000),
        partial(_no_files, room=60),
        grows_bytes_max=40 * MIB,
        small_grows_bytes_max=16 * MIB,
        environment=_MANY,
    ),
    Strain(
        "half-frames",
        "900 connections with half of a request of 1 MiB, then silence",
        partial(_half_frames, number=900, frame_bytes=MIB, drips=False, waits=True),
        partial(_half_frames, number=40, frame_bytes=MIB, drips=False, waits=False),
        grows_bytes_max=700 * MIB,
        small_grows_bytes_max=48 * MIB,
    ),
    Strain(
        "dripping",
        "900 connections with half of a request of 64 KiB, then a byte a second",
        partial(_half_frames, number=900, frame_bytes=64 << 10, drips=True, waits=True),
        partial(_half_frames, number=40, frame_bytes=64 << 10, drips=True, waits=False),
        grows_bytes_max=150 * MIB,
        small_grows_bytes_max=16 * MIB,
    ),
    Strain(
        "vanished",
        "500 clients whose line is cut",
        partial(_vanished, number=500, waits=True),
        partial(_vanished, number=5, waits=False),
        grows_bytes_max=40 * MIB,
        small_grows_bytes_max=16 * MIB,
        everywhere=True,
        needs=_no_networks,
    ),
)
