"""Hosts with addresses of their own on this machine, and a network between them that loses what it is told to lose.

    host ── 10.77.1.2 ── router ── 10.77.2.2 ── host …          the router is where this program runs

Each host is a network namespace, and so is the router (`run_in_own_network`): nothing of this machine's own network is
changed, and all of it is gone when its processes have ended. Between two hosts that are cut the router drops every
packet, of connections that there are and of new ones. Neither of them is told: their kernels send again, and what was
on its way arrives when they are joined. The router itself reaches all hosts, always.

Linux only. Whoever is not root gets a namespace of users as well, if the system allows that.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

_INSIDE = "OWN_NETWORK"
"""Set in the environment of a program that runs in a network of its own."""
_FORWARD = Path("/proc/sys/net/ipv4/ip_forward")
_PREFERENCE = "10"
"""Of the router's rules: before those that know the way."""


@dataclass(frozen=True, slots=True)
class Host:
    """Where programs run."""

    address: str
    prefix: Sequence[str] = ()
    """Before a program's command: so it runs on this host. Its process id is the one that was started."""


HERE = Host("127.0.0.1")
"""This machine itself."""


def run_in_own_network(command: Sequence[str]) -> None:
    """Become `command`, in a network of its own; return if this program is in one. Raises OSError with what the system
    says if it does not allow that, or if a program is missing that it takes.
    """
    if _INSIDE in os.environ:
        return
    said = ""
    for options in (["--net"], ["--net", "--map-root-user"]):
        own = ["unshare", *options]
        tried = subprocess.run([*own, "ip", "link", "set", "lo", "up"], capture_output=True, text=True, check=False)
        if tried.returncode == 0:
            os.execvpe(own[0], [*own, *command], os.environ | {_INSIDE: "1"})
        said = tried.stderr.strip()
    raise OSError(said)


class Network:
    """The hosts. Only in a network of one's own; `close` it when what ran on the hosts has ended."""

    def __init__(self) -> None:
        assert _INSIDE in os.environ, "this would change the machine's own network"
        _ip("link", "set", "lo", "up")
        _FORWARD.write_text("1")
        self._holders: list[subprocess.Popen[bytes]] = []
        self._hosts: dict[str, Host] = {}
        self._cut: set[tuple[str, str]] = set()

    def add(self, name: str) -> Host:
        """A new host, joined to all others."""
        number = len(self._hosts) + 1
        # It keeps the namespace as long as this program lives, and says when it is there.
        holder = subprocess.Popen(
            ["unshare", "--net", "sh", "-c", "echo; read end"], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        self._holders.append(holder)
        assert holder.stdout is not None
        holder.stdout.readline()
        host = Host(f"10.77.{number}.2", ("nsenter", f"--net=/proc/{holder.pid}/ns/net", "--"))
        port, router = f"host{number}", f"10.77.{number}.1"
        _ip("link", "add", port, "type", "veth", "peer", "name", "eth0", "netns", str(holder.pid))
        _ip("address", "add", f"{router}/24", "dev", port)
        _ip("link", "set", port, "up")
        for there in (
            ("link", "set", "lo", "up"),
            ("address", "add", f"{host.address}/24", "dev", "eth0"),
            ("link", "set", "eth0", "up"),
            ("route", "add", "default", "via", router),
        ):
            _ip(*there, on=host)
        self._hosts[name] = host
        return host

    def cut(self, one: str, other: str) -> None:
        """Lose all packets between these hosts, in both directions."""
        for ends in {(one, other), (other, one)} - self._cut:
            self._rule("add", *ends)
            self._cut.add(ends)

    def join(self, one: str, other: str) -> None:
        """Lose no more."""
        for ends in {(one, other), (other, one)} & self._cut:
            self._rule("del", *ends)
            self._cut.remove(ends)

    def join_all(self) -> None:
        """Lose nothing any more."""
        for one, other in list(self._cut):
            self.join(one, other)

    def close(self) -> None:
        """No host is there any more, once nothing runs on it."""
        for holder in self._holders:
            with suppress(OSError):
                holder.communicate()

    def _rule(self, verb: str, source: str, to: str) -> None:
        addresses = self._hosts[source].address, self._hosts[to].address
        _ip("rule", verb, "pref", _PREFERENCE, "from", addresses[0], "to", addresses[1], "blackhole")


def _ip(*arguments: str, on: Host = HERE) -> None:
    subprocess.run([*on.prefix, "ip", *arguments], check=True)
