"""The workload: a broker, clients in processes of their own, a proxy between them, and faults by a schedule.

The schedule's time stands still while a broker that was killed starts again: so one that takes long for that meets as
many faults as another, and has as much time to work.

Then no more is planned until enough transactions have been left open, also on a slow machine, for the
checker to say whether others wait for them (tests/history/held.py). With several nodes a long run has enough of them.

At the end the clients come to rest, transactions that are still open are aborted by their next instances, a plain
record is written to each partition (its answer waits until it is visible, and so all before it), and new consumers of
both kinds read everything to the end. Then the parts of all processes are put together into one history.

What is done follows from the seed; what comes of it also depends on how processes are scheduled.
"""

from __future__ import annotations

import itertools
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from confluent_kafka import Producer

from scripts import c_compiler
from scripts.node_process import ROOT, kept_waiting_s
from tests.clients.reading import Reader
from tests.history.brokers import HOST, Broker, Peer, broker
from tests.history.cluster import Cluster, Undo
from tests.history.faults import CUTS, GAP_S, JUMP_MAX_S, Fault, Planned, nothing_but, schedule
from tests.history.history_file import head_line
from tests.history.layout import BESIDE, PARTITIONS, SLOTS, TOPICS, Role, place, transactional_ids
from tests.history.producing import PRODUCER, send_plain
from tests.history.proxy import Meddling, Proxy
from tests.history.recorder import Recorder, joined
from tests.history.resuming import resume_all
from tests.history.wall_clock import WallClock
from tests.simulation import planted_node

TICK_S = 0.02
START_S = 120.0
STOP_S = 15.0
READ_S = 60.0
"""Patience, for what happens when all clients have come to rest."""
LEFT_OPEN_MIN = 4
"""So many transactions are left open until they are committed. Each is in three partitions."""
LEFT_OPEN_S = 120.0
"""Patience, for these; then the verdict says that there were too few."""
STANDING = 3
"""So many times as long as a client a process of the node stands still, or one of several nodes is disturbed: the
others go on meanwhile."""
OF_THE_CLUSTER = (Fault.STOP_NODE, Fault.KILL_ENGINE, Fault.STOP_ENGINE, *CUTS)
"""What `Cluster.disturb` does."""
RESPAWN_S = 0.2
"""A client that ends is followed after this, so that one that cannot live does not eat the machine."""


class WorkloadFailed(AssertionError):
    """The workload itself could not go on: the node ended, or did not start. The message carries its log."""


class NotUnderWay(WorkloadFailed):
    """The clients did not all begin in time: on a machine full of other work that says nothing of the node."""


@dataclass(slots=True)
class _Client:
    """A process, and whether it is stopped just now."""

    child: subprocess.Popen[bytes]
    stopped: bool = False


@dataclass(slots=True)
class Workload:
    """One run, in a directory of its own."""

    directory: Path
    peer: Peer
    seed: int
    slots: Sequence[Role] = SLOTS
    gap_s: float = GAP_S
    """Between two faults."""
    processes: int = 1
    """Of the node."""
    planted: Sequence[str] = ()
    """Bugs in the node (tests/simulation/planted_node.py). Then it is killed, and nothing else is done; several nodes
    are paused, and wake when others own what they owned.
    """
    networked: bool = False
    """Of several nodes: each is on a host of its own, and links between them are cut."""
    counts: Counter[Fault] = field(default_factory=Counter[Fault])
    _proxies: list[Proxy] = field(default_factory=list[Proxy])
    """One for each process of the node."""
    _node: Broker = field(init=False)
    _cluster: Cluster | None = None
    """The same, of several nodes."""
    _recorder: Recorder = field(init=False)
    _clock: WallClock | None = None
    """The node's, if there is a compiler. Kafka's is left alone."""
    _clients: dict[int, _Client] = field(default_factory=dict[int, _Client])
    _zombies: list[_Client] = field(default_factory=list[_Client])
    _lives: dict[int, itertools.count[int]] = field(default_factory=dict[int, "itertools.count[int]"])
    _due: list[tuple[float, _Client]] = field(default_factory=list[tuple[float, _Client]])
    """Clients that go on at a time."""
    _standing: list[tuple[float, int]] = field(default_factory=list[tuple[float, int]])
    """Processes of the node that go on at a time."""
    _undos: list[tuple[float, Undo]] = field(default_factory=list[tuple[float, Undo]])
    """What ends a fault of several nodes at a time."""
    _empty_since: dict[int, float] = field(default_factory=dict[int, float])

    def run(self, seconds: float, out: Path) -> None:
        """Torture for so long, come to rest, read all, and write the history."""
        parts = self.directory / "parts"
        parts.mkdir(parents=True)
        self._notes.mkdir()
        (self.directory / "logs").mkdir()
        for number in range(0 if self._is_cluster else self.processes):
            self._proxies.append(Proxy(self.seed + number))
            self._proxies[-1].start()
        if self.peer is not Peer.KAFKA and c_compiler.find() is not None:
            self._clock = WallClock(self.directory)
        environment = dict(self._clock.environment) if self._clock else dict[str, str]()
        # With a fence the epoch ends what has timed out, without one the id's state does: half of all seeds each.
        environment["FAIRLOG_TRANSACTIONS_FENCE_ON_TIMEOUT"] = "true" if self.seed % 2 else "false"
        program = ("-m", "fairlog.cli")
        if self.planted:
            program = planted_node.PROGRAM
            environment |= planted_node.environment(*self.planted)
        node = self.directory / "node"
        if self._is_cluster:
            self._node = self._cluster = Cluster(node, environment, program, self.seed, networked=self.networked)
        else:
            self._node = broker(self.peer, node, self._proxied, environment, program)
        try:
            with Recorder(parts / "faults", "faults") as self._recorder:
                self._begin()
                self._torture(seconds)
                if Role.HOLDER in self.slots and not self._is_cluster:
                    self._wait_for_the_holder()
                self._rest()
                self._read_all()
                shards = self._node.shards()
            if not self._is_broken_cluster:
                self._node.stop()
            self._look_for_own_ends()
        finally:
            self._end()
        about: dict[str, object] = {"shards": shards} if shards else {}
        if self._cluster is not None:
            changes, handed_over = self._cluster.changes_of_owner()
            about |= {"owners": changes, "handed_over": handed_over}
        about |= {"broker": self._node.description, "seed": self.seed, "seconds": seconds, "faults": self._summary()}
        with out.open("w", encoding="utf-8") as file:
            file.write(head_line(self.peer.mode, **about))
            file.writelines(joined(sorted(parts.iterdir())))

    @property
    def _is_cluster(self) -> bool:
        """Of several nodes: their brokers come and go, so there are no proxies before them."""
        return self.peer is Peer.CLUSTER

    @property
    def _is_broken_cluster(self) -> bool:
        """With a planted bug, of which copies may never recover: then neither sync nor a good end can be asked for."""
        return self._is_cluster and bool(self.planted)

    @property
    def _for_clients(self) -> str:
        """What clients are given."""
        return self._node.address if self._is_cluster else self._proxied

    @property
    def _proxied(self) -> str:
        """The proxies' addresses."""
        return ",".join(f"{HOST}:{proxy.port}" for proxy in self._proxies)

    @property
    def _notes(self) -> Path:
        """What the clients leave to their successors."""
        return self.directory / "notes"

    def _summary(self) -> str:
        done = [(fault.value, count) for fault, count in self.counts.items() if count]
        proxied = sum((proxy.counts for proxy in self._proxies), Counter[Meddling]())
        done += [(f"proxied {meddling.value}", count) for meddling, count in proxied.items()]
        return ", ".join(f"{count} × {what}" for what, count in done)

    # --- beginning ---

    def _begin(self) -> None:
        self._node.start()
        addresses = () if self._is_cluster else self._node.address.split(",")
        for proxy, address in zip(self._proxies, addresses, strict=True):
            proxy.upstream = HOST, int(address.rpartition(":")[2])
        self._node.create_topics()
        for slot in range(len(self.slots)):
            self._lives[slot] = itertools.count()
            self._spawn(slot)
        started = time.monotonic()
        while sum(part.stat().st_size > 0 for part in (self.directory / "parts").iterdir()) < len(self.slots):
            passed_s = time.monotonic() - started
            if passed_s > START_S and passed_s - self._kept_waiting_s() > START_S:
                raise NotUnderWay(f"not all clients do something after {START_S:.0f} s:\n{self._node.log_tail()}")
            time.sleep(TICK_S)

    def _kept_waiting_s(self) -> float:
        """How long the node, and the client that did so longest, waited for a processor that others had."""
        clients = max(kept_waiting_s(client.child.pid) for client in self._clients.values())
        return clients + kept_waiting_s(self._node.pid)

    def _spawn(self, slot: int) -> None:
        role, life = self.slots[slot], next(self._lives[slot])
        name = f"{role.value}{slot}-{life}"
        command = [
            sys.executable, "-m", "tests.history.client", role.value, str(slot), str(life),
            "--address", self._for_clients, "--node-address", self._node.address,
            "--part", str(self.directory / "parts" / name), "--notes", str(self._notes), "--seed", str(self.seed),
        ]  # fmt: skip
        if self._cluster is not None:
            command = [*self._cluster.clients.prefix, *command, "--moving"]
        with (self.directory / "logs" / name).open("ab") as log:
            child = subprocess.Popen(command, cwd=ROOT, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        self._clients[slot] = _Client(child)

    # --- torture ---

    def _torture(self, seconds: float) -> None:
        started = time.monotonic()
        starting_s = 0.0
        if self.planted:
            course = nothing_but(Fault.STOP_NODE if self._is_cluster else Fault.KILL_NODE, self.seed)
        else:
            course = schedule(self.seed, self.gap_s, self.processes, of_cluster=self._is_cluster)
        left_out = ({Fault.JUMP_CLOCK} if self._clock is None else set[Fault]()) | (
            set() if self.networked else {*CUTS}
        )
        faults = (each for each in course if each.fault not in left_out)
        planned = next(faults)
        while (now_s := time.monotonic() - started - starting_s) < seconds:
            if not self._node.running:
                raise WorkloadFailed(f"the node ended by itself:\n{self._node.log_tail()}")
            self._go_on(now_s)
            self._replace_the_dead()
            if planned.at_s <= now_s:
                starting_s += self._do(planned, now_s)
                planned = next(faults)
            time.sleep(TICK_S)
        self._go_on(float("inf"))

    def _do(self, planned: Planned, now_s: float) -> float:
        """Answers how many seconds the node took to start, if it was killed."""
        if self._cluster is not None and planned.fault in OF_THE_CLUSTER:
            self._disturb(self._cluster, planned, now_s)
            return 0.0
        self.counts[planned.fault] += 1
        slot = int(planned.choice * len(self.slots))
        client = self._clients[slot]
        of_client = planned.fault in (Fault.KILL_CLIENT, Fault.STOP_CLIENT, Fault.REPLACE_CLIENT)
        whom = f" ({self.slots[slot].value}{slot})" if of_client else ""
        self._recorder.fault(f"{planned.fault.value}{whom}, {planned.lasting_s:.2f} s")
        match planned.fault:
            case Fault.KILL_NODE | Fault.RESTART_NODE:
                self._processes_go_on(float("inf"))
                ended = time.monotonic()
                if planned.fault is Fault.KILL_NODE:
                    self._node.kill()
                else:
                    self._node.stop()
                self._node.start()
                return time.monotonic() - ended
            case Fault.STOP_NODE:
                pid = self._node.pid
                os.kill(pid, signal.SIGSTOP)
                time.sleep(planned.lasting_s)
                os.kill(pid, signal.SIGCONT)
            case Fault.KILL_PROCESS:
                self._signal_process(planned, signal.SIGKILL)
            case Fault.STOP_PROCESS:
                pid = self._signal_process(planned, signal.SIGSTOP)
                self._standing.append((now_s + planned.lasting_s * STANDING, pid))
            case Fault.KILL_CLIENT:
                client.child.kill()
            case Fault.STOP_CLIENT | Fault.REPLACE_CLIENT:
                client.child.send_signal(signal.SIGSTOP)
                client.stopped = True
                self._due.append((now_s + planned.lasting_s, client))
                if planned.fault is Fault.REPLACE_CLIENT:
                    self._zombies.append(client)
                    self._spawn(slot)
            case Fault.CUT_CONNECTIONS:
                for proxy in self._proxies:
                    proxy.cut_all()
            case Fault.JUMP_CLOCK:
                assert self._clock is not None
                self._clock.jump(JUMP_MAX_S * (2 * planned.choice - 1))
        return 0.0

    def _disturb(self, cluster: Cluster, planned: Planned, now_s: float) -> None:
        """What has an end, which is due later."""
        undo = cluster.disturb(planned)
        if undo is not None:
            lasting_s = planned.lasting_s * STANDING
            self.counts[planned.fault] += 1
            self._recorder.fault(f"{planned.fault.value}, {lasting_s:.2f} s")
            self._undos.append((now_s + lasting_s, undo))

    def _signal_process(self, planned: Planned, number: signal.Signals) -> int:
        """Send one of the node's processes a signal, and answer its id. Now and then none is there: then 0."""
        there = self._node.processes
        if not there:
            self.counts[planned.fault] -= 1
            return 0
        pid = there[int(planned.choice * len(there))]
        os.kill(pid, number)
        return pid

    def _processes_go_on(self, now_s: float) -> None:
        """Processes of the node that have stood still for long enough go on."""
        for due_s, pid in self._standing[:]:
            if due_s <= now_s:
                self._standing.remove((due_s, pid))
                if pid in self._node.processes:
                    os.kill(pid, signal.SIGCONT)

    def _look_for_own_ends(self) -> None:
        """A supervisor starts again what ends by itself, too: that is a fault of the node."""
        ends = self._node.ends()
        if any("SIGKILL" not in end for end in ends) or len(ends) > self.counts[Fault.KILL_PROCESS]:
            told = "\n".join(ends)
            raise WorkloadFailed(f"a process of the node ended by itself:\n{told}\n{self._node.log_tail()}")

    def _wait_for_the_holder(self) -> None:
        """Until enough transactions were left open, and committed."""
        deadline = time.monotonic() + LEFT_OPEN_S
        while self._left_open() < LEFT_OPEN_MIN and time.monotonic() < deadline:
            if not self._node.running:
                raise WorkloadFailed(f"the node ended by itself:\n{self._node.log_tail()}")
            self._replace_the_dead()
            time.sleep(RESPAWN_S)

    def _left_open(self) -> int:
        events = map(json.loads, joined((self.directory / "parts").glob(f"{Role.HOLDER.value}*")))
        return sum(each["type"] == "ok" and not each["process"].endswith(BESIDE) for each in events)

    def _go_on(self, now_s: float) -> None:
        """Clients and processes that have been stopped for long enough go on, and links are joined again."""
        self._processes_go_on(now_s)
        for due_s, undo in self._undos[:]:
            if due_s <= now_s:
                self._undos.remove((due_s, undo))
                undo()
        for due_s, client in self._due[:]:
            if due_s <= now_s:
                self._due.remove((due_s, client))
                client.child.send_signal(signal.SIGCONT)
                client.stopped = False

    def _replace_the_dead(self) -> None:
        now_s = time.monotonic()
        for slot, client in list(self._clients.items()):
            if client.child.poll() is not None and now_s - self._empty_since.setdefault(slot, now_s) >= RESPAWN_S:
                del self._empty_since[slot]
                self._spawn(slot)

    # --- the end ---

    def _rest(self) -> None:
        """All clients have ended, nothing is under way, and no transaction is open."""
        if not self._is_broken_cluster:
            self._node.wait_for_all()
        for proxy in self._proxies:
            proxy.settle()
        self._stop_clients()
        deadline = time.monotonic() + STOP_S
        while not all(proxy.settled for proxy in self._proxies):
            assert time.monotonic() < deadline, "a proxy still holds something back"
            time.sleep(TICK_S)
        for slot, role in enumerate(self.slots):
            if role is Role.RESUMER:
                part = self.directory / "parts" / f"{role.value}{slot}-last"
                resume_all(self._node.address, transactional_ids(role, slot), self._notes, part)
            for transactional_id in transactional_ids(role, slot):
                config = {"bootstrap.servers": self._node.address, "transactional.id": transactional_id}
                Producer(PRODUCER | config).init_transactions(READ_S)

    def _stop_clients(self) -> None:
        clients = [*self._clients.values(), *self._zombies]
        for client in clients:
            client.child.terminate()
        deadline = time.monotonic() + STOP_S
        for client in clients:
            try:
                client.child.wait(max(0.0, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                client.child.kill()
                client.child.wait()

    def _read_all(self) -> None:
        """Records that push what is before them into sight, and all partitions by consumers of both kinds."""
        with Recorder(self.directory / "parts" / "last", "last") as recorder:
            producer = Producer(PRODUCER | {"bootstrap.servers": self._node.address, "enable.idempotence": True})
            if not send_plain(producer, recorder, list(PARTITIONS), READ_S):
                raise WorkloadFailed(f"the node does not answer a plain record:\n{self._node.log_tail()}")
            for isolation, level in (("committed", "read_committed"), ("plain", "read_uncommitted")):
                op = recorder.invoke("final", isolation=isolation)
                micro: list[list[object]] = []
                ends: dict[str, int] = {}
                for topic, count in TOPICS.items():
                    address, changing = self._node.address, self._is_cluster
                    with Reader(address, topic, count, isolation=level, leaders_change=changing) as reader:
                        records = reader.read_to_end(timeout_s=READ_S)
                        for index in range(count):
                            here = [each for each in records if each.partition == index]
                            found = [[each.offset, (each.value or b"").decode()] for each in here]
                            micro.append(["poll", place(topic, index), found])
                            ends[place(topic, index)] = reader.high_watermark(index)
                recorder.end(op, "ok", micro=micro, ends=ends)

    def _end(self) -> None:
        for client in (*self._clients.values(), *self._zombies):
            client.child.kill()
            client.child.wait()
        self._node.close()
        for proxy in self._proxies:
            proxy.stop()


def run(
    peer: Peer,
    seconds: float,
    seed: int,
    out: Path,
    *,
    slots: Sequence[Role] = SLOTS,
    gap_s: float = GAP_S,
    processes: int = 1,
    planted: Sequence[str] = (),
    networked: bool = False,
) -> None:
    """Run a workload and write its history. Raises WorkloadFailed if the node ends, Unavailable without the broker."""
    with tempfile.TemporaryDirectory(prefix="fairlog-history-") as directory:
        Workload(Path(directory), peer, seed, slots, gap_s, processes, planted, networked).run(seconds, out)
