"""What `test_network.py` runs in a network of its own: one host answers two others, and is cut off from one of them."""

from __future__ import annotations

import select
import subprocess
import sys

from scripts.peers.network import Host, Network, run_in_own_network

SILENCE_S = 1.0
WAIT_S = 60.0
REFUSED = "refused: "
PROGRAM = [sys.executable, "-m", "tests.scripts.hosts"]
ECHO = """
import socketserver

class Echo(socketserver.StreamRequestHandler):
    def handle(self):
        for line in self.rfile:
            self.wfile.write(line)

server = socketserver.ThreadingTCPServer(("", 9000), Echo)
print("listens", flush=True)
server.serve_forever()
"""
CALL = """
import socket, sys

connection = socket.create_connection((sys.argv[1], 9000)).makefile("rw")
for line in sys.stdin:
    connection.write(line)
    connection.flush()
    print(connection.readline(), end="", flush=True)
"""


class Running:
    """A program on a host, to which lines are said."""

    def __init__(self, host: Host, program: str, *arguments: str) -> None:
        command = [*host.prefix, sys.executable, "-c", program, *arguments]
        self.child = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0)
        RUNNING.append(self)

    def say(self, line: bytes) -> None:
        assert self.child.stdin is not None
        self.child.stdin.write(line)

    def hears(self, *, within_s: float) -> bytes:
        """The next line; empty if none comes."""
        assert self.child.stdout is not None
        there = select.select([self.child.stdout], [], [], within_s)[0]
        return self.child.stdout.readline() if there else b""


RUNNING: list[Running] = []


def main() -> None:
    """Says nothing if all is as it should be."""
    try:
        run_in_own_network(PROGRAM)
    except OSError as refused:
        sys.exit(f"{REFUSED}{refused}")
    network = Network()
    try:
        try_out(network)
    finally:
        for each in RUNNING:
            each.child.kill()
            each.child.wait()
        network.close()


def try_out(network: Network) -> None:
    hosts = {name: network.add(name) for name in ("server", "near", "far")}
    server = Running(hosts["server"], ECHO)
    assert server.hears(within_s=WAIT_S) == b"listens\n"
    near, far = (Running(hosts[name], CALL, hosts["server"].address) for name in ("near", "far"))
    for each in (near, far):
        each.say(b"1\n")
        assert each.hears(within_s=WAIT_S) == b"1\n"
    network.cut("server", "far")
    for each in (near, far):
        each.say(b"2\n")
    assert near.hears(within_s=WAIT_S) == b"2\n"
    assert far.hears(within_s=SILENCE_S) == b""
    network.join_all()
    assert far.hears(within_s=WAIT_S) == b"2\n"


if __name__ == "__main__":
    main()
